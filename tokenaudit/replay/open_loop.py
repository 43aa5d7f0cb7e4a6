"""Open-loop replay: drive the lifecycle with a recorded log and report what happens, event by event.

On a recorded timeline the log's own refreshes, samples, takes and syncs are followed; on a simulated one every
step is refresh, the puts of that step, take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tokenaudit.config.model import Config, Mode, task_order, task_sizes
from tokenaudit.contracts.errors import ConfigError, Problem, UsageError
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.buffer import HELD_STATUSES, ReplayBuffer
from tokenaudit.lifecycle.members import Group, GroupMembers
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.digest import KIND_CODE, KINDS, Digest
from tokenaudit.replay.events import PutReconciled, PutSkipped, RunEnded, RunEvent, StepClosed
from tokenaudit.replay.recorded_puts import RecordedPuts
from tokenaudit.replay.request import TimelineKind

MAX_TASK_ROWS = 2_000_000
"""Rows of single tasks that a run may have; each holds every metric."""
MAX_STEPS = 1_000_000
"""Steps a simulated timeline may have."""

_PROGRESS_EVERY = 1024


# Python 3.11 looks an enum's member up ten times as slowly as a global name, and these are asked for all the time.
_PUT = EventKind.PUT
_SAMPLE = EventKind.SAMPLE
_REFRESH = EventKind.REFRESH
_SYNC = EventKind.SYNC
_TAKE = EventKind.TAKE
_COMPLETED = Status.COMPLETED
_DISAGGREGATED = Mode.DISAGGREGATED


def timeline_of(digest: Digest, asked: TimelineKind | None = None) -> TimelineKind:
    """The timeline that replay follows: the one asked for, else recorded where the log has one.

    Raises:
        UsageError: a recorded timeline is asked for and the log holds nothing but puts.
    """
    if digest.has_timeline:
        return asked or TimelineKind.RECORDED
    if asked is TimelineKind.RECORDED:
        what = "the log holds only puts, so it has no recorded timeline"
        raise UsageError(Problem(what, digest.name, "leave out --timeline, or use --timeline simulated"))
    return TimelineKind.SIMULATED


def run_tasks(digest: Digest, config: Config) -> list[str]:
    """Tasks of a run: those of the config in its order, then those only the log has."""
    return task_order(config, digest.tasks)


def replay(
    digest: Digest,
    config: Config,
    timeline: TimelineKind | None = None,
    on_progress: Callable[[int], None] | None = None,
    on_log_event: Callable[[int], None] | None = None,
) -> Iterator[RunEvent]:
    """Replay a log under a config.

    Args:
        digest: the log.
        config: the config to replay it under.
        timeline: where refreshes and takes come from; None: the log if it has them.
        on_progress: called now and then with the number of log events done.
        on_log_event: called with the index of every log event that is followed, before what it causes.

    Yields:
        What happens, in order; `replay.events.RunEnded` last.

    Raises:
        UsageError, ConfigError: before the first event, if this log can't be replayed this way.
    """
    kind = timeline_of(digest, timeline)
    tasks = run_tasks(digest, config)
    takes = int((digest.events.kind == KIND_CODE[_TAKE]).sum())
    rows = takes if kind is TimelineKind.RECORDED else _steps(digest, config)
    if rows * len(tasks) > MAX_TASK_ROWS:
        what = f"{rows} steps of {len(tasks)} tasks make more than {MAX_TASK_ROWS} rows"
        raise UsageError(Problem(what, digest.name, "set timeline.steps, or split the log"))
    run = _Replay(digest, config, tasks, on_log_event or _ignore)
    if kind is TimelineKind.RECORDED:
        return run.recorded(on_progress)
    return run.simulated(task_sizes(config, run.tasks), _steps(digest, config), on_progress)


def _ignore(_: int) -> None:
    """Nobody wants to know."""


def last_step(digest: Digest) -> int:
    """The last step in a log: the largest train_step of a take, else of a put, else 0."""
    for kind in (_TAKE, _PUT):
        train_steps = digest.events.train_step[digest.events.kind == KIND_CODE[kind]]
        if len(train_steps):
            return int(train_steps.max())
    return 0


def _steps(digest: Digest, config: Config) -> int:
    """Steps of a simulated timeline: the config's, else the largest train_step of a take, else of a put."""
    steps = config.timeline.steps or last_step(digest)
    if steps > MAX_STEPS:
        hint = f"set timeline.steps to at most {MAX_STEPS}"
        raise ConfigError(Problem(f"a simulated timeline of {steps} steps", digest.name, hint))
    return steps


@dataclass(slots=True)
class _OpenStep:
    """A step whose take has begun."""

    train_step: int
    model_step: int | None
    asked: dict[str, int] = field(default_factory=dict)


