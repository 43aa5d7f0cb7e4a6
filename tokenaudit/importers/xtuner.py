"""XTuner: batches of `debug_rollout_<step>.pt`, and the buffer of a checkpoint, `replay_buffer.pth`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.errors import Problem, SourceError, shown
from tokenaudit.importers.base import (
    Context,
    FieldFault,
    Imported,
    ImportedPut,
    Importer,
    Lack,
    Precision,
    stable_id,
    take_event,
)
from tokenaudit.importers.dumps import IS_LIST, fields_of, flat, items_of, loaded, plain
from tokenaudit.importers.fields import integer, number
from tokenaudit.importers.files import number_in
from tokenaudit.lifecycle.types import Status
from tokenaudit.log_writer import Row

_STATUSES = frozenset(status.value for status in Status)


def _batch_looks_like(path: Path, keys: frozenset[str]) -> bool:
    return path.name.startswith("debug_rollout_") and path.suffix == ".pt" and IS_LIST in keys


def _read_batches(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    for path in files:
        train_step = number_in(path.name, r"_(\d+)\.pt$")
        if train_step is None:
            hint = "keep the name that the trainer gave it"
            raise SourceError(Problem("the name of the file doesn't tell the train step", str(path), hint))
        sizes: dict[str, int] = {}
        for put in _groups(items_of_file(path, context), path, context):
            sizes[put.task_name] = sizes.get(put.task_name, 0) + 1
            yield ImportedPut(train_step, put.task_name, put.group_id, put.rows, put.where)
        for task_name, size in sizes.items():
            yield take_event(train_step, task_name, size, str(path))


def items_of_file(path: Path, context: Context) -> Sequence[Any]:
    """The list in a file.

    Raises:
        SourceError: it holds something else.
    """
    try:
        return items_of(loaded(path, context), "the dump")
    except FieldFault as fault:
        raise SourceError(Problem(fault.what, str(path), fault.hint)) from fault


def _groups(groups: Sequence[Any], path: Path, context: Context, task_name: object = None) -> Iterator[ImportedPut]:
    """Groups of rollout states, for a train step that only the caller knows."""
    for index, group in enumerate(groups):
        where = f"{path}, group {index}"
        try:
            states = [fields_of(state, "a rollout") for state in items_of(group, "a group")]
            if not states:
                continue
            rows = [_row(state, context) for state in states]
            group_id = stable_id(plain(states[0].get("group_id", states[0].get("message_uid"))))
            task = context.task(task_name or states[0].get("task_name"))
        except FieldFault as fault:
            context.fault(fault, where)
            continue
        yield ImportedPut(0, task, group_id, rows, where)


def _row(state: dict[str, Any], context: Context) -> Row:
    versions = flat(state.get("response_model_steps"), "response_model_steps")
    mask = flat(state.get("response_mask"), "response_mask")
    tokens = len(flat(state.get("response_ids"), "response_ids"))
    status = plain(state.get("status"))
    reward = state.get("reward")
    reason = state.get("finish_reason")
    if status not in _STATUSES:
        raise FieldFault(f"unknown status {shown(status)}", f"statuses: {', '.join(sorted(_STATUSES))}")
    if len(versions) != tokens:
        raise FieldFault(f"{len(versions)} versions for {tokens} tokens")
    row: Row = {
        "rollout_id": stable_id(plain(state.get("rollout_id", state.get("uid")))),
        "status": status,
        "response_len": tokens,
        "response_model_steps": context.versions.model_steps(versions),
        "response_mask": (mask != 0).astype(np.int8) if len(mask) else None,
        "agentic": any(state.get(name) is not None for name in ("input_ids", "labels")),
        "reward": number(reward.get("score") if isinstance(reward, dict) else reward, "reward"),
        "finish_reason": reason if isinstance(reason, str) else None,
        "version_precision": Precision.EXACT,
    }
    if state.get("prompt_ids") is not None:
        row["prompt_len"] = len(flat(state["prompt_ids"], "prompt_ids"))
    if isinstance(state.get("seq_staleness"), int):
        row["seq_staleness"] = state["seq_staleness"]
    return row


def _buffer_looks_like(path: Path, keys: frozenset[str]) -> bool:
    return path.suffix == ".pth" and "storage_state" in keys


def _read_buffers(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    for path in files:
        yield from _read_buffer(path, context)


def _read_buffer(path: Path, context: Context) -> Iterator[Imported]:
    try:
        saved = fields_of(loaded(path, context), "the dump")
        state = fields_of(saved.get("storage_state"), "storage_state")
        if "items" not in state:
            hint = "only buffers with the storage NaiveStorage can be read"
            raise FieldFault(f"a buffer with the storage {shown(saved.get('storage'))}", hint)
        items = [fields_of(item, "an item") for item in items_of(state["items"], "items")]
        items.sort(key=lambda item: integer(item, "timestamp_id"))
    except FieldFault as fault:
        raise SourceError(Problem(fault.what, str(path), fault.hint)) from fault
    puts: list[ImportedPut] = []
    for item in items:
        puts += _groups([item.get("item")], path, context, item.get("task_name"))
    train_step = _compared_at(puts)
    for put in puts:
        yield ImportedPut(train_step, put.task_name, put.group_id, put.rows, put.where)


def _compared_at(puts: Sequence[ImportedPut]) -> int:
    """The step the buffer last compared with: a response's staleness tells it from its oldest version."""
    steps = [
        row["seq_staleness"] + int(row["response_model_steps"].min()) + 1
        for put in puts
        for row in put.rows
        if row.get("seq_staleness") is not None and len(row["response_model_steps"])
    ]
    return max([1, *steps])


_READS = (
    "task_name",
    "group_id",
    "rollout_id",
    "status",
    "response_len",
    "prompt_len",
    "response_model_steps",
    "response_mask",
    "agentic",
    "reward",
    "finish_reason",
    "seq_staleness",
)
BATCHES = Importer(
    name="xtuner",
    title="XTuner batches of a debug run",
    files="debug_rollout_<step>.pt",
    looks_like=_batch_looks_like,
    read=_read_batches,
    suffixes=(".pt",),
    precisions=(Precision.EXACT,),
    reads=(*_READS, "take"),
    lacks=(Lack.DROPPED, Lack.TRAINED_MASK),
)
BUFFER = Importer(
    name="xtuner-buffer",
    title="XTuner replay buffer of a checkpoint",
    files="replay_buffer.pth",
    looks_like=_buffer_looks_like,
    read=_read_buffers,
    suffixes=(".pth",),
    precisions=(Precision.EXACT,),
    reads=_READS,
    lacks=(Lack.SNAPSHOT, Lack.TIMELINE),
)
