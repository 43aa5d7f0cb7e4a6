"""The order of the prompts of a workload that is derived from a log."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import SAMPLE
from tests.oracles.slow_prompt_order import groups_by_first_put, groups_by_start
from tests.simulate.simulated import response, workload
from tokenaudit import gate_result, replay_log, simulate_workload
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import LogError, ResultError
from tokenaudit.contracts.metrics import Metric
from tokenaudit.replay.request import PromptOrder
from tokenaudit.replay.result import Result
from tokenaudit.replay.saved_result import result_from_json, result_to_json
from tokenaudit.simulate.notices import prompt_order_notices
from tokenaudit.simulate.session import load_workload
from tokenaudit.simulate.workload import Workload

Row = dict[str, Any]
TIMES = ("time_us", "generate_time_us")


def put(event_id: int, group_id: int, rollout_id: int, task_name: str = "default", **times: int | None) -> Row:
    return {
        "event": "put", "event_id": event_id, "train_step": 1, "model_step": 0, "task_name": task_name,
        "group_id": group_id, "rollout_id": rollout_id, "status": "completed", "response_len": 4, "prior_len": 0,
        "time_us": None, "generate_time_us": None,
    } | times  # fmt: skip


def derived(folder: Path, rows: list[Row], order: PromptOrder | str | None = None) -> Workload:
    """The workload behind rows; tokens take 1 us, so that times of the log only order."""
    table = pa.Table.from_pylist(rows)
    for name in TIMES:
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(pa.int64()))
    pq.write_table(table, folder / "log.parquet")
    return load_workload([folder / "log.parquet"], prompt_order=order, token_time_us=1).workload


def groups(derived_workload: Workload) -> dict[str, list[int]]:
    return {
        name: task.responses.group_id[task.first_response[:-1]].tolist()
        for name, task in derived_workload.tasks.items()
    }


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Puts of some groups of two tasks, some of them several times, by members of which one may come later."""
    usual = st.integers(0, 6)
    time = st.one_of(usual, usual, usual, usual, usual, st.sampled_from([None, -1, 2**53, 2**53 + 1]))
    rows = []
    for event_id in range(draw(st.integers(1, 8))):
        task, group_id = draw(st.sampled_from("ab")), draw(st.integers(0, 3))
        members = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
        put_at = draw(time)
        for member in members:
            times = {"time_us": put_at, "generate_time_us": draw(time)}
            rows.append(put(event_id, group_id, 3 * group_id + member, task, **times))
    return rows


@given(logs())
def test_groups_stand_as_they_began_where_the_log_says_so_of_each(tmp_path_factory: pytest.TempPathFactory, rows: Any):
    folder = tmp_path_factory.mktemp("log")
    by_start = groups_by_start(rows)
    chosen = derived(folder, rows)
    assert chosen.prompt_order == (PromptOrder.FIRST_PUT if by_start is None else PromptOrder.START)
    assert groups(chosen) == (by_start or groups_by_first_put(rows))
    assert list(groups(chosen)) == list(groups_by_first_put(rows))
    assert groups(derived(folder, rows, "first-put")) == groups_by_first_put(rows)
    if by_start is None:
        with pytest.raises(LogError, match="groups don't say when they began"):
            derived(folder, rows, "start")
    else:
        assert derived(folder, rows, "start").content_hash() == chosen.content_hash()


def test_a_group_began_as_long_before_its_first_put_as_its_longest_response_took(tmp_path: Path):
    """Group 3 began at 100 - 90, group 1 at 20 - 5, groups 5 and 4 both at 17; the second put of group 4 is later."""
    rows = [
        put(1, 5, 50, time_us=18, generate_time_us=1),
        put(2, 1, 10, time_us=20, generate_time_us=5),
        put(3, 4, 40, time_us=25, generate_time_us=8),
        put(4, 4, 41, time_us=30, generate_time_us=29),
        put(5, 3, 30, time_us=100, generate_time_us=2),
        put(5, 3, 31, time_us=100, generate_time_us=90),
    ]
    assert groups(derived(tmp_path, rows)) == {"default": [3, 1, 4, 5]}
    members = derived(tmp_path, rows).tasks["default"].responses.rollout_id.tolist()
    assert members == [30, 31, 10, 40, 41, 50]


