"""Plans of masks: what is taken and what is held right after a take, in the order of the log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Row, make_digest, numbered, put, refresh, take
from tests.conftest import examples
from tests.oracles.slow_replay import slow_replay
from tests.strategies import configs, logs
from tokenaudit.config.model import parse_config
from tokenaudit.contracts.errors import UsageError
from tokenaudit.lifecycle.staleness import oldest_fresh_version
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest
from tokenaudit.masks.plan import MaskPlan, Selection, plan_masks
from tokenaudit.replay.request import TimelineKind

OUT_OF_ORDER = Path(__file__).parent / "refreshes_out_of_order.parquet"
"""Two groups are put at step 1; refreshes of steps 3 and 2 follow, then the take of step 2."""


def held_after(rows: list[Row], step: int, **config: Any) -> MaskPlan:
    return plan_masks(make_digest(rows), parse_config(config, "plan.toml"), selection=Selection(untaken_step=step))


def test_what_a_refresh_before_the_take_discarded_is_not_held():
    config = parse_config({"policy": {"max_staleness": 1, "tail_batch_trigger_size": -1}}, "plan.toml")
    plan = plan_masks(read_digest(open_log([OUT_OF_ORDER])), config, selection=Selection(untaken_step=2))
    assert plan.group_id.tolist() == []


def test_what_a_refresh_before_the_take_reset_has_no_token():
    rows = numbered([put(group_id=1), put(group_id=2, status="aborted"), refresh(train_step=3), refresh(train_step=2),
                     take(train_step=2, batch_size=1)])  # fmt: skip
    plan = held_after(rows, 2, policy={"max_staleness": 1, "tail_batch_trigger_size": 0})
    assert plan.group_id[~plan.is_taken].tolist() == [1, 2]
    assert plan.tokens().tolist() == [0, 0]


def test_the_refresh_that_belongs_to_the_row_of_its_take_comes_after_what_is_held():
    rows = numbered([put(group_id=1), put(group_id=2), take(train_step=1, batch_size=1), refresh(train_step=2),
                     take(train_step=2, batch_size=1)])  # fmt: skip
    for mode in ("disaggregated", "colocated"):
        plan = held_after(rows, 1, mode=mode, policy={"max_staleness": 0, "tail_batch_trigger_size": -1})
        assert plan.group_id.tolist() == [1, 2]
        assert plan.is_taken.tolist() == [True, False]
        assert plan.tokens().tolist() == [4, 4]


def test_an_agentic_member_exempts_a_group_that_is_held():
    policy = {"max_staleness": 5, "max_token_staleness": 0}
    for is_agentic in (False, True):
        first = put(group_id=1, rollout_id=1, train_step=3, response_model_steps=[0, 0, 2, 2], agentic=is_agentic)
        rows = [first, first | {"rollout_id": 2, "agentic": False}, take(1, train_step=3, batch_size=0)]
        plan = held_after(rows, 3, policy=policy)
        assert plan.is_taken.tolist() == [False, False]
        oldest_fresh = oldest_fresh_version(3, None if is_agentic else 1)
        assert plan.oldest_fresh.tolist() == [oldest_fresh, oldest_fresh]


def test_what_is_held_and_taken_later_is_listed_twice_held_first():
    groups = 200
    rows = numbered([*(put(group_id=group) for group in range(groups)), take(train_step=1, batch_size=0),
                     take(train_step=2, batch_size=groups)])  # fmt: skip
    plan = held_after(rows, 1, policy={"max_staleness": 5})
    assert plan.log_row.tolist() == [row for row in range(groups) for _ in range(2)]
    assert plan.is_taken.tolist() == [False, True] * groups
    assert plan.train_step.tolist() == [1, 2] * groups


def test_a_plan_has_the_steps_and_tasks_that_were_selected():
    rows: list[Row] = []
    for step, task in enumerate("bab", start=1):
        rows += [put(group_id=step, train_step=step, task_name=task), take(train_step=step, task_name=task)]
    digest, config = make_digest(numbered(rows)), parse_config({"policy": {"max_staleness": 5}}, "plan.toml")

    def groups(**selected: Any) -> list[int]:
        return plan_masks(digest, config, selection=Selection(**selected)).group_id.tolist()

    assert groups() == [1, 2, 3]
    assert groups(steps=(2, 3)) == [2, 3]
    assert groups(steps=(1, 2), tasks=frozenset("b")) == [1]
    with pytest.raises(UsageError, match="there is no task 'c'") as error:
        groups(tasks=frozenset("ac"))
    assert error.value.problems[0].where == digest.name
    with pytest.raises(UsageError, match="--include-untaken 9"):
        groups(untaken_step=9)


@examples(2)
@given(rows=logs(), config=configs(), timeline=st.sampled_from([None, "simulated"]))
def test_as_many_groups_are_held_as_the_slow_replay_leaves(rows: list[Row], config: Row, timeline: str | None):
    digest, parsed = make_digest(rows), parse_config(config, "random.toml")
    kind = None if timeline is None else TimelineKind(timeline)
    seen: set[int] = set()
    for row in slow_replay(rows, config, timeline)["steps"]:
        step = row["train_step"]
        if step in seen:
            continue
        seen.add(step)
        plan = plan_masks(digest, parsed, kind, Selection(untaken_step=step))
        names = [plan.tasks[code] for code in plan.task[~plan.is_taken].tolist()]
        held = Counter(task for task, _ in set(zip(names, plan.group_id[~plan.is_taken].tolist(), strict=True)))
        for task, values in row["tasks"].items():
            assert held[task] == sum(value for name, value in values.items() if name.startswith("leftover_"))
