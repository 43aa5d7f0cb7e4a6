"""Checks of versions over a whole run: whether they move with its steps, and whether they were written down at all."""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.audit.version_steps import (
    LEAST_CONTINUED,
    Filler,
    continued_over_sync,
    filled,
    fillers,
    first_and_last,
    frozen,
    newest_versions,
    oldest_versions,
    single_version,
    standstills,
    usual_interval,
)
from tokenaudit.config.model import Mode
from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE, STATUS_CODE
from tokenaudit.log.row_checks import ABSENT

_SAMPLE, _SYNC = KIND_CODE[EventKind.SAMPLE], KIND_CODE[EventKind.SYNC]
_EXPIRED = STATUS_CODE[Status.EXPIRED]
_SHORTER_SHARE = 0.01
"""Share of responses put again that may have fewer tokens than before where responses go on."""
_LEAST_ROWS = 200
"""Responses that must all be as new as can be before that alone is suspicious."""
_LEAST_STEPS = 10
"""Steps that they must lie in."""


@rule("V030", "version-frozen", Severity.ERROR,
      "The newest version of puts stands still for five steps and three sync intervals or more while steps go on.",
      "Look why weights no longer reach the engine, or why its version is no longer counted up.",
      "model_step|response_model_steps|response_version_runs")  # fmt: skip
def _version_frozen(case: Case, findings: Findings) -> None:
    table = case.table
    newest, step = newest_versions(table), table["train_step"]
    where = table.is_put & (newest != ABSENT) & table.present("train_step")
    stretches = standstills(step[where], newest[where])
    findings.add_checked(int(where.sum()))
    if case.config is None and len(stretches) < 2 and not (table["kind"] == _SYNC).any():
        # A log that knows neither syncs nor a second version may be one of a run that never moved weights.
        return
    interval = max(
        case.recorded_interval or 1,
        usual_interval(stretches),
        case.config.timeline.sync_weights_interval if case.config else 1,
    )
    config = case.config
    most_queued = max((config.stale_threshold(task) for task in table.used_tasks), default=0) if config else 0
    for stretch in frozen(stretches, interval, most_queued):
        concerned = where & (step >= stretch.first + interval) & (step <= stretch.last)
        what = f"the newest version stays {stretch.version} from step {stretch.first} to {stretch.last}"
        every = "every step" if interval == 1 else f"every {interval} steps"
        findings.add_extent(concerned, f"{what}, though weights move {every}", cause=f"version {stretch.version}")


def filled_in(case: Case) -> Bools:
    """Put rows whose response was made by several weights and yet has a single version, because it is filled in.

    With them go rows that only carry such a response on, under another version than before.
    """
    table = case.table
    first, is_last = first_and_last(table)
    goes_on = _goes_on(case)
    crossed = continued_over_sync(table, goes_on)
    is_single, newest = single_version(table), newest_versions(table)
    is_restamped = goes_on & (newest != newest[table.previous])
    where = np.zeros(table.rows, dtype=np.bool_)
    for code in range(len(table.tasks)):
        of_task = table["task"] == code
        rows = np.flatnonzero(crossed & is_last & of_task)
        found = rows[filled(is_single[rows])]
        if len(found):
            of_response = np.zeros(table.rows, dtype=np.bool_)
            of_response[first[found]] = True
            where |= of_task & is_single & ((crossed & of_response[first]) | is_restamped)
    return where


def _goes_on(case: Case) -> Bools:
    """Put rows that go on from the tokens of the put before.

    prior_len or the token ids say so; without both, that the config continues aborted responses, unless some are
    shorter than before: what goes on only grows.
    """
    table, puts = case.table, case.readable
    again = table.known & (table.previous >= 0)
    before = np.maximum(table.previous, 0)
    has_ids = (table["ids_len"] >= 0) & (table["ids_len"][before] >= 0) & ("ids_len" in table)
    is_told = table.present("prior_len") | has_ids
    goes_on = again & (puts.kept() > 0)
    if case.config is None or (is_told | ~again).all():
        return goes_on
    continues = [case.config.task_policy(task).enable_partial_rollout for task in table.tasks]
    begins_anew = _expired_groups(case)
    untold = again & ~is_told & ~begins_anew & (table["tokens"][before] > 0)
    for code in range(len(table.tasks)):
        own = untold & (table["task"] == code)
        if (table["tokens"][own] < table["tokens"][before[own]]).sum() > _SHORTER_SHARE * own.sum():
            begins_anew |= table["task"] == code
    return goes_on | (again & ~is_told & np.array(continues, dtype=np.bool_)[table["task"]] & ~begins_anew)


