"""The replay buffer: put, refresh_staleness, take_batch and sample change its state and return events.

Cost follows what changes. Versions do not change while a group is held, so the step at which its next member
expires is known at put; a refresh looks only at groups whose step has come. Staleness grows by one a step for every
record at the same time, so the order by oldest version stands still while ages grow. Only records whose staleness is
pinned at 0 (no member has a token) move against the others; they have a heap of their own.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from enum import StrEnum

from tokenaudit.lifecycle.events import (
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
from tokenaudit.lifecycle.members import Group, GroupMembers, MembersPart
from tokenaudit.lifecycle.staleness import (
    ExpiryPolicy,
    ExpiryReason,
    expiry_reason,
    group_reason,
    newest_too_old,
    oldest_fresh_version,
)
from tokenaudit.lifecycle.types import Status

_SLACK = 64


class ReplayPolicy(StrEnum):
    """The order in which records leave a pool."""

    STALENESS = "staleness"
    """Largest record staleness first, then the order of the puts: uses old data before it expires."""
    FIFO = "fifo"
    """The order of the puts."""


class Record:
    """A group in the buffer.

    Attributes:
        group: the group.
        status: the pool it is in.
        timestamp: place in the order of the puts.
        aging_from: the version its staleness counts from; None while the staleness is pinned at 0.
        expiry_step: the train step at which its next member expires; None when none ever does.
    """

    __slots__ = ("aging_from", "expiry_step", "group", "status", "timestamp")

    def __init__(self, group: Group, status: Status, timestamp: int, expiry_step: int | None) -> None:
        self.group = group
        self.status = status
        self.timestamp = timestamp
        self.aging_from: int | None = None
        self.expiry_step = expiry_step


class Pool:
    """Records in policy order: the stalest first, then by timestamp; pinned ones count as staleness 0.

    Heap entries of records that left or moved stay behind until they surface, or until they outnumber the
    records.
    """

    __slots__ = ("_aging", "_pinned", "_records")

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._aging: list[tuple[int, int]] = []
        self._pinned: list[int] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        """Hold a record; call again after its `aging_from` changed."""
        timestamp = record.timestamp
        self._records[timestamp] = record
        if record.aging_from is None:
            heapq.heappush(self._pinned, timestamp)
        else:
            heapq.heappush(self._aging, (record.aging_from, timestamp))
        if len(self._aging) + len(self._pinned) > 2 * len(self._records) + _SLACK:
            self._rebuild()

    def remove(self, record: Record) -> None:
        """Forget a record."""
        del self._records[record.timestamp]

    def pop_first(self, clock: int) -> Record:
        """Remove and return the first record in order.

        Args:
            clock: the train step that staleness is counted at.

        Raises:
            IndexError: the pool is empty.
        """
        records, aging, pinned = self._records, self._aging, self._pinned
        while aging and not _is_current(records.get(aging[0][1]), aging[0][0]):
            heapq.heappop(aging)
        while pinned and not _is_current(records.get(pinned[0]), None):
            heapq.heappop(pinned)
        if pinned and (not aging or (clock - 1, pinned[0]) < aging[0]):
            return records.pop(heapq.heappop(pinned))
        return records.pop(heapq.heappop(aging)[1])

    def _rebuild(self) -> None:
        self._aging = [
            (record.aging_from, timestamp)
            for timestamp, record in self._records.items()
            if record.aging_from is not None
        ]
        self._pinned = [timestamp for timestamp, record in self._records.items() if record.aging_from is None]
        heapq.heapify(self._aging)
        heapq.heapify(self._pinned)


def _is_current(record: Record | None, aging_from: int | None) -> bool:
    return record is not None and record.aging_from == aging_from


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
        age, expiry_step = measures.staleness_max(train_step), measures.expires_at(self._policies[task])
        record = Record(group, status, self._next_timestamp, expiry_step)
        self._next_timestamp += 1
        if not measures.has_expired and (expiry_step is None or expiry_step > train_step):
            self._admit(record, status, age)
            return events
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

    def held(self, task_name: str, group_id: int) -> tuple[Status, GroupMembers] | None:
        """The pool a group is held in, and its members; None when it isn't held."""
        record = self._held.get((task_name, group_id))
        return None if record is None else (record.status, record.group.responses)

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
        reasons = [
            expiry_reason(status, oldest, newest_trainable, newest_stale, oldest_fresh)
            for status, _, _, _, _, oldest, newest_trainable in members.facts
        ]
        is_expired = [reason is not None for reason in reasons]
        fate = _RESET if policy.retryable else _DISCARDED
        if fate is _RESET:
            group.responses = members.reset(is_expired)
            record.expiry_step = group.responses.measures.expires_at(policy)
        if record.status is _EXPIRED and where is _REFRESH:
            is_new = [reason is not None and reason is not _ARRIVED_EXPIRED for reason in reasons]
            of_new = tuple([reason for reason in reasons if reason is not None and reason is not _ARRIVED_EXPIRED])
            return MembersExpired(group.task_name, group.group_id, train_step, MembersPart(members, is_new), of_new)
        return GroupExpired(
            group.task_name,
            group.group_id,
            train_step,
            where,
            group_reason(reasons),
            fate,
            MembersPart(members, is_expired),
            MembersPart(members, [reason is None for reason in reasons]),
            tuple([reason for reason in reasons if reason is not None]),
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
        group = record.group
        pool, oldest = self._pools[group.task_name][status], group.responses.measures.oldest
        if not self._by_staleness or (oldest is None and age == 0):
            record.aging_from = None
        else:
            assert self._clock is not None
            record.aging_from = self._clock - age - 1
            if record.aging_from != oldest:
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
