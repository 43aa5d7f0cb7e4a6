"""Small workloads and configs for tests of the simulator, and its runs as plain data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from tokenaudit.config.loading import Settings
from tokenaudit.config.model import Config, parse_config, task_order
from tokenaudit.contracts.metrics import ROW_METRICS
from tokenaudit.log.columns import Lists
from tokenaudit.log.files import Log
from tokenaudit.log.semantic_masks import masks_of
from tokenaudit.replay.ledger import Ledger, count
from tokenaudit.replay.request import RunRequest
from tokenaudit.replay.result import EXPIRED_IDS, TAKEN_IDS, TASKS, TRAIN_STEP, Result
from tokenaudit.simulate.entries import LogEntry, PutEntry, RefreshEntry, RunStuck, SampleEntry, SyncEntry
from tokenaudit.simulate.run import simulate
from tokenaudit.simulate.session import LoadedWorkload, simulate_loaded
from tokenaudit.simulate.workload import ResponseColumns, Workload, grouped_by_task
from tokenaudit.simulate.workload_files import SCHEMA

Row = dict[str, Any]


def response(group_id: int, rollout_id: int | None = None, *, tokens: int = 10, time: int = 1, **others: Any) -> Row:
    """One response; its rollout is called like the group unless it is named."""
    row = {
        "task_name": "default",
        "group_id": group_id,
        "rollout_id": group_id if rollout_id is None else rollout_id,
        "response_len": tokens,
        "token_time_us": time,
        "response_mask": None,
        "agentic": False,
        "reward": None,
        "failed": False,
        "filtered": False,
    }
    return row | others


def prompts(*lengths: int | Sequence[int], **others: Any) -> list[Row]:
    """Groups 0, 1, … of the lengths given; a number is a group of one response."""
    rows: list[Row] = []
    for group_id, members in enumerate(lengths):
        for tokens in [members] if isinstance(members, int) else members:
            rows.append(response(group_id, len(rows), tokens=tokens, **others))
    return rows


def workload(rows: Sequence[Row]) -> Workload:
    """The rows as a workload, without a file."""
    names = list(dict.fromkeys(row["task_name"] for row in rows))
    masks = [row["response_mask"] for row in rows]
    lists = Lists(
        np.array([value for mask in masks for value in mask or []], dtype=np.int8),
        np.array([len(mask or []) for mask in masks], dtype=np.int64),
        np.array([mask is None for mask in masks]),
        np.zeros(0, dtype=np.int64),
    )
    columns = ResponseColumns(
        *(np.array([row[name] for row in rows], dtype=np.int64) for name in
          ("group_id", "rollout_id", "response_len", "token_time_us")),
        np.array([row["agentic"] for row in rows]),
        np.array([np.nan if row["reward"] is None else row["reward"] for row in rows]),
        np.array([row["failed"] for row in rows]),
        np.array([row["filtered"] for row in rows]),
    )  # fmt: skip
    task = np.array([names.index(row["task_name"]) for row in rows])
    return Workload("test", len(rows), grouped_by_task(task, names, columns, masks_of(lists)))


def write_workload_rows(path: Path, rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> Path:
    """The rows as a workload file."""
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path)
    return path


def config(mode: str = "disaggregated", *, steps: int = 3, batch: int = 1, **others: Any) -> Config:
    """A config; further values go to the section that has them."""
    timeline = {"steps": steps, "train_batch_size": batch}
    if mode == "disaggregated":
        timeline |= {"train_time_us": 20, "sync_time_us": 5, "poll_interval_us": 3}
    data: dict[str, Any] = {"mode": mode, "timeline": timeline, "policy": {}, "buffer": {}}
    tasks = others.pop("tasks", {})
    for name, value in others.items():
        in_timeline = name in ("sync_weights_interval", "train_time_us", "sync_time_us", "poll_interval_us")
        section = "timeline" if in_timeline else "buffer" if name == "replay_policy" else "policy"
        data[section][name] = value
    return parse_config(data | {"tasks": tasks}, "test")


class Ran(NamedTuple):
    """A simulated run."""

    ledger: Ledger
    entries: list[tuple[Any, ...]]
    stuck: RunStuck | None
    ended_at: int


def ran(rows: Sequence[Row], run_config: Config, max_concurrency: int | None = None) -> Ran:
    """Simulate and count."""
    given = workload(rows)
    entries: list[LogEntry] = []
    stuck: list[RunStuck] = []

    def counted():
        for event in simulate(given, run_config, max_concurrency):
            if isinstance(event, LogEntry):
                entries.append(event)
            elif isinstance(event, RunStuck):
                stuck.append(event)
            else:
                yield event

    ledger = count(counted(), task_order(run_config, list(given.tasks)))
    last = stuck[0].time_us if stuck else entries[-1].time_us
    return Ran(ledger, [plain(entry) for entry in entries], stuck[0] if stuck else None, last)


def result_of(rows: Sequence[Row], run_config: Config, *, event_log: Any = None, **options: Any) -> Result:
    """Simulate to a result."""
    given = workload(rows)
    loaded = LoadedWorkload(given, Log("test", (), len(rows), (), {}, ()))
    return simulate_loaded(loaded, Settings(run_config, {}, "test"), RunRequest(**options), event_log=event_log)


def plain(entry: LogEntry) -> tuple[Any, ...]:
    """An entry as a tuple that begins with its time and its event."""
    if isinstance(entry, PutEntry):
        members = tuple(
            (r.rollout_id, r.status.value, r.runs, r.prior_len, r.agentic, r.reward, time)
            for r, time in zip(entry.responses, entry.generate_time_us, strict=True)
        )
        return (entry.time_us, "put", entry.train_step, entry.model_step, entry.task_name, entry.group_id, members)
    if isinstance(entry, RefreshEntry):
        return (entry.time_us, "refresh", entry.train_step)
    if isinstance(entry, SyncEntry):
        return (entry.time_us, "sync", entry.train_step, entry.model_step)
    if isinstance(entry, SampleEntry):
        return (entry.time_us, "sample", entry.task_name, entry.group_id, entry.status.value)
    return (entry.time_us, "take", entry.train_step, entry.task_name, entry.batch_size)


def replayed_part(result: Result) -> str:
    """What a replay tells too, as JSON with its keys in order."""
    names = {metric.name for metric in ROW_METRICS} | {TRAIN_STEP, TAKEN_IDS, EXPIRED_IDS}

    def part(row: Row) -> Row:
        kept = {name: value for name, value in row.items() if name in names}
        return kept | ({TASKS: {task: part(of_task) for task, of_task in row[TASKS].items()}} if TASKS in row else {})

    return json.dumps([[part(row) for row in result.steps], part(result.tail), part(result.totals)])


class Case(NamedTuple):
    """A random simulation."""

    rows: list[Row]
    config: Config
    max_concurrency: int | None


@st.composite
def cases(draw: st.DrawFn, *, least_tokens: int = 1) -> Case:
    """Small runs of every kind, with few prompts, short times and many ties."""
    names = draw(st.sampled_from([["a"], ["b", "a"], ["a", "b", "c"]]))
    rows: list[Row] = []
    for name in names:
        rows += draw(_task_rows(name, least_tokens))
    policies = [draw(_policies()) for _ in names]
    named = draw(st.integers(0, len(names)))
    mode = draw(st.sampled_from(["colocated", "disaggregated"]))
    timeline = {
        "steps": draw(st.integers(1, 6)),
        "train_batch_size": draw(st.integers(1, 4)),
        "sync_weights_interval": draw(st.integers(1, 3)),
    }
    if mode == "disaggregated":
        timeline["train_time_us"] = draw(st.integers(0, 30))
        timeline["sync_time_us"] = draw(st.integers(0, 9))
        timeline["poll_interval_us"] = draw(st.integers(1, 7))
    data = {
        "mode": mode,
        "timeline": timeline,
        "buffer": {"replay_policy": draw(st.sampled_from(["staleness", "fifo"]))},
        "policy": draw(_policies()),
        "tasks": dict(zip(names[:named], policies, strict=False)),
    }
    for task in data["tasks"].values():
        task["weight"] = draw(st.sampled_from([1.0, 2.0, 0.5]))
    return Case(rows, parse_config(data, "random"), draw(st.sampled_from([None, None, 1, 2, 5])))


@st.composite
def _task_rows(draw: st.DrawFn, name: str, least_tokens: int) -> list[Row]:
    rows: list[Row] = []
    for group_id in range(draw(st.integers(1, 6))):
        for _ in range(draw(st.integers(1, 3))):
            tokens = draw(st.integers(least_tokens, 12))
            mask = draw(st.none() | st.lists(st.integers(0, 1), min_size=tokens, max_size=tokens))
            rows.append(
                response(
                    group_id,
                    len(rows),
                    task_name=name,
                    tokens=tokens,
                    time=draw(st.integers(1, 4)),
                    response_mask=mask,
                    agentic=draw(st.integers(0, 9)) == 0,
                    reward=draw(st.none() | st.sampled_from([0.0, 0.5, 1.0])),
                    failed=draw(st.integers(0, 9)) == 0,
                    filtered=draw(st.integers(0, 14)) == 0,
                )
            )
    if all(
        any(row["failed"] or row["filtered"] for row in rows if row["group_id"] == g)
        for g in {r["group_id"] for r in rows}
    ):
        for row in rows:
            row["failed"] = row["filtered"] = False
    return rows


@st.composite
def _policies(draw: st.DrawFn) -> dict[str, Any]:
    policy: dict[str, Any] = {
        "max_staleness": draw(st.integers(0, 3)),
        "tail_batch_trigger_size": draw(st.sampled_from([-1, 0, 1, 2, 3])),
        "over_sample_threshold": draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        "enable_partial_rollout": draw(st.booleans()),
    }
    if draw(st.booleans()):
        policy["max_token_staleness"] = draw(st.integers(0, 2))
    return policy
