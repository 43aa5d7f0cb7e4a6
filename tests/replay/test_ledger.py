"""Counting by hand: what no recorded case pins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_digest, put, refresh, sample, sync, take
from tokenaudit.config.model import parse_config
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import LedgerError, UsageError
from tokenaudit.lifecycle.events import GroupPut
from tokenaudit.lifecycle.members import MadeMembers
from tokenaudit.lifecycle.types import Response, Status
from tokenaudit.replay.events import RunEnded
from tokenaudit.replay.ledger import Ledger, combined, count, nearest_rank
from tokenaudit.replay.open_loop import replay, run_tasks
from tokenaudit.replay.request import TimelineKind


def run(rows: list[dict], timeline: TimelineKind | None = None, **config: object) -> Ledger:
    digest = make_digest(rows, allow_missing_versions=True)
    parsed = parse_config(config, "test")
    return count(replay(digest, parsed, timeline), run_tasks(digest, parsed))


def total(ledger: Ledger) -> dict[str, int | float | None]:
    account = combined(ledger.totals.values())
    return {name: account.value(metric) for name, metric in m.METRICS.items() if metric.total is not m.Total.STATE}


def test_a_put_of_a_completed_group_is_skipped_and_only_its_new_tokens_count_as_avoided():
    rows = [put(1, 1, tokens=4), put(2, 1, tokens=9, prior_len=4), take(3)]
    values = total(run(rows))
    assert (values["avoided_tokens"], values["counterfactual_tokens"]) == (5, 5)
    assert (values["put_groups"], values["produced_tokens"], values["taken_tokens"]) == (1, 4, 4)


def test_a_put_of_a_taken_group_is_skipped():
    values = total(run([put(1, 1, tokens=4), take(2), put(3, 1, tokens=9, prior_len=4), take(4, 2)]))
    assert (values["avoided_tokens"], values["taken_groups"]) == (5, 1)


def test_more_held_than_continued_from_restarts_the_difference():
    # 6 tokens are held, the log goes on from 2 of them: 4 were made in vain
    rows = [put(1, 1, status="aborted", tokens=6), sample(2, 1), put(3, 1, tokens=8, prior_len=2), take(4)]
    values = total(run(rows, policy={"enable_partial_rollout": True}))
    assert (values["restarted_tokens"], values["regenerated_tokens"], values["counterfactual_tokens"]) == (4, 0, 4)
    assert (values["produced_tokens"], values["trained_tokens"]) == (6 + 6, 8)


def test_restarts_the_config_itself_causes_are_not_counterfactual():
    rows = [put(1, 1, status="aborted", tokens=6), sample(2, 1), put(3, 1, tokens=8, prior_len=0), take(4)]
    values = total(run(rows, policy={"enable_partial_rollout": False}))
    assert (values["restarted_tokens"], values["counterfactual_tokens"]) == (6, 0)


def test_less_held_than_continued_from_makes_the_response_again_with_the_version_of_the_put():
    # at step 3 the response of version 0 expires and is reset; the log kept it and continued from 5
    rows = [
        put(1, 1, status="aborted", tokens=5),
        refresh(2, 3),
        sample(3, 1),
        put(4, 1, tokens=7, prior_len=5, train_step=3, model_step=2),
        take(5, 3),
    ]
    ledger = run(rows, policy={"max_staleness": 1, "tail_batch_trigger_size": 0})
    values = total(ledger)
    assert (values["reset_tokens"], values["regenerated_tokens"], values["restarted_tokens"]) == (5, 5, 0)
    assert (values["produced_tokens"], values["trained_tokens"]) == (5 + 7, 7)
    # all seven tokens carry version 2 now, so none is older than 0 at step 3
    assert ledger.rows[-1].accounts["default"].trained_by_staleness == {0: 7}


def test_some_held_but_less_than_continued_from_is_lost_too():
    # the log skipped a put: 2 tokens are held here, the next put continues from 5
    rows = [
        put(1, 1, status="aborted", tokens=2),
        sample(2, 1),
        put(3, 1, tokens=9, prior_len=5, model_step=0),
        take(4),
    ]
    values = total(run(rows))
    assert (values["restarted_tokens"], values["regenerated_tokens"]) == (2, 5)
    assert (values["produced_tokens"], values["trained_tokens"]) == (2 + 9, 9)


def test_a_put_without_model_step_is_made_again_with_its_largest_version():
    rows = [
        put(1, 1, status="aborted", tokens=2),
        refresh(2, 3),
        sample(3, 1),
        put(4, 1, tokens=4, prior_len=2, train_step=3, model_step=None, response_model_steps=[0, 0, 1, 2]),
        take(5, 3),
    ]
    ledger = run(rows, policy={"max_staleness": 1, "tail_batch_trigger_size": 0})
    assert ledger.rows[-1].accounts["default"].trained_by_staleness == {0: 4}


def test_tokens_before_the_first_put_are_carried_in():
    values = total(run([put(1, 1, tokens=9, prior_len=4), take(2)]))
    assert (values["produced_tokens"], values["carried_in_tokens"], values["trained_tokens"]) == (5, 4, 9)


def test_a_held_member_that_is_missing_from_the_put_is_restarted():
    rows = [
        put(1, 1, 10, status="aborted", tokens=3),
        put(1, 1, 11, status="aborted", tokens=4),
        sample(2, 1),
        put(3, 1, 10, tokens=5, prior_len=3),
        take(4),
    ]
    values = total(run(rows, policy={"enable_partial_rollout": True}))
    assert (values["restarted_tokens"], values["counterfactual_tokens"], values["trained_tokens"]) == (4, 4, 5)


def test_groups_sampled_and_not_put_again_are_in_flight():
    ledger = run([put(1, 1, status="aborted", tokens=3), sample(2, 1), refresh(3), take(4, batch_size=2)])
    values = total(ledger)
    assert (values["in_flight_tokens"], values["held_tokens"], values["shortfall_groups"]) == (3, 0, 2)


def test_a_group_that_arrives_expired_has_no_reason():
    rows = [put(1, 1, 10, status="expired", tokens=3), put(1, 1, 11, tokens=4), take(2)]
    values = total(run(rows))
    names = ("expired_groups", "expired_at_put", "expired_by_sequence", "expired_by_token")
    assert [values[name] for name in names] == [1, 1, 0, 0]
    assert (values["discarded_stale_tokens"], values["discarded_fresh_tokens"]) == (3, 4)


def test_a_waiting_group_whose_fresh_mate_expires_is_not_counted_again():
    rows = [
        put(1, 1, 10, tokens=3, model_step=0, train_step=2),
        put(1, 1, 11, tokens=4, model_step=1, train_step=2),
        refresh(2, 3),
        refresh(3, 4),
        take(4, 4),
    ]
    values = total(run(rows, policy={"max_staleness": 1, "tail_batch_trigger_size": 0}))
    assert (values["expired_groups"], values["reset_tokens"], values["leftover_expired"]) == (1, 7, 1)


def test_the_row_of_a_disaggregated_step_holds_the_refresh_that_follows_the_take():
    rows = [put(1, 1, tokens=3), put(2, 2, tokens=4), take(3), refresh(4, 2), refresh(5, 2), take(6, 2)]
    colocated = run(rows)
    disaggregated = run(rows, mode="disaggregated")
    for ledger, expired in ((colocated, [0, 1]), (disaggregated, [1, 0])):
        assert [row.accounts["default"].value(m.EXPIRED_GROUPS) for row in ledger.rows] == expired
        assert ledger.rows[0].accounts["default"].value(m.LEFTOVER_COMPLETED) == 1


def test_what_follows_the_last_take_is_the_tail():
    ledger = run([put(1, 1, tokens=3), take(2), put(3, 2, tokens=4)])
    assert len(ledger.rows) == 1
    assert ledger.tail.accounts["default"].value(m.PRODUCED_TOKENS) == 4
    assert total(ledger)["produced_tokens"] == 7


@pytest.mark.parametrize(
    ("rows", "versions"),
    [
        ([put(1, 1), take(2), sync(3, 1, 1), take(4, 2)], [0, 1]),
        ([put(1, 1, train_step=5, model_step=4), take(2, 5), sync(3, 5, 5), take(4, 6)], [None, 5]),
        ([put(1, 1), sync(2, 1, None), take(3)], [None]),
    ],
)
def test_the_version_in_the_engine_at_the_take(rows: list[dict], versions: list[int | None]):
    assert [row.model_step for row in run(rows).rows] == versions


def test_resync_of_versions_and_of_the_engine():
    digest = make_digest([put(1, 1, train_step=6, tokens=2, model_step=5), sync(2, 5, 5), take(3, 6)])
    config = parse_config({"timeline": {"sync_weights_interval": 4, "resync": True}}, "test")
    ledger = count(replay(digest, config), run_tasks(digest, config))
    assert ledger.rows[0].accounts["default"].trained_by_staleness == {1: 2}
    assert ledger.rows[0].model_step == 4


def test_an_unknown_prior_length_is_capped_by_what_is_held():
    # rolled again by the same version, the response looks like one put again unchanged; nothing is held any more
    rows = [
        put(1, 1, status="aborted", tokens=4, prior_len=None, model_step=None, response_model_steps=[0] * 4),
        refresh(2, 3),
        sample(3, 1),
        put(4, 1, tokens=4, prior_len=None, model_step=None, response_model_steps=[0] * 4, train_step=1),
        take(5),
    ]
    values = total(run(rows, policy={"max_staleness": 1, "tail_batch_trigger_size": 0}))
    assert (values["produced_tokens"], values["regenerated_tokens"], values["restarted_tokens"]) == (8, 0, 0)


def test_a_recorded_timeline_needs_more_than_puts():
    with pytest.raises(UsageError, match="only puts"):
        run([put(1, 1)], TimelineKind.RECORDED)


def test_a_ledger_that_does_not_close_is_an_internal_error():
    response = Response(1, Status.COMPLETED, ((0, 5, 5),))
    lost = [
        GroupPut("default", 1, 1, Status.COMPLETED, MadeMembers((response,))),
        RunEnded({"default": 4}, {"default": 0}),
    ]
    with pytest.raises(LedgerError, match="5 tokens came in and 4 are accounted for"):
        count(lost, ["default"])
    with pytest.raises(LedgerError, match="never ended"):
        count([], ["default"])


@given(st.lists(st.integers(-3, 9), max_size=40), st.sampled_from([1, 50, 95, 100]))
def test_nearest_rank_is_the_smallest_value_with_enough_at_or_below(values: list[int], percent: int):
    counts = {value: values.count(value) for value in values}
    expected = next((v for v in sorted(values) if 100 * sum(w <= v for w in values) >= percent * len(values)), None)
    assert nearest_rank(counts, percent) == expected
