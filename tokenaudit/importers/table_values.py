"""Values of a table of someone else, as the columns of a log hold them; of CSV all of them are texts."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.contracts.schema import COLUMN_BY_NAME, TOKEN_COLUMNS, ColumnType
from tokenaudit.importers.base import FieldFault
from tokenaudit.importers.fields import int_list, number, stable_id

_NUMBER = {ColumnType.INTEGER: "it is a whole number", ColumnType.REAL: "it is a number"}
_IDS = ("group_id", "rollout_id")
_NAMES = ("event", "status", "version_precision")
"""Columns whose values are names of ours."""
_ABSENT = frozenset({"", "nan", "none", "null"})
"""Texts that other programs write for a missing value."""
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def table_value(name: str, value: object) -> Any:
    """A value as the column of a log holds it; None where it is missing.

    Raises:
        FieldFault: it can't be one.
    """
    kind = COLUMN_BY_NAME[name].type
    value = _plain(value)
    if value is None or (isinstance(value, str) and (not value or (_is_absent(value) and kind is not ColumnType.TEXT))):
        return None
    if name in _IDS:
        return _id(name, value)
    if name in TOKEN_COLUMNS:
        return _list(name, value, kind)
    if kind is ColumnType.TEXT:
        return _text(name, value)
    if kind is ColumnType.FLAG:
        flag = _FLAGS.get(str(value).strip().lower()) if isinstance(value, str | int | float) else None
        if flag is None:
            raise FieldFault(f"{name} is {shown(value)}", "it is true or false")
        return flag
    return _number(name, value, kind)


def _plain(value: object) -> Any:
    """A value without the types that databases and data frames have for texts, numbers and missing values."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value


def _is_absent(value: str) -> bool:
    return len(value) <= 8 and value.strip().lower() in _ABSENT


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise FieldFault(f"{name} is {shown(value)}", "it is text")
    # enumerations print as Status.COMPLETED
    return value.strip().rpartition(".")[2].lower() if name in _NAMES else value


def _id(name: str, value: Any) -> int:
    """An id: a number as it is, others by hashing. Equal texts and numbers give equal ids in all files."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        value = str(value)
    if value == "-1":
        raise FieldFault(f"{name} is -1", "that stands for none; leave it empty where there is none")
    if not isinstance(value, str):
        raise FieldFault(f"{name} is {shown(value)}", "ids are texts or whole numbers")
    # data frames turn numbers into floats where some are missing
    return stable_id(value[:-2] if re.fullmatch(r"\d+\.0", value) else value)


def _number(name: str, value: Any, kind: ColumnType) -> Any:
    real = _number_in(name, value, kind) if isinstance(value, str) else value
    if kind is ColumnType.REAL:
        return number(real, name)
    if isinstance(real, float) and real.is_integer():
        real = int(real)
    if isinstance(real, bool) or not isinstance(real, int) or abs(real) >= 2**63:
        raise FieldFault(f"{name} is {shown(value)}", _NUMBER[kind])
    return real


def _number_in(name: str, text: str, kind: ColumnType) -> int | float:
    """The number that a text says."""
    if kind is ColumnType.REAL and text.strip().lower() in ("true", "false"):
        return float(_FLAGS[text.strip().lower()])
    # int and float take 1_000
    for number_of in (int, float) if "_" not in text else ():
        try:
            return number_of(text)
        except ValueError:
            continue
    if name == "time_us":
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise FieldFault(f"{name} is {shown(text)}", "it counts microseconds, or is a date and time") from None
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
    raise FieldFault(f"{name} is {shown(text)}", _NUMBER[kind])


def _list(name: str, value: Any, kind: ColumnType) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise FieldFault(f"{name} is {shown(value)}", "lists in CSV are written as JSON: [1, 2]") from error
    if not isinstance(value, list | np.ndarray):
        raise FieldFault(f"{name} is {shown(value)}", "it is a list of numbers")
    if kind is ColumnType.REAL_LIST:
        return _reals(name, value)
    if kind is not ColumnType.MASK_LIST:
        return int_list(value, name)
    mask = _reals(name, value)
    if not np.isfinite(mask).all():
        raise FieldFault(f"{name} holds entries that are missing or not finite", "it has a number for each token")
    return (mask != 0).astype("int8")


def _reals(name: str, values: list[Any] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A flat list of numbers, float64; what is missing or not finite is NaN."""
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            array = np.array([math.nan if (real := number(item, name)) is None else real for item in values])
    except (ValueError, OverflowError) as error:
        if isinstance(error, FieldFault):
            raise
        raise FieldFault(f"{name} is no flat list of numbers") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "biuf"):
        raise FieldFault(f"{name} is no flat list of numbers")
    reals = array.astype(np.float64)
    reals[~np.isfinite(reals)] = math.nan
    return reals
