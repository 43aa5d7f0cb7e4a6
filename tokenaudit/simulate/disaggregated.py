"""Disaggregated runs: producer and trainer share a clock.

Of what is due at one instant, ends of generation go first, then the producer, then the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum, auto

from tokenaudit.lifecycle.staleness import is_too_old, newest_too_old
from tokenaudit.simulate.engine import Flight
from tokenaudit.simulate.entries import CannotGoOnError, SimulationEvent, StuckReason, StuckTaskReport
from tokenaudit.simulate.scheduling import TaskScheduler
from tokenaudit.simulate.settings import DisaggregatedTimes
from tokenaudit.simulate.world import ProducerStatus, World


class Producer:
    """Works in rounds until what it would generate is too old, or a weight sync stops it.

    Polls that would find nothing new are left out: a running task looks again only after a refresh took completed
    groups from it, and a stopped producer wakes only once its status is normal again.

    Args:
        world: the run.
        stale_thresholds: staleness at which a response is too old, of every task.
        poll_interval_us: time between two looks of a waiting task, and between two wakes.
    """

    def __init__(self, world: World, stale_thresholds: Sequence[int], poll_interval_us: int) -> None:
        self._world = world
        self._stale_threshold = min(stale_thresholds)
        self._poll_interval = poll_interval_us
        self.future_step = 1
        """The step it works towards."""
        self._running: set[int] = set()
        self._looks: dict[int, int] = {}
        self._stopped_at: int | None = None
        self._wake_at: int | None = None

    @property
    def next_time(self) -> int | None:
        """When it acts next by itself; None: not before something else happens."""
        if self._wake_at is not None:
            return self._wake_at
        return min(self._looks.values(), default=None)

    def act(self) -> None:
        """Wake, or look again where a look is due."""
        now = self._world.now
        if self._wake_at is not None:
            self._wake_at = self._stopped_at = None
            self.start_round()
            return
        for index in sorted(index for index, time in self._looks.items() if time <= now):
            if index in self._running:
                self._look(self._world.tasks[index])

    def start_round(self) -> None:
        """Begin the round of the future step, and those behind it that are done at once."""
        world = self._world
        while not self._running:
            if is_too_old(world.model_step, newest_too_old(self.future_step, self._stale_threshold)):
                world.set_status(ProducerStatus.EXPIRED)
                self._stopped_at = world.now
                return
            waiting = []
            for task in world.sized:
                task.put_unclaimed()
                task.start(self.future_step * task.size)
                if not task.look():
                    waiting.append(task.index)
            if not waiting:
                self.future_step += 1
            self._running.update(waiting)

    def group_ended(self, flight: Flight) -> None:
        """A group has ended: its task puts it if it waits for it."""
        task = self._world.tasks[flight.task_index]
        if task.index in self._running:
            task.put_finished(flight)
            self._look(task)
        else:
            task.leave_unclaimed(flight)

    def stop(self) -> None:
        """A weight sync begins: a running round ends here, and a stopped producer stays so."""
        if self._stopped_at is None:
            self._stopped_at = self._world.now
        self._running.clear()
        self._looks.clear()
        self._wake_at = None

    def resume(self) -> None:
        """A weight sync has ended: the next wake finds the status normal."""
        assert self._stopped_at is not None
        self._wake_at = next_poll(self._stopped_at, self._poll_interval, self._world.now)

    def buffer_refreshed(self) -> None:
        """A refresh may have taken completed groups from tasks that wait: their next look sees it."""
        for index in self._running:
            task = self._world.tasks[index]
            self._looks[index] = next_poll(task.last_look, self._poll_interval, self._world.now)

    def _look(self, task: TaskScheduler) -> None:
        self._looks.pop(task.index, None)
        if not task.look():
            return
        self._running.remove(task.index)
        if not self._running:
            self.future_step += 1
            self.start_round()


def next_poll(base: int, interval: int, now: int, *, may_be_now: bool = False) -> int:
    """The first instant, at least one interval behind `base`, at which a poll sees what happened at `now`.

    Args:
        base: when the waiting began.
        interval: time between polls, at least 1.
        now: when something happened.
        may_be_now: whether a poll at `now` itself would still see it.
    """
    elapsed = now - base
    polls = -(-elapsed // interval) if may_be_now else elapsed // interval + 1
    return base + max(1, polls) * interval


class _Phase(Enum):
    BEGINNING = auto()
    """Its step begins."""
    WAITING = auto()
    """It waits for a batch."""
    TRAINING = auto()
    SYNCING = auto()


class Trainer:
    """Trains one step after the other.

    A poll that would find nothing new is left out: it looks again once a batch is there or the producer has
    stopped.

    Args:
        world: the run.
        producer: who it stops for weight syncs.
        steps: steps to train.
        sync_weights_interval: steps between weight syncs.
        times: how long things take.
    """

    def __init__(
        self, world: World, producer: Producer, steps: int, sync_weights_interval: int, times: DisaggregatedTimes
    ) -> None:
        self._world = world
        self._producer = producer
        self._steps = steps
        self._interval = sync_weights_interval
        self._times = times
        self._step = 1
        self._phase = _Phase.BEGINNING
        self.next_time: int | None = 0
        """When it acts next; None while it waits for something that hasn't happened."""
        self._waiting_since = 0
        self._trained_step = 0
        self._forced_sync = False
        self._sync = (0, 0)
        self.is_done = False
        """Whether the last row has closed."""

    def act(self) -> None:
        """Do what is due.

        Raises:
            CannotGoOnError: it waits for a batch that will never be there.
        """
        self.next_time = None
        if self._phase is _Phase.BEGINNING:
            self._begin()
        elif self._phase is _Phase.WAITING:
            self._try()
        elif self._phase is _Phase.TRAINING:
            self._world.trainer_busy.set(False, self._world.now)
            if self._forced_sync or self._trained_step % self._interval == 0:
                self._begin_sync(self._trained_step, self._trained_step)
            else:
                self._begin()
        else:
            self._end_sync()

    def something_happened(self) -> None:
        """Poll again once there is something to find."""
        if self._phase is _Phase.WAITING and self.next_time is None and (self._is_stopped or self._has_batch):
            self.next_time = next_poll(
                self._waiting_since, self._times.poll_interval_us, self._world.now, may_be_now=True
            )

    @property
    def _is_stopped(self) -> bool:
        return self._world.status is ProducerStatus.EXPIRED

    @property
    def _has_batch(self) -> bool:
        return all(task.has_batch for task in self._world.sized)

    def _begin(self) -> None:
        world = self._world
        world.consumer_step = self._step
        world.refresh(self._step)
        self._producer.buffer_refreshed()
        self._phase = _Phase.WAITING
        self._waiting_since = world.now
        world.trainer_wait.set(True, world.now)
        self._try()

    def _try(self) -> None:
        world = self._world
        if self._is_stopped and self._step - 1 > world.model_step:
            world.trainer_wait.set(False, world.now)
            # An empty batch: nothing is trained, so the sync belongs to the step that waits.
            self._begin_sync(self._step, self._step - 1)
        elif self._has_batch:
            world.trainer_wait.set(False, world.now)
            self._take()
        elif self._is_stopped:
            raise CannotGoOnError(*self._stuck_tasks())

    def _take(self) -> None:
        world = self._world
        world.take(self._step)
        taken = world.taken_row(self._step)
        for task in world.sized:
            task.taken += task.size
        self._forced_sync = self._is_stopped
        world.consumer_step = self._step + 1
        world.refresh(self._step + 1)
        self._producer.buffer_refreshed()
        world.close_row(taken)
        self._trained_step = self._step
        self.is_done = self._step == self._steps
        self._step += 1
        self._phase = _Phase.TRAINING
        world.trainer_busy.set(True, world.now)
        self.next_time = world.now + self._times.train_time_us

    def _begin_sync(self, train_step: int, model_step: int) -> None:
        world = self._world
        self._sync = (train_step, model_step)
        world.set_status(ProducerStatus.UPDATE)
        self._producer.stop()
        world.abort()
        self._phase = _Phase.SYNCING
        self.next_time = world.now + self._times.sync_time_us

    def _end_sync(self) -> None:
        world = self._world
        world.sync(*self._sync)
        world.set_status(ProducerStatus.NORMAL)
        self._producer.resume()
        self._begin()

    def _stuck_tasks(self) -> list[StuckTaskReport]:
        world = self._world
        stopped = (
            f"the producer has stopped because rollouts of version {world.model_step} for step"
            f" {self._producer.future_step} would be too old, and only a batch brings a newer version"
        )
        return [
            StuckTaskReport(
                task.name,
                StuckReason.PRODUCER_STOPPED,
                f"step {self._step} waits for {task.size:,} completed groups of task {task.name} and has"
                f" {task.completed:,}; {stopped}",
            )
            for task in world.sized
            if not task.has_batch
        ]


class _Actor(IntEnum):
    """Who acts, in the order within one instant."""

    ENGINE = 0
    PRODUCER = 1
    TRAINER = 2


def run_disaggregated(world: World, producer: Producer, trainer: Trainer) -> Iterator[SimulationEvent]:
    """Drive a run to the end of its last row.

    Raises:
        CannotGoOnError: the run can't go on.
    """
    producer.start_round()
    while not trainer.is_done:
        due = (
            (world.engine.next_end, _Actor.ENGINE),
            (producer.next_time, _Actor.PRODUCER),
            (trainer.next_time, _Actor.TRAINER),
        )
        time, actor = min((time, actor) for time, actor in due if time is not None)
        world.advance(time)
        if actor is _Actor.ENGINE:
            flight = world.engine.pop_end()
            if flight is None:
                continue
            producer.group_ended(flight)
        elif actor is _Actor.PRODUCER:
            producer.act()
        else:
            trainer.act()
        trainer.something_happened()
        yield from world.drain()
