"""verl: `tq_batch.pt` of the rollout skip, with the versions of every response in its tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.errors import Problem, SourceError
from tokenaudit.importers.base import Context, FieldFault, Imported, Importer, Lack, Precision, stable_id
from tokenaudit.importers.batch import Batch
from tokenaudit.importers.dumps import fields_of, items_of, loaded, plain, scalar
from tokenaudit.importers.fields import integer, length
from tokenaudit.log_writer import Row


def _looks_like(path: Path, keys: frozenset[str]) -> bool:
    return path.name == "tq_batch.pt" or (path.suffix == ".pt" and keys >= {"tensordict", "tags"})


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    for path in files:
        yield from _read_batch(path, context)


def _read_batch(path: Path, context: Context) -> Iterator[Imported]:
    try:
        dump = fields_of(loaded(path, context), "the dump")
        batch = Batch(integer(scalar(dump, "global_steps"), "global_steps", low=1))
        tags, keys = items_of(dump.get("tags"), "tags"), items_of(dump.get("keys"), "keys")
        columns = _columns(dump.get("tensordict"))
        if len(tags) != len(keys):
            raise FieldFault(f"{len(tags)} tags for {len(keys)} keys")
    except FieldFault as fault:
        raise SourceError(Problem(fault.what, str(path), fault.hint)) from fault
    for index, (value, key) in enumerate(zip(tags, keys, strict=True)):
        where = f"{path}, response {index}"
        try:
            tag = fields_of(value, "a tag")
            name = str(plain(key))
            row = _row(tag, name, index, columns, context)
        except FieldFault as fault:
            context.fault(fault, where)
            continue
        batch.add(context.task(tag.get("data_source")), stable_id(name.rsplit("_", 2)[0]), row, where)
    yield from batch.trained(str(path))


def _columns(tensordict: object) -> dict[str, np.ndarray[Any, Any]]:
    """The columns with one row of numbers per response; others, such as nested tensors, are left out."""
    fields = fields_of(tensordict, "tensordict")
    if "_tensordict" in fields:
        fields = fields_of(fields["_tensordict"], "tensordict")
    return {name: value for name, value in fields.items() if isinstance(value, np.ndarray) and value.ndim == 2}


def _row(tag: dict[str, Any], key: str, index: int, columns: dict[str, np.ndarray[Any, Any]], context: Context) -> Row:
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
    if mask is not None and index < len(mask) and mask.shape[1] >= tokens:
        row["response_mask"] = (mask[index, :tokens] != 0).astype(np.int8)
    else:
        context.limits[Lack.MASK] = None
    if scores is not None and index < len(scores):
        total = float(scores[index].sum(dtype=np.float64))
        row["reward"] = total if np.isfinite(total) else None
    return row | _versions(tag, context)


def _versions(tag: dict[str, Any], context: Context) -> Row:
    if plain(tag.get("min_global_steps")) is None:
        context.limits[Lack.VERSIONS] = None
        return {"version_precision": Precision.NONE}
    names = ("min_global_steps", "max_global_steps")
    start, end = (context.versions.model_step(integer(scalar(tag, name), name)) for name in names)
    if end < start:
        raise FieldFault(f"versions go from {start} to {end}")
    if start == end:
        return {"model_step": start, "version_precision": Precision.EXACT}
    context.limits[Lack.SPANS] = None
    return {"model_step": start, "model_step_end": end, "version_precision": Precision.SPAN}


IMPORTER = Importer(
    name="verl-queue",
    title="verl batches of the transfer queue (skip.rollout_tq)",
    files="<step>/<inner>/tq_batch.pt",
    looks_like=_looks_like,
    read=_read,
    suffixes=(".pt",),
    precisions=(Precision.EXACT, Precision.SPAN, Precision.NONE),
    reads=(
        "task_name",
        "group_id",
        "rollout_id",
        "status",
        "response_len",
        "prompt_len",
        "response_mask",
        "agentic",
        "reward",
        "take",
    ),
    lacks=(Lack.DROPPED,),
)
