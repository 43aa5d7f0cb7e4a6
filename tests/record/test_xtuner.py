"""A recorder attached to a buffer with XTuner's interface sees what the buffer was asked for, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.conftest import ROOT
from tests.record.xtuner_fake import FakeReplayBuffer, FakeState, FakeStatus
from tokenaudit import Recorder, replay_log
from tokenaudit.config.loading import load_settings
from tokenaudit.config.model import Config
from tokenaudit.record.xtuner import attach_xtuner

CASES = [
    path for path in sorted((ROOT / "tests" / "golden").iterdir()) if path.name.startswith(("colocated", "disagg"))
]


def state_of(row: dict[str, Any], ids: dict[int, list[int]]) -> FakeState:
    """A rollout state as the trainer hands it to the buffer; tokens that aren't continued from are made anew."""
    first = sum(map(len, ids.values()))
    new = range(first, first + row["response_len"] - row["prior_len"])
    ids[row["rollout_id"]] = ids.get(row["rollout_id"], [])[: row["prior_len"]] + list(new)
    return FakeState(
        rollout_id=row["rollout_id"],
        group_id=row["group_id"],
        status=FakeStatus(row["status"]),
        response_ids=list(ids[row["rollout_id"]]),
        response_model_steps=row["response_model_steps"],
        response_mask=row["response_mask"],
        reward=None if row["reward"] is None else {"score": row["reward"]},
        labels=[1] if row["agentic"] else None,
    )


class Trainer:
    """Drives a buffer through the events of a golden log, with the thresholds of its config."""

    def __init__(self, buffer: FakeReplayBuffer, config: Config, tasks: list[str]) -> None:
        self._buffer = buffer
        self._ids: dict[str, dict[int, list[int]]] = {task: {} for task in tasks}
        interval = config.timeline.sync_weights_interval
        policies = {task: config.task_policy(task) for task in tasks}
        self._stale = {task: (policy.max_staleness + 1) * interval for task, policy in policies.items()}
        self._token_stale = {
            task: None if policy.max_token_staleness is None else (policy.max_token_staleness + 1) * interval
            for task, policy in policies.items()
        }
        self._retryable = {task: policy.tail_batch_trigger_size >= 0 for task, policy in policies.items()}

    async def follow(self, rows: list[dict[str, Any]], recorder: Recorder) -> None:
        events = [list(event) for _, event in groupby(rows, key=lambda row: row["event_id"])]
        position = 0
        while position < len(events):
            first = events[position][0]
            step, task = first["train_step"], first["task_name"]
            if first["event"] == "put":
                await self._buffer.put(
                    [state_of(row, self._ids[task]) for row in events[position]],
                    task,
                    model_step=first["model_step"],
                    current_train_step=step,
                    stale_threshold=self._stale[task],
                    token_stale_threshold=self._token_stale[task],
                    expired_groups_retryable=self._retryable[task],
                )
            elif first["event"] == "sample":
                (group,) = await self._buffer.get(1, task, FakeStatus(first["status"]))
                assert group[0].group_id == first["group_id"]
            elif first["event"] == "refresh":
                await self._buffer.refresh_staleness(self._stale, self._retryable, step, self._token_stale)
            elif first["event"] == "sync":
                recorder.sync(step, first["model_step"])
            else:
                sizes: dict[str, int] = {}
                while position < len(events) and events[position][0]["event"] == "take":
                    sizes[events[position][0]["task_name"]] = events[position][0]["batch_size"]
                    position += 1
                await self._buffer.take_batch(sizes, current_train_step=step)
                continue
            position += 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_like_a_golden_case_is_recorded_event_by_event(case: Path, tmp_path: Path):
    rows = pq.read_table(case / "log.parquet").to_pylist()
    config_path = case / "config.toml"
    config = load_settings(config_path=config_path, working_dir=tmp_path, isolated=True).config
    buffer = FakeReplayBuffer(by_staleness=config.buffer.replay_policy.value == "staleness")
    tasks = list(dict.fromkeys(row["task_name"] for row in rows if row["task_name"]))
    with Recorder(tmp_path / "log", config_path) as recorder:
        attach_xtuner(buffer, recorder)
        asyncio.run(Trainer(buffer, config, tasks).follow(rows, recorder))
    named = pq.read_table(tmp_path / "log").to_pylist()
    # a take has a row for each rollout that was taken
    events = (list(rows) for _, rows in groupby(named, key=lambda row: row["event_id"]))
    recorded = [row for rows in events for row in (rows[:1] if rows[0]["event"] == "take" else rows)]
    for name in (
        "event",
        "train_step",
        "task_name",
        "status",
        "model_step",
        "batch_size",
        "prior_len",
    ):
        assert [row[name] for row in recorded] == [row[name] for row in rows], name
    for name in ("group_id", "rollout_id"):
        assert [row[name] for row in recorded if row["event"] != "take"] == [
            row[name] for row in rows if row["event"] != "take"
        ], name
    again = replay_log(tmp_path / "log", isolated=True, with_groups=True).result
    expected = replay_log(case / "log.parquet", config_path=config_path, with_groups=True).result
    assert again.steps == expected.steps
    for step in expected.steps:
        for task, groups in step["taken_group_ids"].items():
            of_take = [row for row in named if row["event"] == "take" and row["train_step"] == step["train_step"]]
            taken = [row["group_id"] for row in of_take if row["task_name"] == task and row["rollout_id"] is not None]
            assert list(dict.fromkeys(taken)) == groups


