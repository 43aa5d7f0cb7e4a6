"""An interpreter for pickles that builds plain data and nothing else.

It differs from `pickle` in what matters: no name is ever imported, no method of an object is ever called, unknown
names become opaque objects, and every table is bounded. What is large stays in the file: long runs of numbers, which
are most of a rollout dump, long texts and bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tokenaudit.importers.pickles.calls import Rebuild, build, built, call
from tokenaudit.importers.pickles.source import CHARACTERS, LAZY_BYTES, LazyBytes, LazyText, Source
from tokenaudit.importers.pickles.stream import PickleStream
from tokenaudit.importers.pickles.values import GlobalName, LazyList, Limits, OpaqueObject, PickleFault

_STOP = ord(".")
_MAX_KEY = 16
"""Parts of a dictionary key."""
_MAX_TUPLE = 100
"""Items of a tuple; a longer one is kept as a list, whose every reading is counted."""
_MAX_OUT_OF_ORDER = 1_000
"""Objects under other numbers than 0, 1, 2 and so on, which no writer has: a table of them could be made to collide."""
_BYTE, _SHORT, _INT, _LONG = (struct.Struct(layout) for layout in ("<B", "<H", "<I", "<Q"))
_SIGNED, _REAL = struct.Struct("<i"), struct.Struct(">d")


class _Memo:
    """Objects that a pickle recalls by number; as every writer numbers them in order, a list keeps them."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._others: dict[int, Any] = {}

    def put(self, index: int, value: Any) -> None:
        """Keep an object under a number."""
        if index == len(self._values):
            self._values.append(value)
        elif index < len(self._values):
            self._values[index] = value
        elif len(self._others) < _MAX_OUT_OF_ORDER:
            self._others[index] = value
        else:
            raise PickleFault("the pickle numbers what it remembers in no order")

    def put_next(self, value: Any) -> None:
        """Keep an object under the next number."""
        self.put(len(self._values) + len(self._others), value)

    def get(self, index: int) -> Any:
        """The object of a number."""
        if index < len(self._values):
            return self._values[index]
        if index in self._others:
            return self._others[index]
        raise PickleFault("the pickle recalls what it never remembered")


