"""An interpreter for pickles that builds plain data and nothing else.

It differs from `pickle` in what matters: no name is ever imported, no method of an object is ever called, unknown
names become inert records, and every table is bounded. Runs of numbers, which are most of a rollout dump, are decoded
at once and kept as arrays.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenaudit.pickled import Limits, Name, Numbers, PickleFault, Record, array_of

# Whole numbers of one, two and four bytes, floats, and the constants: they refer to nothing.
_PLAIN = re.compile(rb"(?:K.|M..|J....|G........|[\x88\x89N])++", re.DOTALL)
_AT_ONCE = 1 << 20
"""Bytes of such a run that are decoded at once; `pickle` itself writes at most 1,000 values a time."""
_ELEMENT_BYTES = 8
"""Bytes of a text that count as an element where it is copied."""
_MAX_KEY = 16
"""Parts of a dictionary key."""
_CONTAINERS = {"collections.OrderedDict": dict, "builtins.dict": dict, "__builtin__.dict": dict}
_SETS = ("builtins.set", "__builtin__.set", "builtins.frozenset", "__builtin__.frozenset")
_ARRAYS = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
_SCALARS = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")


@dataclass(slots=True)
class _Array:
    """A numpy array whose state is still to come."""

    value: Any = None


class Machine:
    """Runs one pickle.

    Args:
        data: its bytes.
        limits: its bounds.
        persistent: gives the object of a persistent id.
        rebuild: does the call of a name, or returns `NotImplemented`.
    """

    def __init__(
        self,
        data: memoryview,
        limits: Limits,
        persistent: Callable[[Any], Any],
        rebuild: Callable[[str, tuple[Any, ...]], Any],
    ) -> None:
        self._data = data
        self._limits = limits
        self._persistent = persistent
        self._rebuild = rebuild
        self._position = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._elements = 0

    def run(self) -> Any:
        """The object that the pickle makes.

        Raises:
            PickleFault: an unknown instruction, a damaged pickle, or one beyond the limits.
        """
        steps = _STEPS
        for _ in range(self._limits.instructions):
            code = self._take(1)[0]
            if code == 0x2E:
                return self._finished(self._pop())
            step = steps.get(code)
            if step is None:
                raise PickleFault(f"the instruction {chr(code)!r} is none that a data file needs")
            step(self)
        raise PickleFault(f"more than {self._limits.instructions} instructions")

    def _take(self, size: int) -> memoryview:
        start = self._position
        self._position = end = start + size
        if end > len(self._data):
            raise PickleFault("the pickle is cut off")
        return self._data[start:end]

    def _number(self, layout: str) -> int:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _line(self) -> str:
        """A name that ends with a line feed."""
        piece = bytes(self._data[self._position : self._position + 1024])
        end = piece.find(b"\n")
        if end < 0:
            raise PickleFault("a name without an end")
        self._position += end + 1
        return piece[:end].decode("utf-8", "replace")

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise PickleFault("the pickle takes more than it has made")
        return self._stack.pop()

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
        self._count(len(values))
        return values

    def _count(self, elements: int) -> None:
        self._elements += elements
        if self._elements > self._limits.elements:
            raise PickleFault(f"more than {self._limits.elements} elements")

    def _finished(self, value: Any) -> Any:
        return value.value if isinstance(value, _Array) else value

    def mark(self) -> None:
        """Begin a list of values; numbers that follow are decoded at once."""
        if len(self._marks) >= self._limits.depth:
            raise PickleFault(f"nested deeper than {self._limits.depth}")
        self._marks.append(len(self._stack))
        found = _PLAIN.match(self._data, self._position, self._position + _AT_ONCE)
        if found is not None:
            self._position = found.end()
            # these instructions can only make numbers and constants
            self._stack += pickle.loads(b"(" + found[0] + b"l.")

    def put(self, index: int) -> None:
        """Remember the top of the stack."""
        if len(self._memo) > self._limits.elements:
            raise PickleFault("too much to remember")
        self._memo[index] = self._top()

    def get(self, index: int) -> None:
        """Push what was remembered."""
        if index not in self._memo:
            raise PickleFault("the pickle recalls what it never remembered")
        self._stack.append(self._memo[index])

    def push_bytes(self, size: int) -> bytes:
        """The next bytes; never more than the file holds."""
        if size < 0:
            raise PickleFault("a negative size")
        return bytes(self._take(size))

    def push(self, value: Any) -> None:
        """Push a value."""
        self._stack.append(value)

    def extend(self, values: list[Any]) -> None:
        """Append values to the list below them."""
        target = self._top()
        values = [self._finished(value) for value in values]
        if isinstance(target, Numbers):
            target.extend(values)
        elif not isinstance(target, Record):
            raise PickleFault("values appended to what is no list")

    def set_items(self, values: list[Any]) -> None:
        """Set keys and values on the dictionary below them."""
        target = self._top()
        if not isinstance(target, dict) or len(values) % 2:
            raise PickleFault("items set on what is no dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[_key(key)] = self._finished(value)

    def add_items(self, values: list[Any]) -> None:
        """Add values to the set below them; sets are kept as lists."""
        self.extend(values)

    def reduce(self) -> None:
        """A call: done here for the few known names, kept as a record for all others."""
        arguments, target = self._pop(), self._pop()
        if not isinstance(arguments, tuple) or not isinstance(target, Name):
            raise PickleFault("a call of what is no name")
        self._stack.append(self._called(target.name, tuple(map(self._finished, arguments))))

    def new_object(self, *, with_keywords: bool) -> None:
        """An object of a named class."""
        keywords = self._pop() if with_keywords else None
        arguments, target = self._pop(), self._pop()
        if not isinstance(arguments, tuple) or not isinstance(target, Name):
            raise PickleFault("an object of what is no class")
        made = self._called(target.name, arguments)
        if keywords and isinstance(made, Record):
            made.state = keywords
        self._stack.append(made)

    def _called(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name in _CONTAINERS and not arguments:
            return {}
        if name in _SETS and len(arguments) <= 1:
            made = Numbers()
            values = arguments[0] if arguments and isinstance(arguments[0], Numbers) else ()
            # one list may be copied over and over
            self._count(len(values))
            made.extend(list(values))
            return made
        if name == "_codecs.encode" and len(arguments) == 2 and isinstance(arguments[0], str):
            self._count(len(arguments[0]) // _ELEMENT_BYTES)
            try:
                return arguments[0].encode("latin1")
            except UnicodeEncodeError as error:
                raise PickleFault("bytes that aren't") from error
        if name in ("copyreg._reconstructor", "copy_reg._reconstructor") and arguments:
            return Record(arguments[0].name if isinstance(arguments[0], Name) else "?")
        if name in _ARRAYS:
            return _Array()
        if name in _SCALARS and len(arguments) == 2:
            return array_of((1,), arguments[0], arguments[1])[0].item()
        rebuilt = self._rebuild(name, arguments)
        return Record(name, arguments) if rebuilt is NotImplemented else rebuilt

    def build(self) -> None:
        """State for the object below it: kept, never applied."""
        state, target = self._pop(), self._top()
        if isinstance(target, _Array):
            if not isinstance(state, tuple) or len(state) != 5:
                raise PickleFault("an array without its state")
            _, shape, dtype, is_fortran, content = state
            if isinstance(content, bytes):
                target.value = array_of(shape, dtype, content, order="F" if is_fortran else "C")
            else:
                target.value = content
        elif isinstance(target, Record):
            target.state = state

    def persistent(self) -> None:
        """The object of a persistent id."""
        self._stack.append(self._persistent(self._pop()))

    def named(self, module: Any, name: Any) -> None:
        """A name; it is never looked up."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleFault("a name that is no text")
        self._stack.append(Name(f"{module}.{name}"))

    def tuple_of(self, count: int) -> None:
        """A tuple of the last values."""
        values = [self._finished(self._pop()) for _ in range(count)]
        self._stack.append(tuple(values[::-1]))


