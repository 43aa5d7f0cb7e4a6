"""What a run reports beyond the lifecycle, and what is held at a moment of it, followed from its events alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenaudit.contracts.metrics import Metric
from tokenaudit.lifecycle.events import (
    Fate,
    GroupExpired,
    GroupPut,
    GroupRejected,
    GroupSampled,
    GroupTaken,
    LifecycleEvent,
    MembersExpired,
)
from tokenaudit.lifecycle.members import GroupMembers
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


Key = tuple[str, int]
"""(task name, group id)"""


class HeldGroup(NamedTuple):
    """A group in the buffer: its pool and its members."""

    status: Status
    responses: GroupMembers


class HeldGroups(dict[Key, HeldGroup]):
    """The groups in the buffer after the events observed so far."""

    def observe(self, event: RunEvent) -> None:
        """Follow one event."""
        if isinstance(event, GroupPut):
            self[event.task_name, event.group_id] = HeldGroup(event.status, event.responses)
        elif isinstance(event, GroupRejected | GroupTaken | GroupSampled):
            self.pop((event.task_name, event.group_id), None)
        elif isinstance(event, GroupExpired | MembersExpired):
            key = (event.task_name, event.group_id)
            if isinstance(event, GroupExpired) and event.fate is Fate.DISCARDED:
                self.pop(key, None)
            else:
                self[key] = HeldGroup(Status.EXPIRED, self[key].responses.reset(event.expired.is_part))

    def status(self, key: Key) -> Status | None:
        """The pool a group is in; None when it isn't held."""
        held = self.get(key)
        return None if held is None else held.status
