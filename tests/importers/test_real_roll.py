"""ROLL's rollouts, dumped by its own code from invented ones, and damaged ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.importers.importing import imported, jsonl
from tests.importers.test_real_files import imported_real, sizes, takes
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers.base import Lack
from tokenaudit.importers.repeats import Keep

SCORES = {
    "roll_rlvr": "0101 0100 0001  1110 0010 0011",
    "roll_rollout_data": "1011 1011 1100  1110 1101 0011",
}


def test_groups_of_equal_prompts_differ_by_id(tmp_path: Path):
    log = imported_real("roll", tmp_path, "roll")
    # steps count from 0
    assert (sizes(log), takes(log)) == (Counter({8: 2}), [(2, 2)])
    assert (set(log.column("task_name")), log.column("reward")) == ({"math"}, [1.0] * 16)
    assert log.imports.limits == (Lack.DROPPED, Lack.MASK, Lack.LENGTHS, Lack.VERSIONS)


@pytest.mark.parametrize("name", SCORES)
def test_domains_are_tasks_with_takes_of_their_own(name: str, tmp_path: Path):
    log = imported_real(name, tmp_path, "roll")
    assert sizes(log) == Counter({4: 6})
    assert takes(log) == [(1, 2), (1, 1), (2, 2), (2, 1)]
    assert log.column("task_name") == (["math_rule"] * 8 + ["code_sandbox"] * 4) * 2
    assert log.column("reward") == [float(score) for score in SCORES[name].replace(" ", "")]
    assert len(set(log.column("rollout_id"))) == 24


def test_a_proxy_names_groups_in_its_trajectories_whose_branches_are_parts(tmp_path: Path):
    log = imported_real("roll_proxy", tmp_path, "roll")
    # of three environments, the last one branched
    assert (sizes(log), takes(log)) == (Counter({4: 4}), [(1, 2), (2, 2)])
    assert (set(log.column("task_name")), set(log.column("finish_reason"))) == ({"swe_bench"}, {"stop"})
    assert log.column("reward") == [0.0, 1.0, 1.0, 1.0] * 4
    assert log.column("agentic") == [False, True, True, True] * 4
    rollouts = log.column("rollout_id")
    assert (len(set(rollouts)), rollouts[2] == rollouts[3]) == (12, True)
    assert log.imports.limits == (Lack.DROPPED, Lack.MASK, Lack.LENGTHS, Lack.VERSIONS)


def test_native_environments_name_versions_and_evaluations(tmp_path: Path):
    log = imported_real("roll_native", tmp_path, "roll")
    assert (sizes(log), takes(log)) == (Counter({2: 4}), [(1, 2), (2, 2)])
    assert log.column("reward") == [1.0, 0.0] * 4
    assert log.column("agentic") == [False, True, True, True] * 2
    # the first call of each trajectory ended before the weights were updated for the step
    assert log.column("model_step") == [0] * 8
    assert log.column("model_step_end") == [None] * 4 + [None, 1, 1, 1]
    assert log.column("version_precision") == ["segment"] * 5 + ["span"] * 3
    (note,) = [limit for limit in log.imports.limits if limit.startswith("trajectories of evaluations are left out")]
    assert log.imports.limits == (Lack.DROPPED, Lack.MASK, Lack.LENGTHS, Lack.RESUME, Lack.SPANS, note)


def columns(**others: Any) -> dict[str, Any]:
    """A step of four responses."""
    return {"global_step": [0] * 4, "responses": [""] * 4, "scores": [1.0, 0.5, None, True], **others}


def test_prompts_make_groups_without_ids(tmp_path: Path):
    log = imported("roll", jsonl(tmp_path / "x.jsonl", columns(prompt=["p", ["m"], "p", ["m"]])))
    assert (sizes(log), takes(log), Lack.PROMPTS in log.imports.limits) == (Counter({2: 2}), [(1, 2)], True)
    assert log.column("reward") == [1.0, None, 0.5, 1.0]


def test_a_step_that_a_resumed_run_appended_counts_once(tmp_path: Path):
    first, second = columns(prompt=["p"] * 4), columns(prompt=["q"] * 4, domain=["d"] * 4)
    path = jsonl(tmp_path / "rollout_data.jsonl", first, second)
    log = imported("roll", path)
    assert (sizes(log), takes(log), set(log.column("task_name"))) == (Counter({4: 1}), [(1, 1)], {"d"})
    log = imported("roll", path, keep=Keep.BOTH)
    assert (sizes(log), takes(log)) == (Counter({4: 2}), [(1, 1), (1, 1)])


def trajectory(**fields: Any) -> dict[str, Any]:
    return {"global_step": [0], "trajectory_data": [json.dumps(fields)]}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (columns(), "neither id nor prompt"),
        (columns(id="text"), "id is 'text'"),
        (columns(id=["a"]), "1 values of id for 4 responses"),
        ({"id": ["a"], "responses": ["b"]}, "global_step is missing"),
        (columns(id=["a"] * 4, scores=[[1.0]] * 4), r"scores is \[1.0\]"),
        (columns(id=["a"] * 4, global_step=[-1] * 4), "global_step is -1"),
        ({"global_step": [0], "trajectory_data": ["{"]}, "trajectory_data is no JSON"),
        ({"global_step": [0], "trajectory_data": ["[" * 100_000]}, "trajectory_data is no JSON"),
        ({"global_step": [0], "trajectory_data": ["7"]}, "trajectory_data is 7"),
        (trajectory(trajectory_id=7), "trajectory_id is 7"),
        (trajectory(trajectory_id="t_1"), "trajectory_id 't_1' names no group"),
        (trajectory(trajectory_id="t", env_info={"group_id": 1}), "episode_id is missing"),
        (trajectory(trajectory_id="t", reward_info=[]), r"trajectory_id 't' names no group"),
    ],
)
def test_steps_that_contradict_themselves_are_refused(record: dict[str, Any], message: str, tmp_path: Path):
    path = jsonl(tmp_path / "rollout_dump_data.step_0.jsonl", record)
    with pytest.raises(SourceError, match=message) as raised:
        imported("roll", path)
    assert str(raised.value.problems[0].where).startswith(f"{path}, line 1")
