"""The lines of prime-rl's files as episodes, whichever version wrote them.

Up to v0.8.0 a line is one trace, and what concerns its episode stands in `run` and `info`; later it is an episode.
Read: `main_loop` (src/prime_rl/orchestrator/orchestrator.py) of PrimeIntellect-ai/prime-rl v0.8.0 (60bc295), `Episode`
(verifiers/v1/episode.py) of PrimeIntellect-ai/verifiers a60a606, `stamp_arrival` and `stamp_ship`
(src/prime_rl/orchestrator/annotations.py) of prime-rl f798052.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

from tokenaudit.importers.base import Context, Precision
from tokenaudit.importers.batch import GroupKey
from tokenaudit.importers.fields import integer, mapping, objects, stable_id, version_columns
from tokenaudit.importers.files import SourceRecord, json_records, number_in
from tokenaudit.importers.prime_exports import ANNOTATION_KEYS, EXPORT_KEYS
from tokenaudit.log.writer import Row


class Holds(Enum):
    """What a file holds, by its place in the folder of a run."""

    ARRIVED = auto()
    TRAINED = auto()
    STREAM = auto()
    ANNOTATIONS = auto()
    EXPORTS = auto()
    EVALUATION = auto()


def holds(path: Path) -> Holds:
    """What a file holds; one in no place of its own holds what arrived."""
    folders = path.parts[-4:-1]
    if re.fullmatch(r"rank_\d+\.jsonl", path.name, flags=re.ASCII):
        return Holds.EXPORTS
    if "annotations" in folders:
        return Holds.ANNOTATIONS
    if path.name.startswith("stream.") or path.parent.name == "stream":
        return Holds.STREAM
    if "eval" in folders:
        return Holds.EVALUATION
    return Holds.TRAINED if path.parent.name == "effective" else Holds.ARRIVED


def looks_like(path: Path, keys: frozenset[str]) -> bool:
    """Whether a file, given with the keys of its first line, is one of training."""
    match holds(path):
        case Holds.EXPORTS:
            return keys >= EXPORT_KEYS
        case Holds.ANNOTATIONS:
            return keys >= ANNOTATION_KEYS
        case Holds.STREAM:
            return keys >= {"id", "env", "traces"}
        case Holds.EVALUATION:
            return False
        case _:
            return path.name == "traces.jsonl" and (keys >= {"id", "env", "traces"} or keys >= {"id", "run", "nodes"})


def step_of(path: Path) -> int | None:
    """The step that the folders of a file name."""
    return number_in("/".join(path.parts[-5:]), r"step_(\d+)")


class Episode(NamedTuple):
    """A line of a file: an episode, or in v0.8.0 one of its traces.

    Attributes:
        name: its id.
        train_step: the step whose batch was collected when it arrived, or which trained it.
        group: its group.
        run: the id of its run.
        versions: columns for the versions of its tokens.
        traces: those that train.
        is_ok: whether it ended well.
        is_joint: whether several agents took part.
        where: file and line.
    """

    name: str
    train_step: int
    group: GroupKey
    run: str
    versions: Row
    traces: list[dict[str, Any]]
    is_ok: bool
    is_joint: bool
    where: str

    def rollout_id(self, trace: dict[str, Any]) -> int:
        """What identifies a trace."""
        return stable_id(f"{self.name} {trace.get('id')}")

    def is_trained(self, trace: dict[str, Any]) -> bool:
        """Whether a trace is one that is trained: errors that a retry mended don't count."""
        return bool(trace.get("ok", self.is_ok))


def records_of(paths: Iterable[Path], context: Context) -> Iterator[SourceRecord]:
    """The lines of files, one after the other; a file that can't be read is noted."""
    for path in paths:
        with context.reading():
            yield from json_records(path, context)


