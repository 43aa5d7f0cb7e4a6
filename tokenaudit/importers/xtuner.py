"""XTuner: batches of a debug run, `debug_rollout_<step>.pt`, a checkpoint's buffer, `replay_buffer.pth`, and texts.

Batches and buffers hold the version of every token; batches lack what was dropped or left over, buffers what came and
went before. `train_rollout_<step>.jsonl`, the trajectories of a trained batch, which its trainer writes for people,
holds texts, lengths, rewards, groups, tasks and statuses, neither versions nor masks; files of v1.0,
`rollout_idx_<step>_trajectory.jsonl`, have an `action_id` per group. Read: `_save_trajectories`
(xtuner/v1/train/rl_trainer.py) of InternLM/xtuner b934f462.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.importers import batch, dumps
from tokenaudit.importers.base import (
    USUAL_READS,
    Context,
    FieldFault,
    Imported,
    ImportedPut,
    Importer,
    Lack,
    Precision,
    each_file,
)
from tokenaudit.importers.dumps import Dump, fields_of, items_of, plain
from tokenaudit.importers.fields import integer, length, number, stable_id
from tokenaudit.importers.files import json_documents, step_in_name
from tokenaudit.importers.repeats import Writing
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.writer import Row


def _read_batch(path: Path, context: Context) -> Iterator[Imported]:
    train_step = step_in_name(path, r"_(\d+)\.pt$")
    sizes: Counter[str] = Counter()
    with dumps.opened(path, context) as dump:
        with dump.all_or_nothing():
            groups = items_of(dump.value, "the dump")
        writing = Writing(train_step, str(path))
        for put in _puts(((group, None) for group in groups), train_step, dump, context):
            sizes[put.task_name] += 1
            yield replace(put, writing=writing)
    yield from batch.takes(train_step, sizes, str(path), writing)


def _puts(groups: Iterable[tuple[Any, object]], train_step: int, dump: Dump, context: Context) -> Iterator[ImportedPut]:
    """The puts of groups with their tasks, where they have any; empty groups and those that can't be read are none."""
    for index, (group, task_name) in enumerate(groups):
        where = f"{dump.source.path}, group {index}"
        with context.noting(where):
            put = _put(group, task_name, train_step, where, dump, context)
            if put is not None:
                yield put


def _put(
    group: Any, task_name: object, train_step: int, where: str, dump: Dump, context: Context
) -> ImportedPut | None:
    states = [dumps.record_of(state, "a rollout", context) for state in items_of(group, "a group")]
    if not states:
        return None
    dump.spend_response(count=len(states))
    rows = batch.bounded(_row(state, context) for state in states)
    group_id = stable_id(plain(states[0].get("group_id", states[0].get("message_uid"))))
    task = context.task(dumps.name_of(task_name) or dumps.name_of(states[0].get("task_name")))
    return ImportedPut(train_step, task, group_id, rows, where)


def _row(state: dict[str, Any], context: Context) -> Row:
    versions = dumps.flat(state.get("response_model_steps"), "response_model_steps")
    mask = dumps.flat(state.get("response_mask"), "response_mask")
    tokens = dumps.count_of(state.get("response_ids"), "response_ids")
    status = plain(state.get("status"))
    reward = state.get("reward")
    reason = dumps.name_of(state.get("finish_reason"))
    if status not in [*Status]:
        raise FieldFault(f"unknown status {shown(status)}", f"statuses: {', '.join(sorted(Status))}")
    if len(versions) != tokens:
        raise FieldFault(f"{len(versions)} versions for {tokens} tokens")
    row: Row = {
        "rollout_id": stable_id(plain(state.get("rollout_id", state.get("uid")))),
        "status": status,
        "response_len": tokens,
        "response_model_steps": context.versions.model_steps(versions).astype(np.int32),
        "response_mask": (mask != 0).astype(np.int8) if len(mask) else None,
        "agentic": any(state.get(name) is not None for name in ("input_ids", "labels")),
        "reward": number(dumps.unpacked(reward.get("score") if isinstance(reward, dict) else reward), "reward"),
        "finish_reason": reason,
        "version_precision": Precision.EXACT,
    }
    if state.get("prompt_ids") is not None:
        row["prompt_len"] = dumps.count_of(state["prompt_ids"], "prompt_ids")
    if isinstance(state.get("seq_staleness"), int):
        row["seq_staleness"] = state["seq_staleness"]
    return row


def _read_buffer(path: Path, context: Context) -> Iterator[Imported]:
    with dumps.opened(path, context) as dump:
        with dump.all_or_nothing():
            saved = fields_of(dump.value, "the dump")
            state = fields_of(saved.get("storage_state"), "storage_state")
            if "items" not in state:
                hint = "only buffers with the storage NaiveStorage can be read"
                raise FieldFault(f"a buffer with the storage {shown(saved.get('storage'))}", hint)
            items = _items(items_of(state["items"], "items"), path, context)
            train_step = _compared_at(items, context)
        for put in _puts(((item.get("item"), item.get("task_name")) for item in items), train_step, dump, context):
            # a group may wait through several checkpoints
            yield replace(put, writing=Writing((put.task_name, put.group_id), str(path)))


