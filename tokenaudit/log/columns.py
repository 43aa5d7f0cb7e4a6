"""Arrow columns of every accepted spelling, as plain numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tokenaudit.contracts.schema import RUN_FIELDS, ColumnType

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Columns = dict[str, np.ndarray[Any, Any]]
"""Arrays of one number per row, by name."""

ABSENT = -(2**63)
"""Stands for null in columns of integers: no accepted value equals it."""
LARGEST = 2**63 - 1
"""Stands for every number beyond it."""
INT32_MAX = 2**31 - 1
"""The largest size or version."""
_LARGEST_REWARD = 1e300
"""Rewards beyond it can't be summed in double precision."""


_LISTS = (pat.is_list, pat.is_large_list, pat.is_list_view, pat.is_large_list_view, pat.is_fixed_size_list)


def is_accepted(column_type: ColumnType, arrow_type: pa.DataType) -> bool:
    """Whether a column may have this Arrow type. The null type (no value at all) fits everywhere."""
    if pat.is_null(arrow_type):
        return True
    if column_type is ColumnType.TEXT:
        if pat.is_dictionary(arrow_type):
            arrow_type = arrow_type.value_type
        return _is_text(arrow_type) or pat.is_null(arrow_type)
    if column_type is ColumnType.INTEGER:
        return pat.is_integer(arrow_type)
    if column_type is ColumnType.FLAG:
        return pat.is_boolean(arrow_type)
    if column_type is ColumnType.REAL:
        return pat.is_floating(arrow_type) or pat.is_integer(arrow_type)
    if not any(is_list(arrow_type) for is_list in _LISTS):
        return False
    element = arrow_type.value_type
    if column_type is ColumnType.RUN_LIST:
        return _is_run(element)
    if pat.is_null(element):
        return True
    if column_type is ColumnType.INTEGER_LIST:
        return pat.is_integer(element)
    if column_type is ColumnType.MASK_LIST:
        return pat.is_integer(element) or pat.is_boolean(element)
    return pat.is_floating(element)


def _is_run(element: pa.DataType) -> bool:
    if not pat.is_struct(element) or element.num_fields != len(RUN_FIELDS):
        return False
    fields = {field.name: field.type for field in element}
    return set(fields) == set(RUN_FIELDS) and all(pat.is_integer(kind) for kind in fields.values())


def _is_text(arrow_type: pa.DataType) -> bool:
    return pat.is_string(arrow_type) or pat.is_large_string(arrow_type) or pat.is_string_view(arrow_type)


def marked(rows: int, chosen: Int64s | Bools) -> Bools:
    """True at the chosen rows, of shape [rows]."""
    is_chosen = np.zeros(rows, dtype=np.bool_)
    is_chosen[chosen] = True
    return is_chosen


def nulls(array: pa.Array) -> Bools:
    """True where a value is null."""
    if array.null_count == 0:
        return np.zeros(len(array), dtype=np.bool_)
    validity = array.buffers()[0]
    if validity is None:
        return array.is_null().to_numpy(zero_copy_only=False)
    # the bits are there already: unpacking them costs a tenth of an Arrow kernel on a small batch
    end = array.offset + len(array)
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=end, bitorder="little")
    return bits[array.offset :] == 0


def integers(array: pa.Array | None, rows: int, fill: int) -> Int64s:
    """A column of integers as int64 of shape [rows], nulls and an absent column as `fill`.

    What 64 bits with a sign can't hold becomes the largest number they can.
    """
    if array is None or array.type == pa.null():
        return np.full(rows, fill, dtype=np.int64)
    is_null = nulls(array) if array.null_count else None
    values = _ignoring_nulls(array).to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64:
        values = np.minimum(values, np.uint64(LARGEST))
    values = values.astype(np.int64, copy=False)
    return values if is_null is None else np.where(is_null, fill, values)


def _ignoring_nulls(array: pa.Array) -> pa.Array:
    """The values of an array of numbers, anything where it is null: no kernel runs, nothing is copied."""
    if array.null_count == 0:
        return array
    return pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)


