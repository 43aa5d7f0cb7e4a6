"""What producer and trainer do to a run: refresh, take, sync, abort, and close its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from tokenaudit.config.model import Config
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import Metric
from tokenaudit.lifecycle.buffer import HELD_STATUSES, ReplayBuffer
from tokenaudit.replay.events import RunEnded, StepClosed
from tokenaudit.simulate.engine import Engine, Flight, Meter
from tokenaudit.simulate.entries import (
    CannotGoOnError,
    RefreshEntry,
    RunStuck,
    StuckReason,
    StuckTaskReport,
    SyncEntry,
    TakeEntry,
)
from tokenaudit.simulate.scheduling import RunState, TaskScheduler
from tokenaudit.simulate.workload import Workload

_LAST_INSTANT = 2**62


class ProducerStatus(StrEnum):
    """What keeps the producer from working."""

    NORMAL = "normal"
    """Nothing."""
    EXPIRED = "expired"
    """What it would generate next would be too old."""
    UPDATE = "update"
    """New weights are on their way."""


class World(RunState):
    """A simulated run: its state, its tasks, and the account of the open row.

    Args:
        workload: what is to be generated.
        config: a config that `settings.run_settings` has accepted.
        sizes: groups per batch by task, in task order.
        max_concurrency: responses generated at once; None: any number.

    Whatever happens is added to `events`; who drives the run hands it on.
    """

    def __init__(
        self, workload: Workload, config: Config, sizes: Mapping[str, int], max_concurrency: int | None
    ) -> None:
        policies = {task: config.expiry_policy(task) for task in sizes}
        super().__init__(ReplayBuffer(policies, config.buffer.replay_policy), Engine(max_concurrency))
        self.status = ProducerStatus.NORMAL
        self.trainer_wait = Meter()
        self.trainer_busy = Meter()
        self.paused = Meter()
        self._row_started = 0
        self.tasks = [
            TaskScheduler(self, index, task, size, config.task_policy(task), workload.tasks.get(task))
            for index, (task, size) in enumerate(sizes.items())
        ]
        self.sized = [task for task in self.tasks if task.size > 0]

    def advance(self, time: int) -> None:
        """Move the clock to an instant that is not before now.

        Raises:
            CannotGoOnError: the instant is beyond what an event log can hold.
        """
        if time > _LAST_INSTANT:
            message = f"step {self.consumer_step} would end after more than {_LAST_INSTANT} simulated microseconds"
            raise CannotGoOnError(
                *(StuckTaskReport(task.name, StuckReason.CLOCK_RUNS_OUT, message) for task in self.sized)
            )
        self.now = time

    def set_status(self, status: ProducerStatus) -> None:
        """Change the producer's status."""
        self.status = status
        self.paused.set(status is ProducerStatus.EXPIRED, self.now)

    def refresh(self, train_step: int) -> None:
        """Recompute staleness."""
        self.events.append(RefreshEntry(self.now, train_step))
        self.events.extend(self.buffer.refresh_staleness(train_step))

    def take(self, train_step: int) -> None:
        """Take the batch."""
        for task in self.sized:
            self.events.append(TakeEntry(self.now, train_step, task.name, task.size))
        self.events.extend(self.buffer.take_batch(train_step, {task.name: task.size for task in self.sized}))

    def sync(self, train_step: int, model_step: int) -> None:
        """Give the engine new weights."""
        self.model_step = model_step
        for task in self.tasks:
            task.watch.restart()
        self.events.append(SyncEntry(self.now, train_step, model_step))

    def abort(self) -> None:
        """Put what is finished and cut off what isn't, task by task."""
        cut_off: dict[int, list[Flight]] = {}
        for flight in self.engine.abort(self.now):
            cut_off.setdefault(flight.task_index, []).append(flight)
        for task in self.tasks:
            task.put_unclaimed()
            for flight in cut_off.get(task.index, ()):
                task.put_aborted(flight)

    def taken_row(self, train_step: int) -> StepClosed:
        """The end of a row as far as it is decided right after the take; `close_row` adds the rest."""
        leftovers = {
            task.name: {status: self.buffer.count(task.name, status) for status in HELD_STATUSES} for task in self.tasks
        }
        in_flight = {task.name: {m.IN_FLIGHT_GROUPS: task.in_flight} for task in self.tasks}
        asked = {task.name: task.size for task in self.sized}
        is_expired = int(self.status is ProducerStatus.EXPIRED)
        facts = {m.TAKEN_AT_US: self.now, m.EXPIRED_BATCH: is_expired}
        return StepClosed(train_step, self.model_step, asked, leftovers, facts, in_flight)

    def close_row(self, taken: StepClosed) -> None:
        """End the row and begin the next one."""
        step_facts = {**taken.step_facts, **self._lap()}
        task_facts = {task.name: {**taken.task_facts[task.name], **task.lap()} for task in self.tasks}
        ordered = {metric: step_facts[metric] for metric in m.SIMULATED_METRICS if metric in step_facts}
        self.events.append(replace(taken, step_facts=ordered, task_facts=task_facts))

    def end(self) -> None:
        """End the run."""
        held = {task.name: 0 for task in self.tasks}
        for group in self.buffer.held_groups():
            held[group.task_name] += group.responses.measures.tokens
        in_flight = {task.name: task.in_flight_tokens() for task in self.tasks}
        task_facts = {task.name: task.lap() for task in self.tasks}
        self.events.append(RunEnded(held, in_flight, 0, self._lap(), task_facts))

    def stuck(self, reports: tuple[StuckTaskReport, ...]) -> None:
        """End a run that can't go on."""
        self.events.append(RunStuck(self.now, self.consumer_step, reports))

    def _lap(self) -> dict[Metric, int]:
        wall = self.now - self._row_started
        self._row_started = self.now
        busy = self.engine.busy.lap(self.now)
        return {
            m.WALL_TIME_US: wall,
            m.TRAINER_WAIT_US: self.trainer_wait.lap(self.now),
            m.TRAINER_BUSY_US: self.trainer_busy.lap(self.now),
            m.ROLLOUT_IDLE_US: wall - busy,
            m.ROLLOUT_BUSY_US: busy,
            m.PRODUCER_PAUSED_US: self.paused.lap(self.now),
        }
