"""Objects from files of `torch.save` and bare pickles, as plain fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from tokenaudit.contracts.errors import SourceError, shown
from tokenaudit.importers.base import Context, FieldFault, Fields, SenselessFile
from tokenaudit.importers.fields import MAX_TOKENS, integer, length
from tokenaudit.importers.pickles.arrays import Array, JaggedArray, Latin1Array, LazyArray
from tokenaudit.importers.pickles.source import LazyText, Source, unreadable
from tokenaudit.importers.pickles.torch_file import PickleFile, TorchFile
from tokenaudit.importers.pickles.values import LazyList, OpaqueObject

_HEAD = 1 << 16
_PROTOCOL = b"\x80"
"""How a pickle begins; archives begin otherwise, and files of torch before it wrote these aren't called so."""
_TEXT = re.compile(rb"X([\x01-\x40])\x00\x00\x00|\x8c([\x01-\x40])")
IS_LIST = "[]"
"""Stands among the first texts of a dump that is a list."""
MAX_ITEMS = 2_000_000
"""Items of a list that is taken apart."""
_RESPONSE_COST = 128
"""What a response costs of what its file allows, beside its numbers."""
_MAX_TEXT = 1 << 20
"""Bytes of a text that is a name or an id."""

ARRAYS = (np.ndarray, LazyArray, Latin1Array)
"""The classes of a tensor or an array of a dump."""
Table = Array | JaggedArray
"""Numbers in rows, which in a nested tensor differ in length."""


class Dump(NamedTuple):
    """A dump that is open.

    Attributes:
        value: the object in it, of which large lists, texts and tensors still lie in the file.
        source: the file; what is made beyond what the file holds is charged to it.
    """

    value: Any
    source: Source

    def spend_response(self, tokens: int = 0, count: int = 1) -> None:
        """Charge responses: a crafted file could name one over and over. Raises like `Source.spend`."""
        self.source.spend(_RESPONSE_COST * count + tokens)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """A fault inside the block leaves out the whole file. Raises a `SenselessFile` if there was one."""
        try:
            yield
        except FieldFault as fault:
            raise SenselessFile(fault.problem(str(self.source.path))) from fault


def _file(path: Path) -> TorchFile | PickleFile:
    """The file as a pickle, if it is called and begins so, else as an archive of torch. Raises like both of these."""
    try:
        with path.open("rb") as stream:
            is_pickle = path.suffix.lower() == ".pkl" and stream.read(1) == _PROTOCOL
    except OSError as error:
        raise unreadable(path, error) from error
    return PickleFile(path) if is_pickle else TorchFile(path)


@contextmanager
def opened(path: Path, context: Context) -> Iterator[Dump]:
    """The object in a file, for as long as the block lasts. Raises a `SourceError` if the file can't be read."""
    with _file(path) as file:
        half = file.source.size // 2
        dump = Dump(file.load(), file.source)
        context.advance(half)
        yield dump
    context.advance(file.source.size - half)


def first_texts(path: Path) -> frozenset[str]:
    """Short texts from the beginning of a dump, among them the first keys; nothing if it is none."""
    try:
        with _file(path) as file:
            head = file.head(_HEAD)
    except SourceError:
        return frozenset()
    found = {IS_LIST} if re.match(rb"\x80.(?:\x95.{8})?\]", head, flags=re.DOTALL) else set()
    for match in _TEXT.finditer(head):
        size = (match[1] or match[2])[0]
        found.add(head[match.end() : match.end() + size].decode("ascii", "replace"))
    return frozenset(found)


def fields_of(value: object, what: str) -> dict[str, Any]:
    """The fields of a dictionary, or of an object by the state that was stored for it.

    Raises:
        FieldFault: it is something else.
    """
    if isinstance(value, OpaqueObject):
        value = value.state
        if isinstance(value, tuple) and value and isinstance(value[0], dict):
            value = value[0]
        if isinstance(value, dict) and isinstance(value.get("__dict__"), dict):
            value = value["__dict__"]
    if not isinstance(value, dict):
        raise FieldFault(f"{what} is {shown(value)}", "it has named fields")
    return value


def record_of(value: object, what: str, context: Context) -> Fields:
    """The fields of a record, of which it is noted what is looked at. Raises like `fields_of`."""
    return context.fields(fields_of(value, what))


def columns_of(value: object, what: str) -> dict[str, Any]:
    """The columns of a TensorDict, or of a dictionary in its place. Raises like `fields_of`."""
    fields = fields_of(value, what)
    return fields_of(fields["_tensordict"], what) if "_tensordict" in fields else fields


def stacked(value: object, count: int, what: str) -> Sequence[Any]:
    """One value per row out of a TensorDict's column of other things than numbers; an absent column is empty.

    Such a column is a `NonTensorStack` of `NonTensorData`, or one `NonTensorData` for all `count` rows.

    Raises like `items_of`.
    """
    if not isinstance(value, OpaqueObject):
        return items_of(value, what)
    fields = fields_of(value, what)
    if "tensordicts" not in fields:
        return [_unstacked(fields, what)] * count
    return [_unstacked(fields_of(item, what), what) for item in items_of(fields["tensordicts"], what)]


def _unstacked(fields: dict[str, Any], what: str) -> Any:
    return fields_of(fields.get("non_tensordict"), what).get("data")


