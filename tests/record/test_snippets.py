"""The lines that help shows for a trainer record a run of its stand-in."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.record.stand_ins.areal import Workflow, WorkflowExecutor
from tests.record.stand_ins.prime_rl import Orchestrator
from tests.record.stand_ins.skyrl import FullyAsyncTrainer
from tests.record.stand_ins.trl import AsyncGRPOTrainer
from tokenaudit import replay_log
from tokenaudit.contracts.schema import META_LIMITS
from tokenaudit.record.limits import Lack

SNIPPETS = dict(
    re.findall(
        r"^### (\S+)\n+```py\n(.*?)^```",
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
    assert SNIPPETS.keys() == RUNS.keys()


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
