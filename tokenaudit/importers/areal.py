"""AReaL: `rollout/<version>/<task_id>.jsonl` of its rollout dump, one response a line, written as tasks finish.

`sessions-r<rank>.jsonl` of its session tracer says what became of each task. Neither records refreshes and takes. Read:
`_dump_trajectory` (areal/infra/workflow_executor.py) of inclusionAI/AReaL 4aef98d8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.importers.base import USUAL_READS, Context, FieldFault, Imported, ImportedPut, Importer, Lack, Precision
from tokenaudit.importers.batch import check_group
from tokenaudit.importers.fields import integer, length, number, objects, pieces, stable_id, version_columns
from tokenaudit.importers.files import json_records
from tokenaudit.importers.packed import plain_suffix
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.log.writer import Row
from tokenaudit.record.response_columns import spread

_KEYS = frozenset({"task_id", "sample_idx", "seqlen", "prompt_len", "head_version"})
_STATUS = {
    "accepted": "completed",
    "pending": "completed",
    "rejected": "filtered",
    "failed": "failed",
    "dropped": "failed",
}
_RANKS = (
    "ranks, or resumed runs, that count tasks from 0 each share this folder: a task that comes again is taken for "
    "another one's"
)
_MIXED_STATUSES = (
    "ranks differ in the status of tasks with one number, and no dump says whose it holds: they are given in order, "
    "so they are right in number, not for each task"
)
_WORST_FIRST = ("failed", "filtered", "completed")


def _is_sessions(path: Path) -> bool:
    return path.name.startswith("sessions-r") and plain_suffix(path) == ".jsonl"


def _is_eval(path: Path) -> bool:
    """Whether a dump is of an evaluation: `eval-rollout/<version>/<task_id>.jsonl`."""
    return path.parent.parent.name.startswith("eval")


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    statuses: dict[int, dict[str, str]] = {}
    for path in filter(_is_sessions, files):
        _read_sessions(path, statuses, context)
    puts = Counter[int]()
    for path in files:
        if not _is_sessions(path):
            yield from _read_tasks(path, statuses, puts, context)


def _read_sessions(path: Path, statuses: dict[int, dict[str, str]], context: Context) -> None:
    """The worst status of the sessions of each task, by file: each rank has its own, and counts tasks on its own."""
    for data, where in json_records(path, context):
        with context.noting(where):
            task_id = integer(data, "task_id")
            status = _STATUS.get(str(data.get("status")))
            if status is None:
                raise FieldFault(f"unknown status {shown(data.get('status'))}", f"known: {', '.join(_STATUS)}")
            known = statuses.setdefault(task_id, {})
            known[path.name] = min(status, known.get(path.name, status), key=_WORST_FIRST.index)


def _status(known: dict[str, str], earlier: int, context: Context) -> str:
    """The status of a task in one of its ranks: no dump says whose task it holds, so they are taken in order."""
    if not known:
        return "completed"
    if len(set(known.values())) > 1:
        context.limit(_MIXED_STATUSES)
    statuses = [*known.values()]
    return statuses[min(earlier, len(statuses) - 1)]


def _read_tasks(
    path: Path, statuses: dict[int, dict[str, str]], puts: Counter[int], context: Context
) -> Iterator[Imported]:
    """The puts of a file: consecutive samples of one task; a sample index that comes again begins another put.

    That is one of another rank, as each counts tasks from 0: a task is put once.
    """
    folder = path.parent.name
    version = int(folder) if folder.isascii() and folder.isdigit() else None
    put: ImportedPut | None = None
    task, earlier, samples, tokens = -1, 0, set[int](), 0
    for data, where in json_records(path, context):
        with context.noting(where):
            task_id = integer(data, "task_id")
            row = _row(data, context)
            if version is None:
                version = integer(data, "tail_version")
            train_step = context.versions.model_step(version) + 1
            sample = row["rollout_id"]
            if put is None or task != task_id or sample in samples:
                if put is not None:
                    yield put
                task, earlier, samples, tokens = task_id, puts[task_id], set(), 0
                puts[task_id] += 1
                group_id = task_id if earlier == 0 else stable_id(f"{task_id} of rank {earlier}")
                if earlier:
                    context.limit(_RANKS)
                put = ImportedPut(train_step, context.task(None), group_id, [], where)
            tokens += row["response_len"]
            check_group(tokens)
            samples.add(sample)
            row["status"] = _status(statuses.get(task_id, {}), earlier, context)
            if earlier:
                row["rollout_id"] = stable_id(f"{sample} of rank {earlier}")
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
                versions = spread(versions, is_generated)
            return {"response_model_steps": versions, "version_precision": Precision.EXACT}
        if len(versions) > generated:
            raise FieldFault(f"version_rle holds {len(versions)} versions for {generated} generated tokens")
    head, tail = integer(data, "head_version", low=-1), integer(data, "tail_version", low=-1)
    if tail < max(head, 0) or tokens == 0:
        return version_columns(None, None, context)
    # the oldest version of a dump without run lengths is the -1 of its prompt: only the newest is known then
    start, end = context.versions.model_step(head) if head >= 0 else 0, context.versions.model_step(tail)
    # only run lengths make versions exact
    return version_columns(start, end, context, uniform=Precision.SPAN)


def _expanded(runs: object, context: Context) -> np.ndarray[Any, Any]:
    if not isinstance(runs, list) or not all(isinstance(run, list) and len(run) == 2 for run in runs):
        raise FieldFault(f"version_rle is {shown(runs)}", "it is a list of [version, count]")
    parts = [{"version": version, "count": count} for version, count in runs]
    return pieces([(context.versions.model_step(integer(part, "version")), length(part, "count")) for part in parts])


IMPORTER = Importer(
    name="areal",
    title="AReaL rollout dump, with its session trace",
    files="rollout/<version>/<task_id>.jsonl, session_tracer/sessions-r<rank>.jsonl",
    looks_like=lambda path, keys: (keys >= _KEYS and not _is_eval(path)) or _is_sessions(path),
    read=_read,
    suffixes=(".jsonl",),
    precisions=(Precision.EXACT, Precision.SPAN, Precision.NONE),
    reads=(*USUAL_READS, "response_model_steps", "response_mask", "reward"),
    lacks=(Lack.TIMELINE, Lack.NOT_DUMPED),
    shapes=(
        Shape(
            "AReaL",
            "4aef98d8",
            "rollout/<version>/<task_id>.jsonl",
            (Gives.EXACT, Gives.LENGTHS, Gives.MASKS, Gives.REWARDS),
        ),
    ),
)