def items_of(value: object, what: str) -> Sequence[Any]:
    """The items of a list; an absent one is empty.

    Raises:
        FieldFault: it is something else, or far too long.
        SourceError: it can't be read, or was read too often.
    """
    if value is None:
        return ()
    if isinstance(value, ARRAYS) and value.ndim == 1 and value.size <= MAX_ITEMS:
        return read_array(value).tolist()
    if isinstance(value, tuple):
        return value
    if not isinstance(value, LazyList):
        raise FieldFault(f"{what} is {shown(value)}", "it is a list")
    items = value.items(MAX_ITEMS)
    if items is None:
        raise FieldFault(f"{what} is a list of more than {MAX_ITEMS} items")
    return items


def count_of(value: object, what: str) -> int:
    """How many numbers a flat list or tensor has; an absent one has none.

    Raises like `flat`, and beyond `MAX_TOKENS`.
    """
    if isinstance(value, LazyList):
        count = len(value)
    elif isinstance(value, LazyArray) and value.ndim == 1:
        count = value.size
        value.source.spend(count)
    else:
        count = len(flat(value, what))
    if count > MAX_TOKENS:
        raise FieldFault(f"{what} is a list of {count} numbers", f"responses of up to {MAX_TOKENS} tokens are read")
    return count


def flat(value: object, what: str) -> np.ndarray[Any, Any]:
    """A flat list or tensor of whole numbers or bools, int64; an absent one is empty.

    Raises:
        FieldFault: it is something else.
        SourceError: it can't be read, or was read too often.
    """
    if value is None:
        return np.zeros(0, dtype=np.int64)
    if isinstance(value, LazyList | tuple):
        return _whole(value, what)
    if not isinstance(value, ARRAYS):
        raise FieldFault(f"{what} is {shown(value)}", "it is a list of whole numbers")
    is_flat = value.ndim == 1 or (value.ndim == 2 and 1 in value.shape)
    array = read_array(value).reshape(-1) if is_flat else np.zeros(1)
    if array.size and array.dtype.kind not in "biu":
        raise FieldFault(f"{what} is no list of whole numbers")
    return array.astype(np.int64)


def _whole(values: LazyList | tuple[Any, ...], what: str) -> np.ndarray[Any, Any]:
    array = values.packed() if isinstance(values, LazyList) else None
    if array is None:
        items = items_of(values, what)
        if not all(isinstance(item, int) and -(2**63) <= item < 2**63 for item in items):
            raise FieldFault(f"{what} is no list of whole numbers")
        array = np.array([int(item) for item in items], dtype=np.int64)
    if array.dtype.kind != "i":
        raise FieldFault(f"{what} is no list of whole numbers")
    return array


def reals(value: object, what: str) -> np.ndarray[Any, Any]:
    """A flat list or tensor of numbers, float32; an absent one is empty.

    Raises:
        FieldFault: it is something else.
        SourceError: it can't be read, or was read too often.
    """
    if value is None:
        return np.zeros(0, dtype=np.float32)
    array = value.packed() if isinstance(value, LazyList) else None
    if array is None and isinstance(value, LazyList | tuple):
        items = items_of(value, what)
        array = np.array(items) if all(isinstance(item, int | float) for item in items) else None
    elif isinstance(value, ARRAYS) and value.ndim == 1:
        array = read_array(value)
    if array is None or array.dtype.kind not in "biuf":
        raise FieldFault(f"{what} is {shown(value)}", "it is a list of numbers")
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def read_array(array: Array) -> np.ndarray[Any, Any]:
    """All of an array. Raises a `SourceError` if it can't be read, or was read too often."""
    return array if isinstance(array, np.ndarray) else array.read()


def is_table(value: object) -> TypeGuard[Table]:
    """Whether a value is numbers in rows."""
    return isinstance(value, (*ARRAYS, JaggedArray)) and value.ndim == 2


def width_of(table: Table, index: int) -> int:
    """How many numbers a row of a table has. Raises like `row_of`."""
    return table.row_length(index) if isinstance(table, JaggedArray) else table.shape[1]


def row_of(table: Table, index: int, count: int) -> np.ndarray[Any, Any]:
    """The first numbers of a row of a table. Raises like `read_array`."""
    return table[index, :count] if isinstance(table, np.ndarray) else table.row(index, count)


def plain(value: object) -> Any:
    """A number, text or None: as it is, out of a tensor of one element, or out of an enumeration's member.

    Anything else would be a trap: hashing or printing a tuple that holds itself over and over takes forever.

    Raises:
        FieldFault: it is something else.
        SourceError: it can't be read, or was read too often.
    """
    if isinstance(value, OpaqueObject) and len(value.arguments) == 1 and value.state is None:
        value = value.arguments[0]
    value = unpacked(value)
    if isinstance(value, LazyText) and value.size <= _MAX_TEXT:
        value = value.text()
    if not isinstance(value, str | int | float | None):
        raise FieldFault(f"{shown(value)} is no plain value", "it is a number or text")
    return value


def unpacked(value: object) -> Any:
    """The number in a tensor of one element; anything else as it is. Raises like `read_array`."""
    return read_array(value).item() if isinstance(value, ARRAYS) and value.size == 1 else value


def name_of(value: object) -> str | None:
    """A text that isn't too long for a name, else None. Raises like `LazyText.text`."""
    if isinstance(value, LazyText) and value.size <= _MAX_TEXT:
        return value.text()
    return value if isinstance(value, str) else None


def integer_of(fields: dict[str, Any], name: str, low: int = 0) -> int:
    """A whole number like `fields.integer`, out of a tensor of one element if need be. Raises like it and `plain`."""
    return integer({name: plain(fields.get(name))}, name, low)


def length_of(fields: dict[str, Any], name: str) -> int:
    """A number of tokens like `fields.length`, out of a tensor of one element if need be. Raises like `integer_of`."""
    return length({name: plain(fields.get(name))}, name)
