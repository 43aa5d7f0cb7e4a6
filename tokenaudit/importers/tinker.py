"""tinker-cookbook: `iteration_<N>/train_rollout_summaries.jsonl` that its trainer writes, one trajectory a line.

Every group has one version, unless nothing counted its sampling client. Lacks what was dropped, filtered or left over.
Read: `serialize_rollout_summaries` (tinker_cookbook/rl/rollout_logging.py) and `do_sync_training` and
`do_async_training` (tinker_cookbook/rl/train.py) of thinking-machines-lab/tinker-cookbook 9dfcc3a2.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.importers.base import Context, FieldFault, Imported, Importer, Lack, Precision, each_file
from tokenaudit.importers.batch import GroupKey, TrainedResponse, trained_batches
from tokenaudit.importers.fields import integer, length, number, objects, pieces, version_columns
from tokenaudit.importers.files import json_records
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.log.writer import Row

_GROUPS, _RESPONSES = 1_000_000, 1_000
"""Groups of an iteration, and responses of a group, that ids have room for."""


_KEYS = frozenset({"iteration", "group_idx", "traj_idx", "sampling_client_step"})


def _read_iteration(path: Path, context: Context) -> Iterator[Imported]:
    return trained_batches(json_records(path, context), partial(_response, context), str(path), context)


def _response(context: Context, data: dict[str, Any]) -> TrainedResponse | None:
    if data.get("split", "train") != "train":
        return None
    iteration = integer(data, "iteration")
    tags = data.get("tags")
    task_name = context.task(tags[0] if isinstance(tags, list) and tags else None)
    group = GroupKey(task_name, iteration * _GROUPS + _index(data, "group_idx", _GROUPS))
    return TrainedResponse(iteration + 1, group, _row(data, group.group_id, context))


def _index(data: dict[str, Any], name: str, most: int) -> int:
    value = integer(data, name)
    if value >= most:
        raise FieldFault(f"{name} is {value}", f"it is below {most}")
    return value


def _row(data: dict[str, Any], group_id: int, context: Context) -> Row:
    steps = objects(data.get("steps"), "steps")
    mask, prompt_len = _mask(steps)
    version = None
    if data.get("sampling_client_step") is not None:
        # a group keeps the sampling client that it began with, so all its tokens are of one version
        version = context.versions.model_step(integer(data, "sampling_client_step"))
    row: Row = {
        "rollout_id": group_id * _RESPONSES + _index(data, "traj_idx", _RESPONSES),
        "status": "completed",
        "response_len": len(mask),
        "prompt_len": prompt_len,
        "response_mask": mask,
        "reward": number(data.get("total_reward"), "total_reward"),
        "agentic": len(steps) > 1,
    }
    return row | version_columns(version, version, context)


def _mask(steps: list[dict[str, Any]]) -> tuple[np.ndarray[Any, Any], int]:
    """1 for sampled tokens and 0 for what the environment added between them; and the first observation's length."""
    parts: list[tuple[int, int]] = []
    held = 0
    for step in steps:
        observed, sampled = length(step, "ob_len"), length(step, "ac_len")
        if parts:
            parts.append((0, max(0, observed - held)))
        parts.append((1, sampled))
        held = observed + sampled
    return pieces(parts).astype(np.int8), length(steps[0], "ob_len") if steps else 0


_READS = (
    "task_name", "group_id", "rollout_id", "response_len", "prompt_len", "response_mask", "reward", "agentic", "take",
)  # fmt: skip
IMPORTER = Importer(
    name="tinker",
    title="tinker-cookbook rollout summaries",
    files="iteration_<N>/train_rollout_summaries.jsonl",
    looks_like=lambda path, keys: path.suffix == ".jsonl" and keys >= _KEYS,
    read=each_file(_read_iteration),
    suffixes=(".jsonl",),
    precisions=(Precision.EXACT, Precision.NONE),
    reads=_READS,
    lacks=(Lack.DROPPED,),
    shapes=(
        Shape(
            "tinker-cookbook",
            "9dfcc3a2",
            "iteration_<N>/train_rollout_summaries.jsonl",
            (Gives.EXACT, Gives.LENGTHS, Gives.MASKS, Gives.REWARDS, Gives.TASKS, Gives.TAKES),
        ),
    ),
)