def buffer_with(recorder: Recorder) -> FakeReplayBuffer:
    buffer = FakeReplayBuffer(by_staleness=True)
    attach_xtuner(buffer, recorder)
    return buffer


def state(group_id: int = 1, status: FakeStatus = FakeStatus.COMPLETED, **values: Any) -> FakeState:
    fields: dict[str, Any] = {"rollout_id": 10 * group_id, "group_id": group_id, "status": status}
    return FakeState(**(fields | {"response_ids": [5, 6]} | values))


def recorded(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder).to_pylist() if list(folder.glob("*.parquet")) else []


def test_responses_are_recorded_as_they_were_before_the_buffer_changed_them(tmp_path: Path):
    async def run(buffer: FakeReplayBuffer) -> None:
        await buffer.put([state(response_model_steps=[0])], "math", 3, 9, stale_threshold=2)

    with Recorder(tmp_path, token_columns=True) as recorder:
        asyncio.run(run(buffer_with(recorder)))
    (row,) = recorded(tmp_path)
    assert (row["status"], row["response_len"], row["response_model_steps"]) == ("completed", 2, [0])
    # what the run itself computed: the oldest token is of version 0
    assert (row["model_step"], row["train_step"], row["prior_len"], row["seq_staleness"]) == (3, 9, 1, 8)


def test_a_call_that_raises_records_nothing(tmp_path: Path):
    async def run(buffer: FakeReplayBuffer) -> None:
        with pytest.raises(TypeError, match="unexpected"):
            await buffer.put([state()], "math", unexpected=1)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="zip"):
            await buffer.put([state(response_mask=[1, 1, 1])], "math", 0, 1, stale_threshold=1)

    with Recorder(tmp_path) as recorder:
        asyncio.run(run(buffer_with(recorder)))
    assert recorded(tmp_path) == []


def test_what_cannot_be_recorded_is_told_and_the_call_goes_through(tmp_path: Path):
    async def run(buffer: FakeReplayBuffer) -> None:
        with pytest.warns(RuntimeWarning, match="not recorded: 1 mask entries for 2 tokens"):
            await buffer.put([state(response_mask=[1])], "math", model_step=0)
        assert len(await buffer.get(1, "math", FakeStatus.COMPLETED)) == 1

    with Recorder(tmp_path) as recorder:
        asyncio.run(run(buffer_with(recorder)))
    # a public get of completed groups is a take
    assert [row["event"] for row in recorded(tmp_path)] == ["take"]


class OddBuffer(FakeReplayBuffer):
    """Keeps groups as they are, with a task by default."""

    def __init__(self) -> None:
        super().__init__(by_staleness=False)
        self.group: list[Any] = []

    async def put(self, items: list[Any], task_name: str = "math", model_step: int | None = None) -> None:
        self.group = items

    async def get(
        self, batch_size: int, task_name: str = "math", group_status: FakeStatus = FakeStatus.ABORTED
    ) -> list[list[Any]]:
        return [self.group]


def attached(buffer: OddBuffer, recorder: Recorder) -> OddBuffer:
    attach_xtuner(buffer, recorder)
    return buffer


