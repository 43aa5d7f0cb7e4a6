"""Checks of staleness: what was taken, expired or kept, against the limits of the run's own config."""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.checks.lifecycle import add_samples
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.replayed_run import Expired
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.audit.taken import taken_rows, trained_at
from tokenaudit.audit.version_steps import newest_versions, oldest_versions
from tokenaudit.contracts.errors import plural
from tokenaudit.lifecycle.events import Where
from tokenaudit.lifecycle.staleness import (
    ExpiryReason,
    count_fresh,
    is_fresh,
    is_too_old,
    newest_too_old,
    oldest_fresh_version,
    staleness,
)
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Int64s
from tokenaudit.log.digest import STATUS_CODE
from tokenaudit.log.row_checks import ABSENT

_LEAST_MISMATCHES = 5
"""Wrong values that must agree on another definition."""
_DEFINITION_SHARE = 0.99
"""Share of wrong values that another definition must give."""
_EXPIRED = STATUS_CODE[Status.EXPIRED]


@rule("L002", "stale-group-taken", Severity.ERROR,
      "A response was taken that the config says is too old.",
      "Refresh staleness right before every take, and count the time spent waiting.",
      Fact.REPLAY, Fact.RECORDED_TAKES)  # fmt: skip
def _stale_group_taken(case: Case, findings: Findings) -> None:
    config, table = case.known_config, case.table
    limits = np.array([config.stale_threshold(task) for task in table.tasks], dtype=np.int64)
    rows, step = taken_rows(case.takes)
    oldest, limit = case.replayed.puts.oldest_version(rows), limits[table["task"][rows]]
    stale = np.flatnonzero((oldest != ABSENT) & is_too_old(oldest, newest_too_old(step, limit)))
    columns = (column[stale].tolist() for column in (rows, oldest, step, limit))
    texts = {row: _age_text(case, row, version, at, most) for row, version, at, most in zip(*columns, strict=True)}
    findings.add_texts(table.subject, texts)
    findings.add_checked(len(case.takes), "recorded takes")


def _age_text(case: Case, row: int, oldest: int, step: int, limit: int) -> str:
    at_put = staleness(oldest, int(case.table["train_step"][row]))
    age = staleness(oldest, step)
    return f"taken at step {step} with staleness {age}, limit {limit}; {age - at_put} of it came from waiting"


@rule("L003", "aged-in-queue", Severity.WARNING,
      "In the replay, groups became too old after their put, while they waited.",
      "Generate less ahead, or take the stalest first.",
      Fact.REPLAY)  # fmt: skip
def _aged_in_queue(case: Case, findings: Findings) -> None:
    by_task: dict[str, list[Expired]] = {}
    for expired in case.replayed.expired:
        if expired.event.where is Where.REFRESH and expired.event.reason is not ExpiryReason.ARRIVED_EXPIRED:
            by_task.setdefault(expired.event.task_name, []).append(expired)
    findings.add_checked(len(case.replayed.expired), "expired groups")
    for task, groups in by_task.items():
        waits = sorted(expired.waited for expired in groups)
        text = f"{plural(len(groups), 'group')} became too old after the put; median wait"
        findings.cost_tokens += sum(expired.tokens for expired in groups)
        findings.add(Subject(task), f"{text} {plural(waits[len(waits) // 2], 'step')}")


@rule("L004", "expired-too-early", Severity.WARNING,
      "The run expired a response or group that the config still allows.",
      "Check the comparison (too old is staleness >= limit) and that the age is counted once per step.",
      Fact.REPLAY)  # fmt: skip
def _expired_too_early(case: Case, findings: Findings) -> None:
    table, config = case.table, case.known_config
    put_as_expired = table.known & (table["status"] == _EXPIRED) & (table["tokens"] > 0)
    findings.add_checked(int(put_as_expired.sum()), "responses put as expired")
    texts: dict[int, str] = {}
    for row in np.flatnonzero(put_as_expired).tolist():
        task, step = table.tasks[int(table["task"][row])], int(table["train_step"][row])
        runs = case.replayed.puts.runs(row)
        versions = [run.version for run in runs if run.version >= 0]
        limit = config.stale_threshold(task)
        oldest = oldest_fresh_version(step, config.token_stale_threshold(task) or limit)
        fresh = [run.trainable for run, version in zip(runs, versions, strict=False) if is_fresh(version, oldest)]
        if versions and any(fresh) and not is_too_old(min(versions), newest_too_old(step, limit)):
            age = staleness(min(versions), step)
            texts[row] = f"status expired at step {step}, but staleness {age} is below the limit {limit}"
    findings.add_texts(table.subject, texts)
    samples = case.replayed.samples
    findings.add_checked(len(samples), "responses put as expired and samples")
    early = {
        one: f"sampled from the expired pool, while it is {one.replayed} under the config"
        for one in samples
        if one.expired_too_early
    }
    add_samples(case, findings, early)


@rule("L005", "expired-too-late", Severity.WARNING,
      "The run continued a group that the config says had expired.",
      "Refresh staleness at every step, and count the oldest token.",
      Fact.TIMELINE)  # fmt: skip
def _expired_too_late(case: Case, findings: Findings) -> None:
    samples = case.replayed.samples
    findings.add_checked(len(samples), "samples")
    text = "sampled from the aborted pool, though it had expired under the config"
    add_samples(case, findings, {one: text for one in samples if one.expired_too_late})


@rule("L006", "expired-retained", Severity.WARNING,
      "The run kept an expired group though its config discards it.",
      "Drop the group, or set tail_batch_trigger_size to 0 or more.",
      Fact.TIMELINE, Fact.NO_RETRY)  # fmt: skip
