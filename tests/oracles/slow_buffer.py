"""The replay buffer as its contract reads, to check the fast one against.

Every refresh looks at every record, every staleness is counted again from the versions, and every order is a
`sorted()` over the whole pool. Only the event and response classes are those of the package.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenaudit.lifecycle.buffer import ReplayPolicy
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
from tokenaudit.lifecycle.members import Group, GroupMembers, MadeMembers
from tokenaudit.lifecycle.staleness import ExpiryPolicy, ExpiryReason
from tokenaudit.lifecycle.types import Response, Status


@dataclass(eq=False)
class SlowRecord:
    group: Group
    status: Status
    timestamp: int
    staleness: int = 0


def staleness(version: int, train_step: int) -> int:
    return train_step - version - 1


def versions_of(response: Response) -> list[int]:
    """The version of every token."""
    return [version for version, tokens, _ in response.runs for _ in range(tokens)]


def seq_staleness(response: Response, train_step: int) -> int:
    versions = versions_of(response)
    return staleness(min(versions), train_step) if versions else 0


def token_rule_applies(response: Response, group: Group, policy: ExpiryPolicy) -> bool:
    return (
        policy.token_stale_threshold is not None
        and not any(mate.agentic for mate in group.responses)
        and any(trainable for _, _, trainable in response.runs)
    )


def has_fresh_token(response: Response, policy: ExpiryPolicy, train_step: int) -> bool:
    """Whether a token is left in the effective mask."""
    assert policy.token_stale_threshold is not None
    return any(
        trainable and staleness(version, train_step) < policy.token_stale_threshold
        for version, _, trainable in response.runs
    )


def status_of_group(responses: GroupMembers) -> Status:
    statuses = [response.status for response in responses]
    if all(status is Status.COMPLETED for status in statuses):
        return Status.COMPLETED
    for status in (Status.FAILED, Status.ABORTED, Status.EXPIRED, Status.FILTERED):
        if status in statuses:
            return status
    return Status.COMPLETED


class SlowBuffer:
    """See `tokenaudit.lifecycle.buffer.ReplayBuffer`."""

    def __init__(self, policies: Mapping[str, ExpiryPolicy], replay_policy: ReplayPolicy) -> None:
        self.policies = policies
        self.replay_policy = replay_policy
        self.records: list[SlowRecord] = []
        self.puts = 0

    def put(self, group: Group, train_step: int) -> list[LifecycleEvent]:
        status = status_of_group(group.responses)
        task, group_id, members = group.task_name, group.group_id, group.responses
        events: list[LifecycleEvent] = [GroupPut(task, group_id, train_step, status, members)]
        if status in (Status.FAILED, Status.FILTERED):
            return [*events, GroupRejected(task, group_id, status, members)]
        self.puts += 1
        record = SlowRecord(group, status, self.puts)
        events += self.apply(record, train_step, Where.PUT)
        if not any(isinstance(event, GroupExpired) and event.fate is Fate.DISCARDED for event in events):
            self.records.append(record)
        return events

    def refresh_staleness(self, train_step: int) -> list[LifecycleEvent]:
        events: list[LifecycleEvent] = []
        for record in sorted(self.records, key=lambda record: record.timestamp):
            happened = self.apply(record, train_step, Where.REFRESH)
            if any(isinstance(event, GroupExpired) and event.fate is Fate.DISCARDED for event in happened):
                self.records.remove(record)
            events += happened
        return events

    def apply(self, record: SlowRecord, train_step: int, where: Where) -> list[LifecycleEvent]:
        """The five steps of the contract's section 4; the record is discarded if the event says so."""
        group, policy = record.group, self.policies[record.group.task_name]
        record.staleness = max(seq_staleness(response, train_step) for response in group.responses)
        reasons: list[ExpiryReason | None] = []
        for response in group.responses:
            if response.status is Status.EXPIRED:
                reasons.append(ExpiryReason.ARRIVED_EXPIRED)
            elif seq_staleness(response, train_step) >= policy.stale_threshold:
                reasons.append(ExpiryReason.SEQUENCE)
            elif token_rule_applies(response, group, policy) and not has_fresh_token(response, policy, train_step):
                reasons.append(ExpiryReason.TOKEN)
            else:
                reasons.append(None)
        if not any(reasons):
            return []
        members = list(zip(group.responses, reasons, strict=True))
        expired = tuple(response for response, reason in members if reason is not None)
        fresh = tuple(response for response, reason in members if reason is None)
        waits_as_expired = where is Where.REFRESH and record.status is Status.EXPIRED
        record.status = Status.EXPIRED
        if policy.tail_batch_trigger_size >= 0:
            group.responses = MadeMembers(
                tuple(response if reason is None else reset(response) for response, reason in members)
            )
        if waits_as_expired:
            new = [(r, why) for r, why in members if why in (ExpiryReason.SEQUENCE, ExpiryReason.TOKEN)]
            newly, of_new = (tuple(column) for column in zip(*new, strict=True)) if new else ((), ())
            return [MembersExpired(group.task_name, group.group_id, train_step, newly, of_new)] if newly else []
        reason = next(reason for reason in REASON_ORDER if reason in reasons)
        fate = Fate.RESET if policy.tail_batch_trigger_size >= 0 else Fate.DISCARDED
        of_expired = tuple(reason for reason in reasons if reason is not None)
        return [
            GroupExpired(group.task_name, group.group_id, train_step, where, reason, fate, expired, fresh, of_expired)
        ]

    def order(self, task_name: str, status: Status) -> list[SlowRecord]:
        pool = [record for record in self.records if (record.group.task_name, record.status) == (task_name, status)]
        if self.replay_policy is ReplayPolicy.FIFO:
            return sorted(pool, key=lambda record: record.timestamp)
        return sorted(pool, key=lambda record: (-record.staleness, record.timestamp))

    def take_batch(self, train_step: int, sizes: Mapping[str, int]) -> list[LifecycleEvent]:
        events: list[LifecycleEvent] = []
        for task, size in sizes.items():
            for record in self.order(task, Status.COMPLETED)[:size]:
                self.records.remove(record)
                group = record.group
                is_agentic = any(response.agentic for response in group.responses)
                threshold = None if is_agentic else self.policies[task].token_stale_threshold
                events.append(GroupTaken(task, group.group_id, train_step, threshold, group.responses))
        return events

    def sample(self, task_name: str, status: Status) -> list[LifecycleEvent]:
        first = self.order(task_name, status)[:1]
        return [event for record in first for event in self.withdraw(task_name, record.group.group_id)]

    def withdraw(self, task_name: str, group_id: int) -> list[LifecycleEvent]:
        record = self.find(task_name, group_id)
        if record is None:
            return []
        self.records.remove(record)
        return [GroupSampled(task_name, group_id, record.status, record.group.responses)]

    def find(self, task_name: str, group_id: int) -> SlowRecord | None:
        return next((record for record in self.records if record.group.key == (task_name, group_id)), None)

    def held(self, task_name: str, group_id: int) -> tuple[Status, GroupMembers] | None:
        record = self.find(task_name, group_id)
        return None if record is None else (record.status, record.group.responses)

    def count(self, task_name: str, status: Status) -> int:
        return len(self.order(task_name, status))

    def held_groups(self) -> Iterator[Group]:
        return (record.group for record in sorted(self.records, key=lambda record: record.timestamp))


REASON_ORDER = (ExpiryReason.ARRIVED_EXPIRED, ExpiryReason.SEQUENCE, ExpiryReason.TOKEN)


def reset(response: Response) -> Response:
    """No tokens, no versions, no mask, no reward; `agentic` stays."""
    return Response(
        response.rollout_id, Status.EXPIRED, (), segment=response.segment, agentic=response.agentic, reward=None
    )
