"""What a run reports beyond the lifecycle: how recorded puts were reconciled, and where steps and the run end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenaudit.contracts.metrics import Metric
from tokenaudit.lifecycle.events import LifecycleEvent
from tokenaudit.lifecycle.types import Status


class PutSkipped(NamedTuple):
    """A recorded put that this config would not have asked for: the group is here as completed, or was taken."""

    task_name: str
    group_id: int
    avoided_tokens: int


class PutReconciled(NamedTuple):
    """How a put fits what was held of its responses; reported right before the put.

    Attributes:
        carried_in_tokens: made before the rollout's first put in the log.
        restarted_tokens: held, and not continued from.
        regenerated_tokens: a recorded prefix that isn't held here and is made again.
        counterfactual_tokens: those of the last two that the config alone doesn't explain.
    """

    task_name: str
    group_id: int
    carried_in_tokens: int
    restarted_tokens: int
    regenerated_tokens: int
    counterfactual_tokens: int


@dataclass(frozen=True, slots=True)
class StepClosed:
    """The row of a train step ends.

    Attributes:
        train_step: the step.
        model_step: version in the engine at the take; None if unknown.
        asked: groups asked for, by task.
        leftovers: groups left right after the take, by task and status.
        step_facts: what only the driver of the run knows of the step as a whole.
        task_facts: the same of its tasks, by task.
    """

    train_step: int
    model_step: int | None
    asked: Mapping[str, int]
    leftovers: Mapping[str, Mapping[Status, int]]
    step_facts: Mapping[Metric, int] = field(default_factory=dict)
    task_facts: Mapping[str, Mapping[Metric, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run ends.

    Attributes:
        held_tokens: tokens in the buffer, by task.
        in_flight_tokens: tokens of groups sampled and not put again, by task.
        left_out_puts: puts outside the steps of a simulated timeline.
        step_facts: as in `StepClosed`, of what came after the last row.
        task_facts: the same of its tasks, by task.
    """

    held_tokens: Mapping[str, int]
    in_flight_tokens: Mapping[str, int]
    left_out_puts: int = 0
    step_facts: Mapping[Metric, int] = field(default_factory=dict)
    task_facts: Mapping[str, Mapping[Metric, int]] = field(default_factory=dict)


RunEvent = LifecycleEvent | PutSkipped | PutReconciled | StepClosed | RunEnded
