"""XTuner: `train_rollout_<step>.jsonl`, the trajectories of a trained batch, which its trainer writes for people.

Holds texts, lengths and rewards: neither groups nor versions nor masks. `xtuner.py` reads what a debug run saves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenaudit.importers.base import Context, Imported, Importer, Lack, Precision
from tokenaudit.importers.batch import GroupKey, PromptGroups, Response, trained_batches, unversioned_row
from tokenaudit.importers.fields import length, number
from tokenaudit.importers.files import json_documents, step_in_name


def _looks_like(path: Path, keys: frozenset[str]) -> bool:
    return path.name.startswith("train_rollout_") and keys >= {"reward_mean", "response_len_mean"}


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    prompts, rollout_ids = PromptGroups(), itertools.count()

    def response(step: int, data: dict[str, Any]) -> Response | None:
        if "reward_mean" in data:
            # the summary of the batch
            return None
        row = unversioned_row(next(rollout_ids), number(data.get("reward"), "reward"))
        row["response_len"] = length(data, "response_len")
        reason = data.get("finish_reason")
        row["finish_reason"] = reason if isinstance(reason, str) else None
        return Response(step, GroupKey(context.task(None), prompts.group_of(data.get("prompt"))), row)

    for path in files:
        step = step_in_name(path, r"_(\d+)\.jsonl$", low=1)
        yield from trained_batches(json_documents(path, context), partial(response, step), str(path), context)
        prompts.end()


IMPORTER = Importer(
    name="xtuner-trajectories",
    title="XTuner trajectories of trained batches",
    files="train_rollout_<step>.jsonl",
    looks_like=_looks_like,
    read=_read,
    suffixes=(".jsonl",),
    precisions=(Precision.NONE,),
    reads=("group_id", "rollout_id", "response_len", "reward", "finish_reason", "take"),
    lacks=(Lack.DROPPED, Lack.VERSIONS, Lack.MASK, Lack.GROUPS),
)
