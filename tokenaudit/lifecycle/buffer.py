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
from tokenaudit.lifecycle.members import Group, GroupMembers, MemberFacts, MembersPart
from tokenaudit.lifecycle.pool import Pool, Record, ReplayPolicy
from tokenaudit.lifecycle.staleness import (
    ExpiryPolicy,
    expires_by_token,
    is_too_old,
    newest_too_old,
    oldest_fresh_version,
)
from tokenaudit.lifecycle.types import Status

HELD_STATUSES = (Status.COMPLETED, Status.ABORTED, Status.EXPIRED)
"""The pools a task has."""


# Python 3.11 looks an enum's member up ten times as slowly as a global name, and these are asked for all the time.
_COMPLETED = Status.COMPLETED
_EXPIRED = Status.EXPIRED
_FAILED = Status.FAILED
_FILTERED = Status.FILTERED
_REFRESH = Where.REFRESH
_PUT = Where.PUT
_RESET = Fate.RESET
_DISCARDED = Fate.DISCARDED
_ARRIVED_EXPIRED = ExpiryReason.ARRIVED_EXPIRED
_SEQUENCE = ExpiryReason.SEQUENCE
_TOKEN = ExpiryReason.TOKEN


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
        measures = group.responses.measures
        task, group_id, status = group.task_name, group.group_id, measures.status
        events: list[LifecycleEvent] = [GroupPut(task, group_id, train_step, status, group.responses)]
        if status is _FAILED or status is _FILTERED:
            events.append(GroupRejected(task, group_id, status, group.responses))
            return events
        if self._clock is None:
            self._clock = train_step
        record = Record(group, status, self._next_timestamp)
        self._next_timestamp += 1
        _measure(record, self._policies[task])
        if not measures.has_expired and not _is_due(record, train_step):
            self._admit(record, status, measures.staleness_max(train_step))
            return events
        age = measures.staleness_max(train_step)
        event = self._expire(record, train_step, _PUT)
        events.append(event)
        if isinstance(event, GroupExpired) and event.fate is _RESET:
            self._admit(record, _EXPIRED, age)
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
            age = record.group.responses.measures.staleness_max(train_step)
            just_expired.add(record.timestamp)
            event = self._expire(record, train_step, _REFRESH)
            events.append(event)
            self._pools[record.group.task_name][record.status].remove(record)
            if isinstance(event, GroupExpired) and event.fate is _DISCARDED:
                self._forget(record)
            else:
                self._place(record, _EXPIRED, age)
                self._schedule(record)
        for record in unsettled:
            if record.timestamp in self._by_timestamp and record.timestamp not in just_expired:
                self._place(record, record.status, record.group.responses.measures.staleness_max(train_step))
        return events

    def take_batch(self, train_step: int, sizes: Mapping[str, int]) -> list[LifecycleEvent]:
        """Take the first completed groups of each task in order, at most `sizes` of them."""
        events: list[LifecycleEvent] = []
        for task, size in sizes.items():
            pool = self._pools[task][_COMPLETED]
            policy = self._policies[task]
            for _ in range(min(size, len(pool))):
                group = self._pop(pool).group
                threshold = policy.token_threshold(group.responses.measures.is_agentic)
                events.append(GroupTaken(task, group.group_id, train_step, threshold, group.responses))
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

    def responses_of(self, task_name: str, group_id: int) -> GroupMembers | None:
        """The members of a held group; None when it isn't held."""
        record = self._held.get((task_name, group_id))
        return None if record is None else record.group.responses

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
        members = group.responses
        newest_stale = newest_too_old(train_step, policy.stale_threshold)
        oldest_fresh = oldest_fresh_version(train_step, policy.token_threshold(members.measures.is_agentic))
        reasons = [_expiry_reason(facts, newest_stale, oldest_fresh) for facts in members.facts]
        is_expired = [reason is not None for reason in reasons]
        fate = _RESET if policy.retryable else _DISCARDED
        if fate is _RESET:
            group.responses = members.reset(is_expired)
            _measure(record, policy)
        if record.status is _EXPIRED and where is _REFRESH:
            is_new = [reason is not None and reason is not _ARRIVED_EXPIRED for reason in reasons]
            return MembersExpired(group.task_name, group.group_id, train_step, MembersPart(members, is_new))
        return GroupExpired(
            group.task_name,
            group.group_id,
            train_step,
            where,
            _group_reason(reasons),
            fate,
            MembersPart(members, is_expired),
            MembersPart(members, [reason is None for reason in reasons]),
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
    measures = record.group.responses.measures
    record.oldest = measures.oldest
    record.expiry_step = measures.expires_at(policy)


def _is_due(record: Record, train_step: int) -> bool:
    return record.expiry_step is not None and record.expiry_step <= train_step


def _expiry_reason(facts: MemberFacts, newest_stale: int, oldest_fresh: int) -> ExpiryReason | None:
    """Why a response is expired, given the newest version too old for a response and the oldest fresh for a token."""
    status, _, _, _, _, oldest, newest_trainable = facts
    if status is _EXPIRED:
        return _ARRIVED_EXPIRED
    if oldest is None:
        return None
    if is_too_old(oldest, newest_stale):
        return _SEQUENCE
    return _TOKEN if expires_by_token(newest_trainable, oldest_fresh) else None


def _group_reason(reasons: Collection[ExpiryReason | None]) -> ExpiryReason:
    """The reason of a group with an expired member: the first present of arrived expired, sequence, token."""
    for reason in (_ARRIVED_EXPIRED, _SEQUENCE):
        if reason in reasons:
            return reason
    return _TOKEN
