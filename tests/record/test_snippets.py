"""The lines that help shows for a trainer record a run of its stand-in."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import random
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.record.stand_ins.areal import Workflow, WorkflowExecutor
from tests.record.stand_ins.nemo_rl import ReplayBufferImpl, TQReplayBuffer, WindowedSampler
from tests.record.stand_ins.prime_rl import Orchestrator
from tests.record.stand_ins.skyrl import FullyAsyncTrainer
from tests.record.stand_ins.slime import Sample, log_rollout_data
from tests.record.stand_ins.trl import AsyncGRPOTrainer
from tests.record.stand_ins.verl import MessageQueue, MessageQueueClient
from tests.record.test_nemo_rl import MAX_AGE, drive_controller, drive_grpo
from tests.record.test_verl import Rollouts, buffer_of, drive, rollout_sample
from tests.record.xtuner_fake import FakeReplayBuffer, FakeState, FakeStatus
from tokenaudit import Recorder, replay_log
from tokenaudit.contracts.schema import META_LIMITS
from tokenaudit.record.limits import Lack

SNIPPETS = dict(
    re.findall(
        r"^### (\S+)\n(?:(?![#`])[^\n]*\n)*```py\n(.*?)^```",
        (ROOT / "tokenaudit" / "help" / "record.md").read_text(),
        flags=re.DOTALL | re.MULTILINE,
    )
)


def areal() -> tuple[dict[str, Any], Callable[[], Any]]:
    executor = WorkflowExecutor()

    def run() -> None:
        executor.prepare_batch(itertools.repeat({}), Workflow(1, is_in_order=True))
        executor.dispatcher.drain()
        executor.dispatcher.destroy()

    return {"rollout": SimpleNamespace(workflow_executor=executor)}, run


def skyrl() -> tuple[dict[str, Any], Callable[[], Any]]:
    trainer = FullyAsyncTrainer(8, 1, 4, sample_full_batch=False, seed=1)
    return {"trainer": trainer}, lambda: asyncio.run(trainer.train())


def prime_rl() -> tuple[dict[str, Any], Callable[[], Any]]:
    orchestrator = Orchestrator(1, 3, 8, 8)
    return {"orchestrator": orchestrator}, lambda: asyncio.run(orchestrator.start())


def trl() -> tuple[dict[str, Any], Callable[[], Any]]:
    trainer = AsyncGRPOTrainer(1, 3, max_staleness=4)
    return {"trainer": trainer}, trainer.train


RUNS = {"AReaL": areal, "SkyRL": skyrl, "prime-rl": prime_rl, "TRL": trl}
LACKS = {
    "AReaL": {Lack.WAITING, Lack.REJECTED},
    "SkyRL": {Lack.SPANS},
    "prime-rl": {Lack.WAITING, Lack.PARTS, Lack.CANCELLED, Lack.SPANS},
    "TRL": {Lack.WAITING, Lack.PARTS, Lack.STARTS},
}


def test_every_snippet_is_run():
    assert SNIPPETS.keys() == RUNS.keys() | OWN_RUNS.keys()


@pytest.mark.parametrize("trainer", RUNS)
def test_the_lines_of_a_trainer_record_its_run(trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names, run = RUNS[trainer]()
    exec(SNIPPETS[trainer], names)
    run()
    names["detach"]()
    names["recorder"].close()
    assert names["recorder"].rejected_events == 0
    (part,) = (tmp_path / "rollouts").glob("*.parquet")
    assert {*json.loads(pq.read_schema(part).metadata[META_LIMITS.encode()])} == LACKS[trainer]
    result = replay_log(tmp_path / "rollouts", isolated=True).result
    assert result.steps
    assert all(row["taken_groups"] > 0 and row["shortfall_groups"] == 0 for row in result.steps)


def xtuner(names: dict[str, Any], _: dict[str, ModuleType]) -> None:
    async def run() -> None:
        buffer = names["replay_buffer"]
        for step in range(1, 4):
            state = FakeState(step, step, FakeStatus.COMPLETED, [1, 2], [step - 1] * 2)
            await buffer.put([state], "math", current_train_step=step, model_step=step - 1)
            await buffer.refresh_staleness({"math": 1}, {"math": True}, step, {"math": None})
            await buffer.take_batch({"math": 1}, step)
            names["recorder"].sync(step, step)

    asyncio.run(run())
    names["detach"]()


def slime(names: dict[str, Any], _: dict[str, ModuleType]) -> None:
    for rollout in range(3):
        sample = Sample(group_index=rollout, index=rollout, tokens=[1, 2, 3], response_length=2, weight_versions=["1"])
        args = Namespace(custom_rollout_log_function=names["log_rollout"], update_weights_interval=1)
        log_rollout_data(rollout, args, [sample], {}, 1.0)


def verl_v1(names: dict[str, Any], _: dict[str, ModuleType]) -> None:
    drive(names["trainer"].replay_buffer, names["rollouts"], steps=3, samples=1)
    names["detach"]()


def verl_queue(names: dict[str, Any], _: dict[str, ModuleType]) -> None:
    async def run() -> None:
        actor = MessageQueue(max_queue_size=20)
        rollouter, trainer = names["MessageQueueClient"](actor), names["MessageQueueClient"](actor)
        for number in range(12):
            await rollouter.put_sample(pickle.dumps(rollout_sample(number, random.Random(number), 0)[0]))
        for _ in range(12):
            await trainer.get_sample()

    asyncio.run(run())


def nemo_rl(_: dict[str, Any], modules: dict[str, ModuleType]) -> None:
    drive_grpo(modules["nemo_rl.algorithms.async_utils"].ReplayBuffer(50, False), steps=3, seed=1)


def nemo_rl_controller(names: dict[str, Any], _: dict[str, ModuleType]) -> None:
    buffer = TQReplayBuffer(None, "rollouts", pad_value_dict={})
    sampler = names["RecordedSampler"](buffer, max_staleness_versions=MAX_AGE)
    asyncio.run(drive_controller(buffer, sampler, steps=3, seed=1))
    sampler.detach()


OWN_RUNS = {
    "XTuner": xtuner,
    "slime": slime,
    "verl": verl_v1,
    "verl-queue": verl_queue,
    "NeMo-RL": nemo_rl,
    "NeMo-RL-controller": nemo_rl_controller,
}
"""Runs of trainers whose lines make their recorders themselves, or import from them."""


def trainer_modules() -> dict[str, ModuleType]:
    """The modules that the lines import, with stand-ins in them."""
    contents: dict[str, dict[str, Any]] = {
        "ray": {"remote": lambda kind: kind},
        "transfer_queue": {"kv_batch_get": None},
        "verl.experimental.fully_async_policy.message_queue": {"MessageQueueClient": MessageQueueClient},
        "nemo_rl.algorithms.async_utils": {},
        "nemo_rl.algorithms.async_utils.replay_buffer": {"ReplayBufferImpl": ReplayBufferImpl},
        "nemo_rl.algorithms.async_utils.staleness_sampler": {"WindowedSampler": WindowedSampler},
    }
    modules: dict[str, ModuleType] = {}
    for name, values in contents.items():
        parts = name.split(".")
        for size in range(1, len(parts) + 1):
            module = modules.setdefault(".".join(parts[:size]), ModuleType(name))
            if size > 1:
                setattr(modules[".".join(parts[: size - 1])], parts[size - 1], module)
        vars(modules[name]).update(values)
    return modules


@pytest.mark.parametrize("trainer", OWN_RUNS)
def test_the_lines_of_a_module_record_a_run(trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    modules = trainer_modules()
    rollouts = Rollouts(seed=3)
    vars(modules["transfer_queue"])["kv_batch_get"] = rollouts.tq.kv_batch_get
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    recorders: list[Recorder] = []

    def make(*arguments: Any, **keywords: Any) -> Recorder:
        recorders.append(Recorder(*arguments, **keywords))
        return recorders[-1]

    monkeypatch.setattr("tokenaudit.Recorder", make)
    names: dict[str, Any] = {"trainer": SimpleNamespace(replay_buffer=buffer_of(rollouts)), "rollouts": rollouts}
    names["replay_buffer"] = FakeReplayBuffer(by_staleness=False)
    (tmp_path / "async.toml").write_text("[policy]\nmax_staleness = 1\n\n[buffer]\nreplay_policy = 'fifo'\n")
    exec(SNIPPETS[trainer], names)
    OWN_RUNS[trainer](names, modules)
    for recorder in recorders:
        recorder.close()
        assert recorder.rejected_events == 0
    result = replay_log(tmp_path / "rollouts", isolated=True).result
    assert len(result.steps) == 3
    assert all(row["taken_groups"] > 0 and row["shortfall_groups"] == 0 for row in result.steps)
