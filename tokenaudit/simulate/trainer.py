"""The trainer of a disaggregated run: waits for a batch, trains it, brings weights to the engine."""

from __future__ import annotations

from enum import Enum, auto

from tokenaudit.simulate.entries import CannotGoOnError, StuckReason, StuckTaskReport
from tokenaudit.simulate.producer import Producer, next_poll
from tokenaudit.simulate.settings import DisaggregatedTimes
from tokenaudit.simulate.world import ProducerStatus, World


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
        self._next_time: int | None = 0
        self._waiting_since = 0
        self._trained_step = 0
        self._forced_sync = False
        self._sync = (0, 0)
        self.is_done = False
        """Whether the last row has closed."""

    @property
    def next_time(self) -> int | None:
        """When it acts next; None while it waits for something that hasn't happened."""
        return self._next_time

    def act(self) -> None:
        """Do what is due.

        Raises:
            CannotGoOnError: it waits for a batch that will never be there.
        """
        self._next_time = None
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
        if self._phase is _Phase.WAITING and self._next_time is None and (self._is_stopped or self._has_batch):
            self._next_time = next_poll(
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
        self._next_time = world.now + self._times.train_time_us

    def _begin_sync(self, train_step: int, model_step: int) -> None:
        world = self._world
        self._sync = (train_step, model_step)
        world.set_status(ProducerStatus.UPDATE)
        self._producer.stop()
        world.abort()
        self._phase = _Phase.SYNCING
        self._next_time = world.now + self._times.sync_time_us

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
