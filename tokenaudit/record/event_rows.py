"""Events handed to a recorder become rows, checked and copied at once in the types in which they are written."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import Problem, RecordError, nearest_hint, shown
from tokenaudit.contracts.schema import COLUMNS, DEFAULT_TASK, TOKEN_COLUMNS, VERSION_RUNS, ColumnType, EventKind
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.writer import Row, element_type

_OF_EVENT = ("event", "event_id", "train_step", "task_name", "group_id", "time_us", VERSION_RUNS)
RESPONSE_COLUMNS: dict[str, ColumnType] = {
    column.name: column.type for column in COLUMNS if EventKind.PUT in column.events and column.name not in _OF_EVENT
}
"""Columns that a response of a put may have; the others belong to the whole put. `model_step` may be of either."""

MASK_COLUMNS = tuple(name for name, kind in RESPONSE_COLUMNS.items() if kind is ColumnType.MASK_LIST)
"""Token columns whose values are 0 or 1."""
_REALS = tuple(name for name, kind in RESPONSE_COLUMNS.items() if kind is ColumnType.REAL)

_LARGEST_WIDE = dict.fromkeys(("group_id", "rollout_id"), 2**63 - 2) | dict.fromkeys(
    ("time_us", "generate_time_us"), 2**63 - 1
)
"""The largest value of columns of 64 bits; the largest integer of all is no id to readers."""
_LONGEST_TEXT = 2**17
"""Characters of a text. Parts are sealed before their texts take more than readers accept."""
_STATUSES = tuple(status.value for status in Status)


def put_rows(
    group: Sequence[Mapping[str, Any]],
    *,
    group_id: int,
    train_step: int,
    model_step: int | None = None,
    task_name: str = DEFAULT_TASK,
    time_us: int | None = None,
) -> list[Row]:
    """Rows of a put. Lists are copied, so that the caller may go on changing its own.

    Args:
        group: the responses, as mappings from `RESPONSE_COLUMNS` to values; `status` is `completed` if left out.
        group_id: the prompt's group, unique inside the task.
        train_step: the step the buffer compares versions with.
        model_step: version that made the new tokens; None if `response_model_steps` are complete. A response may name
            its own.
        task_name: the task.
        time_us: microseconds since the run began.

    Raises:
        RecordError: an unknown name, a value of a wrong type, or lengths that contradict each other; all at once.
    """
    shared: Row = {
        "event": EventKind.PUT.value,
        "task_name": task_name,
        "group_id": group_id,
        "train_step": train_step,
        "model_step": model_step,
        "time_us": time_us,
    }
    problems = list(_problems(shared, "the put"))
    if not isinstance(group, Sequence) or not all(isinstance(response, Mapping) for response in group):
        what = f"the responses are {shown(group)}"
        raise RecordError([*problems, Problem(what, f"the put of group {shown(group_id)}", "give a list of mappings")])
    if not group:
        problems.append(Problem("a put without a response", None, "an empty group has nothing to record"))
    rows: list[Row] = []
    for index, response in enumerate(group):
        where = f"response {index} of group {shown(group_id)}"
        own: Row = {"status": Status.COMPLETED.value}
        own |= {name: value for name, value in response.items() if value is not None and name in RESPONSE_COLUMNS}
        row = shared | own
        rows.append(row)
        problems.extend(_unknown_names(response, tuple(RESPONSE_COLUMNS), where))
        problems.extend(_problems(own, where))
        problems.extend(_copy_lists(row, where))
        if "rollout_id" not in row:
            problems.append(Problem("rollout_id is missing", where, "number the responses of a task"))
        if not problems:
            problems.extend(_lengths(row, where))
    if problems:
        raise RecordError(problems)
    return rows


_OF_TAKEN = ("rollout_id", "group_id", "trained_mask")


def take_rows(
    values: Row, rollout_ids: Sequence[int] | None, responses: Sequence[Mapping[str, Any]] | None
) -> list[Row]:
    """Rows of a take: one, or one per response taken where they are named.

    Args:
        values: `train_step`, `batch_size`, `task_name` and `time_us`.
        rollout_ids: the rollouts taken.
        responses: the responses taken, as they were put, with `group_id` if it is known. `rollout_id`, `group_id` and
            `trained_mask` are recorded.

    Raises:
        RecordError: a value of a wrong type, or both of them given; all at once.
    """
    row: Row = {"event": EventKind.TAKE.value} | values
    problems = list(_problems(row, "the take"))
    for given in (rollout_ids, responses):
        if given is not None and (not hasattr(given, "__iter__") or isinstance(given, str | bytes | Mapping)):
            problems.append(Problem(f"what was taken is {shown(given)}", "the take", "give a list"))
            raise RecordError(problems)
    if rollout_ids is not None and responses is not None:
        problems.append(Problem("rollout_ids beside responses", "the take", "give one of them"))
    named = list(responses or ())
    if rollout_ids is not None:
        named += ({"rollout_id": rollout} for rollout in getattr(rollout_ids, "tolist", lambda: rollout_ids)())
    rows: list[Row] = []
    for index, response in enumerate(named):
        where = f"response {index} of the take"
        if not isinstance(response, Mapping):
            problems.append(Problem(f"it is {shown(response)}", where, "give a mapping with rollout_id"))
            continue
        problems.extend(_unknown_names(response, (*RESPONSE_COLUMNS, "group_id"), where))
        taken = {name: response[name] for name in _OF_TAKEN if response.get(name) is not None}
        problems.extend(_problems(taken, where))
        problems.extend(_copy_lists(taken, where))
        if "rollout_id" not in taken:
            problems.append(Problem("rollout_id is missing", where, "name the rollout that was taken"))
        rows.append(row | taken)
    if problems:
        raise RecordError(problems)
    return rows or [row]


def _unknown_names(response: Mapping[str, Any], known: Sequence[str], where: str) -> Iterator[Problem]:
    for name in response:
        if name not in known:
            hint = nearest_hint(str(name), known, "names")
            yield Problem(f"{shown(name)} is no column of a response", where, hint)


def event_row(event: EventKind, **values: int | str | None) -> Row:
    """The row of an event other than a put. Raises a `RecordError` for a value of a wrong type."""
    row: Row = {"event": event.value} | values
    problems = list(_problems(row, f"the {event.value}"))
    if problems:
        raise RecordError(problems)
    return row


def _copy_lists(row: Row, where: str) -> Iterator[Problem]:
    """Put a copy in the place of every token column, and of a real number the float; what can't be one is a problem."""
    for name in TOKEN_COLUMNS:
        value = row.get(name)
        if value is None:
            continue
        if not hasattr(value, "__len__") or getattr(value, "ndim", 1) != 1:
            yield Problem(f"{name} is {shown(value)}", where, "it is a list with one number per token")
            continue
        try:
            row[name] = _token_array(name, value, where)
        except RecordError as error:
            yield from error.problems
    for name in _REALS:
        if _is_real(row.get(name)):
            row[name] = float(row[name])


