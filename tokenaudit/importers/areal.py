"""AReaL: `rollout/<version>/<task_id>.jsonl` of its rollout dump, one response a line, written as tasks finish.

`sessions-r<rank>.jsonl` of its session tracer says what became of each task. Neither records refreshes and takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.importers.base import USUAL_READS, Context, FieldFault, Imported, ImportedPut, Importer, Lack, Precision
from tokenaudit.importers.fields import integer, length, number, objects, pieces, version_columns
from tokenaudit.importers.files import json_records
from tokenaudit.log.writer import Row

_KEYS = frozenset({"task_id", "sample_idx", "seqlen", "prompt_len", "head_version"})
_STATUS = {
    "accepted": "completed",
    "pending": "completed",
    "rejected": "filtered",
    "failed": "failed",
    "dropped": "failed",
}
_WORST_FIRST = ("failed", "filtered", "completed")


def _is_sessions(path: Path) -> bool:
    return path.name.startswith("sessions-r") and path.suffix == ".jsonl"


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    statuses: dict[int, str] = {}
    for path in filter(_is_sessions, files):
        _read_sessions(path, statuses, context)
    for path in files:
        if not _is_sessions(path):
            yield from _read_tasks(path, statuses, context)


def _read_sessions(path: Path, statuses: dict[int, str], context: Context) -> None:
    """The worst status of the sessions of each task."""
    for data, where in json_records(path, context):
        with context.noting(where):
            task_id = integer(data, "task_id")
            status = _STATUS.get(str(data.get("status")))
            if status is None:
                raise FieldFault(f"unknown status {shown(data.get('status'))}", f"known: {', '.join(_STATUS)}")
            statuses[task_id] = min(status, statuses.get(task_id, status), key=_WORST_FIRST.index)


def _read_tasks(path: Path, statuses: dict[int, str], context: Context) -> Iterator[Imported]:
    """The puts of a file: consecutive samples of one task; a sample index that comes again begins another put."""
    folder = path.parent.name
    version = int(folder) if folder.isascii() and folder.isdigit() else None
    put: ImportedPut | None = None
    for data, where in json_records(path, context):
        with context.noting(where):
            task_id = integer(data, "task_id")
            row = _row(data, context)
            if version is None:
                version = integer(data, "tail_version")
            train_step = context.versions.model_step(version) + 1
            row["status"] = statuses.get(task_id, "completed")
            again = put is not None and any(row["rollout_id"] == other["rollout_id"] for other in put.rows)
            if put is None or put.group_id != task_id or again:
                if put is not None:
                    yield put
                put = ImportedPut(train_step, context.task(None), task_id, [], where)
            put.rows.append(row)
    if put is not None:
        yield put


def _row(data: dict[str, Any], context: Context) -> Row:
    prompt_len, sample = length(data, "prompt_len"), integer(data, "sample_idx")
    tokens = length(data, "seqlen") - prompt_len
    if tokens < 0:
        raise FieldFault(f"prompt_len {prompt_len} exceeds seqlen {prompt_len + tokens}")
    if sample >= 1_000_000:
        raise FieldFault(f"sample_idx is {sample}", "it counts the samples of one task")
    segments = objects(data.get("segments"), "segments")
    row: Row = {
        "rollout_id": integer(data, "task_id") * 1_000_000 + sample,
        "response_len": tokens,
        "prompt_len": prompt_len,
        "reward": number(data.get("reward"), "reward"),
        "agentic": bool(segments),
    }
    is_generated = _generated(segments, tokens)
    if is_generated is not None:
        row["response_mask"] = is_generated
    generated = tokens if is_generated is None else int(is_generated.sum())
    return row | _versions(data, is_generated, generated, tokens, context)


def _generated(segments: list[dict[str, Any]], tokens: int) -> np.ndarray[Any, Any] | None:
    """Whether each token of the response was generated; None where the sample has no segments."""
    if not segments:
        return None
    behind_prompt = segments[1:] if segments[0].get("role") == "prompt" else segments
    mask = pieces([(int(part.get("role") == "gen"), length(part, "len")) for part in behind_prompt])
    if len(mask) != tokens:
        raise FieldFault(f"segments hold {len(mask)} response tokens of {tokens}")
    return mask.astype(np.int8)


def _versions(
    data: dict[str, Any], is_generated: np.ndarray[Any, Any] | None, generated: int, tokens: int, context: Context
) -> Row:
    """Versions from the run lengths over generated tokens, else from head and tail, else none."""
    runs = data.get("version_rle")
    if runs is not None:
        versions = _expanded(runs, context)
        if len(versions) == generated:
            if is_generated is not None:
                versions = _spread(versions, is_generated)
            return {"response_model_steps": versions, "version_precision": Precision.EXACT}
        if len(versions) > generated:
            raise FieldFault(f"version_rle holds {len(versions)} versions for {generated} generated tokens")
    head, tail = integer(data, "head_version", low=-1), integer(data, "tail_version", low=-1)
    if head < 0 or tail < head or tokens == 0:
        return version_columns(None, None, context)
    start, end = context.versions.model_step(head), context.versions.model_step(tail)
    # only run lengths make versions exact
    return version_columns(start, end, context, uniform=Precision.SPAN)


def _expanded(runs: object, context: Context) -> np.ndarray[Any, Any]:
    if not isinstance(runs, list) or not all(isinstance(run, list) and len(run) == 2 for run in runs):
        raise FieldFault(f"version_rle is {shown(runs)}", "it is a list of [version, count]")
    parts = [{"version": version, "count": count} for version, count in runs]
    return pieces([(context.versions.model_step(integer(part, "version")), length(part, "count")) for part in parts])


def _spread(versions: np.ndarray[Any, Any], is_generated: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Versions of all tokens: context gets the version of the generated token before it, at the start behind it.

    That leaves the oldest version of the response as it is, and context is never trained.
    """
    if len(versions) == 0:
        return versions
    return versions[np.maximum(np.cumsum(is_generated) - 1, 0)]


IMPORTER = Importer(
    name="areal",
    title="AReaL rollout dump, with its session trace",
    files="rollout/<version>/<task_id>.jsonl, session_tracer/sessions-r<rank>.jsonl",
    looks_like=lambda path, keys: keys >= _KEYS or _is_sessions(path),
    read=_read,
    suffixes=(".jsonl",),
    precisions=(Precision.EXACT, Precision.SPAN, Precision.NONE),
    reads=(*USUAL_READS, "response_model_steps", "response_mask", "reward"),
    lacks=(Lack.TIMELINE,),
)
