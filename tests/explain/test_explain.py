"""The life of a group, a step and a rule, told from a replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import make_digest, put, refresh, sample, take, write_log
from tests.conftest import SAMPLE
from tests.replay.test_golden import CASES, config_of, digest_of, expected_rows
from tokenaudit.config.model import Config, parse_config
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import UsageError
from tokenaudit.explain.group import group_history
from tokenaudit.explain.history import EntryKind, GroupHistory, HistoryEntry, MemberOutcome
from tokenaudit.explain.step import step_report
from tokenaudit.lifecycle.events import Fate, GroupExpired, Where
from tokenaudit.lifecycle.staleness import ExpiryReason
from tokenaudit.lifecycle.types import Status
from tokenaudit.render.console import RED, Terminal, console_text
from tokenaudit.render.explain import step_blocks
from tokenaudit.render.history import history_blocks
from tokenaudit.render.markdown import markdown_text

EXPECTED = Path(__file__).parent.parent / "outputs" / "explained"


def config(trigger: int = 0, **policy: object) -> Config:
    values = {"max_staleness": 2, "tail_batch_trigger_size": trigger} | policy
    return parse_config({"policy": values, "timeline": {"train_batch_size": 1}}, "test")


def history_of(rows: list[dict], trigger: int = 0, group_id: int = 1, **policy: object) -> GroupHistory:
    return group_history(make_digest(rows), config(trigger, **policy), "default", group_id)


def kinds(history: GroupHistory) -> list[tuple[int | None, EntryKind]]:
    return [(entry.train_step, entry.kind) for entry in history.entries]


def only(history: GroupHistory, kind: EntryKind) -> HistoryEntry:
    (entry,) = (entry for entry in history.entries if entry.kind is kind)
    return entry


@pytest.mark.parametrize("name", sorted(path.stem for path in EXPECTED.glob("*.txt")))
def test_the_sample_is_told_as_before(name: str, run_cli):
    what, _, which = name.partition("-")
    ran = run_cli("explain", SAMPLE, f"--{what}", which.replace("-", "/"), "--isolated")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (EXPECTED / f"{name}.txt").read_text()


def test_a_group_that_waits_ages_and_expires_on_its_last_day():
    history = history_of(
        [put(1, 1), refresh(2, 2), refresh(3, 3), take(4, 3, 0), refresh(5, 4), sample(6, 1, "expired")]
    )
    assert kinds(history) == [
        (1, EntryKind.PUT),
        (2, EntryKind.WAITED),
        (3, EntryKind.WAITED),
        (4, EntryKind.EXPIRED),
        (None, EntryKind.SAMPLED),
    ]
    assert [entry.expires_at for entry in history.entries[:3]] == [4, 4, 4]
    expired = history.entries[3]
    assert (expired.fixed_at, expired.last_chance) == (1, 3)
    assert [(member.age, member.outcome, member.tokens) for member in expired.members] == [(3, MemberOutcome.RESET, 4)]
    assert history.ending == "in generation"


@pytest.mark.parametrize(
    ("trigger", "outcomes", "ending"),
    [
        (0, [MemberOutcome.RESET, MemberOutcome.KEPT], "held as expired with 3 tokens"),
        (-1, [MemberOutcome.STALE_LOST, MemberOutcome.FRESH_LOST], "discarded as expired"),
    ],
)
def test_members_are_kept_or_lost(trigger: int, outcomes: list[MemberOutcome], ending: str):
    rows = [put(1, 1, 10, tokens=5), put(1, 1, 11, tokens=3, response_model_steps=[1] * 3), refresh(2, 4)]
    history = history_of(rows, trigger)
    assert [member.outcome for member in only(history, EntryKind.EXPIRED).members] == outcomes
    assert history.ending == ending


def test_further_members_expire_while_the_group_waits():
    rows = [put(1, 1, 10), put(1, 1, 11, response_model_steps=[1] * 4), refresh(2, 4), refresh(3, 5)]
    history = history_of(rows)
    assert kinds(history)[1:] == [(4, EntryKind.EXPIRED), (5, EntryKind.MORE_EXPIRED)]
    assert [member.rollout_id for member in history.entries[2].members] == [11]


def test_puts_and_samples_that_this_config_does_not_follow_are_told():
    history = history_of([put(1, 1), sample(2, 1, "expired"), put(3, 1, tokens=6), take(4, 1), put(5, 1), sample(6, 1)])
    assert kinds(history) == [
        (1, EntryKind.PUT),
        (None, EntryKind.NOT_SAMPLED),
        (1, EntryKind.SKIPPED),
        (1, EntryKind.TAKEN),
        (1, EntryKind.SKIPPED),
        (None, EntryKind.NOT_SAMPLED),
    ]
    details = [entry.detail for entry in history.entries]
    assert details[1] == "it waits as completed"
    assert details[2] == "it waits as completed; 6 tokens avoided"
    assert details[4] == "it was taken before; 4 tokens avoided"
    assert details[5] == "it is not held"
    assert history.ending == "taken at step 1"


def test_a_rejected_group_and_tokens_not_continued_are_told():
    history = history_of([put(1, 1, status="aborted"), sample(2, 1), put(3, 1, status="failed")])
    assert kinds(history)[-1] == (1, EntryKind.REJECTED)
    assert only(history, EntryKind.REJECTED).detail == "as failed"
    assert [entry.restarted_tokens for entry in history.entries if entry.kind is EntryKind.PUT] == [0, 4]
    assert "4 held tokens not continued" in console_text(history_blocks(history))
    assert history.ending == "discarded as failed"


def test_the_mask_at_the_take_is_drawn_run_by_run():
    versions, mask = [0] * 10 + [1] * 10, [1] * 15 + [0] * 5
    row = put(1, 1, tokens=20, train_step=2, response_model_steps=versions, response_mask=mask)
    history = history_of([row, take(2, 2)], max_token_staleness=0)
    text = console_text(history_blocks(history))
    assert "▒" * 20 + "█" * 10 + "." * 10 in text
    assert "s" * 20 + "#" * 10 + "." * 10 in console_text(history_blocks(history), Terminal(unicode=False))
    assert only(history, EntryKind.TAKEN).members[0].outcome is MemberOutcome.TRAINED


def lines_of(history: GroupHistory, **terminal: object) -> list[str]:
    return console_text(history_blocks(history), Terminal(**terminal)).splitlines()  # type: ignore[arg-type]


def test_a_history_begins_with_what_became_of_the_group_its_tokens_and_its_limits():
    rows = [
        put(1, 1, 10, tokens=5),
        put(1, 1, 11, tokens=3, response_model_steps=[1] * 3),
        refresh(2, 4),
        refresh(3, 5),
    ]
    title, *summary = lines_of(history_of(rows))[:6]
    assert title == "task default, group 1"
    assert summary == [
        "in the end: held as expired with 0 tokens, after 1 put; expired 1 time",
        "0 tokens trained, 8 lost to settings, 8 of them by policy.max_staleness = 2",
        "rule: a response is too old from staleness 3 on, an expired group is generated again",
        "order: the stalest group leaves a pool first, of equally stale ones the one put first; put again, a group "
        "goes to the end",
        "members that a reset keeps go on ageing while their group waits as expired, and can be reset too",
    ]
    discarded = lines_of(history_of(rows, trigger=-1))
    assert discarded[1] == "in the end: discarded as expired, after 1 put; expired 1 time"
    assert discarded[2] == "0 tokens trained, 8 lost to settings, 5 of them by policy.max_staleness = 2"
    assert not any("go on ageing" in line for line in discarded)


def test_a_history_that_loses_nothing_says_so():
    summary = lines_of(history_of([put(1, 1, tokens=5), take(2, 1)]))[1:3]
    assert summary == [
        "in the end: taken at step 1, after 1 put; never expired",
        "5 tokens trained, none lost to a setting",
    ]


def test_the_order_is_that_of_the_config():
    fifo = parse_config({"buffer": {"replay_policy": "fifo"}, "timeline": {"train_batch_size": 1}}, "test")
    history = group_history(make_digest([put(1, 1), take(2, 1)]), fifo, "default", 1)
    assert "order: the group put first leaves a pool first; put again, a group goes to the end" in lines_of(history)


def test_a_step_is_a_block_and_waiting_is_one_line():
    rows = [
        put(1, 1),
        refresh(2, 2),
        refresh(3, 3),
        refresh(4, 4),
        refresh(5, 5),
        sample(6, 1, "expired"),
        put(7, 1, train_step=5),
    ]
    lines = lines_of(history_of(rows))
    steps = [line for line in lines if line.startswith("step")]
    assert steps == ["step 1", "step 2", "step 4", "step 5"]
    assert lines[lines.index("step 2") + 1].startswith("  waits          until step 3 · 1 response, 4 tokens · ")
    assert "staleness 1 to 2" in lines[lines.index("step 2") + 1]
    assert all(lines[lines.index(step) - 1] == "" for step in steps)


def test_responses_stand_in_columns_with_bars_to_scale():
    versions, mask = [0] * 10 + [1] * 10, [1] * 15 + [0] * 5
    rows = [
        put(1, 1, 10, tokens=20, train_step=2, response_model_steps=versions, response_mask=mask),
        put(1, 1, 2_000, tokens=5, train_step=2, response_model_steps=[1] * 5),
        take(2, 2),
    ]
    lines = lines_of(history_of(rows, max_token_staleness=0))
    head, first, second = lines[-5:-2]
    assert head == f"    rollout  status     tokens  versions  age  fate     mask{'':36}  by version"
    assert (
        first == f"         10  completed      20  0 to 1      1  trained  {'▒' * 20}{'█' * 10}{'.' * 10}  v0x10 v1x10"
    )
    assert second == f"       2000  completed       5  1           0  trained  {'█' * 10}{'':30}  v1x5"


def test_fates_are_words_in_colour():
    rows = [put(1, 1, 10, tokens=5), put(1, 1, 11, tokens=3, response_model_steps=[1] * 3), refresh(2, 4)]
    coloured = "\n".join(lines_of(history_of(rows), color=True))
    assert f"\x1b[38;5;{RED}mreset\x1b[0m" in coloured
    assert "kept" in coloured
    document = markdown_text(history_blocks(history_of(rows)))
    assert "    step" not in document
    assert "\n             10  completed       5  0           3  reset  v0x5\n" in document


def test_the_json_and_the_csv_of_a_group_hold_its_members(run_cli):
    rows = run_cli("explain", SAMPLE, "--group", "code/102", "--isolated", "-q", "--format", "csv").out.splitlines()
    assert rows[0].startswith(
        "entry,train_step,kind,detail,expires_at,rollout_id,segment,status,tokens,age,outcome,runs"
    )
    assert "7,12,taken,,,816,0,completed,265,0,trained,v11x265" in rows
    data = json.loads(run_cli("explain", SAMPLE, "--group", "code/102", "--isolated", "-q", "--format", "json").out)
    assert (data["kind"], data["ending"], data["trained_tokens"]) == (
        "tokenaudit.explain.group",
        "taken at step 12",
        5_801,
    )
    assert data["loss"]["by_setting"] == {"tasks.code.max_token_staleness": 4_116}


def test_the_json_and_the_csv_of_a_step_hold_its_groups(run_cli):
    data = json.loads(run_cli("explain", SAMPLE, "--step", "19", "--isolated", "-q", "--format", "json").out)
    assert (data["kind"], data["counts"]["reset_tokens"]) == ("tokenaudit.explain.step", 54_863)
    lost = sum(group["tokens"] for group in data["groups"] if group["list"] == "expired")
    assert lost == 54_863
    rows = run_cli("explain", SAMPLE, "--step", "19", "--isolated", "-q", "--format", "csv").out.splitlines()
    assert "expired,math,296,reset,refresh of an expired group,sequence,7082,,," in rows


def test_a_simulated_timeline_is_told_too():
    history = history_of([put(1, 1, status="aborted"), put(2, 2, train_step=4, model_step=3)])
    assert (1, EntryKind.WAITED) not in kinds(history)
    assert kinds(history) == [
        (1, EntryKind.PUT), (2, EntryKind.WAITED), (3, EntryKind.WAITED), (4, EntryKind.EXPIRED)
    ]  # fmt: skip


def test_a_step_tells_who_was_taken_expired_and_waits():
    rows = [
        put(1, 1), put(2, 2), put(3, 3, status="aborted", train_step=2, model_step=1), refresh(4, 4), take(5, 4, 2),
        put(6, 4, train_step=5, model_step=3), put(7, 5, train_step=5, model_step=4), take(8, 5, 1),
    ]  # fmt: skip
    digest = make_digest(rows)
    report = step_report(digest, config(), 4)
    assert [event.group_id for event in report.expired] == [1, 2]
    assert (report.taken, report.asked, report.total.count(m.PUT_GROUPS)) == ((), {"default": 2}, 3)
    assert [(group.group_id, group.status, group.expires_at) for group in report.waiting] == [
        (3, "aborted", 5), (1, "expired", None), (2, "expired", None)
    ]  # fmt: skip
    second = step_report(digest, config(), 5)
    assert [(group.group_id, group.age, group.trained) for group in second.taken] == [(4, 1, 4)]
    assert "group 4: staleness 1, 4 tokens, 4 trained, 0 masked as stale" in console_text(step_blocks(second))
    assert markdown_text(step_blocks(second)).startswith("## tokenaudit explain: step ")
    with pytest.raises(UsageError, match="--step 9: the run has no such step"):
        step_report(digest, config(), 9)


@pytest.mark.parametrize("case", [*CASES, "sample"])
def test_the_lists_of_every_step_add_up_to_its_row(case: str):
    digest, under = digest_of(case), config_of(case)
    for expected in expected_rows(case):
        report = step_report(digest, under, expected["train_step"])
        groups = [event for event in report.expired if isinstance(event, GroupExpired)]
        discarded = [event for event in groups if event.fate is Fate.DISCARDED]
        lost = {m.DISCARDED_STALE_TOKENS: sum(event.expired.tokens for event in discarded)}
        lost[m.DISCARDED_FRESH_TOKENS] = sum(event.fresh.tokens for event in discarded)
        lost[m.RESET_TOKENS] = sum(event.expired.tokens for event in report.expired) - lost[m.DISCARDED_STALE_TOKENS]
        lost[m.MASKED_STALE_TOKENS] = sum(group.stale for group in report.taken)
        sums = lost | {
            m.DROPPED_TOKENS: sum(lost.values()),
            m.EXPIRED_GROUPS: len(groups),
            m.EXPIRED_AT_PUT: sum(event.where is Where.PUT for event in groups),
            m.EXPIRED_BY_TOKEN: sum(event.reason is ExpiryReason.TOKEN for event in groups),
            m.DISCARDED_GROUPS: len(discarded),
            m.TAKEN_GROUPS: len(report.taken),
            m.TAKEN_TOKENS: sum(group.tokens for group in report.taken),
            m.TRAINED_TOKENS: sum(group.trained for group in report.taken),
            m.SHORTFALL_GROUPS: sum(report.asked.values()) - len(report.taken),
            m.LEFTOVER_COMPLETED: sum(group.status is Status.COMPLETED for group in report.waiting),
            m.LEFTOVER_ABORTED: sum(group.status is Status.ABORTED for group in report.waiting),
            m.LEFTOVER_EXPIRED: sum(group.status is Status.EXPIRED for group in report.waiting),
        }
        recorded = expected | {m.TAKEN_GROUPS.name: sum(map(len, expected["taken_groups"].values()))}
        assert sums == {metric: recorded.get(metric.name, report.total.value(metric)) for metric in sums}


def test_a_step_lists_members_that_expire_in_a_group_that_waits(run_cli):
    out = run_cli("explain", SAMPLE, "--step", "19", "--isolated").out
    assert "expired    9 groups, and more members of 1 group that waited as expired: 54,863 reset_tokens" in out
    assert "task math, group 296: more members at refresh of step 20, by sequence, reset, 7,082 tokens lost" in out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--group", "math/99999"), "never puts group 99999 of task 'math'"),
        (("--group", "maths/1"), "no task 'maths'"),
        (("--group", "12"), "names no task"),
        (("--group", "math/x"), "names no group"),
        (("--step", "99"), "--step 99: the run has no such step"),
        (("--group", "math/1", "--step", "1"), "exclude each other"),
        (("dropped_tokens", "--step", "1"), "--group and --step don't go with a name: dropped_tokens"),
    ],
)
def test_what_can_not_be_told_is_a_usage_error(arguments: tuple[str, ...], what: str, run_cli):
    ran = run_cli("explain", SAMPLE, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert what in ran.err


@pytest.mark.parametrize(
    ("group", "hint"),
    [
        ("code/30", "its groups have ids from -4 to 70; near: 7 and 70"),
        ("code/99", "its groups have ids from -4 to 70; near: 70"),
        ("code/-9", "its groups have ids from -4 to 70; near: -4"),
        ("code/12", "did you mean math/12?"),
        ("cod/7", "did you mean 'code'?"),
    ],
)
def test_a_group_that_is_not_there_names_what_is_near(group: str, hint: str, run_cli, tmp_path: Path):
    rows = [put(n, group_id, task_name="code") for n, group_id in enumerate((-4, 7, 70))]
    path = write_log(tmp_path / "log.parquet", [*rows, put(9, 12, task_name="math")])
    ran = run_cli("explain", path, "--group", group, "-s", "timeline.train_batch_size=1")
    assert (ran.code, ran.out) == (2, "")
    assert f"hint: {hint}" in ran.err


def test_the_task_may_be_left_out_where_there_is_one(run_cli, tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 7), take(2)])
    assert "task default, group 7" in run_cli("explain", path, "--group", "7").out


def test_names_from_a_log_are_shown_harmlessly(run_cli, tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 7, task_name="ma\x1b[31mth"), take(2, task_name="ma\x1b[31mth")])
    ran = run_cli("explain", path, "--group", "7")
    assert "\x1b" not in ran.out
    assert "ma\\x1b[31mth" in ran.out