@pytest.mark.parametrize(
    "values",
    [
        {"rollout_id": None},
        {"rollout_id": "r"},
        {"reward": "good"},
        {"reward": {"score": [1, 2]}},
        {"response_ids": 7},
        {"status": None},
    ],
)
def test_no_response_keeps_a_call_from_going_through(values: dict[str, Any], tmp_path: Path):
    async def run(buffer: OddBuffer) -> None:
        group = [state(**values)]
        await buffer.put(group, model_step=0)
        assert await buffer.get(1) == [group]
        await buffer.put([state()], model_step=0)

    with Recorder(tmp_path) as recorder, pytest.warns(RuntimeWarning, match="not recorded: "):
        asyncio.run(run(attached(OddBuffer(), recorder)))
    assert [row["rollout_id"] for row in recorded(tmp_path) if row["event"] == "put"] == [state().rollout_id]


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_responses_may_hold_arrays_and_tensors(kind: Callable[[Any], Any], tmp_path: Path):
    async def run(buffer: OddBuffer) -> None:
        values = {"response_ids": [5, 6], "response_model_steps": [0, 1], "response_mask": [1, 0]}
        values |= {"logprobs": [-0.5, -1.0], "prompt_ids": [1], "reward": 0.5}
        await buffer.put([state(**{name: kind(value) for name, value in values.items()})], model_step=0)
        await buffer.get(1)

    with Recorder(tmp_path, token_columns=True) as recorder:
        asyncio.run(run(attached(OddBuffer(), recorder)))
    put, sample = recorded(tmp_path)
    assert (put["response_ids"], put["response_model_steps"], put["response_mask"]) == ([5, 6], [0, 1], [1, 0])
    assert (put["logprobs"], put["prompt_len"], put["reward"]) == ([-0.5, -1.0], 1, 0.5)
    assert (sample["event"], sample["task_name"]) == ("sample", "math")


def test_a_put_that_raised_may_be_made_again(tmp_path: Path):
    class Failing(OddBuffer):
        async def put(self, items: list[Any], task_name: str = "math", model_step: int | None = None) -> None:
            await super().put(items)
            if model_step == 1:
                raise OSError("full")

    async def run(buffer: OddBuffer) -> None:
        await buffer.put([state(response_ids=[1, 2], response_model_steps=[0, 0])], model_step=0)
        await buffer.get(1)
        longer = [state(response_ids=[1, 2, 3], response_model_steps=[0, 0, 1])]
        with pytest.raises(OSError, match="full"):
            await buffer.put(longer, model_step=1)
        await buffer.put(longer, model_step=2)

    with Recorder(tmp_path) as recorder:
        asyncio.run(run(attached(Failing(), recorder)))
    assert [row["prior_len"] for row in recorded(tmp_path) if row["event"] == "put"] == [0, 2]


def test_a_buffer_is_recorded_once_and_detached_more_than_once(tmp_path: Path):
    buffer = FakeReplayBuffer(by_staleness=False)
    with Recorder(tmp_path) as recorder:
        detach = attach_xtuner(buffer, recorder)
        with pytest.raises(TypeError, match="attached to this buffer already"):
            attach_xtuner(buffer, recorder)
        detach()
        attach_xtuner(buffer, recorder)
        detach()
        asyncio.run(buffer.put([state()], "math", model_step=0))
    assert len(recorded(tmp_path)) == 1


def test_concurrent_calls_are_recorded_in_the_order_they_take_effect(tmp_path: Path):
    async def run(buffer: FakeReplayBuffer) -> list[int]:
        await asyncio.gather(*(buffer.put([state(group)], "math", 0, 1, stale_threshold=9) for group in range(20)))
        return [group[0].group_id for group in await buffer.get(20, "math", FakeStatus.COMPLETED)]

    with Recorder(tmp_path) as recorder:
        order = asyncio.run(run(buffer_with(recorder)))
    rows = recorded(tmp_path)
    assert [row["group_id"] for row in rows if row["event"] == "put"] == order
    assert [row["group_id"] for row in rows if row["event"] == "take"] == order


def test_detaching_leaves_the_buffer_as_it_was(tmp_path: Path):
    buffer = FakeReplayBuffer(by_staleness=False)
    with Recorder(tmp_path) as recorder:
        attach_xtuner(buffer, recorder)()
        asyncio.run(buffer.put([state()], "math"))
    assert recorded(tmp_path) == []


def test_an_object_that_is_no_buffer_is_refused(tmp_path: Path):
    with Recorder(tmp_path) as recorder, pytest.raises(TypeError, match="dict has no method put, refresh_staleness"):
        attach_xtuner({}, recorder)
