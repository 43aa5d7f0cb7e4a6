"""Values of a record that someone else wrote: read as what they should be, or refused with a reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.importers.base import Context, FieldFault, Precision
from tokenaudit.log.log_file import MAX_ROW_ELEMENTS
from tokenaudit.log.writer import Row
from tokenaudit.record.ids import log_id
from tokenaudit.record.response_columns import span_columns

MAX_TOKENS = MAX_ROW_ELEMENTS
"""Longest response that is read; a crafted count could ask for any amount of memory."""


def integer(data: Mapping[str, Any], name: str, low: int = 0) -> int:
    """A whole number of at least `low` that fits 63 bits. Raises a `FieldFault` if it is missing or something else."""
    value = data.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, np.integer):
        value = int(value)
    if value is None:
        raise FieldFault(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**63:
        raise FieldFault(f"{name} is {shown(value)}", f"it is a whole number of at least {low}")
    return value


def length(data: Mapping[str, Any], name: str) -> int:
    """A number of tokens. Raises like `integer`."""
    value = integer(data, name)
    if value > MAX_TOKENS:
        raise FieldFault(f"{name} is {value}", f"responses of up to {MAX_TOKENS} tokens are read")
    return value


def number(value: object, name: str) -> float | None:
    """A finite number; None where it is missing or not finite. Raises a `FieldFault` if it is something else.

    True and False are 1 and 0: rewards and scores may be whether an answer was right.
    """
    if value is None:
        return None
    if not isinstance(value, int | float | np.integer | np.floating | np.bool_):
        raise FieldFault(f"{name} is {shown(value)}", "it is a number")
    try:
        real = float(value)
    except OverflowError:
        return None
    return real if math.isfinite(real) else None


def objects(value: object, name: str) -> list[dict[str, Any]]:
    """A list of objects; an absent one is empty. Raises a `FieldFault` if it is something else."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise FieldFault(f"{name} is no list of objects")
    return value


def mapping(value: object, name: str) -> dict[str, Any]:
    """An object; an absent one is empty. Raises a `FieldFault` if it is something else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FieldFault(f"{name} is {shown(value)}", "it is an object")
    return value


def int_list(value: object, name: str) -> np.ndarray[Any, Any]:
    """A flat list of whole numbers (floats, bools) as an int64 array. Raises a `FieldFault` if it is something else."""
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise FieldFault(f"{name} is no list of whole numbers") from error
    if array.ndim != 1 or (array.size and not _is_whole(array)):
        raise FieldFault(f"{name} is no list of whole numbers")
    return array.astype(np.int64)


def real_list(value: object, name: str) -> np.ndarray[Any, Any]:
    """A flat list of numbers as a float32 array, NaN for null. Raises a `FieldFault` if it is something else."""
    try:
        with np.errstate(over="ignore"):
            array = np.array(value, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise FieldFault(f"{name} is no list of numbers") from error
    if array.ndim != 1:
        raise FieldFault(f"{name} is no list of numbers")
    return array


def _is_whole(array: np.ndarray[Any, Any]) -> bool:
    """Whether numbers are whole ones of 64 bits; data frames turn them into floats where some are missing."""
    if array.dtype.kind == "f":
        return bool((np.abs(array) < 2**53).all() and (array == np.trunc(array)).all())
    return array.dtype.kind in "bi" or (array.dtype.kind == "u" and int(array.max()) < 2**63)


def pieces(parts: Sequence[tuple[int, int]]) -> np.ndarray[Any, Any]:
    """A list of (value, count) written out, int32. Raises a `FieldFault` for more than `MAX_TOKENS` in all."""
    if sum(count for _, count in parts) > MAX_TOKENS:
        raise FieldFault("a response too long", f"responses of up to {MAX_TOKENS} tokens are read")
    return np.repeat(
        np.array([value for value, _ in parts], dtype=np.int32), np.array([n for _, n in parts], dtype=np.int64)
    )


def stable_id(value: object) -> int:
    """An id as a log holds it: a number as it is, any other text by a hash of 53 bits, which JSON and floats keep.

    Raises:
        FieldFault: neither a text nor a number of at least 0 that fits 63 bits.
    """
    try:
        return log_id(value)
    except ValueError as error:
        raise FieldFault(str(error), "ids are texts, or numbers of at least 0") from error


def version_columns(
    start: int | None,
    end: int | None,
    context: Context,
    *,
    uniform: Precision = Precision.EXACT,
    mixed: Precision = Precision.SPAN,
) -> Row:
    """The columns for the versions of a response, given the oldest and the newest in train steps; None: not recorded.

    The precision is `uniform` where both are one version and `mixed` where they differ; what it leaves out is noted.

    Raises:
        FieldFault: the newest lies before the oldest.
    """
    if start is None or end is None:
        context.limit_of(Precision.NONE)
        return {"version_precision": Precision.NONE}
    if end < start:
        raise FieldFault(f"versions go from {start} to {end}")
    row = span_columns(start, end, uniform=uniform, mixed=mixed)
    context.limit_of(row["version_precision"])
    return row
