"""The fast replay against the slow one, on random logs and configs and in any spelling."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Row, make_digest, put, read_rows
from tests.conftest import examples
from tests.oracles.slow_replay import slow_replay
from tests.strategies import configs, logs, spellings
from tokenaudit.config.model import parse_config
from tokenaudit.contracts import metrics as m
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest
from tokenaudit.replay.ledger import Account, Ledger, combined, count
from tokenaudit.replay.open_loop import replay, run_tasks
from tokenaudit.replay.request import TimelineKind

GOLDEN = Path(__file__).parent.parent / "golden"
SAMPLE = Path(__file__).parent.parent.parent / "sample_data" / "rollouts.parquet"
CASES = sorted(path.name for path in GOLDEN.iterdir())
SAMPLE_TOKENS = 6_596_441
"""New tokens of all its puts: response_len − prior_len, summed over the file."""
TIMELINES = (None, "recorded", "simulated")


def fast_replay(digest: Digest, config: Row, timeline: str | None) -> Ledger:
    parsed = parse_config(config, "random.toml")
    kind = None if timeline is None else TimelineKind(timeline)
    return count(replay(digest, parsed, kind), run_tasks(digest, parsed))


def account_values(account: Account) -> Row:
    """What a row holds of a task."""
    return {metric.name: account.value(metric) for metric in m.ROW_METRICS if metric.total is not m.Total.STATE}


def as_slow_result(ledger: Ledger) -> Row:
    """A ledger in the shape that the slow replay gives."""

    def row_values(row: Any) -> Row:
        return {
            **account_values(combined(row.accounts.values())),
            "taken_group_ids": {task: row.taken_group_ids.get(task, []) for task in ledger.tasks},
            "expired_group_ids": {task: row.expired_group_ids.get(task, []) for task in ledger.tasks},
            "tasks": {task: account_values(row.accounts.get(task, Account())) for task in ledger.tasks},
        }

    def conservation(account: Account) -> Row:
        return {metric.name: account.value(metric) for metric in (*m.LEDGER_SOURCES, *m.LEDGER_FATES)}

    every = combined(ledger.totals.values())
    return {
        "steps": [
            {"train_step": row.train_step, "model_step": row.model_step, **row_values(row)} for row in ledger.rows
        ],
        "tail": row_values(ledger.tail),
        "totals": {
            **account_values(every),
            "tasks": {task: account_values(account) for task, account in ledger.totals.items()},
        },
        "ledger": {
            "total": conservation(every),
            "tasks": {task: conservation(account) for task, account in ledger.totals.items()},
        },
    }


def comparable(slow: Row) -> Row:
    """The slow result without what the fast one has no counterpart of."""
    steps = [{name: value for name, value in row.items() if name != "effective_masks"} for row in slow["steps"]]
    totals = {name: value for name, value in slow["totals"].items() if not name.endswith("_group_ids")}
    return slow | {"steps": steps, "totals": totals}


def differences(fast: Any, slow: Any, where: str = "") -> list[str]:
    """Where two results differ, to the metric; rewards may by a part in a thousand million."""
    if isinstance(fast, dict) and isinstance(slow, dict):
        lacking = sorted(fast.keys() ^ slow.keys())
        found = [f"{where}: only one has {lacking}"] if lacking else []
        for key in fast.keys() & slow.keys():
            found += differences(fast[key], slow[key], f"{where}.{key}")
        return found
    if isinstance(fast, list) and isinstance(slow, list) and len(fast) == len(slow):
        return [
            difference
            for position, (one, other) in enumerate(zip(fast, slow, strict=True))
            for difference in differences(one, other, f"{where}[{position}]")
        ]
    wanted = pytest.approx(slow, rel=1e-9) if where.endswith("raw_rewards_sum") else slow
    return [] if fast == wanted else [f"{where}: fast {fast}, slow {slow}"]


def compare(digest: Digest, rows: list[Row], config: Row, timeline: str | None) -> None:
    fast = as_slow_result(fast_replay(digest, config, timeline))
    assert differences(fast, comparable(slow_replay(rows, config, timeline))) == []


def timeline_for(digest: Digest, wanted: str | None) -> str | None:
    return wanted if digest.has_timeline or wanted != "recorded" else None


@pytest.mark.parametrize("timeline", TIMELINES)
@examples(2.5)
@given(rows=logs(), config=configs(), spelling=spellings())
def test_fast_replay_is_the_slow_one(timeline, rows, config, spelling):
    digest = make_digest(rows, **spelling)
    compare(digest, rows, config, timeline_for(digest, timeline))


def with_ids(*ids: int) -> Row:
    """Columns of a put that leave it to the token ids to tell what came before."""
    return {"response_ids": list(ids), "response_model_steps": [0] * len(ids), "prior_len": None}


KEEP = {"timeline": {"train_batch_size": 1}, "policy": {"max_staleness": 9, "enable_partial_rollout": True}}
FOUND: dict[str, tuple[list[Row], Row, Row]] = {
    # name: rows, config, what the totals must say
    "a rollout's later put comes first where steps fall": (
        [put(1, train_step=2, tokens=1, status="aborted"), put(2, train_step=1, tokens=2, status="aborted")],
        KEEP,
        {"produced_tokens": 3, "restarted_tokens": 2, "carried_in_tokens": 0, "counterfactual_tokens": 2},
    ),
    "and the first one carries tokens in": (
        [put(1, train_step=2, tokens=3, prior_len=1), put(2, train_step=1, tokens=2, status="aborted")],
        KEEP,
        {"produced_tokens": 4, "restarted_tokens": 2, "carried_in_tokens": 1, "trained_tokens": 3},
    ),
    "a response that failed goes on from more than is held": (
        [put(1, tokens=1, status="aborted"), put(2, tokens=3, prior_len=2, status="failed")],
        KEEP,
        {"restarted_tokens": 1, "regenerated_tokens": 2, "counterfactual_tokens": 3, "failed_tokens": 3},
    ),
    "a response that failed lost what was held": (
        [put(1, tokens=1, status="aborted"), put(2, tokens=0, status="failed")],
        KEEP,
        {"restarted_tokens": 1, "counterfactual_tokens": 0, "failed_samples": 1},
    ),
    "a put left out of the simulated timeline counts as the first": (
        [put(1, train_step=0, tokens=2, status="aborted"), put(2, tokens=5, prior_len=2)],
        KEEP,
        {"carried_in_tokens": 0, "regenerated_tokens": 2, "produced_tokens": 5},
    ),
    "token ids that go on": (
        [put(1, tokens=2, status="aborted", **with_ids(1, 2)), put(2, tokens=3, **with_ids(1, 2, 3))],
        KEEP,
        {"restarted_tokens": 0, "produced_tokens": 3},
    ),
    "token ids in another order are others": (
        [put(1, tokens=2, status="aborted", **with_ids(1, 2)), put(2, tokens=3, **with_ids(2, 1, 3))],
        KEEP,
        {"restarted_tokens": 2, "produced_tokens": 5},
    ),
    "token ids that differ in the last one": (
        [put(1, tokens=2, status="aborted", **with_ids(1, 2)), put(2, tokens=3, **with_ids(1, 3, 2))],
        KEEP,
        {"restarted_tokens": 2, "produced_tokens": 5},
    ),
    "rewards beyond what can be summed are unscored": (
        [put(1, 1, reward=1e301), put(1, 1, 11, reward=-1e308), put(1, 1, 12, reward=0.5)],
        KEEP,
        {"raw_rewards_sum": 0.5, "raw_rewards_count": 1},
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_logs_that_once_told_the_two_apart(name):
    rows, config, expected = FOUND[name]
    digest = make_digest(rows)
    compare(digest, rows, config, None)
    totals = as_slow_result(fast_replay(digest, config, None))["totals"]
    assert {metric: totals[metric] for metric in expected} == expected


@examples(1.5)
@given(rows=logs(stamp_missing=True), config=configs(), spelling=spellings(), timeline=st.sampled_from(TIMELINES))
def test_fast_replay_is_the_slow_one_where_versions_are_missing(rows, config, spelling, timeline):
    digest = make_digest(rows, allow_missing_versions=True, **spelling)
    stamping = config | {"timeline": config["timeline"] | {"stamp_missing": True}}
    compare(digest, rows, stamping, timeline_for(digest, timeline))


@cache
def golden_log(case: str) -> tuple[Digest, list[Row]]:
    path = GOLDEN / case / "log.parquet"
    return read_digest(open_log([path])), read_rows(path)


@examples(1.5)
@given(
    case=st.sampled_from(CASES),
    config=configs(tasks=("math", "code", "chat", "unused")),
    timeline=st.sampled_from(TIMELINES),
)
def test_fast_replay_is_the_slow_one_on_golden_logs_under_other_configs(case, config, timeline):
    digest, rows = golden_log(case)
    compare(digest, rows, config, timeline_for(digest, timeline))


@cache
def sample_digest() -> Digest:
    return read_digest(open_log([SAMPLE]))


@examples(0.25)
@given(config=configs(tasks=("math", "code", "unused")), timeline=st.sampled_from(TIMELINES))
def test_the_ledger_of_the_sample_closes_under_other_configs(config, timeline):
    # Counting raises where tokens are lost or counted twice.
    ledger = fast_replay(sample_digest(), config, timeline)
    # The same responses come in, whatever becomes of them: what is not produced was avoided or left out.
    every = combined(ledger.totals.values())
    if timeline != "simulated":
        made = every.value(m.PRODUCED_TOKENS) - every.value(m.REGENERATED_TOKENS) + every.value(m.AVOIDED_TOKENS)
        assert made == SAMPLE_TOKENS
