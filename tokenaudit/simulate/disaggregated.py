"""Disaggregated runs: producer and trainer share a clock.

Of what is due at one instant, ends of generation go first, then the producer, then the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from tokenaudit.simulate.entries import SimulationEvent
from tokenaudit.simulate.producer import Producer
from tokenaudit.simulate.trainer import Trainer
from tokenaudit.simulate.world import World


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
