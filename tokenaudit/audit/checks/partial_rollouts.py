"""Checks of responses that are put again: whether what the put before had is kept and counted once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.checks.masks import masked_for_length
from tokenaudit.audit.checks.stuck_versions import filled_in
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.puts import PutRun
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.config.model import Task
from tokenaudit.contracts.errors import plural
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Int64s
from tokenaudit.log.digest import STATUS_CODE
from tokenaudit.log.row_checks import ABSENT

_CUT_OFF = (STATUS_CODE[Status.ABORTED], STATUS_CODE[Status.EXPIRED])


@rule("V009", "version-restamped", Severity.ERROR,
      "Tokens kept from an earlier put changed their version.",
      "Stamp only the new tokens of a put.",
      "prior_len|response_ids", Fact.READABLE)  # fmt: skip
def _version_restamped(case: Case, findings: Findings) -> None:
    """Runs of a response's earlier put against the same tokens of this one, as far as prior_len says they are kept."""
    table, puts = case.table, case.readable
    prior, tokens = puts.kept(), table["tokens"]
    # Versions that are filled in change at every put; V031 reports that once.
    rows = np.flatnonzero((table.previous >= 0) & table.known & (prior > 0) & ~filled_in(case))
    changed: dict[int, tuple[int, int, int, int]] = {}
    for row in rows[~puts.begins_with(rows, table.previous[rows])].tolist():
        before = int(table.previous[row])
        kept = int(min(prior[row], tokens[row]))
        if tokens[before] != kept:
            continue
        position = 0
        for old, new, length in _zipped(puts.runs(before), puts.runs(row), kept):
            if old != new and old >= 0 and new >= 0:
                changed[row] = (position, length, old, new)
                break
            position += length

    def message(row: int) -> str:
        *_, old, new = changed[row]
        then = table.put_number[table.previous[row]]
        return f"version {old} at put {then}, {new} now, though the tokens are the same"

    findings.add_rows(
        lambda row: table.subject(row, first_token=changed[row][0], tokens=changed[row][1]),
        np.array([*changed], dtype=np.int64), message,
    )  # fmt: skip
    findings.add_checked(int((table.previous >= 0).sum()), "puts of a response seen before")


def _zipped(earlier: list[PutRun], later: list[PutRun], tokens: int) -> Iterator[tuple[int, int, int]]:
    """(version before, version now, tokens) of stretches where both stay the same, up to `tokens`."""
    left, right = iter(earlier), iter(later)
    old = new = nothing = PutRun(0, 0, 0)
    while tokens > 0:
        old = old if old.tokens else next(left, nothing)
        new = new if new.tokens else next(right, nothing)
        length = min(old.tokens, new.tokens, tokens)
        if length == 0:
            return
        yield old.version, new.version, length
        old, new = (run._replace(tokens=run.tokens - length) for run in (old, new))
        tokens -= length


@rule("M003", "mask-retracted", Severity.WARNING,
      "Fresh tokens that were trainable at an earlier put are masked now.",
      "Repair masks from the first token that differs, not from the start of the answer.",
      "response_mask|response_version_runs", "prior_len", Fact.READABLE)  # fmt: skip
def _mask_retracted(case: Case, findings: Findings) -> None:
    table = case.table
    rows = np.flatnonzero((table.previous >= 0) & table.known & (table["prior_len"] > 0))
    before = table.previous[rows]
    kept = table["prior_len"][rows] == table["tokens"][before]
    rows, before = rows[kept], before[kept]
    findings.add_checked(len(rows), "puts of a response seen before")
    trainable_now = np.where(table["mask_len"][rows] < 0, table["prior_len"][rows], table["prior_ones"][rows])
    trainable_then = np.where(table["mask_len"][before] < 0, table["tokens"][before], table["mask_ones"][before])
    fell = trainable_now < trainable_then
    rows, before, now = rows[fell], before[fell], trainable_now[fell]
    fresh = case.readable.fresh_trainable(before, table["train_step"][rows])
    lost = np.zeros(table.rows, dtype=np.int64)
    lost[rows] = np.maximum(fresh - now, 0)
    put = table.put_number[np.maximum(table.previous, 0)]
    findings.add_rows(
        # Masks of what was cut at its length are meant; M004 says so once.
        table.subject, (lost > 0) & ~masked_for_length(case),
        lambda row: f"{plural(int(lost[row]), 'fresh token')} trainable at put {put[row]} and masked now",
    )  # fmt: skip


@rule("T003", "produced-token-double-count", Severity.WARNING,
      "prior_len leaves out tokens that an earlier put already counted.",
      "prior_len is the length that the response had when this round began.",
      "prior_len", Fact.READABLE)  # fmt: skip
