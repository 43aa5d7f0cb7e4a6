"""Checks of policy versions: whether every token has one, and whether it can be true."""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.case import Case, add_faults
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.audit.scan import RUN_FAULTS
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.version_steps import newest_versions
from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import VERSION_RUNS, EventKind
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE
from tokenaudit.log.faults import FaultKind
from tokenaudit.log.plausibility import newest_possible
from tokenaudit.log.row_checks import ABSENT
from tokenaudit.log.structural_checks import NULL_VERSION, TOO_MANY_VERSIONS

_PUT, _SYNC = KIND_CODE[EventKind.PUT], KIND_CODE[EventKind.SYNC]
_SUSPECT_UNIT = 8
"""Smallest common divisor of versions that can't be a sync interval where versions are far above the steps."""
_MIN_VERSIONS = 3
_STEPS_BACK = 2
_DEEP_FALL = 16
"""A fall that no put of an old request explains."""
_FALLS = 1_000
"""Falls that are looked at."""


@rule("V001", "version-missing", Severity.ERROR,
      "Tokens carry no version, and no model_step stands in for one.",
      "Record model_step on every put, or a version for every token.")  # fmt: skip
def _version_missing(case: Case, findings: Findings) -> None:
    table = case.table
    tokens, recorded = table["tokens"], np.maximum(table["versions_len"], 0)
    missing = np.where(table.known & ~table.present("model_step"), np.maximum(tokens - recorded, 0), 0)
    of_runs = np.zeros(table.rows, dtype=np.int64)
    if "runs_unversioned" in table:
        # A run says itself what made it, so the version of the put doesn't fill it in.
        of_runs = np.where(table.known, np.maximum(table["runs_unversioned"], 0), 0)
        missing += of_runs
    coverage = 100 * (1 - int(missing.sum()) / max(int(tokens[table.known].sum()), 1))

    def message(row: int) -> str:
        why = "their version runs have none" if of_runs[row] else "the put has no model_step"
        return (
            f"{missing[row]} of {plural(int(tokens[row]), 'token')} carry no version and {why} "
            f"(the log has versions for {coverage:.1f} % of its tokens)"
        )

    findings.add_rows(table.subject, missing > 0, message)
    findings.add_checked(int(table.known.sum()))


@rule("V002", "version-length-mismatch", Severity.ERROR,
      "A response has more versions than tokens.",
      "Cut versions exactly as the tokens.")  # fmt: skip
def _version_length_mismatch(case: Case, findings: Findings) -> None:
    table = case.table
    versions, tokens = table["versions_len"], table["tokens"]
    findings.add_rows(
        table.subject, TOO_MANY_VERSIONS.where(table),
        lambda row: f"{versions[row]} versions for {plural(int(tokens[row]), 'token')}",
    )  # fmt: skip
    findings.add_checked(int(table.known.sum()))


@rule("V003", "version-placeholder", Severity.ERROR,
      "A version is null or negative; a warning where only tokens out of the loss have it.",
      "Give prompt and tool tokens the version of the tokens before them: "
      "the smallest version decides on expiry.")  # fmt: skip
def _version_placeholder(case: Case, findings: Findings) -> None:
    table = case.table
    is_put = table.is_put
    negative, trained = table["negative"], table["negative_trained"]
    oldest = table["oldest"]

    def message(row: int) -> str:
        return (
            f"{plural(int(negative[row]), 'token')} with a version below 0 (down to {oldest[row]}), "
            f"{trained[row]} of them trainable; counted, it makes the response as old as the run"
        )

    findings.add_rows(table.subject, is_put & (trained > 0), message)
    only_masked = is_put & (negative > 0) & (trained == 0)
    findings.add_rows(table.subject, only_masked, message, severity=Severity.WARNING)
    add_faults(case, findings, NULL_VERSION)
    findings.add_checked(int((is_put & (table["versions_len"] >= 0)).sum()))


def suspect_unit(table: LogTable) -> int | None:
    """What versions seem to be multiples of, where they are far above the steps; None where they look like steps."""
    newest = newest_versions(table)
    oldest = np.where(table["oldest"] == ABSENT, newest, table["oldest"])
    rows = table.known & (newest != ABSENT) & table.present("train_step")
    versions = np.unique(np.concatenate([newest[rows], oldest[rows]]))
    versions = versions[versions > 0]
    if len(versions) == 0 or table["train_step"][rows].max() >= versions.min():
        return None
    unit = int(np.gcd.reduce(versions))
    return unit if unit >= _SUSPECT_UNIT and len(versions) > 1 else None