def episodes(path: Path, context: Context) -> Iterator[Episode]:
    """The training episodes of a file."""
    folder_step = step_of(path)
    for before, record, after in _with_neighbours(records_of([path], context)):
        with context.noting(record.where):
            data = record.data
            if _is_evaluation(data):
                continue
            if "traces" in data or "nodes" not in data:
                yield _episode(record, folder_step, context)
                continue
            name = _episode_name(data)
            is_joint = any(other is not None and _episode_name(other.data) == name for other in (before, after))
            yield _lone_trace(record, folder_step, is_joint, context)


def _with_neighbours(
    records: Iterable[SourceRecord],
) -> Iterator[tuple[SourceRecord | None, SourceRecord, SourceRecord | None]]:
    before: SourceRecord | None = None
    record: SourceRecord | None = None
    for after in records:
        if record is not None:
            yield before, record, after
        before, record = record, after
    if record is not None:
        yield before, record, None


def _episode_name(data: dict[str, Any]) -> object:
    """The episode of a trace of v0.8.0, which names it beside other things it noted."""
    info = data.get("info")
    return (info.get("episode_id") if isinstance(info, dict) else None) or data.get("id")


def _is_evaluation(data: dict[str, Any]) -> bool:
    """Whether a line is of an evaluation, by what the run notes on it."""
    run = mapping(data.get("run"), "run")
    traces = objects(data.get("traces"), "traces")
    kind = mapping(traces[0].get("info"), "info").get("kind") if traces else None
    return "eval" in (kind, run.get("type"), mapping(run.get("work"), "run.work").get("type"))


def _episode(record: SourceRecord, folder_step: int | None, context: Context) -> Episode:
    data = record.data
    env, run = mapping(data.get("env"), "env"), mapping(data.get("run"), "run")
    work = mapping(run.get("work"), "run.work")
    traces = objects(data.get("traces"), "traces")
    train_step = folder_step
    if train_step is None:
        arrival = mapping(mapping(traces[0].get("info"), "info").get("arrival"), "arrival") if traces else {}
        train_step = integer(arrival if "step" in arrival else work, "step", low=1)
    source_group = mapping(data.get("group"), "group").get("id", data.get("id"))
    return Episode(
        str(data.get("id")),
        train_step,
        GroupKey(context.task(env.get("name") or env.get("id")), stable_id(source_group)),
        str(run.get("id")),
        _span(mapping(work.get("policy"), "run.work.policy"), context),
        [trace for trace in traces if _is_trainable(trace)],
        bool(data.get("ok")),
        len(traces) > 1,
        record.where,
    )


def _lone_trace(record: SourceRecord, folder_step: int | None, is_joint: bool, context: Context) -> Episode:
    data = record.data
    run, info = mapping(data.get("run"), "run"), mapping(data.get("info"), "info")
    train_step = integer(run, "step", low=1) if folder_step is None else folder_step
    return Episode(
        str(_episode_name(data)),
        train_step,
        GroupKey(context.task(info.get("env_name")), stable_id(info.get("group_id", data.get("id")))),
        str(run.get("id")),
        _begun_with(info, train_step, context),
        [data] if _is_trainable(data) else [],
        bool(data.get("ok")),
        is_joint,
        record.where,
    )


def _is_trainable(trace: dict[str, Any]) -> bool:
    return bool(mapping(trace.get("agent"), "agent").get("trainable", True))


def _span(policy: dict[str, Any], context: Context) -> Row:
    """The span of an episode; where both ends are one version, every token is of it."""
    if policy.get("start") is None:
        return version_columns(None, None, context)
    start = context.versions.model_step(integer(policy, "start"))
    if policy.get("end") is None:
        return version_columns(start, start, context, uniform=Precision.SPAN)
    return version_columns(start, context.versions.model_step(integer(policy, "end")), context)


def _begun_with(info: dict[str, Any], train_step: int, context: Context) -> Row:
    """The version when the group was begun; when batch N is collected, at most N - 1 steps are trained."""
    if info.get("policy_version") is None:
        return version_columns(None, None, context)
    start = context.versions.model_step(integer(info, "policy_version"))
    return version_columns(start, max(start, train_step - 1), context, mixed=Precision.START)
