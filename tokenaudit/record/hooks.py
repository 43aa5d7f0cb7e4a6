"""Wrap the public methods of a trainer's objects, so that its run is recorded: what every hook shares.

Nothing of a trainer is imported. Whatever a hook does wrong stays here: the trainer's call goes through, with the
result or the exception that it has without a recorder. A hook looks at a call twice: its handler gets the arguments
before the call, and returns what gets the result behind it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from tokenaudit.contracts.errors import RecordError
from tokenaudit.record.call_arguments import named_arguments, signatures_of
from tokenaudit.record.recorder import Recorder
from tokenaudit.record.told_once import ToldOnce, said

Record = Callable[[Any], None]
"""Gets the result of a call."""
Handler = Callable[[Mapping[str, Any]], Record | None]
"""Gets the arguments of a call by their names, defaults too, those without a name under their places.

Returns what records the result, or None for nothing.
"""
Detach = Callable[[], None]
"""Takes the wrappers of an object off again; a second call does nothing."""

_attaching = threading.Lock()
_wrappers: WeakSet[FunctionType] = WeakSet()
"""The wrappers there are."""
_running: ContextVar[tuple[_Running, ...]] = ContextVar("tokenaudit_running", default=())
"""The wrapped methods that are running: the methods that such a one calls itself are part of it."""


class Hook(NamedTuple):
    """How a method is recorded.

    Attributes:
        handler: looks at the arguments, and returns what looks at the result.
        is_alone: calls of such methods wait for each other, so that they are recorded in the order in which they take
            effect. Not for a method that may wait for another one, such as a `get` for a `put`: it runs at any time,
            and what returns while an alone call runs is recorded behind that.
        is_own: recorded also where another wrapped method calls it.
    """

    handler: Handler
    is_alone: bool = False
    is_own: bool = False


class _Running:
    """A wrapped method that runs, and then is over; what it started in the background may go on behind it."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks: Hooks | None = hooks


