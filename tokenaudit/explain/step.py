"""One step of a run: who was taken, who expired, who waits; its sums are those of the step's row."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenaudit.config.model import Config
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.events import GroupExpired, GroupTaken, MembersExpired
from tokenaudit.lifecycle.staleness import staleness
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.digest import KIND_CODE, Digest
from tokenaudit.replay.events import HeldGroups, RunEvent, StepClosed
from tokenaudit.replay.ledger import Account, Row, combined, count
from tokenaudit.replay.open_loop import replay, run_tasks
from tokenaudit.replay.result import no_such_step
from tokenaudit.replay.session import observed

_REFRESH = KIND_CODE[EventKind.REFRESH]


@dataclass(frozen=True, slots=True)
class TakenGroup:
    """A group of the batch: its largest staleness, its tokens, those trained and those masked as stale."""

    task: str
    group_id: int
    age: int
    tokens: int
    trained: int
    stale: int


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """A group left in a pool after the take: its tokens, and the step at which its next member expires."""

    task: str
    group_id: int
    status: Status
    tokens: int
    expires_at: int | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step.

    Attributes:
        row: what the run counted for the step, by task.
        asked: groups asked for, by task.
        taken: the batch, in order.
        expired: groups that became expired since the step before, and members that did so in groups that waited as
            expired already, in order.
        waiting: what is left right after the take, the next to expire first.
    """

    row: Row
    asked: dict[str, int]
    taken: tuple[TakenGroup, ...]
    expired: tuple[GroupExpired | MembersExpired, ...]
    waiting: tuple[WaitingGroup, ...]

    @property
    def total(self) -> Account:
        """What the run counted for all tasks together."""
        return combined(self.row.accounts.values())


def step_report(digest: Digest, config: Config, train_step: int) -> StepReport:
    """Replay a log and report one step.

    Raises:
        UsageError: the run has no such step, or the log can't be replayed this way.
        ConfigError: the log can't be replayed under this config.
    """
    follower = _Follower(digest, train_step)
    events = replay(digest, config, on_log_event=follower.at)
    ledger = count(observed(events, follower.observe), run_tasks(digest, config))
    closed = follower.closed
    if closed is None:
        raise no_such_step(
            f"--step {train_step}", [row.train_step for row in ledger.rows if row.train_step is not None], digest.name
        )
    return StepReport(
        ledger.rows[follower.rows],
        dict(closed.asked),
        tuple(map(_taken, follower.taken)),
        tuple(follower.expired),
        _waiting(follower.held_after_take, config),
    )


@dataclass(slots=True)
class _Follower:
    """Follows a run up to the row of one step.

    Attributes:
        digest: the log.
        train_step: the step.
        rows: rows closed before it.
        closed: the end of its row; None as long as it isn't reached.
        taken: groups taken since the row before.
        expired: groups and members that expired since then.
        held_after_take: what was held at its take; a refresh that belongs to the row comes later.
    """

    digest: Digest
    train_step: int
    rows: int = 0
    closed: StepClosed | None = None
    taken: list[GroupTaken] = field(default_factory=list)
    expired: list[GroupExpired | MembersExpired] = field(default_factory=list)
    held_after_take: HeldGroups = field(default_factory=HeldGroups)
    _held: HeldGroups = field(default_factory=HeldGroups)
    _held_before_refresh: HeldGroups | None = None

    def at(self, log_event: int) -> None:
        """The next log event is about to be followed."""
        events = self.digest.events
        is_next = events.kind[log_event] == _REFRESH and events.train_step[log_event] == self.train_step + 1
        self._held_before_refresh = HeldGroups(self._held) if is_next and self.closed is None else None

    def observe(self, event: RunEvent) -> None:
        """The next event of the run."""
        if self.closed is not None:
            return
        self._held.observe(event)
        if isinstance(event, GroupTaken):
            self.taken.append(event)
        elif isinstance(event, GroupExpired | MembersExpired):
            self.expired.append(event)
        elif isinstance(event, StepClosed):
            if event.train_step == self.train_step:
                self.closed = event
                self.held_after_take = self._held if self._held_before_refresh is None else self._held_before_refresh
                return
            self.rows += 1
            self.taken, self.expired = [], []


def _taken(event: GroupTaken) -> TakenGroup:
    measures, stale = event.responses.measures, event.stale_tokens()
    age = 0 if measures.oldest is None else staleness(measures.oldest, event.train_step)
    trained = measures.trainable_tokens - stale
    return TakenGroup(event.task_name, event.group_id, age, measures.tokens, trained, stale)


def _waiting(held_groups: HeldGroups, config: Config) -> tuple[WaitingGroup, ...]:
    policies = {task: config.expiry_policy(task) for task, _ in held_groups}
    groups: list[WaitingGroup] = []
    for (task, group_id), (status, responses) in held_groups.items():
        measures = responses.measures
        groups.append(WaitingGroup(task, group_id, status, measures.tokens, measures.expires_at(policies[task])))
    never = 2**31
    return tuple(sorted(groups, key=lambda group: (group.expires_at or never, group.task, group.group_id)))
