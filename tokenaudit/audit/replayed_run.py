"""The recorded run beside the replay of its own config: what the checks of groups, lifecycle and totals look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.puts import PutRuns
from tokenaudit.config.model import Config
from tokenaudit.contracts.schema import EventKind
from tokenaudit.explain.losses import Losses
from tokenaudit.lifecycle.events import Fate, GroupExpired, GroupPut, GroupRejected, GroupSampled, GroupTaken
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Int64s
from tokenaudit.log.digest import KIND_CODE, Digest
from tokenaudit.replay.events import Key, RunEvent, StepClosed
from tokenaudit.replay.ledger import Ledger, count
from tokenaudit.replay.open_loop import replay, run_tasks, timeline_of
from tokenaudit.replay.request import TimelineKind

NEVER = -1
"""Step of a row that was never taken."""

_PUT, _SAMPLE = KIND_CODE[EventKind.PUT], KIND_CODE[EventKind.SAMPLE]


class Taken(NamedTuple):
    """A group that replay took; `put` is the log event of its last put."""

    event: GroupTaken
    put: int


class Expired(NamedTuple):
    """A group that expired in the replay; `put` is the log event of its last put, `waited` the steps since."""

    event: GroupExpired
    put: int
    waited: int

    @property
    def tokens(self) -> int:
        """Tokens of its members, fresh ones included."""
        return self.event.expired.tokens + self.event.fresh.tokens


class Sampled(NamedTuple):
    """A sample event of the log, and the pool in which replay held the group then; None: not held.

    `put` is the log event of the group's put before; `NEVER` where there is none.
    """

    log_event: int
    task: str
    group_id: int
    recorded: Status
    replayed: Status | None
    was_discarded: bool
    put: int

    @property
    def expired_too_early(self) -> bool:
        """Whether the run had expired a group that its config still allows."""
        return self.recorded is Status.EXPIRED and self.replayed in (Status.COMPLETED, Status.ABORTED)

    @property
    def expired_too_late(self) -> bool:
        """Whether the run continues a group that had expired under its config."""
        return self.recorded is Status.ABORTED and self.replayed is Status.EXPIRED


class PutAgain(NamedTuple):
    """A put of a group that waits, in the pool `held`, or that replay had taken before, at step `taken_at`."""

    log_event: int
    task: str
    group_id: int
    held: Status | None
    taken_at: int


@dataclass(slots=True)
class ReplayedRun:
    """A log replayed under its own config.

    Attributes:
        config: what it was replayed under.
        timeline: where refreshes and takes came from.
        digest: the log.
        puts: the version runs of its rows.
        ledger: the counted run.
        losses: why its tokens were lost.
        taken_step: step at which each response of the digest was taken; `NEVER` where it wasn't.
        taken: groups taken, in order.
        expired: groups that became expired, in order.
        rejected: puts by log event whose group was discarded because it failed or was filtered.
        samples: sample events of the log.
        put_again: puts of groups that wait or had been taken.
        steps: where step rows ended.
    """

    config: Config
    timeline: TimelineKind
    digest: Digest
    puts: PutRuns
    ledger: Ledger = field(init=False)
    losses: Losses = field(init=False)
    taken_step: Int64s = field(init=False)
    taken: list[Taken] = field(default_factory=list)
    expired: list[Expired] = field(default_factory=list)
    rejected: dict[int, Status] = field(default_factory=dict)
    samples: list[Sampled] = field(default_factory=list)
    put_again: list[PutAgain] = field(default_factory=list)
    steps: list[StepClosed] = field(default_factory=list)

    def put_rows(self, put: int) -> Int64s:
        """Rows of the log that belong to a put, given its log event."""
        first_response = self.digest.events.first_response
        return self.puts.rows[int(first_response[put]) : int(first_response[put + 1])]


def follow(digest: Digest, config: Config, puts: PutRuns) -> ReplayedRun:
    """Replay a log under its own config and note what became of every put.

    Raises:
        UsageError, ConfigError: this log can't be replayed under this config.
    """
    run = ReplayedRun(config, timeline_of(digest), digest, puts)
    run.losses = Losses(config)
    run.taken_step = np.full(len(digest.responses.tokens), NEVER, dtype=np.int64)
    follower = _Follower(run)
    events = replay(digest, config, run.timeline, on_log_event=follower.at)
    run.ledger = count(follower.watched(events), run_tasks(digest, config))
    return run


class _Follower:
    """Notes in a run what its replay does, beside what the log says at the same event."""

    def __init__(self, run: ReplayedRun) -> None:
        self._run = run
        events, names = run.digest.events, run.digest.tasks
        tasks = [names[code] if code >= 0 else "" for code in events.task.tolist()]
        self._kinds: list[int] = events.kind.tolist()
        self._keys: list[Key] = list(zip(tasks, events.group_id.tolist(), strict=True))
        self._recorded_pools = {key: iter(pools) for key, pools in run.puts.recorded_pools.items()}
        self._log_event = -1
        self._last_put: dict[Key, int] = {}
        self._pools: dict[Key, Status] = {}
        self._discarded: set[Key] = set()
        self._taken_at: dict[Key, int] = {}
        self._put_before: dict[Key, int] = {}

    def at(self, log_event: int) -> None:
        """The next log event is about to be followed."""
        self._log_event = log_event
        kind, key = self._kinds[log_event], self._keys[log_event]
        if kind == _SAMPLE:
            pool = self._pools.get(key)
            recorded = next(self._recorded_pools[key])
            put = self._put_before.get(key, NEVER)
            self._run.samples.append(Sampled(log_event, *key, recorded, pool, key in self._discarded, put))
        elif kind == _PUT:
            held = self._pools.get(key)
            if held is not None or key in self._taken_at:
                self._run.put_again.append(PutAgain(log_event, *key, held, self._taken_at.get(key, NEVER)))
            self._put_before[key] = log_event

    def watched(self, events: Iterator[RunEvent]) -> Iterator[RunEvent]:
        """The same events, noted."""
        for event in events:
            self._note(event)
            yield event

    def _note(self, event: RunEvent) -> None:
        if isinstance(event, StepClosed):
            self._run.steps.append(event)
        elif isinstance(event, GroupPut):
            key = (event.task_name, event.group_id)
            self._last_put[key] = self._log_event
            self._discarded.discard(key)
            self._pools[key] = event.status
        elif isinstance(event, GroupRejected):
            self._run.rejected[self._log_event] = event.status
            self._pools.pop((event.task_name, event.group_id), None)
        elif isinstance(event, GroupExpired):
            key = (event.task_name, event.group_id)
            put = self._last_put[key]
            waited = event.train_step - int(self._run.digest.events.train_step[put])
            self._run.expired.append(Expired(event, put, waited))
            if event.fate is Fate.DISCARDED:
                self._discarded.add(key)
                self._pools.pop(key, None)
            else:
                self._pools[key] = Status.EXPIRED
        elif isinstance(event, GroupTaken):
            key = (event.task_name, event.group_id)
            put = self._last_put[key]
            self._taken_at[key] = event.train_step
            first, last = self._run.digest.events.first_response[put : put + 2].tolist()
            self._run.taken_step[first:last] = event.train_step
            self._run.taken.append(Taken(event, put))
            self._pools.pop(key, None)
        elif isinstance(event, GroupSampled):
            self._pools.pop((event.task_name, event.group_id), None)
        self._run.losses.observe(event)
