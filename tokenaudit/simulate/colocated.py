"""Colocated runs: a window of rollouts closes before every step, and training takes no time."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.simulate.entries import SimulationEvent
from tokenaudit.simulate.world import World


def run_colocated(world: World, steps: int, sync_weights_interval: int) -> Iterator[SimulationEvent]:
    """Drive a run to the end of its last row.

    Raises:
        CannotGoOnError: the run can't go on.
    """
    world.trainer_wait.set(True, world.now)
    for train_step in range(1, steps + 1):
        world.consumer_step = train_step
        world.refresh(train_step)
        for events in _window(world):
            yield from events
        world.abort()
        world.take(train_step)
        world.close_row(world.taken_row(train_step))
        if train_step < steps and train_step % sync_weights_interval == 0:
            world.sync(train_step, train_step)
        yield from world.drain()


def _window(world: World) -> Iterator[Iterator[SimulationEvent]]:
    """Generate until every task has its batch, and what else ends at that instant."""
    running = set()
    for task in world.sized:
        task.start(task.size)
        if not task.look():
            running.add(task.index)
    engine = world.engine
    while running or engine.next_end == world.now:
        assert engine.next_end is not None
        world.advance(engine.next_end)
        flight = engine.pop_end()
        if flight is None:
            continue
        task = world.tasks[flight.task_index]
        if task.index not in running:
            task.leave_unclaimed(flight)
            continue
        task.put_finished(flight)
        if task.look():
            running.remove(task.index)
        yield world.drain()