def _items(values: Sequence[Any], path: Path, context: Context) -> list[dict[str, Any]]:
    """The items of a buffer, which each hold a group, in the order in which they were put."""
    items: list[tuple[int, dict[str, Any]]] = []
    for index, value in enumerate(values):
        with context.noting(f"{path}, item {index}"):
            item = fields_of(value, "an item")
            items.append((integer(item, "timestamp_id"), item))
    return [item for _, item in sorted(items, key=lambda pair: pair[0])]


def _compared_at(items: Sequence[dict[str, Any]], context: Context) -> int:
    """The step the buffer last compared with: a response's staleness added to its oldest version.

    Only the oldest versions are kept of what is read; it is read again for the rows, which are too much to wait for
    the last one.
    """
    newest = 1
    for item in items:
        with suppress(FieldFault):
            for value in items_of(item.get("item"), "a group"):
                state = fields_of(value, "a rollout")
                steps = dumps.flat(state.get("response_model_steps"), "response_model_steps")
                staleness = state.get("seq_staleness")
                if isinstance(staleness, int) and len(steps):
                    newest = max(newest, staleness + context.versions.model_step(int(steps.min())) + 1)
    return newest


def _read_trajectories(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    prompts, rollout_ids = batch.PromptGroups(), itertools.count()

    def response(step: int, data: dict[str, Any]) -> batch.TrainedResponse | None:
        if "reward_mean" in data:
            # the summary of the batch
            return None
        rollout_id, status = data.get("rollout_id"), data.get("status", "completed")
        if status not in [*Status]:
            raise FieldFault(f"unknown status {shown(status)}", f"statuses: {', '.join(sorted(Status))}")
        rollout_id = next(rollout_ids) if rollout_id is None else stable_id(rollout_id)
        row = batch.unversioned_row(rollout_id, number(data.get("reward"), "reward")) | {"status": status}
        row["response_len"] = length(data, "response_len")
        if data.get("prompt_len") is not None:
            row["prompt_len"] = length(data, "prompt_len")
        reason = data.get("finish_reason")
        row["finish_reason"] = reason if isinstance(reason, str) else None
        group = data.get("group_id", data.get("action_id"))
        if group is None:
            context.limit(Lack.GROUPS)
        group_id = prompts.group_of(data.get("prompt")) if group is None else stable_id(group)
        return batch.TrainedResponse(step, batch.GroupKey(context.task(data.get("task_name")), group_id), row)

    for path in files:
        with context.reading():
            step = step_in_name(path, r"_(\d+)(?:_trajectory)?\.jsonl$", low=1)
            yield from batch.trained_batches(json_documents(path, context), partial(response, step), str(path), context)
            prompts.end(context)


_GIVES = (Gives.EXACT, Gives.LENGTHS, Gives.MASKS, Gives.REWARDS, Gives.TASKS)
_READS = (
    "task_name", *USUAL_READS, "response_model_steps", "response_mask", "agentic", "reward", "finish_reason",
    "seq_staleness",
)  # fmt: skip
BATCHES = Importer(
    name="xtuner",
    title="XTuner batches of a debug run",
    files="debug_rollout_<step>.pt",
    looks_like=lambda path, keys: (
        path.name.startswith("debug_rollout_") and path.suffix == ".pt" and dumps.IS_LIST in keys
    ),
    read=each_file(_read_batch),
    suffixes=(".pt",),
    precisions=(Precision.EXACT,),
    reads=(*_READS, "take"),
    lacks=(Lack.DROPPED, Lack.TRAINED_MASK),
    shapes=(Shape("XTuner", "b934f462", "debug_rollout_<step>.pt", (*_GIVES, Gives.TAKES)),),
)
BUFFER = Importer(
    name="xtuner-buffer",
    title="XTuner replay buffer of a checkpoint",
    files="replay_buffer.pth",
    looks_like=lambda path, keys: path.suffix == ".pth" and "storage_state" in keys,
    read=each_file(_read_buffer),
    suffixes=(".pth",),
    precisions=(Precision.EXACT,),
    reads=_READS,
    lacks=(Lack.SNAPSHOT, Lack.TIMELINE),
    shapes=(Shape("XTuner", "b934f462", "replay_buffer.pth", _GIVES),),
)
TRAJECTORIES = Importer(
    name="xtuner-trajectories",
    title="XTuner trajectories of trained batches",
    files="train_rollout_<step>.jsonl, rollout_idx_<step>_trajectory.jsonl",
    looks_like=lambda path, keys: (
        path.name.startswith(("train_rollout_", "rollout_idx_")) and keys >= {"reward_mean", "response_len_mean"}
    ),
    read=_read_trajectories,
    suffixes=(".jsonl",),
    precisions=(Precision.NONE,),
    reads=("task_name", *USUAL_READS, "reward", "finish_reason", "take"),
    lacks=(Lack.DROPPED, Lack.VERSIONS, Lack.MASK),
    shapes=(
        Shape(
            "XTuner",
            "b934f462",
            "train_rollout_<step>.jsonl",
            (Gives.LENGTHS, Gives.REWARDS, Gives.TASKS, Gives.TAKES),
        ),
        Shape("XTuner", "v1.0.1", "rollout_idx_<step>_trajectory.jsonl", (Gives.LENGTHS, Gives.REWARDS, Gives.TAKES)),
    ),
)
