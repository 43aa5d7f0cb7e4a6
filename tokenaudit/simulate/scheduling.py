"""What one task generates next: targets, oversampling, tail batches, and the pools that a spawn draws from."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tokenaudit.config.model import TaskPolicy
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import Metric
from tokenaudit.lifecycle.buffer import ReplayBuffer
from tokenaudit.lifecycle.events import GroupSampled
from tokenaudit.lifecycle.members import Group, MadeMembers
from tokenaudit.lifecycle.types import Response, Status, token_count
from tokenaudit.replay.events import PutReconciled
from tokenaudit.simulate.engine import Engine, Flight, Generation
from tokenaudit.simulate.entries import (
    CannotGoOnError,
    PutEntry,
    SampleEntry,
    SimulationEvent,
    StuckReason,
    StuckTaskReport,
)
from tokenaudit.simulate.workload import PromptPasses, TaskWorkload

MAX_GROUPS_PER_STEP = 200_000
"""Groups a task may begin in one step: a run that asks for more is a mistake, and one that needs more doesn't end."""


class RunState:
    """The shared state of a run.

    Attributes:
        now: simulated time, microseconds.
        consumer_step: the step that puts are compared with.
        model_step: version in the engine.
        buffer: the replay buffer.
        engine: the rollout engine.
        events: what has happened and wasn't handed on yet.
    """

    def __init__(self, buffer: ReplayBuffer, engine: Engine) -> None:
        self.now = 0
        self.consumer_step = 1
        self.model_step = 0
        self.buffer = buffer
        self.engine = engine
        self.events: list[SimulationEvent] = []

    def drain(self) -> Iterator[SimulationEvent]:
        """What happened since the last call."""
        events, self.events = self.events, []
        return iter(events)


class ProgressWatch:
    """Notices when a whole pass over a task's prompts ends without one completed group.

    Groups that begin without tokens are numbered from the last completed group or weight sync on. Once as many
    of them as the task has prompts have ended, and none as completed, nothing suggests that the next one will be.

    Args:
        prompts: prompts of the task.
    """

    __slots__ = ("_begun", "_ended", "_era", "_prompts")

    def __init__(self, prompts: int) -> None:
        self._prompts = prompts
        self._era = 0
        self._begun = 0
        self._ended = 0

    def restart(self) -> None:
        """A group was completed, or the weights have changed."""
        self._era += 1
        self._begun = 0
        self._ended = 0

    def begin(self) -> tuple[int, int]:
        """A group begins; returns what `has_failed` wants to know of it."""
        self._begun += 1
        return self._era, self._begun

    def has_failed(self, attempt: tuple[int, int]) -> bool:
        """A group ended without being completed; whether that ends a whole pass."""
        era, number = attempt
        if era == self._era and number <= self._prompts:
            self._ended += 1
        return self._ended == self._prompts