def _produced_token_double_count(case: Case, findings: Findings) -> None:
    """Tokens older than this put's version, at the place where the put before had the same ones."""
    table = case.table
    prior, tokens = table["prior_len"], table["tokens"]
    checked = (table.previous >= 0) & table.known & table.present("prior_len") & table.present("model_step")
    counted_twice = np.zeros(table.rows, dtype=np.int64)
    # Only tokens that the put before had, beyond those that prior_len names, can be counted twice.
    candidates = checked & (prior < tokens[np.maximum(table.previous, 0)])
    for row in np.flatnonzero(candidates).tolist():
        before = int(table.previous[row])
        runs_before, runs_now = case.readable.runs(before), case.readable.runs(row)
        shared = _shared(runs_before, runs_now)
        # What an older version made can't have been made in this round.
        stamp = table["model_step"][row]
        old = sum(run.tokens for run in takewhile(lambda run, stamp=stamp: run.version < stamp, runs_now))
        if shared == tokens[before]:
            counted_twice[row] = max(0, min(shared, old) - int(prior[row]))
    findings.add_rows(
        table.subject, counted_twice > 0,
        lambda row: f"prior_len is {prior[row]}, but {counted_twice[row]} more leading tokens were made by older "
        f"versions at put {table.put_number[table.previous[row]]}",
    )  # fmt: skip
    findings.add_checked(int(checked.sum()), "puts of a response seen before")


def _shared(earlier: list[PutRun], later: list[PutRun]) -> int:
    """Leading tokens with the same versions."""
    shared = 0
    for old, new in zip(earlier, later, strict=False):
        if old.version != new.version:
            break
        shared += min(old.tokens, new.tokens)
        if old.tokens != new.tokens:
            break
    return shared


@rule("L034", "continued-though-off", Severity.ERROR,
      "Cut-off responses go on from their tokens, though partial rollout is off; a warning where it is off by default.",
      "Begin such responses again, or set enable_partial_rollout to what the run does.",
      Fact.CONFIG, Fact.READABLE)  # fmt: skip
def _continued_though_off(case: Case, findings: Findings) -> None:
    """Members that were completed keep their tokens either way."""
    table, config, before = case.table, case.known_config, case.table.previous
    kept = _kept_of_cut_off(case)
    newly = kept - np.where(before >= 0, kept[before], 0)
    for code, task in enumerate(table.tasks):
        if config.task_policy(task).enable_partial_rollout:
            continue
        own = table.is_put & (table["task"] == code)
        findings.add_checked(int((own & (before >= 0)).sum()), "puts of a response seen before")
        rows = np.flatnonzero(own & (kept > 0))
        if len(rows):
            stamps = table["model_step"][before[rows]]
            oldest, newest = (table[name][before[rows]] for name in ("oldest", "newest"))
            low, high = (np.where(value == ABSENT, stamps, value) for value in (oldest, newest))
            versions = f"version {low.min()}" if low.min() == high.max() else f"versions {low.min()} to {high.max()}"
            is_said = config.tasks.get(task, Task()).enable_partial_rollout is not None
            is_said |= "enable_partial_rollout" in config.policy.model_fields_set
            text = f"{plural(int(newly[rows].sum()), 'token')} of {versions} kept by responses that had been cut off, "
            text += f"though enable_partial_rollout is off{'' if is_said else ' by default'}"
            findings.add_extent(rows, text, Severity.ERROR if is_said else Severity.WARNING)


def _kept_of_cut_off(case: Case) -> Int64s:
    """Tokens that each put row keeps of a put before at which its response wasn't finished.

    Where there are no token ids and prior_len says nothing or 0, it keeps them if its versions begin with theirs and
    newer weights came since: what began again carries none of the older ones. With the same ids besides, whatever
    prior_len says.
    """
    table, puts, before = case.table, case.readable, case.table.previous
    tokens, status = table["tokens"], table["status"]
    again = table.known & (before >= 0) & np.isin(status[before], _CUT_OFF)
    kept = np.where(again, np.minimum(np.maximum(puts.kept(), case.shared_ids), tokens), 0)
    untold = again & ((table["ids_len"] < 0) | (table["ids_len"][before] < 0))
    untold &= ~table.present("prior_len") | (table["prior_len"] == 0)
    rows = np.flatnonzero(untold & (tokens[before] > 0) & (tokens >= tokens[before]))
    rows = rows[(table["newest"][before[rows]] < table["model_step"][rows]) & (table["oldest"][rows] != ABSENT)]
    rows = rows[puts.begins_with(rows, before[rows])]
    kept[rows] = tokens[before[rows]]
    return kept