def reals(array: pa.Array | None, rows: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column of numbers as float64 of shape [rows], nulls and an absent column as NaN."""
    if array is None or array.type == pa.null():
        return np.full(rows, np.nan)
    numbers = array if array.type == pa.float64() else array.cast(pa.float64(), safe=False)
    values: Any = _ignoring_nulls(numbers).to_numpy(zero_copy_only=False)
    return np.where(nulls(array), np.nan, values) if array.null_count else values


def rewards(array: pa.Array | None, rows: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column of rewards as float64 of shape [rows], NaN where unscored; those that can't be summed count as that."""
    values = reals(array, rows)
    return np.where(np.abs(values) <= _LARGEST_REWARD, values, np.nan)


def flags(array: pa.Array | None, rows: int) -> Bools:
    """A column of bools of shape [rows], nulls and an absent column as False."""
    if array is None or array.type == pa.null():
        return np.zeros(rows, dtype=np.bool_)
    values: Any = _ignoring_nulls(array).to_numpy(zero_copy_only=False)
    return values & ~nulls(array) if array.null_count else values


def text_codes(array: pa.Array | None, rows: int, code_of: Callable[[str | None], int]) -> Int64s:
    """A column of strings as int64 codes of shape [rows].

    Args:
        array: the column; absent counts as all null.
        rows: its length.
        code_of: gives the code of a string, and of None for null. It is called once per distinct value.
    """
    if array is None or array.type == pa.null():
        return np.full(rows, code_of(None), dtype=np.int64)
    encoded: Any = array if pat.is_dictionary(array.type) else array.dictionary_encode()
    values = _texts(encoded.dictionary)
    indices = integers(encoded.indices, rows, fill=len(values))
    codes = np.full(len(values) + 1, code_of(None) if indices.max(initial=0) == len(values) else 0, dtype=np.int64)
    for index in np.flatnonzero(np.bincount(indices, minlength=len(codes))[: len(values)]).tolist():
        codes[index] = code_of(values[index])
    return codes[indices]


def check_dictionary(array: pa.Array) -> None:
    """Refuse indices beyond a dictionary, which pyarrow passes on from damaged files.

    Raises:
        ArrowInvalid: there is one.
    """
    if pat.is_dictionary(array.type):
        indices: Any = _ignoring_nulls(array.indices).to_numpy(zero_copy_only=False)
        if array.null_count:
            indices = indices[~nulls(array)]
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < max(len(array.dictionary), 1):
            raise pa.ArrowInvalid("an index beyond the dictionary")


def _texts(array: Any) -> list[str | None]:
    """The strings of an array; bytes that are no UTF-8 as escapes."""
    try:
        return array.to_pylist()
    except UnicodeDecodeError:
        if pat.is_dictionary(array.type):
            array = array.dictionary_decode()
        raw = array.cast(pa.large_binary()).to_pylist()
        return [None if text is None else text.decode(errors="backslashreplace") for text in raw]


def text_at(array: pa.Array, row: int) -> str:
    """One value of a column of strings, quoted and cut for a message."""
    value = _texts(array.slice(row, 1))[0] or ""
    return repr(value if len(value) <= 40 else f"{value[:40]}…")


def is_text_list(arrow_type: pa.DataType) -> bool:
    """Whether a type is a list of texts, as which some recorders write versions."""
    if not any(is_list(arrow_type) for is_list in _LISTS):
        return False
    element = arrow_type.value_type
    return _is_text(element.value_type if pat.is_dictionary(element) else element)


def number_lists(array: pa.Array) -> pa.Array:
    """Lists of texts as lists of whole numbers. Raises a `pyarrow.ArrowInvalid` where a text is none.

    Texts of a dictionary are read once: a cast would first repeat a long one for every token that has it.
    """
    texts = array.values
    is_dictionary = pat.is_dictionary(texts.type)
    numbers = texts.dictionary.cast(pa.int64()).take(texts.indices) if is_dictionary else texts.cast(pa.int64())
    kind = pa.LargeListArray if pat.is_large_list(array.type) else pa.ListArray
    # Offsets of a slice can't stand beside a mask.
    offsets = pa.array(array.offsets.to_numpy())
    return kind.from_arrays(offsets, numbers, mask=array.is_null() if array.null_count else None)


def plain_lists(array: pa.Array) -> pa.Array:
    """Lists of a fixed size and list views as lists; other arrays as they are."""
    kind = array.type
    if pat.is_fixed_size_list(kind) or pat.is_list_view(kind):
        return array.cast(pa.list_(kind.value_field))
    return array.cast(pa.large_list(kind.value_field)) if pat.is_large_list_view(kind) else array


class Lists(NamedTuple):
    """A list column of shape [rows], flattened.

    Attributes:
        values: the elements of all rows, one after the other; null elements are 0.
        lengths: elements per row, int64 of shape [rows]; 0 for a null list.
        is_null: True where the whole list is null, of shape [rows].
        null_element_rows: rows that hold a null element, ascending.
    """

    values: np.ndarray[Any, Any]
    lengths: Int64s
    is_null: Bools
    null_element_rows: Int64s

    def elements_of(self, where: Bools) -> np.ndarray[Any, Any]:
        """The elements of the rows in `where`, one row after the other; no copy where the others have none."""
        if not self.lengths[~where].any():
            return self.values
        return self.values[np.repeat(where, self.lengths)]

    @property
    def has_null_element(self) -> Bools:
        """Whether a row holds a null element, of shape [rows]."""
        return marked(len(self.lengths), self.null_element_rows)


def lists(array: pa.Array | None, rows: int) -> Lists:
    """A list column, flattened; an absent column counts as all null."""
    if array is None or array.type == pa.null():
        nothing = np.zeros(0, dtype=np.int64)
        return Lists(nothing, np.zeros(rows, dtype=np.int64), np.ones(rows, dtype=np.bool_), nothing)
    is_null = nulls(array)
    lengths = _list_lengths(array, is_null, 0)
    values = _elements(array, int(lengths.sum()))
    null_element_rows = np.zeros(0, dtype=np.int64)
    if values.null_count:
        ends = np.cumsum(lengths)
        positions = np.flatnonzero(nulls(values))
        null_element_rows = np.unique(np.searchsorted(ends, positions, side="right"))
        values = _without_nulls(values)
    return Lists(values.to_numpy(zero_copy_only=False), lengths, is_null, null_element_rows)


def _elements(array: Any, count: int) -> pa.Array:
    """The elements of all lists that aren't null, given their number.

    A slice of what is there already serves where null lists have none, as they mostly do; `flatten` would load Arrow's
    kernels, a twentieth of the time that a command on a small log takes.
    """
    offsets = array.offsets
    first = offsets[0].as_py()
    return array.values.slice(first, count) if offsets[-1].as_py() - first == count else array.flatten()


def interleaved(
    is_first: Bools, lengths: Int64s, first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """The elements of all rows in order, those of some rows from one array and those of the others from another.

    Args:
        is_first: rows whose elements are in `first`, of shape [rows].
        lengths: elements per row, int64 of shape [rows].
        first: the elements of those rows, one row after the other; their type is that of the result.
        second: the elements of the other rows.
    """
    of_first = np.repeat(is_first, lengths)
    values = np.empty(len(of_first), dtype=first.dtype)
    values[of_first] = first
    values[~of_first] = second
    return values


def bounded_spans(lengths: Int64s, most_rows: int, most_elements: int) -> Iterator[tuple[int, int]]:
    """Consecutive rows in spans of about `most_rows` rows and `most_elements` elements at most, or of one longer row.

    Args:
        lengths: elements per row, int64 of shape [rows].
        most_rows: rows of a span.
        most_elements: elements of a span; the last row of one may exceed it.
    """
    span = np.maximum(np.arange(len(lengths)) // most_rows, np.cumsum(lengths) // most_elements)
    bounds = np.flatnonzero(np.diff(span, prepend=-1, append=-1)).tolist()
    yield from pairwise(bounds)


def _without_nulls(values: pa.Array) -> pa.Array:
    if pat.is_null(values.type):
        return pa.array(np.zeros(len(values), dtype=np.int64))
    return values.fill_null(pa.scalar(0, pa.int8()).cast(values.type))


def list_lengths(array: pa.Array | None, rows: int) -> Int64s:
    """Lengths of a list column as int64 of shape [rows]; -1 for a null list."""
    if array is None or array.type == pa.null():
        return np.full(rows, -1, dtype=np.int64)
    return _list_lengths(array, nulls(array), -1)


def _list_lengths(array: pa.Array, is_null: Bools, fill: int) -> Int64s:
    """Lengths of lists, `fill` where a list is null: what its offsets say then means nothing."""
    listed: Any = array
    return np.where(is_null, fill, np.diff(listed.offsets.to_numpy()).astype(np.int64))
