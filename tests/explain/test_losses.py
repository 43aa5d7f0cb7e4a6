"""The causes of lost tokens add up to the ledger, and each names the setting that bound."""

from __future__ import annotations

import pytest

from tests.builders import make_digest, put, refresh, sample, take
from tests.replay.test_golden import CASES, SAMPLE, config_of, digest_of
from tokenaudit.config.limits import Looser, Setting, looser_values, setting_of
from tokenaudit.config.model import Config, parse_config
from tokenaudit.contracts import metrics as m
from tokenaudit.explain.losses import Losses, Place
from tokenaudit.lifecycle.staleness import ExpiryReason
from tokenaudit.log.digest import Digest
from tokenaudit.replay.ledger import Ledger, count
from tokenaudit.replay.open_loop import replay, run_tasks
from tokenaudit.replay.session import observed

LOST = [fate for fate in m.LEDGER_FATES if fate not in (m.TRAINED_TOKENS, m.HELD_TOKENS, m.IN_FLIGHT_TOKENS)]
"""Where tokens end otherwise than in training or with the log."""


def followed(digest: Digest, config: Config) -> tuple[Losses, Ledger]:
    losses = Losses(config)
    return losses, count(observed(replay(digest, config), losses.observe), run_tasks(digest, config))


@pytest.mark.parametrize("case", [*CASES, SAMPLE])
def test_the_causes_add_up_to_the_ledger(case: str):
    losses, ledger = followed(digest_of(case), config_of(case))
    sums = {(task, metric): 0 for task in ledger.tasks for metric in LOST}
    for cause in losses.causes():
        sums[cause.key.task, cause.key.metric] += cause.loss.tokens
    assert sums == {(task, metric): ledger.totals[task].count(metric) for task, metric in sums}
    by_group = sum(loss.tokens for loss in losses.groups.values())
    assert by_group == sum(
        account.value(m.DROPPED_TOKENS) + account.count(m.RESTARTED_TOKENS) for account in ledger.totals.values()
    )


def config(**policy: object) -> Config:
    return parse_config({"policy": policy, "timeline": {"train_batch_size": 1}}, "test")


def causes(rows: list[dict], under: Config) -> list[tuple[str, object, Place, int, str | None]]:
    losses, _ = followed(make_digest(rows), under)
    return [
        (
            cause.key.metric.name,
            cause.key.reason,
            cause.key.place,
            cause.loss.tokens,
            cause.setting and str(cause.setting),
        )
        for cause in losses.causes()
    ]


def test_a_discard_is_by_the_rule_and_what_was_fresh_by_the_trigger():
    rows = [put(1, 1, 10, tokens=5), put(1, 1, 11, tokens=3, response_model_steps=[1] * 3), refresh(2, 4)]
    assert causes(rows, config(max_staleness=2)) == [
        ("discarded_stale_tokens", ExpiryReason.SEQUENCE, Place.REFRESH, 5, "policy.max_staleness = 2"),
        ("discarded_fresh_tokens", ExpiryReason.SEQUENCE, Place.REFRESH, 3, "policy.tail_batch_trigger_size = -1"),
    ]


def test_every_member_counts_by_its_own_rule():
    # Both are in one group: the first is too old as a whole, the second has no fresh token.
    rows = [put(1, 1, 10, tokens=5), put(1, 1, 11, tokens=3, response_model_steps=[1] * 3), refresh(2, 4)]
    assert causes(rows, config(max_staleness=2, max_token_staleness=1, tail_batch_trigger_size=0)) == [
        ("reset_tokens", ExpiryReason.SEQUENCE, Place.REFRESH, 5, "policy.max_staleness = 2"),
        ("reset_tokens", ExpiryReason.TOKEN, Place.REFRESH, 3, "policy.max_token_staleness = 1"),
    ]


def test_members_kept_in_a_waiting_group_go_on_ageing():
    rows = [put(1, 1, 10), put(1, 1, 11, tokens=6, response_model_steps=[1] * 6), refresh(2, 4), refresh(3, 5)]
    under = config(max_staleness=2, tail_batch_trigger_size=3)
    assert causes(rows, under) == [
        ("reset_tokens", ExpiryReason.SEQUENCE, Place.WAITING, 6, "policy.max_staleness = 2"),
        ("reset_tokens", ExpiryReason.SEQUENCE, Place.REFRESH, 4, "policy.max_staleness = 2"),
    ]


@pytest.mark.parametrize(("partial", "setting"), [(False, "policy.enable_partial_rollout = false"), (True, None)])
def test_what_restarts_is_by_partial_rollout_only_where_that_is_off(partial: bool, setting: str | None):
    rows = [put(1, 1, status="aborted"), sample(2, 1), put(3, 1, tokens=6, prior_len=0), take(4, 1)]
    found = causes(rows, config(enable_partial_rollout=partial))
    assert found == [("restarted_tokens", None, Place.PUT, 4, setting)]


def test_a_group_has_its_worst_numbers():
    rows = [put(1, 1, 10, tokens=9), put(1, 1, 11, tokens=2), refresh(2, 4), put(3, 2, tokens=1), take(4, 4)]
    losses, _ = followed(make_digest(rows), config(max_staleness=2, tail_batch_trigger_size=0))
    ((key, group),) = losses.worst_groups(5)
    assert key == ("default", 1)
    assert (group.expired, group.tokens, group.longest, group.samples, group.taken_at) == (1, 11, 9, 2, None)
    assert group.by_setting == {Setting("policy.max_staleness", "max_staleness", 2): 11}
    assert str(group.bound_by) == "policy.max_staleness = 2"


def test_a_setting_is_that_of_the_task_where_it_has_its_own():
    under = parse_config({"policy": {"max_staleness": 2}, "tasks": {"a.b": {"max_staleness": 3}, "c": {}}}, "test")
    assert setting_of(under, "a.b", "max_staleness") == Setting('tasks."a.b".max_staleness', "max_staleness", 3)
    assert setting_of(under, "c", "max_staleness") == Setting("policy.max_staleness", "max_staleness", 2)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_staleness", 0, [(Looser.STEP, 1), (Looser.OFF, 30)]),
        ("max_staleness", 29, [(Looser.STEP, 30)]),
        ("max_staleness", 2**31 - 1, []),
        ("max_token_staleness", 1, [(Looser.STEP, 2), (Looser.OFF, None)]),
        ("max_token_staleness", None, []),
        ("tail_batch_trigger_size", -1, [(Looser.STEP, 0)]),
        ("tail_batch_trigger_size", 0, []),
        ("tail_batch_trigger_size", 1, [(Looser.OFF, 0)]),
        ("tail_batch_trigger_size", 6, [(Looser.STEP, 5), (Looser.OFF, 0)]),
        ("enable_partial_rollout", False, [(Looser.OFF, True)]),
        ("enable_partial_rollout", True, []),
        ("over_sample_threshold", 1.0, []),
    ],
)
def test_what_is_looser(name: str, value: int | None, expected: list):
    assert list(looser_values(Setting(f"policy.{name}", name, value), 30)) == expected