def _expired_groups(case: Case) -> Bools:
    """Rows of groups that expired at any time: their responses may begin anew."""
    table = case.table
    pairs = np.stack([table["task"], table["group_id"]])
    expired = (table["kind"] == _SAMPLE) & (table["status"] == _EXPIRED)
    if case.run is not None:
        for one in case.run.expired:
            expired[case.run.put_rows(one.put)] = True
    _, group = np.unique(pairs, axis=1, return_inverse=True)
    group = group.reshape(-1)
    return np.isin(group, np.unique(group[expired])) & table.is_put


@rule("V031", "version-filled-in", Severity.ERROR,
      "Versions were filled in: what two weights made carries one version, or all versions are the step of their put. "
      "A warning where they are only as new as can be everywhere.",
      "Record for every token the version of the weights that made it; ages can't be told from this log.",
      Fact.READABLE)  # fmt: skip
def _version_filled_in(case: Case, findings: Findings) -> None:
    table = case.table
    where = filled_in(case)
    first, is_last = first_and_last(table)
    findings.add_checked(int((table.is_put & is_last).sum()), "responses")
    oldest, crossed = oldest_versions(table), continued_over_sync(table, _goes_on(case))
    for _, rows in table.puts_by_task(np.flatnonzero(where)):
        ends = rows[crossed[rows] & is_last[rows]]
        which = fillers(table, ends, oldest[first[ends]])
        equal = f", {which[0]}" if which else ""
        if Filler.STEP in which:
            # Those that don't go on have it, too, though no weights have that version yet.
            same = single_version(table) & (oldest == table["train_step"]) & (table["task"] == table["task"][rows[0]])
            rows = np.union1d(rows, np.flatnonzero(same))
        findings.add_extent(
            rows, f"{plural(len(ends), 'response')} continued over a sync end in a single version{equal}"
        )
    if where.any():
        return
    rows = np.flatnonzero(single_version(table) & table.present("train_step"))
    with_tokens = int((table.known & (table["tokens"] > 0)).sum())
    which = fillers(table, rows, oldest[first[rows]]) if len(rows) == with_tokens >= LEAST_CONTINUED else []
    if Filler.STEP in which and len(np.unique(table["train_step"][rows])) > 1:
        findings.add_extent(rows, f"all versions are {Filler.STEP}, which no weights have yet")
    elif Filler.BEFORE in which and _should_lag(case, rows):
        text = f"all versions are {Filler.BEFORE}, though rollouts of this config go on over syncs"
        findings.add_extent(rows, text, Severity.WARNING)


def _should_lag(case: Case, rows: Int64s) -> bool:
    """Whether some of many responses should have tokens of older weights, and the log lacks the puts that show which.

    So where the config continues aborted responses and lets them lag, prior_len says that some went on, and none is put
    as aborted.
    """
    table, config = case.table, case.config
    if config is None or config.mode is not Mode.DISAGGREGATED or len(rows) < _LEAST_ROWS:
        return False
    policies = [config.task_policy(table.tasks[code]) for code in np.unique(table["task"][rows]).tolist()]
    may_lag = all(policy.enable_partial_rollout and policy.max_staleness > 0 for policy in policies)
    is_seen_again = (table.previous[rows] >= 0).any() or (table["kind"] == _SAMPLE).any()
    went_on = (
        table.present("prior_len")[rows] & (table["prior_len"] > 0)[rows] & (table["prior_len"] < table["tokens"])[rows]
    )
    is_told = may_lag and not is_seen_again and int(np.count_nonzero(went_on)) >= LEAST_CONTINUED
    return bool(is_told) and len(np.unique(table["train_step"][rows])) >= _LEAST_STEPS
