"""The producer of a disaggregated run: rounds towards one future step after the other."""

from __future__ import annotations

from collections.abc import Sequence

from tokenaudit.lifecycle.staleness import is_too_old, newest_too_old
from tokenaudit.simulate.flight import Flight
from tokenaudit.simulate.scheduling import TaskScheduler
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
        self._future_step = 1
        self._running: set[int] = set()
        self._looks: dict[int, int] = {}
        self._stopped_at: int | None = None
        self._wake_at: int | None = None

    @property
    def future_step(self) -> int:
        """The step it works towards."""
        return self._future_step

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
            if is_too_old(world.model_step, newest_too_old(self._future_step, self._stale_threshold)):
                world.set_status(ProducerStatus.EXPIRED)
                self._stopped_at = world.now
                return
            waiting = []
            for task in world.sized:
                task.put_unclaimed()
                task.start(self._future_step * task.size)
                if not task.look():
                    waiting.append(task.index)
            if not waiting:
                self._future_step += 1
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
            self._future_step += 1
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