class Machine:
    """Runs one pickle, the `size` bytes of a file from `start` on.

    `persistent` gives the object of a persistent id, `rebuild` does the call of a name or returns `NotImplemented`.
    """

    def __init__(
        self, source: Source, start: int, size: int, limits: Limits, persistent: Callable[[Any], Any], rebuild: Rebuild
    ) -> None:
        self._source = source
        self._stream = PickleStream(source, start, size)
        self._limits = limits
        self._persistent = persistent
        self._rebuild = rebuild
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo = _Memo()
        self._objects_left = limits.objects

    def run(self) -> Any:
        """The object that the pickle makes.

        Raises:
            PickleFault: an unknown opcode, a damaged pickle, or one beyond the limits.
            SourceError: the file can't be read.
        """
        steps, stream = _STEPS, self._stream
        while True:
            opcode = stream.opcode()
            if opcode == _STOP:
                return built(self._pop())
            step = steps.get(opcode)
            if step is None:
                raise PickleFault(f"the instruction {chr(opcode)!r} is none that a data file needs")
            self._count(1)
            step(self)

    def _count(self, objects: int) -> None:
        self._objects_left -= objects
        if self._objects_left < 0:
            raise PickleFault(f"more than {self._limits.objects} objects")

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise PickleFault("the pickle takes more than it has made")
        return self._stack.pop()

    def _pop_last(self, count: int) -> list[Any]:
        """The last values, in the order in which they came."""
        return [self._pop() for _ in range(count)][::-1]

    def _top(self) -> Any:
        value = self._pop()
        self._stack.append(value)
        return value

    def _pop_mark(self) -> list[Any]:
        """What came after the last mark."""
        if not self._marks:
            raise PickleFault("the pickle lacks a mark")
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def mark(self) -> None:
        """Begin a list of values; a run of numbers that follows is taken at once."""
        if len(self._marks) >= self._limits.depth:
            raise PickleFault(f"nested deeper than {self._limits.depth}")
        start = self._stream.place
        run = self._stream.run()
        size = self._stream.place - start
        if run is not None and size >= LAZY_BYTES and self._stream.is_next(b"et"):
            if self._stream.opcode() == ord("t"):
                self.push_list([])
            target = self._list_below()
            if target is not None:
                target.extend_lazy(start, start + size)
            return
        self._marks.append(len(self._stack))
        if run is not None:
            values = self._stream.values_of(run)
            self._count(len(values))
            self._stack += values

    def push(self, value: Any) -> None:
        """Push a value."""
        self._stack.append(value)

    def push_text(self, size: int) -> None:
        """Push a text; a long one stays in the file."""
        if size >= LAZY_BYTES:
            self._stack.append(LazyText(self._source, self._stream.skip(size), size))
            return
        self._count(size // CHARACTERS)
        self._stack.append(self._stream.take(size).decode("utf-8", "replace"))

    def push_bytes(self, size: int, encoding: str | None = None) -> None:
        """Push bytes, or the short text that they are in an encoding; long ones stay in the file."""
        if size >= LAZY_BYTES or size < 0:
            self._stack.append(LazyBytes(self._source, self._stream.skip(size), size))
            return
        self._count(size // CHARACTERS)
        piece = self._stream.take(size)
        self._stack.append(piece.decode(encoding) if encoding else piece)

    def push_long(self, size: int) -> None:
        """Push a whole number of that many bytes."""
        if not 0 <= size <= 64:
            raise PickleFault("a whole number of more than 64 bytes" if size > 0 else "a negative size")
        self._stack.append(int.from_bytes(self._stream.take(size), "little", signed=True))

    def push_list(self, values: list[Any]) -> None:
        """Push a list."""
        self._stack.append(LazyList(self._source, list(map(built, values))))

    def push_tuple(self, values: list[Any]) -> None:
        """Push a tuple."""
        if len(values) > _MAX_TUPLE:
            self.push_list(values)
        else:
            self._stack.append(tuple(map(built, values)))

    def extend(self, values: list[Any]) -> None:
        """Append values to the list or set below them; sets are kept as lists."""
        target = self._list_below()
        if target is not None:
            target.extend(list(map(built, values)))

    def _list_below(self) -> LazyList | None:
        """The list on top of the stack; None for an object of an unknown class that may be one."""
        target = self._top()
        if isinstance(target, LazyList):
            return target
        if isinstance(target, OpaqueObject):
            return None
        raise PickleFault("values appended to what is no list")

    def push_dict(self, values: list[Any]) -> None:
        """Push a dictionary of keys and values."""
        self._stack.append({})
        self.set_items(values)

    def set_items(self, values: list[Any]) -> None:
        """Set keys and values on the dictionary below them, or on an object of an unknown class that may be one."""
        target = self._top()
        if isinstance(target, OpaqueObject):
            if target.state is None:
                target.state = {}
            target = target.state
        if not isinstance(target, dict) or len(values) % 2:
            raise PickleFault("items set on what is no dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[self._key(key)] = built(value)

    def _key(self, key: Any) -> str:
        """A dictionary key as a text, like in JSON: importers ask for fields by name alone.

        Keys that aren't texts could be chosen so that a dictionary compares each with all others.
        """
        if isinstance(key, str):
            return key
        if isinstance(key, LazyText):
            self._count(key.size // CHARACTERS)
            return key.text()
        parts = key if isinstance(key, tuple) and len(key) <= _MAX_KEY else (key,)
        # a type or a member of an enumeration is a key too, though nobody asks for it
        if not all(isinstance(part, str | int | float | bytes | GlobalName | OpaqueObject | None) for part in parts):
            raise PickleFault("a dictionary key that is no number or text, nor a few of them")
        text = repr(key)
        self._count(len(text) // CHARACTERS)
        return text

    def reduce(self) -> None:
        """A call: done here for the few known names, kept as an opaque object for all others."""
        target, arguments = self._pop_last(2)
        if not isinstance(arguments, tuple) or not isinstance(target, GlobalName):
            raise PickleFault("a call of what is no name")
        self._stack.append(self._called(target, tuple(map(built, arguments))))

    def new_object(self, *, with_keywords: bool) -> None:
        """An object of a named class."""
        keywords = self._pop() if with_keywords else None
        target, arguments = self._pop_last(2)
        if not isinstance(arguments, tuple) or not isinstance(target, GlobalName):
            raise PickleFault("an object of what is no class")
        made = self._called(target, arguments)
        if keywords and isinstance(made, OpaqueObject):
            made.state = keywords
        self._stack.append(made)

    def _called(self, target: GlobalName, arguments: tuple[Any, ...]) -> Any:
        # a tuple may be long, and be an argument over and over
        self._count(len(arguments))
        return call(target.name, arguments, self._source, self._rebuild, self._count)

    def build(self) -> None:
        """State for the object below it."""
        state = self._pop()
        build(self._top(), state)

    def push_name(self, module: Any, name: Any) -> None:
        """Push the name of a class or function; it is never looked up."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleFault("a name that is no text")
        self._count((len(module) + len(name)) // CHARACTERS)
        self._stack.append(GlobalName(f"{module}.{name}"))

    def protocol(self) -> None:
        """The protocol that the pickle is of."""
        if self._stream.number(_BYTE) > 5:
            raise PickleFault("a pickle of a later protocol")


def run_pickle(
    source: Source, start: int, size: int, limits: Limits, persistent: Callable[[Any], Any], rebuild: Rebuild
) -> Any:
    """The object of a pickle, from a `Machine` with these arguments: plain values, `LazyList`s, arrays, opaque objects.

    Raises:
        SourceError: the pickle is damaged, uses what a data file has no need of, or exceeds the limits.
    """
    try:
        return Machine(source, start, size, limits, persistent, rebuild).run()
    except PickleFault as fault:
        raise source.fault(str(fault)) from fault
    except (ValueError, TypeError, OverflowError) as error:
        raise source.fault(f"the pickle is damaged: {error}"[:200]) from error
    except (MemoryError, RecursionError) as error:
        raise source.fault("the file asks for more memory than it should") from error


_STEPS: dict[int, Callable[[Machine], object]] = {
    ord("("): Machine.mark,
    ord("e"): lambda m: m.extend(m._pop_mark()),
    ord("a"): lambda m: m.extend([m._pop()]),
    ord("u"): lambda m: m.set_items(m._pop_mark()),
    ord("s"): lambda m: m.set_items(m._pop_last(2)),
    ord("]"): lambda m: m.push_list([]),
    ord("}"): lambda m: m.push({}),
    ord(")"): lambda m: m.push(()),
    ord("l"): lambda m: m.push_list(m._pop_mark()),
    ord("d"): lambda m: m.push_dict(m._pop_mark()),
    ord("t"): lambda m: m.push_tuple(m._pop_mark()),
    0x85: lambda m: m.push_tuple(m._pop_last(1)),
    0x86: lambda m: m.push_tuple(m._pop_last(2)),
    0x87: lambda m: m.push_tuple(m._pop_last(3)),
    ord("0"): lambda m: m._pop(),
    ord("1"): lambda m: m._pop_mark(),
    ord("2"): lambda m: m.push(m._top()),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("K"): lambda m: m.push(m._stream.number(_BYTE)),
    ord("M"): lambda m: m.push(m._stream.number(_SHORT)),
    ord("J"): lambda m: m.push(m._stream.number(_SIGNED)),
    0x8A: lambda m: m.push_long(m._stream.number(_BYTE)),
    0x8B: lambda m: m.push_long(m._stream.number(_SIGNED)),
    ord("G"): lambda m: m.push(m._stream.number(_REAL)),
    ord("X"): lambda m: m.push_text(m._stream.number(_INT)),
    0x8C: lambda m: m.push_text(m._stream.number(_BYTE)),
    0x8D: lambda m: m.push_text(m._stream.number(_LONG)),
    ord("B"): lambda m: m.push_bytes(m._stream.number(_INT)),
    ord("C"): lambda m: m.push_bytes(m._stream.number(_BYTE)),
    0x8E: lambda m: m.push_bytes(m._stream.number(_LONG)),
    0x96: lambda m: m.push_bytes(m._stream.number(_LONG)),
    ord("U"): lambda m: m.push_bytes(m._stream.number(_BYTE), "latin1"),
    ord("T"): lambda m: m.push_bytes(m._stream.number(_SIGNED), "latin1"),
    ord("q"): lambda m: m._memo.put(m._stream.number(_BYTE), m._top()),
    ord("r"): lambda m: m._memo.put(m._stream.number(_INT), m._top()),
    0x94: lambda m: m._memo.put_next(m._top()),
    ord("h"): lambda m: m.push(m._memo.get(m._stream.number(_BYTE))),
    ord("j"): lambda m: m.push(m._memo.get(m._stream.number(_INT))),
    ord("c"): lambda m: m.push_name(m._stream.line(), m._stream.line()),
    0x93: lambda m: m.push_name(*m._pop_last(2)),
    ord("R"): Machine.reduce,
    0x81: lambda m: m.new_object(with_keywords=False),
    0x92: lambda m: m.new_object(with_keywords=True),
    ord("b"): Machine.build,
    ord("Q"): lambda m: m.push(m._persistent(m._pop())),
    0x8F: lambda m: m.push_list([]),
    0x90: lambda m: m.extend(m._pop_mark()),
    0x91: lambda m: m.push_list(m._pop_mark()),
    0x80: Machine.protocol,
    0x95: lambda m: m._stream.skip(8),
}
"""What each opcode does. Protocol 0 texts, `INST`, `OBJ`, `EXT` and buffers out of band are not among them."""
