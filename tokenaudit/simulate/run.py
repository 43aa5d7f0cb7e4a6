"""Simulate a workload under a config, whose mode says how producer and trainer share time."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.config.model import Config
from tokenaudit.simulate.disaggregated import Producer, Trainer, run_disaggregated
from tokenaudit.simulate.entries import CannotGoOnError, SimulationEvent
from tokenaudit.simulate.settings import RunSettings, run_settings
from tokenaudit.simulate.workload import Workload
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


def simulate(workload: Workload, config: Config, max_concurrency: int | None = None) -> Iterator[SimulationEvent]:
    """Simulate a workload under a config.

    Args:
        workload: what is to be generated.
        config: the config to run it under; `timeline.steps` says how far.
        max_concurrency: responses generated at once, first spawned first served; None: any number.

    Yields:
        What happens, in order; `replay.events.RunEnded` last. A run that can't go on yields `entries.RunStuck` right
        before it. Every run ends: it has a last step, and within a step only so many groups begin.

    Raises:
        ConfigError: before the first event, if the config can't be simulated on this workload.
    """
    settings = run_settings(workload, config)
    world = World(workload, config, settings.sizes, max_concurrency)
    return _events(world, _driven(world, config, settings))


def _driven(world: World, config: Config, settings: RunSettings) -> Iterator[SimulationEvent]:
    interval = config.timeline.sync_weights_interval
    if settings.times is None:
        return run_colocated(world, settings.steps, interval)
    thresholds = [config.stale_threshold(task.name) for task in world.tasks]
    producer = Producer(world, thresholds, settings.times.poll_interval_us)
    trainer = Trainer(world, producer, settings.steps, interval, settings.times)
    return run_disaggregated(world, producer, trainer)


def _events(world: World, driven: Iterator[SimulationEvent]) -> Iterator[SimulationEvent]:
    try:
        yield from driven
    except CannotGoOnError as error:
        world.stuck(error.reports)
    world.end()
    yield from world.drain()