def _expired_retained(case: Case, findings: Findings) -> None:
    samples = case.replayed.samples
    findings.add_checked(len(samples), "samples")
    retained = {
        one: f"sampled from the {one.recorded} pool, though the config had discarded it"
        for one in samples
        if one.was_discarded and one.replayed is None
    }
    add_samples(case, findings, retained)


@rule("L007", "recorded-staleness-mismatch", Severity.ERROR,
      "The recorded seq_staleness isn't that of the oldest token; where it is another number, the finding says which.",
      "seq_staleness = train_step - oldest version - 1, and 0 without tokens.",
      "seq_staleness")  # fmt: skip
def _recorded_staleness_mismatch(case: Case, findings: Findings) -> None:
    table = case.table
    recorded = table["seq_staleness"]
    oldest = oldest_versions(table)
    checked = table.known & table.present("seq_staleness") & table.present("train_step")
    has_version = oldest != ABSENT
    expected = np.where(has_version, staleness(np.where(has_version, oldest, 0), table["train_step"]), 0)
    checked &= has_version | (table["tokens"] == 0)
    findings.add_checked(int(checked.sum()))
    wrong = checked & (recorded != expected)
    definition = _definition(case, np.flatnonzero(wrong), expected)
    if definition is None:
        findings.add_rows(
            table.subject, wrong, lambda row: f"recorded {recorded[row]}, recomputed {expected[row]}"
        )  # fmt: skip
        return

    def message(rows: Int64s) -> str:
        first = f"the first, rollout {table['rollout_id'][rows[0]]}: recorded {recorded[rows[0]]}"
        return f"seq_staleness is {definition}, not that of the oldest token; {first}, recomputed {expected[rows[0]]}"

    findings.add_extent(wrong, message)


def _definition(case: Case, rows: Int64s, expected: Int64s) -> str | None:
    """Which other number the recorded staleness of put rows is in 99 % of them; None for none, or of few rows.

    Args:
        case: the log.
        rows: rows whose recorded staleness isn't the expected one.
        expected: that of the oldest token, for all rows of the log.
    """
    table = case.table
    if len(rows) < _LEAST_MISMATCHES:
        return None
    recorded, step = table["seq_staleness"][rows], table["train_step"][rows]
    interval = case.recorded_interval or 1
    if case.config is not None:
        interval = max(interval, case.config.timeline.sync_weights_interval)
    others = {
        "that of the newest token": recorded == staleness(newest_versions(table)[rows], step),
        "that of the version at the start of the round": recorded == staleness(table["start_model_step"][rows], step),
        "that of the version of the put": recorded == staleness(table["model_step"][rows], step),
        "counted in syncs, not in steps": recorded == expected[rows] // interval,
        "counted in syncs begun, not in steps": recorded == -(-expected[rows] // interval),
        "the train step less the oldest version, without the - 1": recorded == expected[rows] + 1,
        "that at the take": recorded
        == staleness(oldest_versions(table)[rows], trained_at(table, case.run, case.takes)[rows]),
    }
    if case.puts is not None:
        # Rounded down, up, or to the nearest.
        others["that of the mean version"] = np.abs(recorded - staleness(case.puts.mean_version(rows), step)) < 1
    fits = {name: float(where.mean()) for name, where in others.items()}
    best = max(fits, key=lambda name: fits[name])
    return best if fits[best] >= _DEFINITION_SHARE else None


@rule("L010", "agentic-exempt-stale", Severity.WARNING,
      "In the replay, tokens beyond the token limit are trained: the token rule spares groups with an agentic member.",
      "Lower max_staleness for agentic tasks, or leave ready-made inputs out.",
      "agentic", Fact.TAKES, Fact.TOKEN_RULE)  # fmt: skip
def _agentic_exempt_stale(case: Case, findings: Findings) -> None:
    replayed = case.replayed
    limits = {task: replayed.config.token_stale_threshold(task) for task in replayed.digest.tasks}
    texts: dict[int, str] = {}
    for taken in replayed.taken:
        step, limit = taken.event.train_step, limits[taken.event.task_name]
        if limit is None or not taken.event.responses.measures.is_agentic:
            continue
        findings.add_checked(1, "taken groups with an agentic member")
        stale = count_fresh(taken.event.responses.trainable_by_version(), step, limit, {})
        if stale:
            text = f"{plural(stale, 'token')} beyond the token limit {limit} trained at step {step}, because the token"
            texts[int(replayed.put_rows(taken.put)[0])] = f"{text} rule spares groups with an agentic member"
    findings.add_texts(case.table.group_subject, texts)


@rule("L020", "staleness-convention", Severity.INFO,
      "How this audit counts staleness, and how many verdicts rest on it.",
      "Check it against your trainer: strict or not, and counted from which version.",
      Fact.REPLAY)  # fmt: skip
def _staleness_convention(case: Case, findings: Findings) -> None:
    replayed = case.replayed
    limits = {task: replayed.config.stale_threshold(task) for task in replayed.digest.tasks}
    at_limit = 0
    for expired in replayed.expired:
        if expired.event.reason is ExpiryReason.SEQUENCE:
            oldest = min(version for *_, version, _ in expired.event.expired.facts() if version is not None)
            at_limit += staleness(oldest, expired.event.train_step) == limits[expired.event.task_name]
    text = "staleness is step - version - 1, and too old from (max_staleness + 1) x sync_weights_interval on"
    findings.add(Subject(), f"{text}; {plural(at_limit, 'group')} expired exactly at that limit")
    findings.add_checked(len(replayed.expired), "expired groups")
