"""One step of a run: who was taken, who expired, who waits."""

from __future__ import annotations

from dataclasses import dataclass

from tokenaudit.config.model import Config
from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.lifecycle.events import GroupExpired, GroupPut, GroupTaken
from tokenaudit.lifecycle.staleness import staleness
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.digest import Digest
from tokenaudit.replay.events import HeldGroups, StepClosed
from tokenaudit.replay.open_loop import replay


@dataclass(frozen=True, slots=True)
class TakenGroup:
    """A group of the batch: its largest staleness, its tokens, those trained and those masked as stale."""

    task: str
    group_id: int
    age: int
    tokens: int
    trained: int
    stale: int


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """A group left in a pool after the take: its tokens, and the step at which its next member expires."""

    task: str
    group_id: int
    status: Status
    tokens: int
    expires_at: int | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step.

    Attributes:
        train_step: the step.
        model_step: version in the engine at the take; None if unknown.
        puts: groups put since the step before, by task.
        asked: groups asked for, by task.
        taken: the batch, in order.
        expired: groups that became expired since the step before.
        waiting: what is left after the take, the next to expire first.
    """

    train_step: int
    model_step: int | None
    puts: dict[str, int]
    asked: dict[str, int]
    taken: tuple[TakenGroup, ...]
    expired: tuple[GroupExpired, ...]
    waiting: tuple[WaitingGroup, ...]


def step_report(digest: Digest, config: Config, train_step: int) -> StepReport:
    """Replay a log and report one step.

    Raises:
        UsageError: the run has no such step, or the log can't be replayed this way.
        ConfigError: the log can't be replayed under this config.
    """
    held_groups = HeldGroups()
    puts: dict[str, int] = {}
    taken: list[TakenGroup] = []
    expired: list[GroupExpired] = []
    steps: list[int] = []
    for event in replay(digest, config):
        held_groups.observe(event)
        if isinstance(event, GroupPut):
            puts[event.task_name] = puts.get(event.task_name, 0) + 1
        elif isinstance(event, GroupTaken):
            taken.append(_taken(event))
        elif isinstance(event, GroupExpired):
            expired.append(event)
        elif isinstance(event, StepClosed):
            steps.append(event.train_step)
            if event.train_step == train_step:
                return StepReport(
                    train_step,
                    event.model_step,
                    puts,
                    dict(event.asked),
                    tuple(taken),
                    tuple(expired),
                    _waiting(held_groups, config),
                )
            puts, taken, expired = {}, [], []
    hint = f"its steps are {steps[0]} to {steps[-1]}" if steps else "it has no step at all"
    raise UsageError(Problem(f"the run has no step {train_step}", digest.name, hint))


def _taken(event: GroupTaken) -> TakenGroup:
    measures, stale = event.responses.measures, event.stale_tokens()
    age = 0 if measures.oldest is None else staleness(measures.oldest, event.train_step)
    trained = measures.trainable_tokens - stale
    return TakenGroup(event.task_name, event.group_id, age, measures.tokens, trained, stale)


def _waiting(held_groups: HeldGroups, config: Config) -> tuple[WaitingGroup, ...]:
    policies = {task: config.expiry_policy(task) for task, _ in held_groups}
    groups: list[WaitingGroup] = []
    for (task, group_id), (status, responses) in held_groups.items():
        measures = responses.measures
        groups.append(WaitingGroup(task, group_id, status, measures.tokens, measures.expires_at(policies[task])))
    never = 2**31
    return tuple(sorted(groups, key=lambda group: (group.expires_at or never, group.task, group.group_id)))
