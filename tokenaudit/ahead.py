"""Work done ahead of its reader: iterators that run in threads of their own, bounded by what they hold."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Runs an iterable in a thread; its items wait here, in order, for whoever iterates.

    The thread waits while the items that wait weigh `limit` or more, so that one item may exceed it; one item
    always has room. An exception is raised at the place in the order where it happened. Leaving the `with` block
    ends the thread.

    Args:
        items: what to run; only the thread touches it.
        weigh: the weight of an item, such as its bytes.
        limit: the weight that may wait.
    """

    def __init__(self, items: Iterable[T], weigh: Callable[[T], int], limit: int) -> None:
        self._items = items
        self._weigh = weigh
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[tuple[T, int]] = deque()
        self._weight = 0
        self._error: BaseException | None = None
        self._is_done = False
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Ahead[T]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()
        self._thread.join()

    def __iter__(self) -> Iterator[T]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_done)
                if not self._waiting:
                    break
                item, weight = self._waiting.popleft()
                self._weight -= weight
                self._changed.notify_all()
            yield item
        if self._error is not None:
            raise self._error

    def _has_room(self) -> bool:
        return self._weight < self._limit or not self._waiting or self._is_abandoned

    def _run(self) -> None:
        try:
            for item in self._items:
                weight = self._weigh(item)
                with self._changed:
                    self._changed.wait_for(self._has_room)
                    if self._is_abandoned:
                        return
                    self._waiting.append((item, weight))
                    self._weight += weight
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the items are read
            self._error = error
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()


def in_order(parts: Sequence[Iterable[T]], workers: int, weigh: Callable[[T], int], limit: int) -> Iterator[T]:
    """The items of all parts, one part after the other, while up to `workers` parts run at the same time.

    Args:
        parts: independent iterables.
        workers: threads.
        weigh: the weight of an item.
        limit: the weight that may wait to be read, all parts together; one item a part may exceed it.
    """
    waiting = deque(parts)
    running: deque[tuple[Ahead[T], ExitStack]] = deque()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                stack = ExitStack()
                running.append((stack.enter_context(Ahead(waiting.popleft(), weigh, limit // workers)), stack))
            first, stack = running[0]
            yield from first
            running.popleft()
            stack.close()
    finally:
        for _, stack in running:
            stack.close()
