"""The few calls of a pickle that are done: containers, bytes and arrays. No name is ever looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenaudit.importers.pickles.arrays import array_of, kind_of, text_of
from tokenaudit.importers.pickles.source import CHARACTERS, LazyBytes, LazyText, Source
from tokenaudit.importers.pickles.values import GlobalName, LazyList, OpaqueObject, PickleFault

Rebuild = Callable[[str, tuple[Any, ...]], Any]
"""Does the call of a name, or returns `NotImplemented`."""

_CONTAINERS = ("collections.OrderedDict", "builtins.dict", "__builtin__.dict")
_DEFAULTS = "collections.defaultdict"
_BYTES = ("builtins.bytes", "__builtin__.bytes")
_SETS = ("builtins.set", "__builtin__.set", "builtins.frozenset", "__builtin__.frozenset")
_ARRAYS = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
_BUFFERS = ("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer")
_SCALARS = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
_RECONSTRUCTORS = ("copyreg._reconstructor", "copy_reg._reconstructor")
_TENSORDICT = "tensordict._reductions._make_td"
"""How a TensorDict pickles itself: a call with its class and its state (tensordict 0.7 to 0.15)."""


@dataclass(slots=True)
class UnbuiltArray:
    """A numpy array that was reconstructed empty: its value is None until its state is set."""

    value: Any = None


def built(value: Any) -> Any:
    """The array in an `UnbuiltArray`; anything else as it is."""
    return value.value if isinstance(value, UnbuiltArray) else value


def call(name: str, arguments: tuple[Any, ...], source: Source, rebuild: Rebuild, count: Callable[[int], None]) -> Any:
    """What a call makes; `rebuild` does the calls of other names, those of unknown ones become opaque objects.

    `count` is called with how many objects are about to be made.

    Raises:
        PickleFault: arguments that such a call never has.
        SourceError: arguments that can't be read from the file.
    """
    if (name in _CONTAINERS and not arguments) or (name == _DEFAULTS and len(arguments) <= 1):
        return {}
    if name in _BYTES and not arguments:
        # protocols before 3 write empty bytes so, and with them every empty array
        return b""
    if name in _SETS and len(arguments) <= 1:
        values: list[Any] = []
        if arguments and isinstance(arguments[0], LazyList):
            # one list may be copied over and over
            for chunk in arguments[0].chunks():
                count(len(chunk))
                values += chunk
        return LazyList(source, values)
    if name == "_codecs.encode" and len(arguments) == 2 and isinstance(arguments[0], str | LazyText):
        return _encoded(arguments[0], count)
    if name in _RECONSTRUCTORS and arguments:
        return OpaqueObject(arguments[0].name if isinstance(arguments[0], GlobalName) else "?")
    if name == _TENSORDICT and len(arguments) == 2 and isinstance(arguments[0], GlobalName):
        return OpaqueObject(arguments[0].name, state=arguments[1])
    if name in _ARRAYS:
        return UnbuiltArray()
    if name in _BUFFERS and len(arguments) == 4:
        # the arrays of protocol 5: their bytes come first
        content, dtype, shape, order = arguments
        return array_of(shape, dtype, content, "F" if order == "F" else "C")
    if name in _SCALARS and len(arguments) == 2:
        return _scalar(*arguments, count)
    rebuilt = rebuild(name, arguments)
    return OpaqueObject(name, arguments) if rebuilt is NotImplemented else rebuilt


def _encoded(text: str | LazyText, count: Callable[[int], None]) -> bytes | LazyBytes:
    if isinstance(text, LazyText):
        return text.latin1()
    count(len(text) // CHARACTERS)
    try:
        return text.encode("latin1")
    except UnicodeEncodeError as error:
        raise PickleFault("bytes that aren't") from error


def _scalar(dtype: Any, content: Any, count: Callable[[int], None]) -> Any:
    """A number or text of numpy; any other kind is none that anybody asks for, and stays opaque."""
    if kind_of(dtype) is None:
        text = text_of(dtype, content)
        if text is None:
            return OpaqueObject("numpy.generic")
        # a character may take four bytes
        count(4 * len(text) // CHARACTERS)
        return text
    array = array_of((1,), dtype, content)
    if not isinstance(array, np.ndarray):
        raise PickleFault("a number that isn't")
    return array[0].item()


def build(target: Any, state: Any) -> None:
    """Set the state of an object: kept, never applied.

    Raises:
        PickleFault: an array's state that makes no sense.
    """
    if isinstance(target, UnbuiltArray):
        if not isinstance(state, tuple) or len(state) != 5:
            raise PickleFault("an array without its state")
        _, shape, dtype, is_fortran, content = state
        # an array of objects has a list of them
        is_list = isinstance(content, LazyList)
        target.value = content if is_list else array_of(shape, dtype, content, "F" if is_fortran else "C")
    elif isinstance(target, OpaqueObject):
        target.state = state
