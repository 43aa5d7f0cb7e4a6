"""What every part of a simulated run shares: the clock, the steps, the buffer, the engine and what has happened."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.lifecycle.buffer import ReplayBuffer
from tokenaudit.simulate.engine import Engine
from tokenaudit.simulate.entries import SimulationEvent


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
