"""Tensors and arrays of a dump, lazy: they stay in the file until they, or rows of them, are asked for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokenaudit.importers.pickles.source import AT_ONCE, LazyBytes, Source
from tokenaudit.importers.pickles.values import OpaqueObject, PickleFault

BFLOAT16 = "bf16"
"""The kind that numpy lacks: the upper half of a float32."""
_MAX_AXES = 8
_DTYPE = re.compile(r"b1|[iu][1248]|f[248]")
_NAMES = frozenset({"bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))}) | {
    "float16", "float32", "float64",
}  # fmt: skip
_TEXT = re.compile(r"U[0-9]{1,6}")
_MAX_TEXT = 1 << 12
"""Bytes of a text of numpy that is read at once."""
_SPARSE, _PIECE = 2, 4096
"""A tensor is read at once if it fills half of the place from its first to its last element, or that is small."""
_PIECE_COST = 16
"""Elements that a reading of its own counts as."""


class _Shaped:
    """What has a shape."""

    __slots__ = ()

    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<array of shape {list(self.shape)}>"

    @property
    def ndim(self) -> int:
        """Its axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Its elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, repr=False)
class LazyArray(_Shaped):
    """A tensor whose numbers begin at a byte of a file; strides are elements from one index of an axis to the next.

    Its kind is the type of its numbers as numpy names it, or `BFLOAT16`.
    """

    source: Source
    start: int
    kind: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self) -> np.ndarray[Any, Any]:
        """A copy of all of it. Raises like `Source.read` and `Source.spend`, and for more than `AT_ONCE`."""
        dtype = np.dtype("<u2" if self.kind == BFLOAT16 else self.kind)
        if self.size > AT_ONCE:
            raise self.source.fault(f"an array of {self.size} elements, where up to {AT_ONCE} are read")
        # many tensors may share one storage, and an expanded one is larger than its own
        self.source.spend(self.size)
        array = self._numbers(dtype)
        return (array.astype(np.uint32) << 16).view(np.float32) if self.kind == BFLOAT16 else array

    def row(self, index: int, count: int) -> np.ndarray[Any, Any]:
        """The first numbers of one row of a table. Raises like `read`."""
        start = self.start + index * self.strides[0] * element_bytes(self.kind)
        return replace(self, start=start, shape=(count,), strides=self.strides[1:]).read()

    def part(self, index: int, count: int) -> LazyArray:
        """So many elements along the first axis, from one on."""
        start = self.start + index * self.strides[0] * element_bytes(self.kind)
        return replace(self, start=start, shape=(count, *self.shape[1:]))

    def _numbers(self, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        if self.size == 0:
            return np.zeros(self.shape, dtype=dtype)
        reach = 1 + last_element(self.shape, self.strides)
        if reach > _SPARSE * self.size + _PIECE and self.ndim:
            # a column of a wide table, say: most of what lies between is none of it
            self.source.spend(_PIECE_COST * self.shape[0])
            width = self.strides[0] * dtype.itemsize
            rows = (
                replace(self, start=self.start + index * width, shape=self.shape[1:], strides=self.strides[1:])
                for index in range(self.shape[0])
            )
            return np.stack([row._numbers(dtype) for row in rows])
        flat = np.frombuffer(self.source.read(self.start, reach * dtype.itemsize), dtype=dtype)
        steps = [step * dtype.itemsize for step in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, steps).copy()


@dataclass(frozen=True, slots=True, repr=False)
class Latin1Array(_Shaped):
    """An array whose bytes are written as a Latin-1 text, as protocols before 3 write them; its order is "C" or "F"."""

    content: LazyBytes
    kind: str
    shape: tuple[int, ...]
    order: Any

    def read(self) -> np.ndarray[Any, Any]:
        """A copy of all of it. Raises like `LazyBytes.read`, and for a shape that doesn't fit the bytes."""
        if self.size > AT_ONCE:
            raise self.content.source.fault(f"an array of {self.size} elements, where up to {AT_ONCE} are read")
        self.content.source.spend(self.size)
        try:
            return np.frombuffer(self.content.read(), dtype=self.kind).reshape(self.shape, order=self.order)
        except ValueError as error:
            raise self.content.source.fault("an array whose shape doesn't fit its bytes") from error

    def row(self, index: int, count: int) -> np.ndarray[Any, Any]:
        """The first numbers of one row of a table. Raises like `read`."""
        return self.read()[index, :count]


@dataclass(frozen=True, slots=True, repr=False)
class JaggedArray(_Shaped):
    """A table whose rows differ in length, as a nested tensor of torch holds it: all numbers, and where rows begin.

    Row i begins at `offsets[i]`, and has `lengths[i]` numbers, or without lengths those up to `offsets[i + 1]`.
    """

    values: LazyArray
    offsets: LazyArray
    lengths: LazyArray | None

    def __repr__(self) -> str:
        return f"<nested array of {self.shape[0]} rows>"

    @property
    def shape(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride] - all are frozen
        """Rows, and 0 for what differs."""
        return (self.offsets.size - 1 if self.lengths is None else self.lengths.size, 0)

    def row_length(self, index: int) -> int:
        """Numbers of one row. Raises like `row`."""
        return self._span(index)[1]

    def row(self, index: int, count: int) -> np.ndarray[Any, Any]:
        """The first numbers of one row. Raises like `LazyArray.read`, and for a row that lies outside the numbers."""
        start, size = self._span(index)
        return self.values.part(start, min(count, size)).read()

    def _span(self, index: int) -> tuple[int, int]:
        """Where a row begins, and its length."""
        if self.lengths is None:
            start, end = self.offsets.part(index, 2).read().tolist()
            size = end - start
        else:
            start, size = self.offsets.part(index, 1).read().item(), self.lengths.part(index, 1).read().item()
        if not 0 <= start <= start + size <= self.values.size:
            raise self.values.source.fault(f"row {index} of a nested tensor lies outside its numbers")
        return start, size


Array = np.ndarray[Any, Any] | LazyArray | Latin1Array
"""A tensor or an array, most of which lie in the file until they are read."""


def jagged_array(values: Any, offsets: Any, lengths: Any) -> JaggedArray | OpaqueObject:
    """A nested tensor of two axes, of which the second differs; one with more axes is opaque.

    Raises:
        PickleFault: offsets or lengths that are no flat lists of whole numbers, or differ in number.
    """
    if not isinstance(values, LazyArray) or values.ndim != 1:
        return OpaqueObject("torch.nested")
    if not _is_index(offsets) or not offsets.size:
        raise PickleFault("a nested tensor without its offsets")
    if lengths is not None and (not _is_index(lengths) or offsets.size - lengths.size not in (0, 1)):
        raise PickleFault("a nested tensor whose lengths make no sense")
    return JaggedArray(values, offsets, lengths)


def _is_index(value: Any) -> bool:
    return isinstance(value, LazyArray) and value.ndim == 1 and value.kind in ("<i8", "<i4")


def element_bytes(kind: str) -> int:
    """Bytes of one number."""
    return 2 if kind == BFLOAT16 else np.dtype(kind).itemsize


def last_element(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How far behind the first element the last one lies."""
    return sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))


def tensor_shape(shape: Any, strides: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The extents and strides of a tensor, checked. Raises a `PickleFault` if they are none."""
    if not _are_whole(shape) or not _are_whole(strides) or len(shape) != len(strides) or len(shape) > _MAX_AXES:
        raise PickleFault("a tensor whose shape makes no sense")
    return shape, strides


def kind_of(dtype: Any) -> np.dtype[Any] | None:
    """The type of plain numbers that a file names; None for any other."""
    code, order = _named_type(dtype)
    return np.dtype(order + code) if _DTYPE.fullmatch(code) else None


def text_of(dtype: Any, content: Any) -> str | None:
    """A short text of numpy; None if it is something else. Raises like `LazyBytes.read`."""
    code, order = _named_type(dtype)
    if not _TEXT.fullmatch(code) or not isinstance(content, bytes | LazyBytes):
        return None
    if isinstance(content, LazyBytes):
        if content.size > _MAX_TEXT:
            return None
        content = content.read()
    return content.decode("utf-32-be" if order == ">" else "utf-32-le", "replace").rstrip("\0")


def _named_type(dtype: Any) -> tuple[str, str]:
    """The code of a type as numpy names it, empty if it is none, and the order of its bytes."""
    if not isinstance(dtype, OpaqueObject) or dtype.name != "numpy.dtype" or not dtype.arguments:
        return "", "<"
    code = dtype.arguments[0]
    if not isinstance(code, str):
        return "", "<"
    is_big = isinstance(dtype.state, tuple) and len(dtype.state) > 1 and dtype.state[1] == ">"
    return code, ">" if is_big else "<"


def array_of(shape: Any, dtype: Any, content: Any, order: str = "C") -> Array | OpaqueObject:
    """An array of numpy from its bytes; one of texts, times or anything but plain numbers is opaque.

    Raises:
        PickleFault: content that is no bytes, or a shape that doesn't fit the bytes.
    """
    kind = kind_of(dtype)
    return OpaqueObject("numpy.ndarray") if kind is None else _array(shape, kind, content, order)


def named_array(shape: Any, name: Any, content: Any) -> Array | OpaqueObject:
    """An array from its bytes and the name of its type, such as `float32`. Raises like `array_of`."""
    if not isinstance(name, str) or name not in _NAMES:
        return OpaqueObject("numpy.ndarray")
    return _array(shape, np.dtype(name), content, "C")


def _array(shape: Any, kind: np.dtype[Any], content: Any, order: str) -> Array:
    """An array of plain numbers. Raises like `array_of`."""
    if not isinstance(content, bytes | LazyBytes):
        raise PickleFault("an array without its bytes")
    if not _are_whole(shape) or len(shape) > _MAX_AXES:
        raise PickleFault("an array whose shape makes no sense")
    size = math.prod(shape) * kind.itemsize
    if isinstance(content, LazyBytes) and content.is_text:
        if not content.size // 2 <= size <= content.size:
            raise PickleFault("an array whose shape doesn't fit its bytes")
        return Latin1Array(content, kind.str, shape, order)
    if size != (content.size if isinstance(content, LazyBytes) else len(content)):
        raise PickleFault("an array whose shape doesn't fit its bytes")
    if isinstance(content, bytes):
        return np.frombuffer(content, dtype=kind).reshape(shape, order="F" if order == "F" else "C")
    strides = [math.prod(shape[axis + 1 :] if order == "C" else shape[:axis]) for axis in range(len(shape))]
    return LazyArray(content.source, content.start, kind.str, shape, tuple(strides))


def _are_whole(values: Any) -> bool:
    """Whether values are a tuple of whole numbers of at least 0."""
    return isinstance(values, tuple) and all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 for value in values
    )
