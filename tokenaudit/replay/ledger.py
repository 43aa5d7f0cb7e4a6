"""Counting: a fold of run events into step rows, and the conservation of tokens that every run must show."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import LedgerError
from tokenaudit.contracts.metrics import Metric, Total
from tokenaudit.lifecycle.events import (
    Fate,
    GroupExpired,
    GroupPut,
    GroupRejected,
    GroupTaken,
    LifecycleEvent,
    MembersExpired,
    Where,
)
from tokenaudit.lifecycle.staleness import ExpiryReason, count_fresh
from tokenaudit.lifecycle.types import Status
from tokenaudit.replay.events import PutReconciled, PutSkipped, RunEnded, RunEvent, StepClosed

Value = int | float | None
"""Value of a metric; floats are rewards, None is "there is none"."""

_LEFTOVERS = {
    Status.COMPLETED: m.LEFTOVER_COMPLETED,
    Status.ABORTED: m.LEFTOVER_ABORTED,
    Status.EXPIRED: m.LEFTOVER_EXPIRED,
}


# Python 3.11 looks an enum's member up ten times as slowly as a global name, and these are asked for all the time.
_FAILED = Status.FAILED
_FILTERED = Status.FILTERED
_SEQUENCE = ExpiryReason.SEQUENCE
_TOKEN = ExpiryReason.TOKEN
_RESET = Fate.RESET
_PUT = Where.PUT
_MAX = Total.MAX


@dataclass(slots=True)
class Account:
    """What was counted for one task in one row, or for several together.

    Attributes:
        counts: values by metric; a metric that is absent is 0.
        trained_by_staleness: trained tokens by staleness, in train steps.
        rewards: rewards that count, in order.
    """

    counts: dict[Metric, int] = field(default_factory=dict)
    trained_by_staleness: dict[int, int] = field(default_factory=dict)
    rewards: array[float] = field(default_factory=lambda: array("d"))

    def add(self, metric: Metric, amount: int) -> None:
        """Add to a count."""
        if amount:
            self.counts[metric] = self.counts.get(metric, 0) + amount

    def count(self, metric: Metric) -> int:
        """A count; 0 where nothing was counted."""
        return self.counts.get(metric, 0)

    def include(self, other: Account) -> None:
        """Add another account: of the same row and another task, or of a later row."""
        for metric, value in other.counts.items():
            if metric.total is _MAX:
                self.counts[metric] = max(value, self.counts.get(metric, value))
            else:
                self.counts[metric] = self.counts.get(metric, 0) + value
        for age, tokens in other.trained_by_staleness.items():
            self.trained_by_staleness[age] = self.trained_by_staleness.get(age, 0) + tokens
        self.rewards.extend(other.rewards)

    def value(self, metric: Metric) -> Value:
        """The value a row shows for a metric."""
        if metric in m.QUANTILES:
            return nearest_rank(self.trained_by_staleness, m.QUANTILES[metric])
        if metric is m.DROPPED_TOKENS:
            return sum(self.counts.get(part, 0) for part in m.DROPPED_PARTS)
        if metric is m.RAW_REWARDS_SUM:
            return math.fsum(self.rewards)
        if metric is m.RAW_REWARDS_COUNT:
            return len(self.rewards)
        return self.counts.get(metric, None if metric.total is _MAX else 0)


def nearest_rank(counts: dict[int, int], percent: int) -> int | None:
    """The smallest value that at least `percent` % of the counted items don't exceed; None of nothing."""
    total = sum(counts.values())
    if total == 0:
        return None
    rank = -(-percent * total // 100)
    for value in sorted(counts):
        rank -= counts[value]
        if rank <= 0:
            return value
    raise AssertionError("rank beyond the total")


@dataclass(slots=True)
class Row:
    """One step, or the tail.

    Attributes:
        train_step: the step; None for the tail.
        model_step: version in the engine at the take.
        accounts: what was counted, by task; a task without one had nothing.
        taken_group_ids: groups taken, by task, in order.
        expired_group_ids: groups that became expired, by task, in order.
        facts: what only the driver of the run knows of the step as a whole.
    """

    train_step: int | None = None
    model_step: int | None = None
    accounts: dict[str, Account] = field(default_factory=dict)
    taken_group_ids: dict[str, list[int]] = field(default_factory=dict)
    expired_group_ids: dict[str, list[int]] = field(default_factory=dict)
    facts: Mapping[Metric, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A whole run, counted.

    Attributes:
        tasks: task names in order.
        rows: one per step, in order.
        tail: what came after the last row.
        totals: rows and tail together, by task.
        left_out_puts: puts outside the steps of a simulated timeline.
    """

    tasks: tuple[str, ...]
    rows: tuple[Row, ...]
    tail: Row
    totals: dict[str, Account]
    left_out_puts: int


def count(events: Iterable[RunEvent], tasks: Sequence[str]) -> Ledger:
    """Fold a run's events into rows and check that no token is lost or counted twice.

    Raises:
        LedgerError: the account of a task doesn't close, which is a fault of tokenaudit.
    """
    rows: list[Row] = []
    counter = _Counter()
    ended: RunEnded | None = None
    for event in events:
        if isinstance(event, StepClosed):
            rows.append(counter.close(event))
        elif isinstance(event, RunEnded):
            ended = event
        else:
            counter.add(event)
    if ended is None:
        raise LedgerError("the run never ended")
    tail = counter.end(ended)
    totals = {task: _total(task, rows, tail) for task in tasks}
    for task, account in totals.items():
        account.add(m.HELD_TOKENS, ended.held_tokens[task])
        account.add(m.IN_FLIGHT_TOKENS, ended.in_flight_tokens[task])
        _check_conservation(task, account)
    return Ledger(tuple(tasks), tuple(rows), tail, totals, ended.left_out_puts)


def combined(accounts: Iterable[Account]) -> Account:
    """One account of several tasks."""
    total = Account()
    for account in accounts:
        total.include(account)
    return total


def _total(task: str, rows: Sequence[Row], tail: Row) -> Account:
    total = Account()
    for row in (*rows, tail):
        account = row.accounts.get(task)
        if account is not None:
            total.include(account)
    last = rows[-1].accounts.get(task) if rows else None
    for metric in m.LEVELS:
        total.counts[metric] = last.counts.get(metric, 0) if last else 0
    return total


def _check_conservation(task: str, account: Account) -> None:
    sources, fates = (sum(map(account.count, metrics)) for metrics in (m.LEDGER_SOURCES, m.LEDGER_FATES))
    if sources != fates:
        parts = {metric.name: account.count(metric) for metric in (*m.LEDGER_SOURCES, *m.LEDGER_FATES)}
        raise LedgerError(f"task {task!r}: {sources} tokens came in and {fates} are accounted for: {parts}")


class _Counter:
    """Counts events into the row that is open."""

    def __init__(self) -> None:
        self.row = Row()

    def add(self, event: LifecycleEvent | PutSkipped | PutReconciled) -> None:
        """Count one event."""
        account = self._account(event.task_name)
        if isinstance(event, GroupPut):
            _count_put(account, event)
        elif isinstance(event, GroupTaken):
            _count_taken(account, event)
            self.row.taken_group_ids.setdefault(event.task_name, []).append(event.group_id)
        elif isinstance(event, GroupExpired):
            _count_expired(account, event)
            self.row.expired_group_ids.setdefault(event.task_name, []).append(event.group_id)
        elif isinstance(event, GroupRejected):
            _count_rejected(account, event)
        elif isinstance(event, MembersExpired):
            account.add(m.RESET_TOKENS, event.expired.tokens)
        elif isinstance(event, PutReconciled):
            account.add(m.CARRIED_IN_TOKENS, event.carried_in_tokens)
            account.add(m.RESTARTED_TOKENS, event.restarted_tokens)
            account.add(m.REGENERATED_TOKENS, event.regenerated_tokens)
            account.add(m.COUNTERFACTUAL_TOKENS, event.counterfactual_tokens)
        elif isinstance(event, PutSkipped):
            account.add(m.AVOIDED_TOKENS, event.avoided_tokens)
            account.add(m.COUNTERFACTUAL_TOKENS, event.avoided_tokens)

    def close(self, step: StepClosed) -> Row:
        """End the open row and begin the next."""
        row = self.row
        row.train_step = step.train_step
        row.model_step = step.model_step
        for task, asked in step.asked.items():
            account = self._account(task)
            account.add(m.SHORTFALL_GROUPS, asked - account.count(m.TAKEN_GROUPS))
        for task, held in step.leftovers.items():
            if any(held.values()):
                account = self._account(task)
                for status, groups in held.items():
                    account.add(_LEFTOVERS[status], groups)
        self._add_facts(step)
        self.row = Row()
        return row

    def end(self, ended: RunEnded) -> Row:
        """End the tail."""
        self._add_facts(ended)
        return self.row

    def _add_facts(self, event: StepClosed | RunEnded) -> None:
        self.row.facts = event.step_facts
        for task, facts in event.task_facts.items():
            for metric, value in facts.items():
                if value:
                    self._account(task).add(metric, value)

    def _account(self, task: str) -> Account:
        account = self.row.accounts.get(task)
        if account is None:
            account = self.row.accounts[task] = Account()
        return account


def _count_put(account: Account, event: GroupPut) -> None:
    measures = event.responses.measures
    account.add(m.PUT_GROUPS, 1)
    account.add(m.PRODUCED_SAMPLES, measures.samples)
    account.add(m.PRODUCED_TOKENS, measures.new_tokens)
    if measures.is_completed or event.status is _FILTERED:
        account.rewards.extend(event.responses.rewards())


def _count_rejected(account: Account, event: GroupRejected) -> None:
    measures = event.responses.measures
    if event.status is _FAILED:
        account.add(m.FAILED_SAMPLES, measures.samples)
        account.add(m.FAILED_TOKENS, measures.tokens)
    else:
        account.add(m.FILTERED_SAMPLES, measures.samples)
        account.add(m.FILTERED_TOKENS, measures.tokens)


def _count_expired(account: Account, event: GroupExpired) -> None:
    account.add(m.EXPIRED_GROUPS, 1)
    account.add(m.EXPIRED_AT_PUT if event.where is _PUT else m.EXPIRED_AT_REFRESH, 1)
    if event.reason is _SEQUENCE:
        account.add(m.EXPIRED_BY_SEQUENCE, 1)
    elif event.reason is _TOKEN:
        account.add(m.EXPIRED_BY_TOKEN, 1)
    expired_tokens = event.expired.tokens
    if event.fate is _RESET:
        account.add(m.RESET_TOKENS, expired_tokens)
    else:
        account.add(m.DISCARDED_GROUPS, 1)
        account.add(m.DISCARDED_STALE_TOKENS, expired_tokens)
        account.add(m.DISCARDED_FRESH_TOKENS, event.fresh.tokens)


def _count_taken(account: Account, event: GroupTaken) -> None:
    train_step = event.train_step
    stale = count_fresh(
        event.responses.trainable_by_version(), train_step, event.token_stale_threshold, account.trained_by_staleness
    )
    measures = event.responses.measures
    account.add(m.TAKEN_GROUPS, 1)
    account.add(m.TAKEN_TOKENS, measures.tokens)
    account.add(m.TRAINED_TOKENS, measures.trainable_tokens - stale)
    account.add(m.MASKED_STALE_TOKENS, stale)
    account.add(m.MASKED_SEMANTIC_TOKENS, measures.tokens - measures.trainable_tokens)
    account.add(m.SEQ_STALENESS_SUM, measures.staleness_sum(train_step))
    if measures.samples:
        staleness_max = measures.staleness_max(train_step)
        known = account.counts.get(m.SEQ_STALENESS_MAX, staleness_max)
        account.counts[m.SEQ_STALENESS_MAX] = max(known, staleness_max)
