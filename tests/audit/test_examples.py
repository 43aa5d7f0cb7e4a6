"""Worked examples with their numbers, beyond the smallest case of every rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.audit.audit_cases import audited, findings_of, taking
from tests.builders import Row, put, refresh, sample, sync, take
from tests.log.ranked_logs import write_ranks
from tests.oracles.slow_ranks import RankRows
from tokenaudit.audit.report import AuditReport
from tokenaudit.audit.rule import Severity
from tokenaudit.audit.session import audit_log
from tokenaudit.replay.session import replay_log

STEPS = tuple[str, ...]


def of_versions(versions: list[int], step: int, **others: Any) -> dict[str, Any]:
    return put(1, 3, 12, tokens=len(versions), train_step=step, response_model_steps=versions, **others)


def messages(report: AuditReport, name: str) -> list[str]:
    return [finding.message for finding in findings_of(report, name)]


def policy(staleness: int, tokens: int | None = None, interval: int = 1, trigger: int = -1) -> STEPS:
    values = [f"policy.max_staleness={staleness}", f"timeline.sync_weights_interval={interval}"]
    values += [f"policy.tail_batch_trigger_size={trigger}", "timeline.train_batch_size=1"]
    return (*values, *([] if tokens is None else [f"policy.max_token_staleness={tokens}"]))


def test_a_recorded_take_of_an_old_response_is_found_though_replay_expires_it(tmp_path: Path):
    rows = [of_versions([3, 3, 4, 4], 5), take(2, 5, rollout_id=12)]
    report = audited(tmp_path / "log", rows, policy(0))
    assert messages(report, "stale-group-taken") == [
        "taken at step 5 with staleness 1, limit 1; 0 of it came from waiting"
    ]


@pytest.mark.parametrize(("step", "stale"), [(5, 0), (8, 0), (9, 1)])
def test_version_4_under_a_sync_every_4_steps_is_stale_from_step_9_on(step: int, stale: int, tmp_path: Path):
    rows = [of_versions([4, 4], step, trained_mask=[1, 1]), take(2, step)]
    report = audited(tmp_path / "log", rows, policy(9, tokens=0, interval=4))
    # A response whose every token is stale expires at the put, so it is never taken.
    assert report.count(Severity.ERROR) == 0
    assert len(messages(report, "silent-discard")) == stale


def test_the_interval_decides_which_tokens_are_masked(tmp_path: Path):
    rows = [of_versions([0, 4, 4], 6, trained_mask=[0, 1, 1]), take(2, 6)]
    right = audited(tmp_path / "a", rows, policy(3, tokens=0, interval=4))
    assert right.count(Severity.ERROR) == 0
    kept = [rows[0] | {"trained_mask": [1, 1, 1]}, rows[1]]
    wrong = audited(tmp_path / "b", kept, policy(3, tokens=0, interval=4))
    assert messages(wrong, "stale-token-trained") == ["1 token of staleness 5 trained at step 6, token limit 4"]


def test_versions_of_another_unit_are_one_finding_and_not_thousands(tmp_path: Path):
    rows = [put(n, n, train_step=21, tokens=2, response_model_steps=[512 * (9 + n)] * 2) for n in range(50)]
    report = audited(tmp_path / "log", rows)
    assert len(findings_of(report, "version-unit-suspect")) == 1
    assert findings_of(report, "version-from-future") == []


@pytest.mark.parametrize(("ids", "found"), [([10, 11, 12], True), ([10, 9, 12], False)])
def test_without_prior_len_the_ids_tell_which_tokens_are_the_same(ids: list[int], found: bool, tmp_path: Path):
    rows = [
        put(7, 1, tokens=2, train_step=4, prior_len=None, response_ids=[10, 11], response_model_steps=[3, 3]),
        put(19, 1, tokens=3, train_step=5, prior_len=None, response_ids=ids, response_model_steps=[4, 4, 4]),
    ]
    report = audited(tmp_path / "log", rows)
    expected = ["version 3 at put 1, 4 now, though the tokens are the same"]
    assert messages(report, "version-restamped") == (expected if found else [])


def test_a_sync_of_a_version_that_was_not_trained_yet_is_from_the_future(tmp_path: Path):
    rows = [put(1, 3), sync(2, 4, 4), sync(3, 5, 7)]
    report = audited(tmp_path / "log", rows)
    assert messages(report, "version-from-future") == ["a sync brings version 7 after step 5"]
    assert (
        messages(audited(tmp_path / "twice", [put(1, 3), sync(2, 4, 8), sync(3, 5, 10)]), "version-from-future") == []
    )


def test_a_counter_of_samples_is_a_version_from_the_future(tmp_path: Path):
    report = audited(tmp_path / "log", [of_versions([210, 210], 5)])
    assert messages(report, "version-from-future") == ["version 210 at step 5: the newest possible is 4"]


def test_a_placeholder_on_masked_tokens_is_a_warning(tmp_path: Path):
    report = audited(tmp_path / "log", [of_versions([6, 6, -1, -1, 7], 8, response_mask=[1, 1, 0, 0, 1])])
    (finding,) = findings_of(report, "version-placeholder")
    assert finding.severity is Severity.WARNING
    nulls = audited(tmp_path / "nulls", [of_versions([6, None, 7], 8)])  # type: ignore[list-item]
    assert messages(nulls, "version-placeholder") == ["response_model_steps holds a null"]


@pytest.mark.parametrize("versions", [None, [], [38, 38]])
def test_missing_versions_are_found_however_they_are_missing(versions: list[int] | None, tmp_path: Path):
    row = put(1, 3, 12, train_step=40, tokens=3, model_step=None, response_model_steps=versions)
    report = audited(tmp_path / "log", [row])
    missing = 3 - len(versions or [])
    assert messages(report, "version-missing")[0].startswith(f"{missing} of 3 tokens carry no version")
    assert findings_of(audited(tmp_path / "stamped", [row | {"model_step": 39}]), "version-missing") == []


@pytest.mark.parametrize(
    ("mask", "name"), [(None, None), ([], "mask-length-mismatch"), ([None, 1, 1], "mask-not-binary")]
)
def test_no_mask_an_empty_one_and_one_with_nulls_are_told_apart(mask: list | None, name: str | None, tmp_path: Path):
    report = audited(tmp_path / "log", [put(1, 3, 12, tokens=3, response_mask=mask)])
    assert [f.name for f in report.findings if f.severity is Severity.ERROR] == ([name] if name else [])
    empty = audited(tmp_path / "empty", [put(1, 3, 12, tokens=0, response_mask=[])])
    assert empty.count(Severity.ERROR) == 0


@pytest.mark.parametrize(("experts", "hint"), [(11, True), (13, True), (8, None)])
def test_routing_that_was_not_cut(experts: int, hint: bool | None, tmp_path: Path):
    report = audited(tmp_path / "log", [put(1, 3, 12, tokens=5, prompt_len=4, experts_len=experts)])
    assert bool(messages(report, "side-length-mismatch")) is bool(hint)


def test_odd_logprobs_of_masked_tokens_are_info(tmp_path: Path):
    row = put(1, 3, 12, tokens=3, logprobs=[-0.3, float("-inf"), -9999.0], response_mask=[1, 0, 0])
    (finding,) = findings_of(audited(tmp_path / "log", [row]), "logprob-not-finite")
    assert (finding.severity, finding.message) == (
        Severity.INFO, "logprobs holds 1 inf, 1 sentinel; 0 of these tokens trainable",
    )  # fmt: skip


def test_a_mask_that_ages_between_put_and_take_leaves_a_step_with_nothing_to_train(tmp_path: Path):
    rows = [of_versions([4, 4, 5, 5], 6), *taking(2, 7, 12)]
    report = audited(tmp_path / "log", rows, policy(3, tokens=0))
    assert messages(report, "step-without-trainable-tokens") == ["0 of 4 tokens trainable (4 of them stale)"]
    at_once = audited(tmp_path / "at once", [rows[0], *taking(2, 6, 12)], policy(3, tokens=0))
    assert messages(at_once, "step-without-trainable-tokens") == []


def test_an_agentic_mate_spares_the_group(tmp_path: Path):
    group = [
        put(1, 3, 30, tokens=2, train_step=6, response_model_steps=[3, 3], agentic=True),
        put(1, 3, 31, tokens=2, train_step=6, response_model_steps=[3, 5]),
    ]
    report = audited(tmp_path / "log", [*group, take(2, 6)], policy(3, tokens=0))
    assert messages(report, "agentic-exempt-stale")[0].startswith("3 tokens beyond the token limit 1")


def test_a_fully_masked_response_adds_nothing_to_the_denominator(tmp_path: Path):
    group = [put(1, 3, 30, tokens=4), put(1, 3, 31, tokens=4, response_mask=[0] * 4)]
    report = audited(tmp_path / "log", [*group, take(2, 1, loss_tokens=5)], policy(9))
    assert messages(report, "denominator-mismatch") == ["divided by 5, trainable tokens 4: loss scaled by 0.80"]


def test_a_group_taken_with_a_filtered_member_is_an_error(tmp_path: Path):
    rows = [put(1, 9, 90, status="filtered", reward=0.0), *(put(1, 9, 90 + n, reward=0.95) for n in range(1, 8))]
    takes = [take(2, 6, rollout_id=90 + n) for n in range(1, 8)]
    (finding,) = findings_of(audited(tmp_path / "log", [*rows, *takes]), "group-filter-split")
    assert finding.severity is Severity.ERROR
    assert finding.message == "1 of 8 members filtered; the rest has zero spread; the group was taken"


def test_a_failed_response_that_was_trained_is_an_error(tmp_path: Path):
    rows = [put(1, 3, 12, status="failed", reward=0.0), take(2, 6, rollout_id=12)]
    assert messages(audited(tmp_path / "log", rows), "unfinished-row-trained") == ["failed response taken at step 6"]


def test_a_response_taken_without_a_put_is_an_error(tmp_path: Path):
    report = audited(tmp_path / "log", [put(1, 3, 12), take(2, 6, rollout_id=13)])
    assert messages(report, "unfinished-row-trained") == ["taken at step 6, but never put before"]


def test_a_batch_that_never_fills_names_who_is_missing(tmp_path: Path):
    rows = [put(n, n, train_step=18, model_step=17) for n in range(128)]
    rows.append(take(200, 18, 128))
    rows += [put(300 + n, 300 + n, train_step=19, model_step=18) for n in range(125)]
    rows += [put(500 + n, n, train_step=19, model_step=18, status="aborted") for n in (9001, 9004, 9017)]
    rows = sorted(rows, key=lambda row: row["event_id"])
    config = ("timeline.steps=30", "timeline.train_batch_size=128", "policy.max_staleness=3")
    assert messages(audited(tmp_path / "log", rows, config), "batch-never-filled") == [
        "the run stops after step 18 of 30 with 125 of 128 completed groups; 3 groups without a final put: "
        "9001, 9004, 9017"
    ]


def test_event_ids_that_begin_again_are_one_finding(tmp_path: Path):
    rows = [put(n, n) for n in (5, 6, 7)] + [put(n, 10 + n) for n in range(5)] + [put(6, 20), put(None, 21), put(3, 22)]
    assert messages(audited(tmp_path / "log", rows), "event-order") == [
        "event_id 0 comes after 7", "event_id 3 comes after 6",
    ]  # fmt: skip


def test_a_restart_that_trains_again_what_was_trained(tmp_path: Path):
    rows = [
        put(1, 3, 55, train_step=30), take(2, 30, rollout_id=55), refresh(3, 31), refresh(4, 30),
        take(5, 31, rollout_id=55),
    ]  # fmt: skip
    report = audited(tmp_path / "log", rows)
    assert messages(report, "run-restart") == ["train_step falls from 31 to 30"]
    assert messages(report, "duplicate-consumption") == ["trained at steps 30 and 31"]


def test_the_same_rollout_id_in_another_group_is_no_duplicate(tmp_path: Path):
    rows = [put(1, 3, 55, train_step=30), take(2, 30, rollout_id=55), put(3, 9, 55), take(4, 31, rollout_id=55)]
    report = audited(tmp_path / "log", rows)
    assert messages(report, "duplicate-consumption") == []
    assert messages(report, "rollout-in-two-groups") == ["put 1 of this rollout was in group 3"]


def test_an_infinite_reward_is_none(tmp_path: Path):
    rows = [put(1, 3, 30, reward=float("inf")), put(1, 3, 31, reward=1.0), *taking(2, 1, 30, 31)]
    report = audited(tmp_path / "log", rows, policy(3))
    assert messages(report, "reward-missing") == [
        "no reward at the take of step 1, while other members of its group have one"
    ]


def test_a_group_put_again_while_it_waits_as_completed_uses_its_id_twice(tmp_path: Path):
    report = audited(tmp_path / "log", [put(1, 3), put(2, 3), take(3)], policy(3))
    assert messages(report, "id-reused") == ["put again while it waits as completed"]


def test_an_init_response_that_fills_a_batch_is_unfinished(tmp_path: Path):
    rows = [put(1, 3, 30), put(1, 3, 31, status="init"), *taking(2, 1, 30, 31)]
    report = audited(tmp_path / "log", rows, policy(3))
    assert messages(report, "unfinished-row-trained") == ["init response taken at step 1"]


def test_more_members_than_the_group_size_are_told(tmp_path: Path):
    rows = [*(put(1, 3, 30 + n) for n in range(3)), *taking(2, 1, 30, 31, 32)]
    report = audited(tmp_path / "log", rows, (*policy(3), "tasks.default.group_size=2"))
    assert messages(report, "group-incomplete") == ["taken at step 1 with 3 members, group_size is 2"]


def test_a_prior_len_beyond_the_put_before_means_a_put_was_lost(tmp_path: Path):
    rows = [put(1, 3, tokens=4, status="aborted"), put(2, 3, tokens=9, prior_len=6)]
    (finding,) = findings_of(audited(tmp_path / "log", rows), "prior-len-too-long")
    assert (finding.severity, finding.message) == (Severity.WARNING, "prior_len is 6, but put 1 had 4 tokens")


@pytest.mark.parametrize(
    ("pool", "rows"),
    [("aborted", [put(1, 3, status="aborted"), sample(2, 3), sample(3, 3)]), ("completed", [put(1, 3), take(2)])],
)
def test_a_sample_of_a_group_that_left_is_told(pool: str, rows: list[dict[str, Any]], tmp_path: Path):
    report = audited(tmp_path / "log", [*rows, sample(9, 3, pool)], policy(3))
    assert set(messages(report, "sample-mismatch")) == {f"sampled from the {pool} pool, while it isn't held"}


def runs(*parts: tuple[int | None, int, int]) -> list[dict[str, int | None]]:
    return [dict(zip(("model_step", "tokens", "trainable"), part, strict=True)) for part in parts]


def test_version_runs_tell_what_token_columns_would(tmp_path: Path):
    common = {"tokens": 6, "train_step": 7, "model_step": None, "seq_staleness": 3}
    by_token = put(1, 3, response_model_steps=[3, 3, 5, 5, 5, 4], response_mask=[1, 0, 0, 0, 0, 0], **common)
    by_run = put(1, 3, response_version_runs=runs((3, 2, 1), (5, 3, 0), (4, 1, 0)), **common)
    found = []
    for name, row in (("tokens", by_token), ("runs", by_run)):
        report = audited(tmp_path / name, [row, put(2, 4, train_step=7, tokens=1, model_step=3)], policy(9))
        found.append([finding.identity for finding in report.findings])
    assert found[0] == found[1]
    assert any("version-regression" in identity for identity in found[1])
    later = by_run | {"response_version_runs": runs((3, 2, 0), (7, 3, 0), (4, 1, 0))}
    report = audited(tmp_path / "later", [later], policy(9))
    assert messages(report, "version-from-future") == ["version 7 at step 7: the newest possible is 6"]
    assert messages(report, "fully-masked-row") == ["none of 6 tokens is trainable"]


@pytest.mark.parametrize("model_step", [None, 0])
def test_a_run_without_a_version_is_a_missing_version(model_step: int | None, tmp_path: Path):
    row = put(1, 3, tokens=6, model_step=model_step, response_version_runs=runs((0, 4, 4), (None, 2, 2)))
    report = audited(tmp_path / "log", [row])
    told = "2 of 6 tokens carry no version and their version runs have none ("
    assert messages(report, "version-missing")[0].startswith(told)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (
            {"response_version_runs": runs((0, 4, 5))},
            "a run has no tokens, a version below 0, or more trainable tokens",
        ),
        (
            {"response_version_runs": runs((-1, 4, 4))},
            "a run has no tokens, a version below 0, or more trainable tokens",
        ),
        ({"response_version_runs": runs((0, 4, 4)), "response_mask": [1] * 4}, "it stands beside"),
        ({"response_version_runs": [{"model_step": 0, "tokens": None, "trainable": 1}]}, "it holds a null"),
    ],
)
def test_damaged_version_runs_are_one_finding(values: dict[str, Any], what: str, tmp_path: Path):
    report = audited(tmp_path / "log", [put(1, 3, model_step=None, **values), put(2, 4)])
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert [finding.name for finding in errors] == ["version-runs-damaged"]
    assert errors[0].message.startswith(f"response_version_runs: {what}")


def test_partial_rollouts_are_produced_once(tmp_path: Path):
    rows = [
        put(1, 8, tokens=100, status="aborted"),
        sample(2, 8),
        put(3, 8, tokens=160, prior_len=100, train_step=2, model_step=1, response_model_steps=[0] * 100),
        take(4, 2),
    ]
    report = audited(tmp_path / "log", rows, policy(3))
    assert messages(report, "produced-token-double-count") == []
    assert replay_log(tmp_path / "log", overrides=policy(3), isolated=True).result.totals["produced_tokens"] == 160


def test_a_run_that_counts_time_in_the_queue_too_little(tmp_path: Path):
    rows = [put(n, n, train_step=5, model_step=4) for n in range(41)]
    rows += [refresh(50, 8), sync(51, 8, 8)]
    report = audited(tmp_path / "log", rows, policy(2))
    assert messages(report, "aged-in-queue") == ["41 groups became too old after the put; median wait 3 steps"]


def test_a_log_whose_groups_are_all_faulty_is_audited(tmp_path: Path):
    rows = [put(1, 1, prior_len=9), put(2, 1, prior_len=9, response_mask=[1] * 4)]
    report = audited(tmp_path / "log", rows)
    assert len(messages(report, "prior-len-too-long")) == 2


def of_ranks(folder: Path, *ranks: list[Row]) -> AuditReport:
    return audit_log([write_ranks(folder, [RankRows(number, 0, rows) for number, rows in enumerate(ranks)])],
                     isolated=True)  # fmt: skip


def steps_of_a_rank(rank: int, steps: list[int], late_us: int = 0) -> list[Row]:
    """A put of the newest version at each step, at the time of the step."""
    return [
        put(n, 100 * rank + n, train_step=step, model_step=step - 1, time_us=10 * n + late_us)
        for n, step in enumerate(steps, 1)
    ]


def test_ranks_out_of_lockstep_have_not_restarted(tmp_path: Path):
    report = of_ranks(tmp_path / "log", steps_of_a_rank(0, [1, 2, 5, 6, 9]), steps_of_a_rank(1, [1, 1, 2, 3, 4], 5))
    assert (report.rows, messages(report, "run-restart"), messages(report, "version-regression")) == (10, [], [])


def test_a_restart_of_one_rank_is_its_own(tmp_path: Path):
    again = [6, 7, 8, 2, 3, 4, 5]
    report = of_ranks(tmp_path / "log", steps_of_a_rank(0, [6, 7, 8, 9]), steps_of_a_rank(1, again, 5))
    assert messages(report, "run-restart") == ["train_step falls from 8 to 2 on rank 1"]
    assert messages(report, "version-regression") == ["model_step fell from 7 to 1 on rank 1"]
