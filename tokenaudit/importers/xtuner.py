"""XTuner: trained batches of a debug run, `debug_rollout_<step>.pt`, and a checkpoint's buffer, `replay_buffer.pth`.

Both hold the version of every token. Batches lack what was dropped or left over, buffers what came and went before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.importers.base import (
    USUAL_READS,
    Context,
    FieldFault,
    Imported,
    ImportedPut,
    Importer,
    Lack,
    Precision,
    VersionScale,
    each_file,
)
from tokenaudit.importers.batch import bounded, takes
from tokenaudit.importers.dumps import (
    IS_LIST,
    Dump,
    count_of,
    fields_of,
    flat,
    items_of,
    name_of,
    opened,
    plain,
    unpacked,
)
from tokenaudit.importers.fields import integer, number, stable_id
from tokenaudit.importers.files import step_in_name
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.writer import Row

_STATUSES = frozenset(status.value for status in Status)


def _batch_looks_like(path: Path, keys: frozenset[str]) -> bool:
    return path.name.startswith("debug_rollout_") and path.suffix == ".pt" and IS_LIST in keys


def _read_batch(path: Path, context: Context) -> Iterator[Imported]:
    train_step = step_in_name(path, r"_(\d+)\.pt$")
    sizes: Counter[str] = Counter()
    with opened(path, context) as dump:
        with dump.all_or_nothing():
            groups = items_of(dump.value, "the dump")
        for put in _puts(((group, None) for group in groups), train_step, dump, context):
            sizes[put.task_name] += 1
            yield put
    yield from takes(train_step, sizes, str(path))


def _puts(groups: Iterable[tuple[Any, object]], train_step: int, dump: Dump, context: Context) -> Iterator[ImportedPut]:
    """The puts of groups with their tasks, where they have any; empty groups and those that can't be read are none."""
    for index, (group, task_name) in enumerate(groups):
        where = f"{dump.source.path}, group {index}"
        try:
            put = _put(group, task_name, train_step, where, dump, context)
        except FieldFault as fault:
            context.fault(fault, where)
            continue
        if put is not None:
            yield put


def _put(
    group: Any, task_name: object, train_step: int, where: str, dump: Dump, context: Context
) -> ImportedPut | None:
    states = [fields_of(state, "a rollout") for state in items_of(group, "a group")]
    if not states:
        return None
    dump.spend_response(count=len(states))
    rows = bounded(_row(state, context) for state in states)
    group_id = stable_id(plain(states[0].get("group_id", states[0].get("message_uid"))))
    task = context.task(name_of(task_name) or name_of(states[0].get("task_name")))
    return ImportedPut(train_step, task, group_id, rows, where)


def _row(state: dict[str, Any], context: Context) -> Row:
    versions = flat(state.get("response_model_steps"), "response_model_steps")
    mask = flat(state.get("response_mask"), "response_mask")
    tokens = count_of(state.get("response_ids"), "response_ids")
    status = plain(state.get("status"))
    reward = state.get("reward")
    reason = name_of(state.get("finish_reason"))
    if status not in _STATUSES:
        raise FieldFault(f"unknown status {shown(status)}", f"statuses: {', '.join(sorted(_STATUSES))}")
    if len(versions) != tokens:
        raise FieldFault(f"{len(versions)} versions for {tokens} tokens")
    row: Row = {
        "rollout_id": stable_id(plain(state.get("rollout_id", state.get("uid")))),
        "status": status,
        "response_len": tokens,
        "response_model_steps": context.versions.model_steps(versions).astype(np.int32),
        "response_mask": (mask != 0).astype(np.int8) if len(mask) else None,
        "agentic": any(state.get(name) is not None for name in ("input_ids", "labels")),
        "reward": number(unpacked(reward.get("score") if isinstance(reward, dict) else reward), "reward"),
        "finish_reason": reason,
        "version_precision": Precision.EXACT,
    }
    if state.get("prompt_ids") is not None:
        row["prompt_len"] = count_of(state["prompt_ids"], "prompt_ids")
    if isinstance(state.get("seq_staleness"), int):
        row["seq_staleness"] = state["seq_staleness"]
    return row


def _buffer_looks_like(path: Path, keys: frozenset[str]) -> bool:
    return path.suffix == ".pth" and "storage_state" in keys


def _read_buffer(path: Path, context: Context) -> Iterator[Imported]:
    with opened(path, context) as dump:
        with dump.all_or_nothing():
            saved = fields_of(dump.value, "the dump")
            state = fields_of(saved.get("storage_state"), "storage_state")
            if "items" not in state:
                hint = "only buffers with the storage NaiveStorage can be read"
                raise FieldFault(f"a buffer with the storage {shown(saved.get('storage'))}", hint)
            items = [fields_of(item, "an item") for item in items_of(state["items"], "items")]
            items.sort(key=lambda item: integer(item, "timestamp_id"))
            train_step = _compared_at(items, context.versions)
        yield from _puts(((item.get("item"), item.get("task_name")) for item in items), train_step, dump, context)


def _compared_at(items: Sequence[dict[str, Any]], versions: VersionScale) -> int:
    """The step the buffer last compared with: a response's staleness added to its oldest version.

    Only the oldest versions are kept of what is read; it is read again for the rows, which are too much to wait for
    the last one.
    """
    newest = 1
    for item in items:
        with suppress(FieldFault):
            for value in items_of(item.get("item"), "a group"):
                state = fields_of(value, "a rollout")
                steps = flat(state.get("response_model_steps"), "response_model_steps")
                staleness = state.get("seq_staleness")
                if isinstance(staleness, int) and len(steps):
                    newest = max(newest, staleness + versions.model_step(int(steps.min())) + 1)
    return newest


_READS = (
    "task_name",
    *USUAL_READS,
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
    read=each_file(_read_batch),
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
    read=each_file(_read_buffer),
    suffixes=(".pth",),
    precisions=(Precision.EXACT,),
    reads=_READS,
    lacks=(Lack.SNAPSHOT, Lack.TIMELINE),
)
