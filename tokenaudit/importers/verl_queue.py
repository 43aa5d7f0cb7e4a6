"""verl: `tq_batch.pt`, a trained batch of the transfer queue, saved by its trainers to skip rollouts (skip.rollout_tq).

The tags of a response hold its oldest and newest version. Lacks what was dropped, filtered or left over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.importers.base import USUAL_READS, Context, FieldFault, Imported, Importer, Lack, Precision, each_file
from tokenaudit.importers.batch import GroupKey, trained_responses
from tokenaudit.importers.dumps import ARRAYS, Array, fields_of, items_of, name_of, opened, plain, row_of, scalar
from tokenaudit.importers.fields import integer, length, stable_id, version_columns
from tokenaudit.log.writer import Row


def _looks_like(path: Path, keys: frozenset[str]) -> bool:
    return path.name == "tq_batch.pt" or (path.suffix == ".pt" and keys >= {"tensordict", "tags"})


def _read_batch(path: Path, context: Context) -> Iterator[Imported]:
    with opened(path, context) as dump:
        with dump.all_or_nothing():
            fields = fields_of(dump.value, "the dump")
            train_step = integer(scalar(fields, "global_steps"), "global_steps", low=1)
            tags, keys = items_of(fields.get("tags"), "tags"), items_of(fields.get("keys"), "keys")
            columns = _columns(fields.get("tensordict"))
            if len(tags) != len(keys):
                raise FieldFault(f"{len(tags)} tags for {len(keys)} keys")

        def group(index: int) -> GroupKey:
            task_name = context.task(name_of(fields_of(tags[index], "a tag").get("data_source")))
            return GroupKey(task_name, stable_id(str(plain(keys[index])).rsplit("_", 2)[0]))

        def row(index: int) -> Row:
            dump.spend_response()
            return _row(fields_of(tags[index], "a tag"), str(plain(keys[index])), index, columns, context)

        yield from trained_responses(train_step, len(tags), group, row, "response", str(path), context)


def _columns(tensordict: object) -> dict[str, Array]:
    """The columns with one row of numbers per response; others, such as nested tensors, are left out."""
    fields = fields_of(tensordict, "tensordict")
    if "_tensordict" in fields:
        fields = fields_of(fields["_tensordict"], "tensordict")
    return {name: value for name, value in fields.items() if isinstance(value, ARRAYS) and value.ndim == 2}


def _row(tag: dict[str, Any], key: str, index: int, columns: dict[str, Array], context: Context) -> Row:
    tokens = length(scalar(tag, "response_len"), "response_len")
    status = str(plain(tag.get("status", "success")))
    row: Row = {
        "rollout_id": stable_id(key),
        "status": "completed" if status in ("success", "finished", "completed") else "failed",
        "response_len": tokens,
        "agentic": False,
    }
    if plain(tag.get("prompt_len")) is not None:
        row["prompt_len"] = length(scalar(tag, "prompt_len"), "prompt_len")
    turns = plain(tag.get("num_turns"))
    if isinstance(turns, int):
        row["agentic"] = turns > 2
    mask, scores = columns.get("response_mask"), columns.get("rm_scores")
    if mask is not None and index < mask.shape[0] and mask.shape[1] >= tokens:
        row["response_mask"] = (row_of(mask, index, tokens) != 0).astype(np.int8)
    else:
        context.limit(Lack.MASK)
    if scores is not None and index < scores.shape[0]:
        total = float(row_of(scores, index, scores.shape[1]).sum(dtype=np.float64))
        row["reward"] = total if np.isfinite(total) else None
    return row | _versions(tag, context)


def _versions(tag: dict[str, Any], context: Context) -> Row:
    if plain(tag.get("min_global_steps")) is None:
        return version_columns(None, None, context)
    names = ("min_global_steps", "max_global_steps")
    start, end = (context.versions.model_step(integer(scalar(tag, name), name)) for name in names)
    return version_columns(start, end, context)


IMPORTER = Importer(
    name="verl-queue",
    title="verl batches of the transfer queue (skip.rollout_tq)",
    files="<step>/<inner>/tq_batch.pt",
    looks_like=_looks_like,
    read=each_file(_read_batch),
    suffixes=(".pt",),
    precisions=(Precision.EXACT, Precision.SPAN, Precision.NONE),
    reads=("task_name", *USUAL_READS, "response_mask", "agentic", "reward", "take"),
    lacks=(Lack.DROPPED,),
)