@pytest.mark.parametrize("name", TIMES)
def test_a_log_that_lacks_a_time_says_what_to_record(name: str, tmp_path: Path):
    known = {"time_us": 9, "generate_time_us": 5}
    rows = [put(1, 1, 1, **known), put(2, 0, 0, **known | {name: None})]
    assert groups(derived(tmp_path, rows)) == {"default": [1, 0]}
    with pytest.raises(LogError) as refused:
        derived(tmp_path, rows, "start")
    assert str(refused.value) == (
        "the first puts of 1 of 2 groups don't say when they began (time_us, generate_time_us)\n"
        "  at: log.parquet\n"
        "  hint: leave out --prompt-order start, or record both from 0 to 2^53"
    )


# ---- the sample


@cache
def simulated(order: str) -> Result:
    return simulate_workload(SAMPLE, isolated=True, prompt_order=order).result


@pytest.mark.parametrize(
    ("metric", "recorded", "by_start", "by_first_put"),
    [
        (m.MASKED_STALE_TOKENS, 374_831, 374_204, 340_260),
        (m.DROPPED_TOKENS, 1_190_121, 1_185_918, 1_159_050),
        (m.TRAINED_TOKENS, 4_427_730, 4_428_357, 4_446_035),
        (m.EXPIRED_GROUPS, 251, 250, 249),
    ],
    ids=lambda value: value.name if isinstance(value, Metric) else "",
)
def test_the_sample_goes_stale_as_it_did_with_its_prompts_as_they_began(
    metric: Metric, recorded: int, by_start: int, by_first_put: int
):
    runs = (replay_log(SAMPLE, isolated=True).result, simulated("auto"), simulated("first-put"))
    sums = [sum(row[metric.name] for row in run.steps) for run in runs]
    assert sums == [recorded, by_start, by_first_put]


def test_the_order_in_use_is_part_of_the_result():
    simulation = simulated("auto").simulation
    assert simulation is not None
    assert simulation.prompt_order is PromptOrder.START
    assert json.loads(result_to_json(simulated("auto")))["simulation"]["prompt_order"] == "start"


def test_a_baseline_of_another_order_says_what_makes_a_run_like_it(tmp_path: Path):
    # group 1 began first, group 0 was put first
    rows = [
        put(1, 0, 0, time_us=50, generate_time_us=40),
        put(2, 1, 1, time_us=60, generate_time_us=60),
    ]
    derived(tmp_path, rows)
    options = {"config": {"timeline": {"train_batch_size": 1, "steps": 2}}, "isolated": True}
    result = simulate_workload(tmp_path / "log.parquet", **options).result
    alike = simulate_workload(tmp_path / "log.parquet", prompt_order="first-put", **options).result
    saved = result_from_json(result_to_json(alike), "saved.json")
    hint = "prompts stand by start and by first-put, --prompt-order makes them alike; --allow-different-log compares"
    with pytest.raises(ResultError, match=hint):
        gate_result(result, baseline=saved)
    rules = ["produced_tokens <= +0"]
    assert gate_result(alike, rules, baseline=saved).exit_code() == 0


# ---- group ids that count prompts


@pytest.mark.parametrize(
    ("ids", "ahead"),
    [
        (list(range(20)), None),
        ([1, 0, *range(2, 20)], 1),
        ([2, 0, 1, *range(3, 20)], 1),
        ([102, 100, 101, *range(103, 120)], 1),
        ([1, 0, *range(2, 18), 20, 21], 1),
        ([1, 0, *range(2, 17), 20, 21, 22], None),
        ([10 * place for place in [1, 0, *range(2, 20)]], None),
        ([*range(10, 20), *range(10)], None),
        ([1, 0], None),
        ([2**63 - 1, *range(20)], None),
        ([7], None),
    ],
)
def test_group_ids_that_count_prompts_out_of_order_are_noticed(ids: list[int], ahead: int | None):
    by_file = workload([response(group_id) for group_id in ids])
    told = prompt_order_notices(replace(by_file, prompt_order=PromptOrder.FIRST_PUT))
    assert [f"{ahead} of {len(ids)} groups" in notice.message for notice in told] == ([] if ahead is None else [True])
    for order in (PromptOrder.GROUP_ID, PromptOrder.START, None):
        assert prompt_order_notices(replace(by_file, prompt_order=order)) == []
