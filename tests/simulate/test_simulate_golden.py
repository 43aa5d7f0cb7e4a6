"""The recorded manager cases, simulated from their workloads: every number, every order, every mask."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tokenaudit.config.loading import load_settings
from tokenaudit.lifecycle.events import GroupTaken
from tokenaudit.log.files import open_workload
from tokenaudit.simulate.entries import LogEntry, PutEntry, RefreshEntry, SampleEntry, SyncEntry
from tokenaudit.simulate.run import simulate
from tokenaudit.simulate.session import simulate_workload
from tokenaudit.simulate.workload import Workload
from tokenaudit.simulate.workload_files import read_workload

GOLDEN = Path(__file__).parent.parent / "golden"
CASES = sorted(path.parent for path in GOLDEN.glob("*/workload.parquet"))

NOT_IN_ROWS = ("effective_masks", "taken_groups", "leftover_init", "raw_rewards_sum")


def events_of(case: Path) -> tuple[Workload, list[Any]]:
    workload = read_workload(open_workload([case / "workload.parquet"]))
    settings = load_settings(config_path=case / "config.toml", working_dir=case, isolated=True)
    return workload, list(simulate(workload, settings.config))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_rows(case: Path):
    expected = json.loads((case / "expected.json").read_text())["expected"]
    result = simulate_workload(case / "workload.parquet", config_path=case / "config.toml", with_groups=True).result
    assert len(result.steps) == len(expected)
    for row, wanted in zip(result.steps, expected, strict=True):
        assert {name: row[name] for name in wanted if name not in NOT_IN_ROWS} == {
            name: value for name, value in wanted.items() if name not in NOT_IN_ROWS
        }
        assert row["raw_rewards_sum"] == pytest.approx(wanted["raw_rewards_sum"], abs=1e-6)
        assert {task: ids for task, ids in row["taken_group_ids"].items() if ids} == {
            task: ids for task, ids in wanted["taken_groups"].items() if ids
        }


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_masks_at_the_take(case: Path):
    rows = pq.read_table(case / "workload.parquet").to_pylist()
    semantic = {(row["task_name"], row["rollout_id"]): row["response_mask"] for row in rows}
    masks: dict[int, dict[str, str]] = {}
    for event in events_of(case)[1]:
        if not isinstance(event, GroupTaken):
            continue
        for response in event.responses:
            versions = [version for version, tokens, _ in response.runs for _ in range(tokens)]
            mask = semantic[event.task_name, response.rollout_id] or [1] * len(versions)
            limit = event.token_stale_threshold
            if not any(mask):
                limit = None
            fresh = [limit is None or event.train_step - version - 1 < limit for version in versions]
            text = "".join(str(int(bool(bit) and is_fresh)) for bit, is_fresh in zip(mask, fresh, strict=True))
            masks.setdefault(event.train_step, {})[f"{event.task_name}/{response.rollout_id}"] = text
    expected = json.loads((case / "expected.json").read_text())["expected"]
    assert masks == {row["train_step"]: row["effective_masks"] for row in expected}


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_events_in_order(case: Path):
    """The recorded log tells more than its rows: every event, its time, and every response of a put.

    It goes on behind the last row, and marks failed responses as agentic, which a simulated log doesn't.
    """
    told = [_told(event) for event in events_of(case)[1] if isinstance(event, LogEntry)]
    table = pq.read_table(case / "log.parquet").to_pylist()
    recorded = [_recorded(list(rows)) for _, rows in itertools.groupby(table, key=lambda row: row["event_id"])]
    assert told == recorded[: len(told)]


def _told(entry: LogEntry) -> tuple[Any, ...]:
    if isinstance(entry, PutEntry):
        members = [
            (r.rollout_id, r.status.value, r.tokens, r.prior_len, r.agentic, r.reward, _versions(r.runs), time)
            for r, time in zip(entry.responses, entry.generate_time_us, strict=True)
        ]
        head = (entry.time_us, entry.train_step, entry.model_step, entry.task_name, entry.group_id)
        return ("put", *head, members)
    if isinstance(entry, RefreshEntry):
        return ("refresh", entry.train_step)
    if isinstance(entry, SyncEntry):
        return ("sync", entry.train_step, entry.model_step)
    if isinstance(entry, SampleEntry):
        return ("sample", entry.task_name, entry.group_id, entry.status.value)
    return ("take", entry.train_step, entry.task_name, entry.batch_size)


def _versions(runs: tuple[tuple[int, int, int], ...]) -> list[int]:
    return [version for version, tokens, _ in runs for _ in range(tokens)]


def _recorded(rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    row = rows[0]
    event = row["event"]
    if event == "refresh":
        return ("refresh", row["train_step"])
    if event == "sync":
        return ("sync", row["train_step"], row["model_step"])
    if event == "sample":
        return ("sample", row["task_name"], row["group_id"], row["status"])
    if event == "take":
        return ("take", row["train_step"], row["task_name"], row["batch_size"])
    members = [
        (
            r["rollout_id"],
            r["status"],
            r["response_len"],
            r["prior_len"],
            r["agentic"] and r["status"] != "failed",
            r["reward"],
            _complete(r),
            r["generate_time_us"],
        )
        for r in rows
    ]
    head = (row["time_us"], row["train_step"], row["model_step"], row["task_name"], row["group_id"])
    return ("put", *head, members)


def _complete(row: dict[str, Any]) -> list[int]:
    """Versions of a recorded response, with those that `model_step` stands for."""
    versions = row["response_model_steps"] or []
    return versions + [row["model_step"]] * (row["response_len"] - len(versions))
