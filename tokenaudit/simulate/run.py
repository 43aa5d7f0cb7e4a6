"""Simulate a workload under a config."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.config.model import Config
from tokenaudit.simulate.colocated import run_colocated
from tokenaudit.simulate.disaggregated import run_disaggregated
from tokenaudit.simulate.entries import CannotGoOnError, SimulationEvent
from tokenaudit.simulate.producer import Producer
from tokenaudit.simulate.settings import RunSettings, run_settings
from tokenaudit.simulate.trainer import Trainer
from tokenaudit.simulate.workload import Workload
from tokenaudit.simulate.world import World


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
