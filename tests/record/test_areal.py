"""A run of AReaL's workflow executor is recorded, and replay counts what the executor did."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.record.stand_ins.areal import RolloutTaskInput, Workflow, WorkflowExecutor
from tokenaudit import Recorder, audit_log, replay_log
from tokenaudit.record.areal import attach_areal

CONFIG = {"policy": {"max_staleness": 1000}, "buffer": {"replay_policy": "fifo"}}


@contextmanager
def recorded(folder: Path, **options: Any) -> Iterator[WorkflowExecutor]:
    executor = WorkflowExecutor()
    with Recorder(folder, CONFIG, **options) as recorder:
        detach = attach_areal(executor, recorder)
        try:
            yield executor
        finally:
            executor.dispatcher.drain()
            detach()
            executor.dispatcher.destroy()


def train(executor: WorkflowExecutor, workflow: Workflow, steps: int, *, dynamic_bs: bool = False) -> None:
    data: Iterator[dict[str, Any]] = itertools.repeat({})
    for step in range(1, steps + 1):
        executor.prepare_batch(data, workflow, lambda trajectory: bool(trajectory["rewards"].any()), dynamic_bs)
        executor.inference_engine.set_version(step)


def lengths(trajectory: dict[str, Any] | None) -> int:
    """Tokens behind the prompts."""
    if trajectory is None:
        return 0
    masks = zip(trajectory["loss_mask"].tolist(), trajectory["attention_mask"].sum(1).tolist(), strict=True)
    return sum(tokens - mask.index(1) for mask, tokens in masks)


def trained(trajectory: dict[str, Any]) -> int:
    return int(trajectory["loss_mask"].sum())


def rows_of(folder: Path, event: str) -> list[dict[str, Any]]:
    return [row for row in pq.read_table(folder).to_pylist() if row["event"] == event]


@pytest.mark.parametrize("is_in_order", [True, False])
@pytest.mark.parametrize("dynamic_bs", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_replay_counts_what_the_executor_did(is_in_order: bool, dynamic_bs: bool, seed: int, tmp_path: Path):
    with recorded(tmp_path) as executor:
        train(executor, Workflow(seed, is_in_order=is_in_order), 8, dynamic_bs=dynamic_bs)
    result = replay_log(tmp_path, isolated=True).result
    fates = {name: {task: made for kind, task, made in executor.journal if kind == name} for name in FATES}
    batches = {version + 1: tasks for kind, version, tasks in executor.journal if kind == "batch" and tasks}
    takes = rows_of(tmp_path, "take")
    assert [row["train_step"] for row in result.steps] == [*batches]
    for row in result.steps:
        tasks = batches[row["train_step"]]
        named = {take["group_id"] for take in takes if take["train_step"] == row["train_step"]}
        assert named == {*tasks}
        assert (row["taken_groups"], row["shortfall_groups"]) == (len(tasks), 0)
        assert row["model_step"] == row["train_step"] - 1
        assert row["taken_tokens"] == sum(lengths(fates["accepted"][task]) for task in tasks)
        assert row["trained_tokens"] == sum(trained(fates["accepted"][task]) for task in tasks)
    totals = result.totals
    assert totals["put_groups"] == sum(map(len, fates.values()))
    assert totals["produced_tokens"] == sum(lengths(made) for of in fates.values() for made in of.values())
    assert totals["filtered_tokens"] == sum(map(lengths, fates["filtered"].values()))
    assert totals["filtered_samples"] == sum(1 if made is None else 2 for made in fates["filtered"].values())
    assert (totals["failed_samples"], totals["failed_tokens"]) == (len(fates["failed"]), 0)
    assert fates["filtered"]
    assert executor.staleness_manager.accepted == len(fates["accepted"])
    errors = {finding.code for finding in audit_log(tmp_path, isolated=True).findings if finding.severity == "error"}
    assert errors == set()


FATES = ("accepted", "filtered", "failed")


def test_samples_have_what_the_workflow_returned(tmp_path: Path):
    with recorded(tmp_path, token_columns=True) as executor:
        train(executor, Workflow(1, is_in_order=True), 6)
    made = {task: made for kind, task, made in executor.journal if kind == "accepted"}
    puts = [row for row in rows_of(tmp_path, "put") if row["status"] == "completed"]
    assert {row["group_id"] for row in puts} == {*made}
    for task, trajectory in made.items():
        rows = [row for row in puts if row["group_id"] == task]
        assert [row["reward"] for row in rows] == trajectory["rewards"].tolist()
        for index, row in enumerate(rows):
            tokens = int(trajectory["attention_mask"][index].sum())
            mask = trajectory["loss_mask"][index, :tokens].tolist()
            first = mask.index(1)
            assert row["prompt_len"] == first
            assert row["response_ids"] == trajectory["input_ids"][index, first:tokens].tolist()
            assert row["response_mask"] == mask[first:]
            assert row["logprobs"] == trajectory["logprobs"][index, first:tokens].tolist()
            versions = trajectory["versions"][index, first:tokens].tolist()
            # a tool's reply has the version of the turn before it
            for place in range(1, len(versions)):
                versions[place] = versions[place - 1] if versions[place] < 0 else versions[place]
            assert row["response_model_steps"] == versions
            assert row["version_precision"] in (None, "exact")
    assert any(len(set(row["response_model_steps"])) > 1 for row in puts)


def test_a_task_is_put_at_the_step_whose_batch_comes_next(tmp_path: Path):
    with recorded(tmp_path) as executor:
        workflow = Workflow(1, is_in_order=True)
        executor.prepare_batch(itertools.repeat({}), workflow)
        executor.dispatcher.drain()
        for _ in range(16):
            executor.submit({}, workflow)
        executor.dispatcher.drain()
    events = pq.read_table(tmp_path).to_pylist()
    first_take = next(place for place, row in enumerate(events) if row["event"] == "take")
    behind = [row for row in events[first_take:] if row["event"] == "put"]
    assert {row["train_step"] for row in behind} == {2}
    # what was accepted and not given is put at the end
    assert {row["status"] for row in behind} == {"completed", "filtered", "failed"}
    assert replay_log(tmp_path, isolated=True).result.ledger["total"]["held_tokens"] > 0


def test_evaluations_are_left_out(tmp_path: Path):
    with recorded(tmp_path) as executor:
        workflow = Workflow(1, is_in_order=True)
        for is_eval in (True, False, True):
            executor.submit({}, workflow, is_eval=is_eval)
        assert len(executor.wait(3)) == 3
    assert {row["group_id"] for row in rows_of(tmp_path, "put")} == {1}


def test_what_cannot_be_recorded_never_reaches_the_executor(tmp_path: Path):
    class Odd(Workflow):
        def _made(self, engine: Any, data: Any) -> Any:
            made = super()._made(engine, data)
            return made and made | {"attention_mask": None}

    executor = WorkflowExecutor()
    with Recorder(tmp_path, CONFIG) as recorder:
        attach_areal(executor, recorder)
        with pytest.warns(RuntimeWarning, match="not recorded: TypeError") as told:
            train(executor, Odd(1, is_in_order=True), 3)
        executor.dispatcher.drain()
        executor.dispatcher.destroy()
    made = [event for event in executor.journal if event[0] in FATES and event[2] is not None]
    assert (len(told), recorder.rejected_events) == (1, len(made))
    assert [event[0] for event in executor.journal].count("batch") == 3


def test_an_executor_is_recorded_once_and_left_as_it_was(tmp_path: Path):
    executor = WorkflowExecutor()
    factory = executor.dispatcher.task_factory
    with Recorder(tmp_path) as recorder:
        detach = attach_areal(executor, recorder)
        with pytest.raises(TypeError, match="attached to this executor already"):
            attach_areal(executor, recorder)
        detach()
    assert executor.dispatcher.task_factory == factory
    assert "on_rollout_accepted" not in vars(executor.staleness_manager)
    assert "set_version" not in vars(executor.inference_engine)
    executor.dispatcher.destroy()


def test_a_workflow_is_seen_by_the_trainer_as_it_is(tmp_path: Path):
    class Named(Workflow):
        name = "search"

        async def arun_episode(self, engine: Any, data: Any, *, seed: int = 0) -> Any:
            return self.name, seed

    with Recorder(tmp_path) as recorder:
        executor = WorkflowExecutor()
        attach_areal(executor, recorder)
        task = RolloutTaskInput(0, {}, Named(1, is_in_order=True))
        executor.dispatcher.task_factory(task)
        assert task.workflow.name == "search"
        assert asyncio.run(task.workflow.arun_episode(None, data={}, seed=3)) == ("search", 3)
        executor.dispatcher.destroy()