def _token_array(name: str, values: Any, where: str) -> np.ndarray[Any, Any]:
    """A copy of a token column as it is written, which the caller's later changes don't reach.

    Raises:
        RecordError: values that can't be copied, or aren't one number per token; floats that are whole numbers may
            stand for integers.
    """
    array = packed(name, values) if isinstance(values, list | tuple) else None
    if array is None:
        array = _numpy_copy(name, values, where)
    try:
        return _checked(name, array)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(Problem(f"{name}: {error}"[:200], where, "give one number per token")) from error


def packed(name: str, values: list[Any] | tuple[Any, ...]) -> np.ndarray[Any, Any] | None:
    """A list of numbers as an array, in less time than numpy takes; None for other lists."""
    try:
        if name in MASK_COLUMNS:
            return np.frombuffer(bytes(values), dtype=np.uint8)
        if element_type(name) == np.int32:
            return np.frombuffer(struct.pack(f"={len(values)}i", *values), dtype=np.int32)
        return np.frombuffer(struct.pack(f"={len(values)}d", *values))
    except (TypeError, ValueError, OverflowError, struct.error):
        return None


def _numpy_copy(name: str, values: Any, where: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(copied(values))
    except Exception as error:
        what = f"{name} can't be copied: {type(error).__name__}: {error}"[:200]
        raise RecordError(Problem(what, where, "give a list or an array with one number per token")) from error


def copied(values: Any) -> Any:
    """A copy of a list, array or tensor: an array where that takes no look at every number, else a list."""
    if not hasattr(values, "tolist"):
        return list(values)
    try:
        # tensors that share their memory don't know how to copy it
        return np.asarray(values).copy()
    except Exception:  # noqa: BLE001 - numpy refuses tensors on a device, with gradients or of bfloat16, each in its way
        return values.tolist()


def _checked(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The values in the type in which they are written. Raises a `ValueError` or `TypeError` if they can't be."""
    dtype = element_type(name)
    if values.ndim != 1:
        raise ValueError("not a flat list")
    if values.dtype.kind == "c":
        raise ValueError("not real numbers")
    if dtype.kind == "i" and values.size:
        if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.trunc(values))).all():
            raise ValueError("not whole numbers")
        if name in MASK_COLUMNS:
            if values.dtype.kind not in "biuf":
                raise ValueError("not a flat list of integers or bools")
            return (values != 0).astype(dtype)
        if values.dtype.kind not in "iuf" or not _fits(values, dtype, name):
            raise ValueError("not integers of 32 bits, 0 or more")
    return values.astype(dtype)


