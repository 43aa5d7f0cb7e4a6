"""The replay buffer: put, refresh_staleness, take_batch and sample change its state and return events.

Cost follows what changes. Versions do not change while a group is held, so the step at which its next member
expires is known at put; a refresh looks only at groups whose step has come.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping

from tokenaudit.lifecycle.events import (
    ExpiryReason,
    Fate,
    GroupExpired,
    GroupPut,
    GroupRejected,
    GroupSampled,
    GroupTaken,
    LifecycleEvent,
    MembersExpired,
    Where,
)
from tokenaudit.lifecycle.policies import ExpiryPolicy, ReplayPolicy
from tokenaudit.lifecycle.pool import Pool, Record
from tokenaudit.lifecycle.staleness import newest_too_old, staleness, too_old_from
from tokenaudit.lifecycle.types import Group, Response, Status, group_status

HELD_STATUSES = (Status.COMPLETED, Status.ABORTED, Status.EXPIRED)
"""The pools a task has."""


class ReplayBuffer:
    """Groups waiting to be trained or generated again.

    Args:
        policies: the expiry policy of every task that will be put.
        replay_policy: the order in which groups leave a pool.

    A group is held at most once: the caller withdraws it before it puts it again.
    """

    def __init__(self, policies: Mapping[str, ExpiryPolicy], replay_policy: ReplayPolicy) -> None:
        self._policies = dict(policies)
        self._by_staleness = replay_policy is ReplayPolicy.STALENESS
        self._pools = {task: {status: Pool() for status in HELD_STATUSES} for task in policies}
        self._held: dict[tuple[str, int], Record] = {}
        self._by_timestamp: dict[int, Record] = {}
        self._next_timestamp = 0
        self._clock: int | None = None
        self._due: dict[int, list[int]] = {}
        self._due_steps: list[int] = []
        self._unsettled: list[Record] = []

    def put(self, group: Group, train_step: int) -> list[LifecycleEvent]:
        """Take in a group whose tokens all carry a version.

        A failed or filtered group is discarded. Otherwise what is too old at `train_step` expires at once and
        the rest waits in the pool of its status.
        """
        status = group_status(group.responses)
        task, group_id = group.task_name, group.group_id
        events: list[LifecycleEvent] = [GroupPut(task, group_id, train_step, status, group.responses)]
        if status is Status.FAILED or status is Status.FILTERED:
            events.append(GroupRejected(task, group_id, status, group.responses))
            return events
        if self._clock is None:
            self._clock = train_step
        record = Record(group, status, self._next_timestamp)
        self._next_timestamp += 1
        _measure(record, self._policies[task])
        arrived_expired = Status.EXPIRED in [response.status for response in group.responses]
        if not arrived_expired and not _is_due(record, train_step):
            self._admit(record, status, _record_staleness(record, train_step))
            return events
        age = _record_staleness(record, train_step)
        event = self._expire(record, train_step, Where.PUT)
        events.append(event)
        if isinstance(event, GroupExpired) and event.fate is Fate.RESET:
            self._admit(record, Status.EXPIRED, age)
        return events

    def refresh_staleness(self, train_step: int) -> list[LifecycleEvent]:
        """Expire, in the order of the puts, what is too old at `train_step`."""
        moved_back = self._clock is not None and train_step < self._clock
        self._clock = train_step
        unsettled = list(self._by_timestamp.values()) if moved_back and self._by_staleness else self._unsettled
        self._unsettled = []
        events: list[LifecycleEvent] = []
        just_expired: set[int] = set()
        for record in self._pop_due(train_step):
            age = _record_staleness(record, train_step)
            just_expired.add(record.timestamp)
            event = self._expire(record, train_step, Where.REFRESH)
            events.append(event)
            self._pools[record.group.task_name][record.status].remove(record)
            if isinstance(event, GroupExpired) and event.fate is Fate.DISCARDED:
                self._forget(record)
            else:
                self._place(record, Status.EXPIRED, age)
                self._schedule(record)
        for record in unsettled:
            if record.timestamp in self._by_timestamp and record.timestamp not in just_expired:
                self._place(record, record.status, _record_staleness(record, train_step))
        return events

    def take_batch(self, train_step: int, sizes: Mapping[str, int]) -> list[LifecycleEvent]:
        """Take the first completed groups of each task in order, at most `sizes` of them."""
        events: list[LifecycleEvent] = []
        for task, size in sizes.items():
            pool = self._pools[task][Status.COMPLETED]
            threshold = self._policies[task].token_stale_threshold
            for _ in range(min(size, len(pool))):
                group = self._pop(pool).group
                applies = None if group.is_agentic else threshold
                events.append(GroupTaken(task, group.group_id, train_step, applies, group.responses))
        return events

    def sample(self, task_name: str, status: Status) -> list[LifecycleEvent]:
        """Take the first group of a pool in order, to be generated again; no event when the pool is empty."""
        pool = self._pools[task_name][status]
        if not pool:
            return []
        group = self._pop(pool).group
        return [GroupSampled(task_name, group.group_id, status, group.responses)]

    def withdraw(self, task_name: str, group_id: int) -> list[LifecycleEvent]:
        """Take one named group out of its pool, to be generated again; no event when it isn't held."""
        record = self._held.get((task_name, group_id))
        if record is None:
            return []
        self._pools[task_name][record.status].remove(record)
        self._forget(record)
        return [GroupSampled(task_name, group_id, record.status, record.group.responses)]

    def status_of(self, task_name: str, group_id: int) -> Status | None:
        """The pool a group is held in; None when it isn't held."""
        record = self._held.get((task_name, group_id))
        return None if record is None else record.status

    def responses_of(self, task_name: str, group_id: int) -> tuple[Response, ...]:
        """The members of a held group; empty when it isn't held."""
        record = self._held.get((task_name, group_id))
        return () if record is None else record.group.responses

    def count(self, task_name: str, status: Status) -> int:
        """Groups in a pool."""
        return len(self._pools[task_name][status])

    def held_groups(self) -> Iterator[Group]:
        """All held groups, in the order of the puts."""
        return (record.group for record in self._by_timestamp.values())

    def _expire(self, record: Record, train_step: int, where: Where) -> GroupExpired | MembersExpired:
        """Settle a record with at least one expired member, old or new; updates its group."""
        group = record.group
        policy = self._policies[group.task_name]
        token_threshold = None if group.is_agentic else policy.token_stale_threshold
        newest_stale = newest_too_old(train_step, policy.stale_threshold)
        newest_stale_token = None if token_threshold is None else newest_too_old(train_step, token_threshold)
        reasons = [_expiry_reason(response, newest_stale, newest_stale_token) for response in group.responses]
        pairs = list(zip(group.responses, reasons, strict=True))
        fate = Fate.RESET if policy.retryable else Fate.DISCARDED
        if fate is Fate.RESET:
            group.responses = tuple([response if reason is None else response.reset() for response, reason in pairs])
            _measure(record, policy)
        expired = tuple([response for response, reason in pairs if reason is not None])
        if record.status is Status.EXPIRED and where is Where.REFRESH:
            newly_expired = tuple([response for response in expired if response.status is not Status.EXPIRED])
            return MembersExpired(group.task_name, group.group_id, train_step, newly_expired)
        return GroupExpired(
            group.task_name,
            group.group_id,
            train_step,
            where,
            _group_reason(reasons),
            fate,
            expired,
            tuple([response for response, reason in pairs if reason is None]),
        )

    def _admit(self, record: Record, status: Status, age: int) -> None:
        self._held[record.group.key] = record
        self._by_timestamp[record.timestamp] = record
        self._place(record, status, age)
        self._schedule(record)

    def _place(self, record: Record, status: Status, age: int) -> None:
        """Put a record of staleness `age` into its pool, in order.

        `aging_from` is the version that staleness counts from at the current clock. Where it isn't the record's
        oldest version (it was put at another step, or has just lost tokens), the next refresh settles it.
        """
        record.status = status
        pool = self._pools[record.group.task_name][status]
        if not self._by_staleness or (record.oldest is None and age == 0):
            record.aging_from = None
        else:
            assert self._clock is not None
            record.aging_from = self._clock - age - 1
            if record.aging_from != record.oldest:
                self._unsettled.append(record)
        pool.add(record)

    def _schedule(self, record: Record) -> None:
        step = record.expiry_step
        if step is None:
            return
        waiting = self._due.get(step)
        if waiting is None:
            self._due[step] = [record.timestamp]
            heapq.heappush(self._due_steps, step)
        else:
            waiting.append(record.timestamp)

    def _pop_due(self, train_step: int) -> list[Record]:
        timestamps: list[int] = []
        while self._due_steps and self._due_steps[0] <= train_step:
            timestamps.extend(self._due.pop(heapq.heappop(self._due_steps)))
        timestamps.sort()
        records = (self._by_timestamp.get(timestamp) for timestamp in timestamps)
        return [record for record in records if record is not None]

    def _pop(self, pool: Pool) -> Record:
        assert self._clock is not None
        record = pool.pop_first(self._clock)
        self._forget(record)
        return record

    def _forget(self, record: Record) -> None:
        del self._held[record.group.key]
        del self._by_timestamp[record.timestamp]