def syncs(table: LogTable) -> Bools:
    """Sync rows that have a step and a version."""
    return (table["kind"] == _SYNC) & table.present("model_step") & table.present("train_step")


def updates_per_step(table: LogTable) -> int | None:
    """How many versions a step makes, where all syncs agree on 2 or more; else None."""
    rows = np.flatnonzero(syncs(table))
    step, version = table["train_step"][rows], table["model_step"][rows]
    updates = np.unique(version[step > 0] / step[step > 0])
    if len(rows) > 1 and len(updates) == 1 and updates[0] >= 2 and updates[0] == int(updates[0]):
        return int(updates[0])
    return None


@rule("V007", "version-unit-suspect", Severity.ERROR,
      "All versions are multiples of one number and far above the steps: they seem to count something else.",
      "Divide versions by that number, or record train steps.")  # fmt: skip
def _version_unit_suspect(case: Case, findings: Findings) -> None:
    unit = suspect_unit(case.table)
    findings.add_checked(int(case.table.known.sum()))
    if unit is not None:
        last_step = int(case.table["train_step"][case.table.known].max())
        text = f"all versions are multiples of {unit} and above the last step ({last_step}): they look like counts of"
        findings.add(Subject(), f"{text} samples or tokens, {unit} a step")


@rule("V005", "version-from-future", Severity.ERROR,
      "A token is newer than the trainer could have made its weights.",
      "Stamp tokens with the number of train steps in the weights; "
      "counters of samples or requests don't fit.")  # fmt: skip
def _version_from_future(case: Case, findings: Findings) -> None:
    table = case.table
    newest, step = newest_versions(table), table["train_step"]
    rows = table.is_put & (newest != ABSENT) & table.present("train_step")
    findings.add_checked(int(rows.sum()))
    if suspect_unit(table) is not None:
        return
    possible = newest_possible(step)
    findings.add_rows(
        table.subject, rows & (newest > possible),
        lambda row: f"version {newest[row]} at step {step[row]}: the newest possible is {possible[row]}",
    )  # fmt: skip
    # A sync names the step just trained.
    synced, brought = syncs(table), table["model_step"]
    findings.add_checked(int(synced.sum()))
    if updates_per_step(table) is None:
        findings.add_rows(
            table.subject, synced & (brought > step),
            lambda row: f"a sync brings version {brought[row]} after step {step[row]}",
        )  # fmt: skip


@rule("V006", "version-regression", Severity.ERROR,
      "A version falls from one event to the next; a warning inside a response.",
      "After a restart, go on from the step of the checkpoint and drop what the old run left.")  # fmt: skip
def _version_regression(case: Case, findings: Findings) -> None:
    table = case.table
    falls = table["version_falls"]
    # Agentic responses are joined from branches, and segments of a split rollout overlap.
    whole = table.is_put & ~table["agentic"] & ~table.is_split
    findings.add_rows(
        table.subject, whole & (falls > 0),
        lambda row: f"versions fall inside the response, {plural(int(falls[row]), 'time')}",
        severity=Severity.WARNING,
    )  # fmt: skip
    versioned = np.flatnonzero(np.isin(table["kind"], (_PUT, _SYNC)) & table.present("model_step"))
    fell = {row: before for own in table.by_rank(versioned) for row, before in _lasting_falls(table, own).items()}
    where = np.zeros(table.rows, dtype=np.bool_)
    where[list(fell)] = True
    findings.add_rows(
        table.subject, where,
        lambda row: f"model_step fell from {fell[row]} to {table['model_step'][row]}{table.on_rank(row)}",
    )  # fmt: skip
    findings.add_checked(int(table.is_put.sum()))


def _lasting_falls(table: LogTable, rows: Int64s) -> dict[int, int]:
    """Version before, by the row at which model_step falls and doesn't come back for two steps.

    Puts of requests that started earlier may name an older version now and then; that is no fall. `rows` are the puts
    and syncs of one recorder that have a version.
    """
    version, step = table["model_step"][rows], table["train_step"][rows]
    is_sync = table["kind"][rows] == _SYNC
    fell: dict[int, int] = {}
    for index in (np.flatnonzero(version[1:] < version[:-1]) + 1)[:_FALLS].tolist():
        before = int(version[index - 1])
        later = np.flatnonzero(step[index:] > step[index] + _STEPS_BACK)
        end = index + int(later[0]) if len(later) else len(version)
        comes_back = version[index:end].max() >= before
        is_deep = before - version[index] >= _DEEP_FALL
        lasts = step[index:end].max() >= step[index] + _STEPS_BACK
        if is_sync[index] or (not comes_back and (is_deep or lasts)):
            fell[int(rows[index])] = before
    return fell


