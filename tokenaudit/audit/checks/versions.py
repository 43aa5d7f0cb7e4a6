"""Checks of policy versions: whether every token has one, and whether it can be true."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenaudit.audit.case import Case, Check, add_checked, add_rows, plural
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.rule import Rule, Severity
from tokenaudit.audit.scan_runs import RUN_FAULTS
from tokenaudit.audit.table import LogTable
from tokenaudit.contracts.schema import VERSION_RUNS, EventKind
from tokenaudit.log.batch_columns import ABSENT
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE
from tokenaudit.log.faults import FaultKind

_PUT, _SYNC = KIND_CODE[EventKind.PUT], KIND_CODE[EventKind.SYNC]
_SUSPECT_UNIT = 8
"""Smallest common divisor of versions that can't be a sync interval where versions are far above the steps."""
_MIN_VERSIONS = 3
_STEPS_BACK = 2
_DEEP_FALL = 16
"""A fall that no put of an old request explains."""
_FALLS = 1_000
"""Falls that are looked at."""


def _missing(case: Case, rule: Rule, findings: Findings) -> None:
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

    add_rows(case, rule, findings, missing > 0, message)
    add_checked(rule, findings, int(table.known.sum()))


def _too_many(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    versions, tokens = table["versions_len"], table["tokens"]
    where = table.known & (versions > tokens)
    add_rows(
        case, rule, findings, where, lambda row: f"{versions[row]} versions for {plural(int(tokens[row]), 'token')}"
    )
    add_checked(rule, findings, int(table.known.sum()))


def _placeholder(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    is_put = table.is_put
    negative, trained = table["negative"], table["negative_trained"]
    oldest = table["oldest"]

    def message(row: int) -> str:
        return (
            f"{plural(int(negative[row]), 'token')} with a version below 0 (down to {oldest[row]}), "
            f"{trained[row]} of them trainable; counted, it makes the response as old as the run"
        )

    add_rows(case, rule, findings, is_put & (trained > 0), message)
    only_masked = is_put & (negative > 0) & (trained == 0)
    add_rows(case, rule, findings, only_masked, message, severity=Severity.WARNING)
    holds_null = is_put & (table["versions_null"] == 1)
    add_rows(case, rule, findings, holds_null, lambda _: "response_model_steps holds a null")
    add_checked(rule, findings, int((is_put & (table["versions_len"] >= 0)).sum()))


def _newest(table: LogTable) -> Int64s:
    """The newest version of each row, the one of its put included where tokens are left for it; else `ABSENT`."""
    stamped = (table["tokens"] > np.maximum(table["versions_len"], 0)) & table.present("model_step")
    return np.maximum(table["newest"], np.where(stamped, table["model_step"], ABSENT))


def suspect_unit(table: LogTable) -> int | None:
    """What versions seem to be multiples of, where they are far above the steps; None where they look like steps."""
    newest = _newest(table)
    oldest = np.where(table["oldest"] == ABSENT, newest, table["oldest"])
    rows = table.known & (newest != ABSENT) & table.present("train_step")
    versions = np.unique(np.concatenate([newest[rows], oldest[rows]]))
    versions = versions[versions > 0]
    if len(versions) == 0 or table["train_step"][rows].max() >= versions.min():
        return None
    unit = int(np.gcd.reduce(versions))
    return unit if unit >= _SUSPECT_UNIT and len(versions) > 1 else None


def syncs(table: LogTable) -> Bools:
    """Sync rows that tell their step and version."""
    return (table["kind"] == _SYNC) & table.present("model_step") & table.present("train_step")


def updates_per_step(table: LogTable) -> int | None:
    """How many versions a step makes, where all syncs agree on 2 or more; else None."""
    rows = np.flatnonzero(syncs(table))
    step, version = table["train_step"][rows], table["model_step"][rows]
    updates = np.unique(version[step > 0] / step[step > 0])
    if len(rows) > 1 and len(updates) == 1 and updates[0] >= 2 and updates[0] == int(updates[0]):
        return int(updates[0])
    return None


def _unit_suspect(case: Case, rule: Rule, findings: Findings) -> None:
    unit = suspect_unit(case.table)
    add_checked(rule, findings, int(case.table.known.sum()))
    if unit is not None:
        last_step = int(case.table["train_step"][case.table.known].max())
        text = f"all versions are multiples of {unit} and above the last step ({last_step}): they look like counts of"
        findings.add(rule, Subject(), f"{text} samples or tokens, {unit} a step")


def _from_future(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    newest, step = _newest(table), table["train_step"]
    rows = table.is_put & (newest != ABSENT) & table.present("train_step")
    add_checked(rule, findings, int(rows.sum()))
    if suspect_unit(table) is not None:
        return
    # At step 0 nothing was trained, and version 0 is all there can be.
    possible = np.maximum(step - 1, 0)
    add_rows(
        case, rule, findings, rows & (newest > possible),
        lambda row: f"version {newest[row]} at step {step[row]}: the newest possible is {possible[row]}",
    )  # fmt: skip
    # A sync names the step just trained.
    synced, brought = syncs(table), table["model_step"]
    add_checked(rule, findings, int(synced.sum()))
    if updates_per_step(table) is None:
        add_rows(
            case, rule, findings, synced & (brought > step),
            lambda row: f"a sync brings version {brought[row]} after step {step[row]}",
        )  # fmt: skip


def _regression(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    falls = table["version_falls"]
    # Agentic responses are joined from branches, and segments of a split rollout overlap.
    whole = table.is_put & ~table["agentic"] & ~_of_split_rollout(table)
    add_rows(
        case, rule, findings, whole & (falls > 0),
        lambda row: f"versions fall inside the response, {plural(int(falls[row]), 'time')}",
        severity=Severity.WARNING,
    )  # fmt: skip
    fell = _lasting_falls(table)
    where = np.zeros(table.rows, dtype=np.bool_)
    where[list(fell)] = True
    add_rows(case, rule, findings, where, lambda row: f"model_step fell from {fell[row]} to {table['model_step'][row]}")
    add_checked(rule, findings, int(table.is_put.sum()))


def _lasting_falls(table: LogTable) -> dict[int, int]:
    """Version before, by the row at which model_step falls and doesn't come back for two steps.

    Puts of requests that started earlier may name an older version now and then; that is no fall.
    """
    rows = np.flatnonzero(np.isin(table["kind"], (_PUT, _SYNC)) & table.present("model_step"))
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


def _of_split_rollout(table: LogTable) -> Bools:
    """Rows of rollouts that have several rows in their put."""
    rows = np.flatnonzero(table.is_put)
    is_split = np.zeros(table.rows, dtype=np.bool_)
    if not table.segment.any():
        return is_split
    _, group = np.unique(np.stack([table.put_event[rows], table["rollout_id"][rows]]), axis=1, return_inverse=True)
    is_split[rows] = np.bincount(group.reshape(-1))[group.reshape(-1)] > 1
    return is_split


def _not_synced(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    newest, synced = _newest(table), np.where(table["kind"] == _SYNC, table["model_step"], ABSENT)
    # What the engine held before the first sync in the log isn't told.
    reached = np.maximum.accumulate(synced) if table.rows else synced
    told = table.is_put & (newest != ABSENT) & (reached != ABSENT)
    add_rows(
        case, rule, findings, told & (newest > reached),
        lambda row: f"version {newest[row]}, while the newest that a sync brought before is {reached[row]}",
    )  # fmt: skip
    add_checked(rule, findings, int(told.sum()))


_RUN_MESSAGES = {
    FaultKind.NULL_ELEMENT: "it holds a null",
    FaultKind.BAD_RUN: "a run has no tokens, a version below 0, or more trainable tokens than tokens",
    FaultKind.RUNS_BESIDE_TOKENS: "it stands beside response_model_steps or response_mask",
}


def _runs_damaged(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    fault, sums = table["runs_fault"], table["runs_sum"]

    def message(row: int) -> str:
        kind = RUN_FAULTS[fault[row] - 1]
        text = f"its runs have {plural(int(sums[row]), 'token')}, the response {table['tokens'][row]}"
        return f"{VERSION_RUNS}: {_RUN_MESSAGES.get(kind, text)}"

    add_rows(case, rule, findings, table.is_put & (fault > 0), message)
    add_checked(rule, findings, int(table.is_put.sum()))


def _stamped_late(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    start, stamp = table["start_model_step"], table["model_step"]
    told = table.known & table.present("start_model_step") & (table["tokens"] > 0)
    recorded = np.maximum(table["versions_len"], 0)
    prior = np.where(table.present("prior_len"), table["prior_len"], 0)
    # All tokens of a first round, or those that model_step stamps.
    all_new = (prior == 0) & (recorded == table["tokens"])
    oldest_new = np.where(all_new, table["oldest"], np.where(table.present("model_step"), stamp, ABSENT))
    new_tokens = table["tokens"] - np.where(all_new, 0, np.maximum(recorded, prior))
    late = told & (oldest_new > start) & (new_tokens > 0)
    add_rows(
        case, rule, findings, late,
        lambda row: f"{plural(int(new_tokens[row]), 'token')} carry version {oldest_new[row]}, but the round began "
        f"under {start[row]}",
    )  # fmt: skip
    add_checked(rule, findings, int(told.sum()))


def _restamped(case: Case, rule: Rule, findings: Findings) -> None:
    """Runs of a response's earlier put against the same tokens of this one, as far as prior_len says they are kept."""
    table = case.table
    for row, before, first, tokens, old, new in _changed_runs(case):
        put = table.put_number[before]
        message = f"version {old} at put {put}, {new} now, though the tokens are the same"
        findings.add(rule, table.subject(row, first_token=first, tokens=tokens), message)
    add_checked(rule, findings, int((table.previous >= 0).sum()), "puts of a response seen before")


def _changed_runs(case: Case) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(row, row before, first token, tokens, version before, version now) of kept tokens whose version changed."""
    table, puts = case.table, case.readable
    prior, tokens = puts.kept(), table["tokens"]
    rows = np.flatnonzero((table.previous >= 0) & table.known & (prior > 0))
    rows = rows[~puts.begins_with(rows, table.previous[rows])]
    for row in rows.tolist():
        before = int(table.previous[row])
        kept = int(min(prior[row], tokens[row]))
        if tokens[before] != kept:
            continue
        position = 0
        earlier, later = puts.runs(before), puts.runs(row)
        for old, new, length in _zipped(earlier, later, kept):
            if old != new and old >= 0 and new >= 0:
                yield row, before, position, length, old, new
                break
            position += length


def _zipped(
    earlier: list[tuple[int, int]], later: list[tuple[int, int]], tokens: int
) -> Iterator[tuple[int, int, int]]:
    """(version before, version now, tokens) of stretches where both stay the same, up to `tokens`."""
    left, right = iter(earlier), iter(later)
    old = new = (0, 0)
    while tokens > 0:
        if old[1] == 0:
            old = next(left, (0, 0))
        if new[1] == 0:
            new = next(right, (0, 0))
        length = min(old[1], new[1], tokens)
        if length == 0:
            return
        yield old[0], new[0], length
        old, new, tokens = (old[0], old[1] - length), (new[0], new[1] - length), tokens - length


def _sync_interval(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    interval = case.known_config.timeline.sync_weights_interval
    newest = _newest(table)[table.known]
    syncs = table["model_step"][(table["kind"] == _SYNC) & table.present("model_step")]
    versions = np.unique(np.concatenate([newest[newest > 0], syncs[syncs > 0]]))
    add_checked(rule, findings, len(versions), "versions")
    if len(versions) < _MIN_VERSIONS or suspect_unit(table) is not None:
        return
    unit = int(np.gcd.reduce(versions))
    if unit > interval and not case.known_config.timeline.resync:
        text = f"the config says sync_weights_interval = {interval}, but recorded versions only change by {unit}"
        findings.add(rule, Subject(), f"{text} ({', '.join(map(str, versions[:5].tolist()))}, …)")


CHECKS: dict[str, Check] = {
    "version-missing": _missing,
    "version-length-mismatch": _too_many,
    "version-placeholder": _placeholder,
    "version-from-future": _from_future,
    "version-not-synced": _not_synced,
    "version-runs-damaged": _runs_damaged,
    "version-regression": _regression,
    "version-unit-suspect": _unit_suspect,
    "version-stamped-late": _stamped_late,
    "version-restamped": _restamped,
    "sync-interval-mismatch": _sync_interval,
}