class Hooks:
    """The hooks of one trainer, which record into one recorder.

    Args:
        recorder: where events go; it stays open. Or what makes it when the first thing is recorded.
    """

    def __init__(self, recorder: Recorder | Callable[[], Recorder]) -> None:
        self._made = recorder
        self._process = os.getpid()
        self._tell = ToldOnce()
        self._alone = threading.RLock()
        """Held by the thread whose alone call runs."""
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        """The same for coroutines of an event loop: a lock belongs to one."""
        self._state = threading.RLock()
        """Held while anything is recorded, and for what follows."""
        self._alone_calls = 0
        self._late: list[tuple[Record, Any]] = []
        """What returned while an alone call was running."""
        self._is_over = False
        """Whether everything was detached: what returns later is no part of the recording."""

    @property
    def recorder(self) -> Recorder:
        """The recorder, for one thread at a time. Raises whatever keeps it from being made."""
        if not isinstance(self._made, Recorder):
            self._made = self._made()
        return self._made

    def attach(self, target: Any, hooks: Mapping[str, Hook], noun: str = "buffer") -> Detach:
        """Wrap methods of one object, by name; other objects of its class stay as they are.

        Args:
            target: the object.
            hooks: how its methods are recorded.
            noun: what messages call the object.

        Returns:
            A function that takes the wrappers off again.

        Raises:
            TypeError: the object lacks one of the methods or can't be changed, or a recorder is attached to it already.
        """
        missing = [name for name in hooks if not callable(getattr(target, name, None))]
        if missing:
            raise TypeError(f"{type(target).__name__} has no method {', '.join(missing)}")
        with _attaching:
            if any(_is_wrapper(getattr(target, name)) for name in hooks):
                raise TypeError(f"a recorder is attached to this {noun} already: detach it first")
            wrappers: dict[str, Callable[..., Any]] = {}
            own: dict[str, Any] = {}

            def take_off() -> None:
                for name, wrapper in wrappers.items():
                    if vars(target).get(name) is wrapper:
                        delattr(target, name)
                        if own[name] is not None:
                            setattr(target, name, own[name])

            try:
                own |= {name: vars(target).get(name) for name in hooks}
                for name, hook in hooks.items():
                    wrappers[name] = self.wrapped(getattr(target, name), hook)
                    setattr(target, name, wrappers[name])
            except (AttributeError, TypeError, ValueError) as error:
                with suppress(AttributeError, TypeError):
                    take_off()
                what = f"{type(target).__name__} can't be recorded: its methods can't be replaced ({error})"
                raise TypeError(what) from error

        def detach() -> None:
            with _attaching:
                take_off()

        return detach

    def attach_all(
        self, parts: Sequence[tuple[Any, Mapping[str, Hook]]], noun: str, end: Callable[[], None] = lambda: None
    ) -> Detach:
        """Wrap methods of several objects of a trainer, or of none of them.

        Args:
            parts: objects, and how their methods are recorded.
            noun: what messages call the trainer.
            end: called once when the wrappers are off; calls that end later aren't recorded.

        Returns:
            A function that takes all wrappers off again.

        Raises:
            TypeError: as for `attach`.
        """
        with ExitStack() as attached:
            for target, hooks in parts:
                attached.callback(self.attach(target, hooks, noun))
            take_off = attached.pop_all().close

        def finish() -> None:
            was_over, self._is_over = self._is_over, True
            if not was_over:
                end()

        def detach() -> None:
            take_off()
            self.guarded(finish)

        return detach

    def wrapped(self, method: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
        """A function that does what `method` does, and is recorded; a coroutine function stays one.

        Raises:
            ValueError: nothing says what arguments the method has.
        """
        signatures = signatures_of(method)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_part(hook) or self._is_foreign():
                return method(*args, **kwargs)
            with self._thread_alone(hook):
                record = self._looked_at(hook, signatures, args, kwargs)
                with self._inside():
                    result = method(*args, **kwargs)
                if not inspect.isawaitable(result) and not isinstance(result, concurrent.futures.Future):
                    self._record(record, result, hook)
                    return result
            if isinstance(result, Coroutine):
                return self._awaited(result, record, hook)
            self.guarded(self._watch, result, record, hook)
            return result

        @functools.wraps(method)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            if self._is_part(hook) or self._is_foreign():
                return await method(*args, **kwargs)
            async with self._coroutine_alone(hook):
                record = self._looked_at(hook, signatures, args, kwargs)
                with self._inside():
                    result = await method(*args, **kwargs)
                self._record(record, result, hook)
                return result

        wrapper = call_async if inspect.iscoroutinefunction(method) else call
        assert isinstance(wrapper, FunctionType)
        _wrappers.add(wrapper)
        return wrapper

    def guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What a call returns; None where it fails, which is counted in the log, and told the first time.

        Calls of several threads wait for each other. In a process that was forked from the recorder's nothing is
        called: it needs a recorder and hooks of its own.
        """
        if self._is_foreign():
            return None
        try:
            with self._state:
                return call(*arguments)
        except Exception as error:  # noqa: BLE001 - objects of a trainer may be anything
            if isinstance(error, RecordError):
                # a recorder counts those itself
                self._tell(said(error))
            else:
                self.lose(said(error))
            return None

    def lose(self, what: str) -> None:
        """Count something that can't be recorded, and tell why the first time."""
        if isinstance(self._made, Recorder):
            self._made.count_rejected()
        self._tell(what)

    def _is_part(self, hook: Hook) -> bool:
        """Whether a call is part of another one that runs."""
        return not hook.is_own and any(running.hooks is self for running in _running.get())

    def _looked_at(
        self,
        hook: Hook,
        signatures: Sequence[inspect.Signature],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Record | None:
        for signature in signatures:
            with suppress(TypeError):
                return self.guarded(hook.handler, named_arguments(signature.bind(*args, **kwargs)))
        # the method itself will say so
        return None

    def _watch(self, result: Any, record: Record | None, hook: Hook) -> None:
        """Record what a future of the trainer holds when it is done."""
        if record is None:
            return
        if not isinstance(result, asyncio.Future | concurrent.futures.Future):
            raise TypeError(f"a method returned a {type(result).__name__}, whose result only the trainer can see")

        def done(future: Any) -> None:
            # exception() would mark it as one that somebody has seen
            if not future.cancelled() and future._exception is None:
                self._record(record, future.result(), hook)

        result.add_done_callback(done)

    def _record(self, record: Record | None, result: Any, hook: Hook) -> None:
        if record is None or self._is_over:
            return
        with self._state:
            if self._alone_calls and not hook.is_alone:
                self._late.append((record, result))
            else:
                self.guarded(record, result)

    async def _awaited(self, result: Coroutine[Any, Any, Any], record: Record | None, hook: Hook) -> Any:
        with self._inside():
            value = await result
        self._record(record, value, hook)
        return value

    @contextmanager
    def _thread_alone(self, hook: Hook) -> Iterator[None]:
        if hook.is_alone:
            with self._alone, self._counted():
                yield
        else:
            yield

    @asynccontextmanager
    async def _coroutine_alone(self, hook: Hook) -> AsyncIterator[None]:
        if hook.is_alone:
            with self._state:
                turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
            async with turn:
                with self._counted():
                    yield
        else:
            yield

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """An alone call runs; what returned meanwhile is recorded behind it."""
        with self._state:
            self._alone_calls += 1
        try:
            yield
        finally:
            with self._state:
                self._alone_calls -= 1
                if not self._alone_calls:
                    late, self._late = self._late, []
                    for record, result in late:
                        self.guarded(record, result)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        running = _Running(self)
        token = _running.set((*_running.get(), running))
        try:
            yield
        finally:
            running.hooks = None
            # a coroutine that is given up may be closed in another context
            with suppress(ValueError):
                _running.reset(token)

    def _is_foreign(self) -> bool:
        """Whether this process was forked from that of the hooks, which is told; locks may then be held forever."""
        if os.getpid() == self._process:
            return False
        self._tell("the recorder belongs to another process, which this one was forked from")
        return True


def _is_wrapper(method: object) -> bool:
    return isinstance(method, FunctionType) and method in _wrappers
