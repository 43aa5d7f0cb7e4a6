"""Columns of a response from what trainers keep of it: versions known as a span, and sequences that hold a prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.contracts.schema import Precision
from tokenaudit.log.writer import Row
from tokenaudit.record.event_rows import copied, packed
from tokenaudit.record.limits import LACK_OF
from tokenaudit.record.recorder import Recorder

Array = np.ndarray[Any, Any]


def span_columns(
    start: int, end: int, *, uniform: Precision = Precision.EXACT, mixed: Precision = Precision.SPAN
) -> Row:
    """The columns for versions from the oldest to the newest that a response may have, in train steps.

    The precision is `uniform` where both are one version and `mixed` where they differ.

    Raises:
        ValueError: the newest lies before the oldest.
    """
    if end < start:
        raise ValueError(f"versions go from {start} to {end}")
    precision = uniform if start == end else mixed
    row: Row = {"model_step": start, "version_precision": precision}
    return row if precision in (Precision.EXACT, Precision.SEGMENT) else row | {"model_step_end": end}


def spread(versions: Array, is_generated: Array) -> Array:
    """Versions of all tokens, given those of the generated ones.

    Context gets the version of the generated token before it, at the start behind it. That leaves the oldest version
    of the response as it is, and context is never trained.
    """
    if len(versions) == 0:
        return versions
    return versions[np.maximum(np.cumsum(is_generated) - 1, 0)]


def response_of(tokens: Any, mask: Any, logprobs: Any = None, is_generated: Array | None = None) -> Row:
    """The response in a whole sequence: what stands from the first generated token on.

    Args:
        tokens: ids of prompt and response.
        mask: for each, whether it is trained.
        logprobs: for each, its log-probability; None: not known.
        is_generated: for each, whether a model made it; None: those that are trained.
    """
    ids, bits = copied(tokens), mask_bits(mask)
    if len(ids) != len(bits):
        raise ValueError(f"{len(bits)} mask entries for {len(ids)} tokens")
    generated = np.flatnonzero(bits if is_generated is None else is_generated | bits)
    first = int(generated[0]) if len(generated) else len(ids)
    row: Row = {
        "prompt_len": first,
        "response_len": len(ids) - first,
        "response_ids": ids[first:],
        "response_mask": bits[first:].view(np.int8),
    }
    values = None if logprobs is None else copied(logprobs)
    if values is not None and len(values) == len(ids):
        row["logprobs"] = values[first:]
    return row


def mask_bits(mask: Any) -> Array:
    """Which entries of a mask aren't 0; an array of bools."""
    values = packed("response_mask", mask) if isinstance(mask, list | tuple) else None
    return np.asarray(copied(mask) if values is None else values) != 0


def message_mask(mask: Array | None, role: object, tokens: int) -> Array:
    """Which tokens of a message of NeMo-RL are trained: those of its mask; without one, all of an assistant's."""
    return np.full(tokens, role == "assistant") if mask is None else mask != 0


class RecordedGroup(NamedTuple):
    """A group that was put.

    Attributes:
        task_name: its task.
        group_id: its id in the log.
        rollout_ids: its rollouts, each once.
    """

    task_name: str
    group_id: int
    rollout_ids: tuple[int, ...]


def put_group(recorder: Recorder, rows: list[Row], group_id: int, train_step: int, task_name: str) -> RecordedGroup:
    """Record that a group was put, and what isn't known of its versions. Raises like `Recorder.put`."""
    precisions = {row.get("version_precision") for row in rows}
    for precision, lack in LACK_OF.items():
        if precision in precisions:
            recorder.note_limit(lack)
    recorder.put(rows, group_id=group_id, train_step=train_step, task_name=task_name)
    return RecordedGroup(task_name, group_id, tuple(dict.fromkeys(row["rollout_id"] for row in rows)))


def take_groups(recorder: Recorder, put: Iterable[RecordedGroup | None], train_step: int) -> None:
    """Record that a step trains what was put: a take of each task, which names what it got; None wasn't recorded."""
    groups = [group for group in put if group is not None]
    for task_name, size in Counter(group.task_name for group in groups).items():
        responses = [
            {"group_id": group.group_id, "rollout_id": rollout}
            for group in groups
            if group.task_name == task_name
            for rollout in group.rollout_ids
        ]
        recorder.take(train_step, size, task_name=task_name, responses=responses)
