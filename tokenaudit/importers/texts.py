"""Dumps of trained batches without versions: verl rollout JSONL, XTuner trajectories, TRL completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenaudit.contracts.errors import Problem, SourceError
from tokenaudit.importers.base import Context, FieldFault, Imported, Importer, Lack, Precision, stable_id
from tokenaudit.importers.batch import Batch, Prompts
from tokenaudit.importers.fields import integer, length, number
from tokenaudit.importers.files import json_documents, json_records, number_in
from tokenaudit.importers.tables import parquet_rows
from tokenaudit.log.writer import Row

_LACKS = (Lack.DROPPED, Lack.VERSIONS, Lack.MASK)


def _verl_looks_like(path: Path, keys: frozenset[str]) -> bool:
    return path.suffix == ".jsonl" and keys >= {"input", "output", "score", "step"}


def _read_verl(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    prompts, rollout_id = Prompts(), 0
    for path in files:
        batch: Batch | None = None
        for data, where in json_records(path, context):
            try:
                step = integer(data, "step", low=1)
                group_id = _verl_group(data, prompts, context)
                row = _text_row(rollout_id, number(data.get("score"), "score"))
            except FieldFault as fault:
                context.fault(fault, where)
                continue
            rollout_id += 1
            if batch is None or batch.train_step != step:
                if batch is not None:
                    yield from batch.trained(where)
                batch = Batch(step)
            batch.add(context.task(data.get("data_source")), group_id, row, where)
        if batch is not None:
            yield from batch.trained(str(path))
        prompts.end()


def _verl_group(data: dict[str, Any], prompts: Prompts, context: Context) -> int:
    """The prompt's part of `uid`, which is `<prompt uid>_<session>_<index>`; else consecutive equal inputs."""
    uid = data.get("uid")
    if isinstance(uid, str) and uid.count("_") >= 2:
        return stable_id(uid.rsplit("_", 2)[0])
    context.limits[Lack.GROUPS] = None
    return prompts.group_of(data.get("input"))


def _text_row(rollout_id: int, reward: float | None) -> Row:
    return {
        "rollout_id": rollout_id,
        "status": "completed",
        "response_len": 0,
        "reward": reward,
        "version_precision": Precision.NONE,
    }


def _xtuner_looks_like(path: Path, keys: frozenset[str]) -> bool:
    return path.name.startswith("train_rollout_") and keys >= {"reward_mean", "response_len_mean"}


def _read_xtuner(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    prompts, rollout_id = Prompts(), 0
    for path in files:
        batch = Batch(_file_step(path, r"_(\d+)\.jsonl$"))
        for data, where in json_documents(path, context):
            if "reward_mean" in data:
                continue
            try:
                row = _text_row(rollout_id, number(data.get("reward"), "reward"))
                row["response_len"] = length(data, "response_len")
            except FieldFault as fault:
                context.fault(fault, where)
                continue
            rollout_id += 1
            reason = data.get("finish_reason")
            row["finish_reason"] = reason if isinstance(reason, str) else None
            batch.add(context.task(None), prompts.group_of(data.get("prompt")), row, where)
        yield from batch.trained(str(path))
        prompts.end()


def _file_step(path: Path, pattern: str) -> int:
    step = number_in(path.name, pattern)
    if step is None or step < 1:
        hint = "keep the name that the trainer gave it"
        raise SourceError(Problem("the name of the file doesn't tell the train step", str(path), hint))
    return step


def _trl_looks_like(path: Path, keys: frozenset[str]) -> bool:
    return path.suffix == ".parquet" and keys >= {"step", "prompt", "completion", "advantage"}


def _read_trl(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    prompts, rollout_id = Prompts(), 0
    for path in files:
        batch: Batch | None = None
        for data, where in parquet_rows(path, _trl_columns, context):
            try:
                step = integer(data, "step", low=1)
                if "prompt" not in data:
                    raise FieldFault("prompt is missing", "it is the column that tells the groups")
                rewards = [number(value, name) for name, value in data.items() if name not in _TRL_OTHERS]
            except FieldFault as fault:
                context.fault(fault, where)
                continue
            if batch is None or batch.train_step != step:
                if batch is not None:
                    yield from batch.trained(where)
                batch = Batch(step)
            scored = [reward for reward in rewards if reward is not None]
            row = _text_row(rollout_id, sum(scored) if scored else None)
            rollout_id += 1
            batch.add(context.task(None), prompts.group_of(data["prompt"]), row, where)
        if batch is not None:
            yield from batch.trained(str(path))
        prompts.end()


_TRL_OTHERS = ("step", "prompt", "advantage")


def _trl_columns(schema: pa.Schema) -> list[str]:
    """Step, prompt and number columns; completions are never read."""
    return [field.name for field in schema if pa.types.is_floating(field.type) or field.name in _TRL_OTHERS]


VERL = Importer(
    name="verl",
    title="verl rollout texts (trainer.rollout_data_dir)",
    files="<global_step>.jsonl",
    looks_like=_verl_looks_like,
    read=_read_verl,
    suffixes=(".jsonl",),
    precisions=(Precision.NONE,),
    reads=("task_name", "group_id", "rollout_id", "reward", "take"),
    lacks=(*_LACKS, Lack.LENGTHS),
)
XTUNER = Importer(
    name="xtuner-trajectories",
    title="XTuner trajectories of trained batches",
    files="train_rollout_<step>.jsonl",
    looks_like=_xtuner_looks_like,
    read=_read_xtuner,
    suffixes=(".jsonl",),
    precisions=(Precision.NONE,),
    reads=("group_id", "rollout_id", "response_len", "reward", "finish_reason", "take"),
    lacks=(*_LACKS, Lack.GROUPS),
)
TRL = Importer(
    name="trl",
    title="TRL completions of trained batches (log_completions)",
    files="completions/completions_<step>.parquet",
    looks_like=_trl_looks_like,
    read=_read_trl,
    suffixes=(".parquet",),
    precisions=(Precision.NONE,),
    reads=("group_id", "rollout_id", "reward", "take"),
    lacks=(*_LACKS, Lack.LENGTHS, Lack.GROUPS),
)
