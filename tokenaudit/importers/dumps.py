"""Objects from files of `torch.save`, as plain fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.errors import SourceError, shown
from tokenaudit.importers.base import Context, FieldFault
from tokenaudit.pickled import Numbers, Record
from tokenaudit.torch_zip import TorchFile

_HEAD = 1 << 16
_TEXT = re.compile(rb"X([\x01-\x40])\x00\x00\x00|\x8c([\x01-\x40])")
IS_LIST = "[]"
"""Stands among the first texts of a dump that is a list."""


def loaded(path: Path, context: Context) -> Any:
    """The object in a file; it takes a few times the file's size, so nothing should hold two of them.

    Raises:
        SourceError: the file can't be read.
    """
    with TorchFile(path) as file:
        value = file.load()
    context.advance(path.stat().st_size)
    return value


def first_texts(path: Path) -> frozenset[str]:
    """Short texts from the beginning of a dump, among them the first keys; nothing if it is none."""
    try:
        with TorchFile(path) as file:
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
    if isinstance(value, Record):
        value = value.state
        if isinstance(value, tuple) and value and isinstance(value[0], dict):
            value = value[0]
        if isinstance(value, dict) and isinstance(value.get("__dict__"), dict):
            value = value["__dict__"]
    if not isinstance(value, dict):
        raise FieldFault(f"{what} is {shown(value)}", "it has named fields")
    return value


def items_of(value: object, what: str) -> Sequence[Any]:
    """The items of a list; an absent one is empty.

    Raises:
        FieldFault: it is something else.
    """
    if value is None:
        return ()
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return value.tolist()
    if not isinstance(value, Numbers | list | tuple):
        raise FieldFault(f"{what} is {shown(value)}", "it is a list")
    return value


def flat(value: object, what: str) -> np.ndarray[Any, Any]:
    """A flat list or tensor of whole numbers or bools, int64; an absent one is empty.

    Raises:
        FieldFault: it is something else.
    """
    if value is None:
        return np.zeros(0, dtype=np.int64)
    if isinstance(value, Numbers | list | tuple):
        value = _array(value, what)
    if not isinstance(value, np.ndarray):
        raise FieldFault(f"{what} is {shown(value)}", "it is a list of whole numbers")
    array = value.reshape(-1) if value.ndim == 2 and 1 in value.shape else value
    if array.ndim != 1 or (array.size and array.dtype.kind not in "biu"):
        raise FieldFault(f"{what} is no list of whole numbers")
    return array.astype(np.int64)


def _array(values: Sequence[Any], what: str) -> np.ndarray[Any, Any]:
    packed = values.packed() if isinstance(values, Numbers) else None
    if packed is not None:
        return packed
    if not all(isinstance(item, int) and -(2**63) <= item < 2**63 for item in values):
        raise FieldFault(f"{what} is no list of whole numbers")
    return np.array([int(item) for item in values], dtype=np.int64)


def plain(value: object) -> Any:
    """A number, text or None: as it is, out of a tensor of one element, or out of an enumeration's member.

    Anything else would be a trap: hashing or printing a tuple that holds itself over and over takes forever.

    Raises:
        FieldFault: it is something else.
    """
    if isinstance(value, Record) and len(value.arguments) == 1 and value.state is None:
        value = value.arguments[0]
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if not isinstance(value, str | int | float | None):
        raise FieldFault(f"{shown(value)} is no plain value", "it is a number or text")
    return value


def scalar(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """One field as `fields.integer` takes it, out of a tensor of one element if need be."""
    return {name: plain(fields.get(name))}