@rule("V012", "version-not-synced", Severity.WARNING,
      "A put has a version that no sync event before it brought to the engine.",
      "Record a sync event, with its model_step, before the puts of the new weights.",
      Fact.SYNCS)  # fmt: skip
def _version_not_synced(case: Case, findings: Findings) -> None:
    table = case.table
    newest, synced = newest_versions(table), np.where(table["kind"] == _SYNC, table["model_step"], ABSENT)
    # What the engine held before the first sync in the log isn't known.
    reached = np.maximum.accumulate(synced) if table.rows else synced
    checked = table.is_put & (newest != ABSENT) & (reached != ABSENT)
    findings.add_rows(
        table.subject, checked & (newest > reached),
        lambda row: f"version {newest[row]}, while the newest that a sync brought before is {reached[row]}",
    )  # fmt: skip
    findings.add_checked(int(checked.sum()))


_RUN_MESSAGES = {
    FaultKind.NULL_ELEMENT: "it holds a null",
    FaultKind.BAD_RUN: "a run has no tokens, a version below 0, or more trainable tokens than tokens",
    FaultKind.RUNS_BESIDE_TOKENS: "it stands beside response_model_steps or response_mask",
}


@rule("V011", "version-runs-damaged", Severity.ERROR,
      "The version runs of a response can't be those of its tokens.",
      "Runs have a version of 0 or more, 1 or more tokens, of which 0 to all are trainable, and cover the response.",
      "response_version_runs")  # fmt: skip
def _version_runs_damaged(case: Case, findings: Findings) -> None:
    table = case.table
    fault, sums = table["runs_fault"], table["runs_sum"]

    def message(row: int) -> str:
        kind = RUN_FAULTS[fault[row] - 1]
        text = f"its runs have {plural(int(sums[row]), 'token')}, the response {table['tokens'][row]}"
        return f"{VERSION_RUNS}: {_RUN_MESSAGES.get(kind, text)}"

    findings.add_rows(table.subject, table.is_put & (fault > 0), message)
    findings.add_checked(int(table.is_put.sum()))


@rule("V008", "version-stamped-late", Severity.WARNING,
      "New tokens carry a later version than the engine had when the round began, though nothing cut it off.",
      "Read the version when the request starts, not when its answer arrives.",
      "start_model_step")  # fmt: skip
def _version_stamped_late(case: Case, findings: Findings) -> None:
    table = case.table
    start, stamp = table["start_model_step"], table["model_step"]
    checked = table.known & table.present("start_model_step") & (table["tokens"] > 0)
    recorded = np.maximum(table["versions_len"], 0)
    prior = np.where(table.present("prior_len"), table["prior_len"], 0)
    # All tokens of a first round, or those that model_step stamps.
    all_new = (prior == 0) & (recorded == table["tokens"])
    oldest_new = np.where(all_new, table["oldest"], np.where(table.present("model_step"), stamp, ABSENT))
    new_tokens = table["tokens"] - np.where(all_new, 0, np.maximum(recorded, prior))
    late = checked & (oldest_new > start) & (new_tokens > 0)
    findings.add_rows(
        table.subject, late,
        lambda row: f"{plural(int(new_tokens[row]), 'token')} carry version {oldest_new[row]}, but the round began "
        f"under {start[row]}",
    )  # fmt: skip
    findings.add_checked(int(checked.sum()))


@rule("V010", "sync-interval-mismatch", Severity.ERROR,
      "Recorded versions change in larger steps than the config says.",
      "Set timeline.sync_weights_interval to what the run did.",
      Fact.CONFIG)  # fmt: skip
def _sync_interval_mismatch(case: Case, findings: Findings) -> None:
    table = case.table
    interval = case.known_config.timeline.sync_weights_interval
    newest = newest_versions(table)[table.known]
    syncs = table["model_step"][(table["kind"] == _SYNC) & table.present("model_step")]
    versions = np.unique(np.concatenate([newest[newest > 0], syncs[syncs > 0]]))
    findings.add_checked(len(versions), "versions")
    if len(versions) < _MIN_VERSIONS or suspect_unit(table) is not None:
        return
    unit = int(np.gcd.reduce(versions))
    if unit > interval and not case.known_config.timeline.resync:
        text = f"the config says sync_weights_interval = {interval}, but recorded versions only change by {unit}"
        findings.add(Subject(), f"{text} ({', '.join(map(str, versions[:5].tolist()))}, …)")
