"""The history of one group, read from the events of a replay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from tokenaudit.config.model import Config
from tokenaudit.contracts.errors import Problem, UsageError, nearest_hint
from tokenaudit.contracts.schema import EventKind
from tokenaudit.explain.history import EntryKind, GroupHistory, HistoryEntry, Member, MemberOutcome
from tokenaudit.explain.losses import Losses
from tokenaudit.lifecycle.events import (
    Fate,
    GroupExpired,
    GroupPut,
    GroupRejected,
    GroupSampled,
    GroupTaken,
    MembersExpired,
    Where,
)
from tokenaudit.lifecycle.members import GroupMembers
from tokenaudit.lifecycle.staleness import ExpiryReason, is_fresh, oldest_fresh_version, staleness
from tokenaudit.lifecycle.types import Response, Status
from tokenaudit.log.digest import KINDS, Digest
from tokenaudit.replay.events import HeldGroups, Key, PutReconciled, PutSkipped, RunEnded, RunEvent, StepClosed
from tokenaudit.replay.open_loop import replay, timeline_of
from tokenaudit.replay.request import TimelineKind


def group_history(digest: Digest, config: Config, task: str, group_id: int) -> GroupHistory:
    """Replay a log and collect what happens to one group.

    Raises:
        UsageError: the log never puts such a group, or can't be replayed this way.
        ConfigError: the log can't be replayed under this config.
    """
    _require_group(digest, task, group_id)
    recorder = _HistoryRecorder(digest, config, (task, group_id))
    for event in replay(digest, config, on_log_event=recorder.at):
        recorder.observe(event)
    policy = config.expiry_policy(task)
    return GroupHistory(
        task,
        group_id,
        policy.stale_threshold,
        policy.token_stale_threshold,
        policy.retryable,
        config.buffer.replay_policy,
        recorder.losses.groups.get((task, group_id)),
        recorder.trained_tokens,
        tuple(recorder.entries),
        recorder.ending(),
    )


def _require_group(digest: Digest, task: str, group_id: int) -> None:
    if task not in digest.tasks:
        hint = nearest_hint(task, digest.tasks, "tasks")
        raise UsageError(Problem(f"the log has no task {task!r}", digest.name, hint))
    events = digest.events
    is_put = events.kind == KINDS.index(EventKind.PUT)
    ids = sorted(set(events.group_id[is_put & (events.task == digest.tasks.index(task))].tolist()))
    place = bisect_left(ids, group_id)
    if ids[place : place + 1] == [group_id]:
        return
    others = [digest.tasks[code] for code in sorted(set(events.task[is_put & (events.group_id == group_id)].tolist()))]
    if others:
        hint = f"did you mean {' or '.join(f'{other}/{group_id}' for other in others[:3])}?"
    elif len(ids):
        near = " and ".join(map(str, ids[max(place - 1, 0) : place + 1]))
        hint = f"its groups have ids from {ids[0]} to {ids[-1]}; near: {near}"
    else:
        hint = "it has no put"
    raise UsageError(Problem(f"the log never puts group {group_id} of task {task!r}", digest.name, hint))


class _HistoryRecorder:
    """Listens to a replay and keeps what concerns one group."""

    def __init__(self, digest: Digest, config: Config, key: Key) -> None:
        self.entries: list[HistoryEntry] = []
        self.losses = Losses(config)
        self.trained_tokens = 0
        self._digest = digest
        self._key = key
        self._policy = config.expiry_policy(key[0])
        self._held = HeldGroups()
        self._simulated = timeline_of(digest) is TimelineKind.SIMULATED
        self._refreshed: int | None = None
        self._aged_at: int | None = None
        self._put_step: int | None = None
        self._fixed: tuple[int, int] | None = None
        self._last_take: int | None = None
        self._restarted = 0
        self._end = ""

    def at(self, log_event: int) -> None:
        """The next log event is about to be followed."""
        self._settle()
        events = self._digest.events
        kind = KINDS[int(events.kind[log_event])]
        step = int(events.train_step[log_event])
        if kind is EventKind.REFRESH:
            self._refreshed = step
        elif kind is EventKind.PUT:
            self._put_step = step
        elif kind is EventKind.SAMPLE and self._is_own(log_event):
            status = self._held.status(self._key)
            if status is None or status is Status.COMPLETED:
                why = "it is not held" if status is None else "it waits as completed"
                self._add_held(EntryKind.NOT_SAMPLED, None, detail=why)

    def observe(self, event: RunEvent) -> None:
        """The next event of the run."""
        if isinstance(event, RunEnded):
            self._settle()
            return
        if isinstance(event, StepClosed):
            self._observe_step(event)
            return
        if (event.task_name, event.group_id) == self._key:
            self._observe_own(event)
            self.losses.observe(event)
        self._held.observe(event)

    def ending(self) -> str:
        """Where the group is in the end."""
        held = self._held.get(self._key)
        if held is None:
            return self._end
        return f"held as {held.status} with {held.responses.measures.tokens:,} tokens"

    def _is_own(self, log_event: int) -> bool:
        events = self._digest.events
        return (self._digest.tasks[int(events.task[log_event])], int(events.group_id[log_event])) == self._key

    def _settle(self) -> None:
        """A refresh that has done nothing to the group is an entry of waiting."""
        step, self._refreshed = self._refreshed, None
        if step is not None and self._key in self._held and step != self._aged_at:
            self._add_held(EntryKind.WAITED, step)

    def _observe_step(self, event: StepClosed) -> None:
        if self._held.status(self._key) is Status.COMPLETED:
            self._last_take = event.train_step
        if self._simulated and self._key in self._held and event.train_step != self._aged_at:
            self._add_held(EntryKind.WAITED, event.train_step)

    def _observe_own(self, event: RunEvent) -> None:
        if isinstance(event, PutReconciled):
            self._restarted = event.restarted_tokens
        elif isinstance(event, GroupPut):
            self._last_take = None
            self._add(EntryKind.PUT, event.train_step, event.responses, detail=f"as {event.status}")
        elif isinstance(event, PutSkipped):
            was = "it waits as completed" if self._key in self._held else "it was taken before"
            self._add_held(EntryKind.SKIPPED, self._put_step, detail=f"{was}; {event.avoided_tokens:,} tokens avoided")
        elif isinstance(event, GroupRejected):
            self._end = f"discarded as {event.status}"
            self._add(EntryKind.REJECTED, self._put_step, event.responses, detail=f"as {event.status}")
        elif isinstance(event, GroupExpired):
            self._observe_expired(event)
        elif isinstance(event, MembersExpired):
            self._refreshed = None
            members = tuple(_member(r, event.train_step, MemberOutcome.RESET) for r in event.expired)
            self.entries.append(HistoryEntry(EntryKind.MORE_EXPIRED, event.train_step, members))
        elif isinstance(event, GroupSampled):
            self._end = "in generation"
            self._add(EntryKind.SAMPLED, None, event.responses, detail=f"from the {event.status} pool")
        elif isinstance(event, GroupTaken):
            self._end = f"taken at step {event.train_step}"
            self.trained_tokens += event.responses.measures.trainable_tokens - event.stale_tokens()
            self.entries.append(HistoryEntry(EntryKind.TAKEN, event.train_step, tuple(_taken_members(event))))

    def _observe_expired(self, event: GroupExpired) -> None:
        self._refreshed, self._aged_at = None, event.train_step
        outcomes = _OUTCOMES[event.fate]
        by_key = {r.key: outcomes[0] for r in event.expired} | {r.key: outcomes[1] for r in event.fresh}
        order = self._held.get(self._key)
        responses = order.responses if order is not None else (*event.expired, *event.fresh)
        members = tuple(_member(r, event.train_step, by_key.get(r.key)) for r in responses)
        self._end = "discarded as expired" if event.fate is Fate.DISCARDED else ""
        self.entries.append(
            HistoryEntry(
                EntryKind.EXPIRED,
                event.train_step,
                members,
                detail=f"{_WHERE[event.where]}, {_REASONS[event.reason]}",
                fixed_at=None if self._fixed is None else self._fixed[1],
                last_chance=self._last_take,
            )
        )

    def _add_held(self, kind: EntryKind, train_step: int | None, detail: str = "") -> None:
        held = self._held.get(self._key)
        self._add(kind, train_step, held.responses if held else None, detail=detail)

    def _add(self, kind: EntryKind, train_step: int | None, responses: GroupMembers | None, detail: str) -> None:
        expires_at = None
        if responses is not None and kind in (EntryKind.PUT, EntryKind.WAITED):
            self._aged_at = train_step
            expires_at = responses.measures.expires_at(self._policy)
        if kind is EntryKind.PUT and expires_at is not None and train_step is not None:
            if self._fixed is None or self._fixed[0] != expires_at:
                self._fixed = (expires_at, train_step)
        elif kind is EntryKind.PUT:
            self._fixed = None
        members = tuple(_member(response, train_step) for response in responses or ())
        self.entries.append(HistoryEntry(kind, train_step, members, expires_at, detail, self._restarted))
        self._restarted = 0


_OUTCOMES = {
    Fate.RESET: (MemberOutcome.RESET, MemberOutcome.KEPT),
    Fate.DISCARDED: (MemberOutcome.STALE_LOST, MemberOutcome.FRESH_LOST),
}
_WHERE = {Where.PUT: "at the put", Where.REFRESH: "at the refresh"}
_REASONS = {
    ExpiryReason.SEQUENCE: "a whole response is too old",
    ExpiryReason.TOKEN: "a response has no fresh token left to train",
    ExpiryReason.ARRIVED_EXPIRED: "a member was put as expired",
}


def _member(response: Response, train_step: int | None, outcome: MemberOutcome | None = None) -> Member:
    age = None
    if train_step is not None and response.oldest is not None:
        age = staleness(response.oldest, train_step)
    return Member(response.rollout_id, response.segment, response.status, response.runs, age, outcome)


def _taken_members(event: GroupTaken) -> Iterator[Member]:
    oldest = oldest_fresh_version(event.train_step, event.token_stale_threshold)
    for response in event.responses:
        is_trained = any(trainable and is_fresh(version, oldest) for version, _, trainable in response.runs)
        yield _member(response, event.train_step, MemberOutcome.TRAINED if is_trained else MemberOutcome.MASKED)