class _Replay:
    """One replay; its state is the buffer, what is in flight, and what was ever taken."""

    def __init__(self, digest: Digest, config: Config, tasks: list[str], on_log_event: Callable[[int], None]) -> None:
        self.tasks = tasks
        self._on_log_event = on_log_event
        self._digest = digest
        self._config = config
        timeline = config.timeline
        self._puts = RecordedPuts(digest, timeline.sync_weights_interval, resync=timeline.resync)
        policies = {task: config.expiry_policy(task) for task in tasks}
        self._partial = {task: config.task_policy(task).enable_partial_rollout for task in tasks}
        self._buffer = ReplayBuffer(policies, config.buffer.replay_policy)
        self._in_flight: dict[tuple[str, int], GroupMembers] = {}
        self._taken: set[tuple[str, int]] = set()

    def recorded(self, on_progress: Callable[[int], None] | None) -> Iterator[RunEvent]:
        """Follow the log's events."""
        events = self._digest.events
        disaggregated = self._config.mode is _DISAGGREGATED
        model_step = self._initial_version()
        step: _OpenStep | None = None
        puts = self._puts.in_order(np.flatnonzero(events.kind == KIND_CODE[_PUT]))
        rows = zip(
            events.kind.tolist(),
            events.train_step.tolist(),
            events.model_step.tolist(),
            events.task.tolist(),
            events.group_id.tolist(),
            events.batch_size.tolist(),
            strict=True,
        )
        for index, (code, train_step, version, task_code, group_id, batch_size) in enumerate(rows):
            kind = KINDS[code]
            if step is not None and (kind is not _TAKE or train_step != step.train_step):
                closed = self._closed(step)
                if disaggregated and kind is _REFRESH and train_step == step.train_step + 1:
                    self._on_log_event(index)
                    yield from self._buffer.refresh_staleness(train_step)
                    yield closed
                    step = None
                    continue
                yield closed
                step = None
            self._on_log_event(index)
            if kind is _PUT:
                yield from self._put(index, next(puts), self._digest.tasks[task_code], group_id, train_step)
            elif kind is _SAMPLE:
                yield from self._sample(self._digest.tasks[task_code], group_id)
            elif kind is _REFRESH:
                yield from self._buffer.refresh_staleness(train_step)
            elif kind is _SYNC:
                model_step = None if version < 0 else self._puts.live(version)
            else:
                step = step or _OpenStep(train_step, model_step)
                task = self._digest.tasks[task_code]
                step.asked[task] = step.asked.get(task, 0) + batch_size
                yield from self._take(train_step, {task: batch_size})
            if on_progress is not None and index % _PROGRESS_EVERY == 0:
                on_progress(index)
        if step is not None:
            yield self._closed(step)
        yield self._ended(left_out_puts=0)

    def simulated(
        self, sizes: Mapping[str, int], steps: int, on_progress: Callable[[int], None] | None
    ) -> Iterator[RunEvent]:
        """Refresh, put and take, step by step; all other events of the log are passed over."""
        events = self._digest.events
        puts = np.flatnonzero(events.kind == KIND_CODE[_PUT])
        train_steps = events.train_step[puts]
        order = np.argsort(train_steps, kind="stable")
        puts = puts[order]
        bounds = np.searchsorted(train_steps[order], np.arange(1, steps + 2)).tolist()
        recorded = self._puts.in_order(puts[bounds[0] : bounds[-1]])
        done = 0
        for train_step in range(1, steps + 1):
            yield from self._buffer.refresh_staleness(train_step)
            for index in puts[bounds[train_step - 1] : bounds[train_step]].tolist():
                task = self._digest.tasks[int(events.task[index])]
                self._on_log_event(index)
                yield from self._put(index, next(recorded), task, int(events.group_id[index]), train_step)
                done += 1
                if on_progress is not None and done % _PROGRESS_EVERY == 0:
                    on_progress(done)
            yield from self._take(train_step, sizes)
            yield self._closed(_OpenStep(train_step, None, dict(sizes)))
        yield self._ended(left_out_puts=len(puts) - (bounds[-1] - bounds[0]))

    def _initial_version(self) -> int | None:
        """Version before the first sync: 0 if the log begins at the run's first step, else unknown."""
        events = self._digest.events
        with_step = np.flatnonzero(events.kind != KIND_CODE[_SAMPLE])
        return 0 if len(with_step) and events.train_step[with_step[0]] == 1 else None

    def _put(self, index: int, recorded: GroupMembers, task: str, group_id: int, train_step: int) -> Iterator[RunEvent]:
        """Put a recorded group, fitted to what is held of it here."""
        key = (task, group_id)
        status, members = self._buffer.held(task, group_id) or (None, self._in_flight.get(key))
        held = {} if members is None else members.tokens_by_key()
        if status is _COMPLETED or key in self._taken:
            yield PutSkipped(task, group_id, self._puts.new_tokens(index, held))
            return
        if status is not None:
            self._buffer.withdraw(task, group_id)
        self._in_flight.pop(key, None)
        put = self._puts.fit(index, recorded, held)
        restarted = put.restarted_tokens
        expected = put.restarted_by_log if self._partial[task] else restarted
        if put.carried_in_tokens or restarted or put.regenerated_tokens:
            yield PutReconciled(
                task,
                group_id,
                put.carried_in_tokens,
                restarted,
                put.regenerated_tokens,
                restarted - expected + put.regenerated_tokens,
            )
        yield from self._buffer.put(Group(task, group_id, put.members), train_step)

    def _sample(self, task: str, group_id: int) -> Iterator[RunEvent]:
        """The log generated this group again; it leaves its pool if it waits in one here."""
        status, members = self._buffer.held(task, group_id) or (None, None)
        if members is not None and status is not _COMPLETED:
            self._in_flight[task, group_id] = members
            yield from self._buffer.withdraw(task, group_id)

    def _take(self, train_step: int, sizes: Mapping[str, int]) -> Iterator[RunEvent]:
        for event in self._buffer.take_batch(train_step, sizes):
            self._taken.add((event.task_name, event.group_id))
            yield event

    def _closed(self, step: _OpenStep) -> StepClosed:
        leftovers = {
            task: {status: self._buffer.count(task, status) for status in HELD_STATUSES} for task in self.tasks
        }
        return StepClosed(step.train_step, step.model_step, step.asked, leftovers)

    def _ended(self, left_out_puts: int) -> RunEnded:
        held = dict.fromkeys(self.tasks, 0)
        in_flight = dict.fromkeys(self.tasks, 0)
        for group in self._buffer.held_groups():
            held[group.task_name] += group.responses.measures.tokens
        for (task, _), members in self._in_flight.items():
            in_flight[task] += members.measures.tokens
        return RunEnded(held, in_flight, left_out_puts)
