"""prime-rl: `rollouts/step_N/train/{all,effective}/traces.jsonl` that its orchestrator writes, one episode a line.

`all` holds what arrived and `effective` what was trained. Versions are spans; cancelled generation leaves no record.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.importers.base import USUAL_READS, Context, FieldFault, Imported, Importer, Lack, Precision
from tokenaudit.importers.batch import Batch, GroupKey
from tokenaudit.importers.fields import int_list, integer, mapping, number, objects, stable_id, version_columns
from tokenaudit.importers.files import json_records, number_in
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.log.writer import Row


def _is_evaluation(path: Path) -> bool:
    return "eval" in path.parts[-3:]


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    """Episodes as they arrived where `all` is there, else as they were trained; what was trained is a take."""
    seen: set[GroupKey] = set()
    train = [path for path in files if not _is_evaluation(path)]
    for (step, _), paths in itertools.groupby(train, key=_step):
        kinds = {path.parent.name: path for path in paths}
        trained = kinds.get("effective")
        source = kinds.get("all") or trained or next(iter(kinds.values()))
        batch = _batch(source, step, seen, context)
        yield from batch.puts()
        if trained is None:
            context.limit(Lack.TIMELINE)
        else:
            shipped = batch if source == trained else _batch(trained, step, set(), context)
            yield from shipped.takes(str(trained))
        context.limit(Lack.DROPPED if source == trained else Lack.CANCELLED)


def _step(path: Path) -> tuple[int | None, Path]:
    return number_in("/".join(path.parts[-5:]), r"step_(\d+)"), path.parent.parent


def _batch(path: Path, step: int | None, seen: set[GroupKey], context: Context) -> Batch:
    """The groups of a file. A group that comes again in a later file is another one: it was shipped in parts."""
    batch: Batch | None = None
    here: dict[GroupKey, int] = {}
    for data, where in json_records(path, context):
        with context.noting(where):
            train_step = step if step is not None else integer(_work(data), "step", low=1)
            env = mapping(data.get("env"), "env")
            source_group = mapping(data.get("group"), "group").get("id", data.get("id"))
            key = GroupKey(context.task(env.get("name") or env.get("id")), stable_id(source_group))
            traces = objects(data.get("traces"), "traces")
            trainable = [trace for trace in traces if mapping(trace.get("agent"), "agent").get("trainable", True)]
            rows = [_row(data, trace, context) for trace in trainable]
            batch = batch or Batch(train_step)
            if key not in here:
                here[key] = stable_id(f"{source_group}, again in step {train_step}") if key in seen else key.group_id
            for row in rows:
                batch.add(GroupKey(key.task_name, here[key]), row, where)
    seen.update(here)
    return batch or Batch(step or 1)


def _work(data: dict[str, Any]) -> dict[str, Any]:
    return mapping(mapping(data.get("run"), "run").get("work"), "run.work")


def _row(data: dict[str, Any], trace: dict[str, Any], context: Context) -> Row:
    mask, prompt_len = _response(trace)
    calls = objects(trace.get("calls"), "calls")
    is_ok = bool(data.get("ok")) and not data.get("errors")
    row: Row = {
        "rollout_id": stable_id(f"{data.get('id')} {trace.get('id')}"),
        "status": "completed" if is_ok else "failed",
        "response_len": len(mask),
        "prompt_len": prompt_len,
        "response_mask": mask,
        "reward": _reward(trace),
        "agentic": len(calls) > 1 or len(objects(data.get("traces"), "traces")) > 1,
        "generate_time_us": _duration(calls),
    }
    if calls:
        reason = calls[-1].get("finish_reason")
        row["finish_reason"] = reason if isinstance(reason, str) else None
    return row | _versions(data, context)


def _response(trace: dict[str, Any]) -> tuple[np.ndarray[Any, Any], int]:
    """Mask of the tokens from the first sampled node on, along the path to the last node; and the prompt's length."""
    parts: list[np.ndarray[Any, Any]] = []
    prompt_len = 0
    for node in _path(objects(trace.get("nodes"), "nodes")):
        tokens = len(int_list(node.get("token_ids") or [], "token_ids"))
        is_sampled = bool(node.get("sampled"))
        if not parts and not is_sampled:
            prompt_len += tokens
            continue
        mask = node.get("mask")
        bits = np.full(tokens, is_sampled) if mask is None else int_list(mask, "mask") != 0
        if len(bits) != tokens:
            raise FieldFault(f"{len(bits)} mask entries for {tokens} tokens of a node")
        parts.append(bits.astype(np.int8))
    return (np.concatenate(parts) if parts else np.zeros(0, dtype=np.int8)), prompt_len


def _path(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The nodes from the root to the last one, by their parents' positions."""
    path: list[dict[str, Any]] = []
    position: object = len(nodes) - 1 if nodes else None
    while position is not None:
        if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < len(nodes):
            raise FieldFault(f"parent {shown(position)} is no node")
        if len(path) == len(nodes):
            raise FieldFault("the parents of the nodes go round in a circle")
        path.append(nodes[position])
        position = nodes[position].get("parent")
    return path[::-1]


def _reward(trace: dict[str, Any]) -> float | None:
    """Scores times weights, as prime-rl adds them up; None where nothing was scored."""
    total: float | None = None
    for name, entry in mapping(trace.get("rewards"), "rewards").items():
        if isinstance(entry, dict):
            weight = number(entry.get("weight"), f"weight of {name}")
            part = (number(entry.get("score"), f"score of {name}") or 0.0) * (1.0 if weight is None else weight)
        else:
            part = number(entry, name) or 0.0
        total = part + (total or 0.0)
    return total


def _duration(calls: list[dict[str, Any]]) -> int | None:
    """Time in generation calls, microseconds; None where a call lacks its times."""
    total = 0.0
    for call in calls:
        times = mapping(call.get("time"), "time")
        start, end = number(times.get("start"), "start"), number(times.get("end"), "end")
        if start is None or end is None or end < start:
            return None
        total += end - start
    return int(total * 1_000_000) if calls and total < 1e9 else None


def _versions(data: dict[str, Any], context: Context) -> Row:
    """The span of an episode; where both ends are one version, every token is of it."""
    policy = mapping(_work(data).get("policy"), "run.work.policy")
    if policy.get("start") is None:
        return version_columns(None, None, context)
    start = context.versions.model_step(integer(policy, "start"))
    if policy.get("end") is None:
        return version_columns(start, start, context, uniform=Precision.SPAN)
    return version_columns(start, context.versions.model_step(integer(policy, "end")), context)


IMPORTER = Importer(
    name="prime-rl",
    title="prime-rl episode traces",
    files="rollouts/step_<N>/train/{all,effective}/traces.jsonl",
    looks_like=lambda path, keys: (
        path.name == "traces.jsonl" and keys >= {"id", "env", "traces"} and not _is_evaluation(path)
    ),
    read=_read,
    suffixes=(".jsonl",),
    precisions=(Precision.EXACT, Precision.SPAN, Precision.NONE),
    reads=("task_name", *USUAL_READS, "response_mask", "reward", "agentic", "finish_reason", "generate_time_us"),
    lacks=(),
    shapes=(
        Shape(
            "prime-rl",
            "after v0.8.0",
            "rollouts/step_<N>/train/{all,effective}/traces.jsonl",
            (Gives.EXACT, Gives.SPAN, Gives.LENGTHS, Gives.MASKS, Gives.REWARDS, Gives.TASKS, Gives.TAKES),
        ),
    ),
)