def _measure(record: Record, policy: ExpiryPolicy) -> None:
    """Set what follows from the members' versions: the oldest of them, and when the next member expires."""
    group = record.group
    threshold = policy.stale_threshold
    token_threshold = None if group.is_agentic else policy.token_stale_threshold
    oldest: int | None = None
    # Of the members that can still expire, the one with the smallest version does so first.
    oldest_alive: int | None = None
    newest_trainable: int | None = None
    for response in group.responses:
        version = response.oldest
        if version is None:
            continue
        if oldest is None or version < oldest:
            oldest = version
        if response.status is Status.EXPIRED:
            continue
        if oldest_alive is None or version < oldest_alive:
            oldest_alive = version
        version = response.newest_trainable
        if version is not None and (newest_trainable is None or version < newest_trainable):
            newest_trainable = version
    expiry = None if oldest_alive is None else too_old_from(oldest_alive, threshold)
    if token_threshold is not None and newest_trainable is not None:
        token_expiry = too_old_from(newest_trainable, token_threshold)
        expiry = token_expiry if expiry is None else min(expiry, token_expiry)
    record.oldest = oldest
    record.expiry_step = expiry


def _is_due(record: Record, train_step: int) -> bool:
    return record.expiry_step is not None and record.expiry_step <= train_step


def _record_staleness(record: Record, train_step: int) -> int:
    """The largest staleness of its members, where a member without tokens counts as 0."""
    if record.oldest is None:
        return 0
    age = staleness(record.oldest, train_step)
    if age < 0 and any(response.oldest is None for response in record.group.responses):
        return 0
    return age


def _expiry_reason(response: Response, newest_stale: int, newest_stale_token: int | None) -> ExpiryReason | None:
    """Why a response is expired, given the newest versions that are too old for responses and for tokens."""
    if response.status is Status.EXPIRED:
        return ExpiryReason.ARRIVED_EXPIRED
    if response.oldest is None:
        return None
    if response.oldest <= newest_stale:
        return ExpiryReason.SEQUENCE
    if newest_stale_token is None or response.newest_trainable is None:
        return None
    return ExpiryReason.TOKEN if response.newest_trainable <= newest_stale_token else None


def _group_reason(reasons: Collection[ExpiryReason | None]) -> ExpiryReason:
    """The reason of a group with an expired member: the first present of arrived expired, sequence, token."""
    for reason in (ExpiryReason.ARRIVED_EXPIRED, ExpiryReason.SEQUENCE):
        if reason in reasons:
            return reason
    return ExpiryReason.TOKEN
