"""verl: `<global_step>.jsonl` of `trainer.rollout_data_dir`, one response a line, written by its trainers for people.

Holds texts and scores of what was trained: neither versions nor masks nor token counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenaudit.importers.base import Context, Imported, Importer, Lack, Precision
from tokenaudit.importers.batch import GroupKey, PromptGroups, Response, trained_batches, unversioned_row
from tokenaudit.importers.fields import integer, number, stable_id
from tokenaudit.importers.files import json_records


def _looks_like(path: Path, keys: frozenset[str]) -> bool:
    return path.suffix == ".jsonl" and keys >= {"input", "output", "score", "step"}


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    prompts, rollout_ids = PromptGroups(), itertools.count()

    def response(data: dict[str, Any]) -> Response:
        step = integer(data, "step", low=1)
        group = GroupKey(context.task(data.get("data_source")), _group_id(data, prompts, context))
        return Response(step, group, unversioned_row(next(rollout_ids), number(data.get("score"), "score")))

    for path in files:
        yield from trained_batches(json_records(path, context), response, str(path), context)
        prompts.end()


def _group_id(data: dict[str, Any], prompts: PromptGroups, context: Context) -> int:
    """The prompt's part of `uid`, which is `<prompt uid>_<session>_<index>`; else consecutive equal inputs."""
    uid = data.get("uid")
    if isinstance(uid, str) and uid.count("_") >= 2:
        return stable_id(uid.rsplit("_", 2)[0])
    context.limit(Lack.GROUPS)
    return prompts.group_of(data.get("input"))


IMPORTER = Importer(
    name="verl",
    title="verl rollout texts (trainer.rollout_data_dir)",
    files="<global_step>.jsonl",
    looks_like=_looks_like,
    read=_read,
    suffixes=(".jsonl",),
    precisions=(Precision.NONE,),
    reads=("task_name", "group_id", "rollout_id", "reward", "take"),
    lacks=(Lack.DROPPED, Lack.VERSIONS, Lack.MASK, Lack.LENGTHS),
)