def _fits(values: np.ndarray[Any, Any], dtype: np.dtype[Any], name: str) -> bool:
    lowest = 0 if name == "response_model_steps" else np.iinfo(dtype).min
    return lowest <= int(values.min()) and int(values.max()) <= np.iinfo(dtype).max


def _problems(values: Row, where: str) -> Iterator[Problem]:
    """What is wrong with single values; those of token columns are looked at when they are copied."""
    for name, value in values.items():
        if value is None:
            if name in ("train_step", "group_id", "batch_size"):
                yield Problem(f"{name} is missing", where, "every event of this kind needs it")
        elif name == "status":
            if not isinstance(value, str) or value not in _STATUSES:
                hint = nearest_hint(value if isinstance(value, str) else "", _STATUSES, "statuses")
                yield Problem(f"unknown status {shown(value)}", where, hint)
        elif name in ("task_name", "finish_reason", "version_precision", "event"):
            if not isinstance(value, str) or not _is_utf8(value):
                yield Problem(f"{name} is {shown(value)}", where, "it is text that UTF-8 can hold")
            elif len(value) > _LONGEST_TEXT:
                what = f"{name} has {len(value)} characters"
                yield Problem(what, where, f"it is a name; up to {_LONGEST_TEXT} characters are recorded")
        elif name == "agentic":
            if not isinstance(value, bool | np.bool_):
                yield Problem(f"agentic is {shown(value)}", where, "it is true or false")
        elif name in _REALS:
            if not _is_real(value):
                yield Problem(f"{name} is {shown(value)}", where, "it is a number")
        elif name not in TOKEN_COLUMNS:
            yield from integer_problems(name, value, where)


def _is_utf8(text: str) -> bool:
    """Whether a text can be written; half of a pair of surrogates, as JSON can hold it, can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_real(value: Any) -> bool:
    """Whether a value is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def integer_problems(name: str, value: Any, where: str) -> Iterator[Problem]:
    """What is wrong with a value that has to be an integer, 0 or more unless its column is one of ids or times."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        yield Problem(f"{name} is {shown(value)}", where, "it is an integer")
    elif name in _LARGEST_WIDE:
        if not -(2**63) < value <= _LARGEST_WIDE[name]:
            hint = f"it is above -2**63 and at most {_LARGEST_WIDE[name]}"
            yield Problem(f"{name} is {shown(value)}", where, hint)
    elif not (0 <= value < 2**31 or (name == "seq_staleness" and -(2**31) <= value < 2**31)):
        yield Problem(f"{name} is {shown(value)}", where, "it is 0 or more and fits 32 bits")


def _lengths(row: Row, where: str) -> Iterator[Problem]:
    """Settle the length of a response and check what else has one entry per token."""
    versions = row.get("response_model_steps")
    if "response_len" not in row:
        tokens = row.get("response_ids", versions)
        if tokens is None:
            yield Problem("nothing gives the length of the response", where, "give response_len")
            return
        row["response_len"] = len(tokens)
    length = row["response_len"]
    if versions is not None and len(versions) > length:
        yield Problem(f"{len(versions)} versions for {length} tokens", where, "give one per token, or fewer")
    if versions is not None and len(versions) < length:
        if row["model_step"] is None:
            yield Problem(f"{len(versions)} versions for {length} tokens and no model_step", where, "give model_step")
        row.setdefault("prior_len", len(versions))
    mask = row.get("response_mask")
    if mask is not None and len(mask) != length:
        yield Problem(f"{len(mask)} mask entries for {length} tokens", where, "give one per token, or none at all")
    if row.get("prior_len", 0) > length:
        yield Problem(f"prior_len is {row['prior_len']} for {length} tokens", where, "it counts leading tokens")