class TaskScheduler:
    """One task of a simulated run.

    Args:
        state: the state of the run.
        index: place in task order.
        name: its name.
        size: its groups per batch.
        policy: its policy.
        workload: its prompts; None for a task without any, whose size is 0.

    Attributes:
        taken: groups taken so far that count towards the target.
        last_look: when it looked last, while it runs.
        pending: groups spawned and not ended.
    """

    def __init__(
        self, state: RunState, index: int, name: str, size: int, policy: TaskPolicy, workload: TaskWorkload | None
    ) -> None:
        self.index = index
        self.name = name
        self.size = size
        self.taken = 0
        self.last_look = 0
        self.pending = 0
        self._state = state
        self._trigger = policy.tail_batch_trigger_size
        self._over_sample_threshold = policy.over_sample_threshold
        self._unclaimed: list[Flight] = []
        self._target = 0
        self._scheduled = 0
        self._from_expired = False
        self._begun_in_row = 0
        self._counts: dict[Metric, int] = {}
        if workload is not None:
            self._prompts = PromptPasses(name, workload)
            self._generation = Generation(workload, partial_rollout=policy.enable_partial_rollout)
        self.watch = ProgressWatch(0 if workload is None else workload.prompts)

    @property
    def completed(self) -> int:
        """Groups that can be taken."""
        return self._state.buffer.count(self.name, Status.COMPLETED)

    @property
    def has_batch(self) -> bool:
        """Whether a whole batch of this task is there to take."""
        return self.completed >= self.size

    @property
    def in_flight(self) -> int:
        """Groups spawned and not put."""
        return self.pending + len(self._unclaimed)

    def start(self, target: int) -> None:
        """Begin to schedule towards a target: groups available, those already taken included."""
        expired = self._state.buffer.count(self.name, Status.EXPIRED)
        self._from_expired = self._trigger >= 0 and expired > 0 and expired >= self._trigger
        is_tail_batch = self._trigger > 0 and expired >= self._trigger
        if is_tail_batch:
            self._count(m.TAIL_BATCH_ROUNDS)
        budget = 0 if is_tail_batch else math.ceil(self._over_sample_threshold * self.size)
        self._target = target
        self._scheduled = target + budget

    def look(self) -> bool:
        """Spawn what is missing; whether the target is reached instead."""
        self.last_look = self._state.now
        available = self.taken + self.completed
        if available >= self._target:
            return True
        if available + self.pending < self._scheduled:
            wanted = self._scheduled - available
            while self.pending < wanted:
                self._spawn()
        return False

    def put_finished(self, flight: Flight) -> None:
        """Put a group that has ended."""
        self.pending -= 1
        self._put(flight, is_cut_off=False)

    def leave_unclaimed(self, flight: Flight) -> None:
        """Keep a group that ended when nobody waited for it."""
        self.pending -= 1
        self._unclaimed.append(flight)

    def put_unclaimed(self) -> None:
        """Put what ended when nobody waited for it, in that order."""
        unclaimed, self._unclaimed = self._unclaimed, []
        for flight in unclaimed:
            self._put(flight, is_cut_off=False)

    def put_aborted(self, flight: Flight) -> None:
        """Put a group that was cut off."""
        self.pending -= 1
        self._count(m.ABORTED_GROUPS)
        self._put(flight, is_cut_off=True)

    def in_flight_tokens(self) -> int:
        """Tokens that groups in flight were sampled with."""
        flights = [*self._unclaimed, *self._state.engine.flights()]
        return sum(token_count(flight.held) for flight in flights if flight.task_index == self.index)

    def lap(self) -> dict[Metric, int]:
        """What was counted since the last call."""
        counts, self._counts = self._counts, {}
        self._begun_in_row = 0
        return counts

    def _count(self, metric: Metric) -> None:
        self._counts[metric] = self._counts.get(metric, 0) + 1

    def _spawn(self) -> None:
        """Begin to generate the next group: an expired one where the round may, else an aborted one, else a prompt."""
        self._begun_in_row += 1
        if self._begun_in_row > MAX_GROUPS_PER_STEP:
            message = f"task {self.name} began more than {MAX_GROUPS_PER_STEP:,} groups in one step"
            raise CannotGoOnError(StuckTaskReport(self.name, StuckReason.TOO_MANY_GROUPS, message))
        sampled = self._sample()
        if sampled is None:
            prompt, held = self._prompts.take(), ()
            if prompt.number:
                self._count(m.RECYCLED_PROMPTS)
        else:
            prompt, held = self._prompts.of(sampled.group_id), sampled.responses
        state = self._state
        flight = self._generation.flight(self.index, prompt, held)
        if sampled is None or sampled.status is Status.EXPIRED:
            flight.attempt = self.watch.begin()
        self.pending += 1
        state.engine.spawn(flight, state.now)

    def _sample(self) -> GroupSampled | None:
        pools = (Status.EXPIRED, Status.ABORTED) if self._from_expired else (Status.ABORTED,)
        for status in pools:
            for event in self._state.buffer.sample(self.name, status):
                if isinstance(event, GroupSampled):
                    entry = SampleEntry(self._state.now, self.name, event.group_id, status)
                    self._state.events += (entry, event)
                    return event
        return None

    def _put(self, flight: Flight, *, is_cut_off: bool) -> None:
        state = self._state
        group_id, train_step = flight.prompt.group_id, state.consumer_step
        landing = self._generation.land(flight, state.model_step, state.now)
        state.events.append(
            PutEntry(
                state.now,
                train_step,
                state.model_step,
                self.name,
                group_id,
                landing.responses,
                flight.prompt.first,
                landing.generate_time_us,
            )
        )
        if landing.restarted_tokens:
            state.events.append(PutReconciled(self.name, group_id, 0, landing.restarted_tokens, 0, 0))
        state.events.extend(state.buffer.put(Group(self.name, group_id, MadeMembers(landing.responses)), train_step))
        status, _ = state.buffer.held(self.name, group_id) or (None, None)
        if status is Status.COMPLETED:
            self.watch.restart()
        elif not is_cut_off and flight.attempt is not None and self.watch.has_failed(flight.attempt):
            self._give_up(landing.responses)

    def _give_up(self, last: tuple[Response, ...]) -> None:
        prompts = len(self._prompts)
        message = (
            f"task {self.name} waits for a completed group: a whole pass over its {prompts:,} prompts ended without"
            f" one; of the last group {sum(r.status is Status.COMPLETED for r in last)} of {len(last)} responses"
            " were completed, and the group failed, was filtered or was too old when it was put"
        )
        raise CannotGoOnError(StuckTaskReport(self.name, StuckReason.NO_COMPLETED_GROUP, message))