def _key(key: Any) -> Any:
    """A dictionary key: a number or text, or a few of them in a tuple, so that hashing it takes no time."""
    parts = key if isinstance(key, tuple) and len(key) <= _MAX_KEY else (key,)
    if all(isinstance(part, str | int | float | bytes | None) for part in parts):
        return key
    raise PickleFault("a dictionary key that is no number or text, nor a few of them")


def _text(machine: Machine, size: int) -> str:
    return machine.push_bytes(size).decode("utf-8", "replace")


def _list_of(values: list[Any]) -> Numbers:
    made = Numbers()
    made.extend(values)
    return made


def _dict_of(machine: Machine, values: list[Any]) -> None:
    machine.push({})
    machine.set_items(values)


def _stack_global(machine: Machine) -> None:
    name, module = machine._pop(), machine._pop()
    machine.named(module, name)


def _long(machine: Machine, size: int) -> int:
    if size > 64:
        raise PickleFault("a whole number of more than 64 bytes")
    return int.from_bytes(machine.push_bytes(size), "little", signed=True)


def _protocol(machine: Machine) -> None:
    if machine._number("<B") > 5:
        raise PickleFault("a pickle of a later protocol")


_STEPS: dict[int, Callable[[Machine], object]] = {
    ord("("): Machine.mark,
    ord("e"): lambda m: m.extend(m._pop_mark()),
    ord("a"): lambda m: m.extend([m._pop()]),
    ord("u"): lambda m: m.set_items(m._pop_mark()),
    ord("s"): lambda m: m.set_items([m._pop(), m._pop()][::-1]),
    ord("]"): lambda m: m.push(Numbers()),
    ord("}"): lambda m: m.push({}),
    ord(")"): lambda m: m.push(()),
    ord("l"): lambda m: m.push(_list_of([m._finished(value) for value in m._pop_mark()])),
    ord("d"): lambda m: _dict_of(m, m._pop_mark()),
    ord("t"): lambda m: m.push(tuple(map(m._finished, m._pop_mark()))),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("0"): lambda m: m._pop(),
    ord("1"): lambda m: m._pop_mark(),
    ord("2"): lambda m: m.push(m._top()),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("K"): lambda m: m.push(m._number("<B")),
    ord("M"): lambda m: m.push(m._number("<H")),
    ord("J"): lambda m: m.push(m._number("<i")),
    0x8A: lambda m: m.push(_long(m, m._number("<B"))),
    0x8B: lambda m: m.push(_long(m, m._number("<i"))),
    ord("G"): lambda m: m.push(struct.unpack(">d", m._take(8))[0]),
    ord("X"): lambda m: m.push(_text(m, m._number("<I"))),
    0x8C: lambda m: m.push(_text(m, m._number("<B"))),
    0x8D: lambda m: m.push(_text(m, m._number("<Q"))),
    ord("B"): lambda m: m.push(m.push_bytes(m._number("<I"))),
    ord("C"): lambda m: m.push(m.push_bytes(m._number("<B"))),
    0x8E: lambda m: m.push(m.push_bytes(m._number("<Q"))),
    0x96: lambda m: m.push(m.push_bytes(m._number("<Q"))),
    ord("U"): lambda m: m.push(m.push_bytes(m._number("<B")).decode("latin1")),
    ord("T"): lambda m: m.push(m.push_bytes(m._number("<i")).decode("latin1")),
    ord("q"): lambda m: m.put(m._number("<B")),
    ord("r"): lambda m: m.put(m._number("<I")),
    0x94: lambda m: m.put(len(m._memo)),
    ord("h"): lambda m: m.get(m._number("<B")),
    ord("j"): lambda m: m.get(m._number("<I")),
    ord("c"): lambda m: m.named(m._line(), m._line()),
    0x93: _stack_global,
    ord("R"): Machine.reduce,
    0x81: lambda m: m.new_object(with_keywords=False),
    0x92: lambda m: m.new_object(with_keywords=True),
    ord("b"): Machine.build,
    ord("Q"): Machine.persistent,
    0x8F: lambda m: m.push(Numbers()),
    0x90: lambda m: m.add_items(m._pop_mark()),
    0x91: lambda m: m.push(_list_of(m._pop_mark())),
    0x80: _protocol,
    0x95: lambda m: m._take(8),
}
"""What each instruction does. Protocol 0 texts, `INST`, `OBJ`, `EXT` and buffers out of band are not among them."""
