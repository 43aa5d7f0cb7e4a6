"""The settings behind lost tokens: which one bound, where it is set, and what would be looser.

`lint`, `audit` and `explain` all ask here, so that they name the same setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tokenaudit.config.model import OFF, Config, Policy
from tokenaudit.config.toml import dotted
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import Metric
from tokenaudit.lifecycle.staleness import ExpiryReason

_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of the policy of a task.

    Attributes:
        key: the dotted key that decides it, as `-s` takes it: the task's own, or that of [policy].
        name: the last part of the key.
        value: what it is; None: off.
    """

    key: str
    name: str
    value: int | float | bool | None

    def __str__(self) -> str:
        return f"{self.key} = {setting_text(self.value)}"


class Looser(StrEnum):
    """How far a setting is loosened."""

    STEP = "one step looser"
    """By the least amount that there is."""
    OFF = "off"
    """So far that it binds nothing any more."""


def setting_text(value: int | float | bool | None) -> str:
    """A value as `-s` and TOML spell it; the token rule's absence as `-s` does."""
    if value is None:
        return OFF
    return str(value).lower() if isinstance(value, bool) else str(value)


def deciding_key(config: Config, task_name: str | None, name: str) -> str:
    """The dotted key that decides a value of a task; None stands for a task without a section."""
    if name not in Policy.model_fields:
        return f"timeline.{name}"
    if task_name in config.tasks and getattr(config.tasks[task_name], name) is not None:
        return dotted(("tasks", task_name, name))
    return f"policy.{name}"


def setting_of(config: Config, task_name: str, name: str) -> Setting:
    """A policy value of a task, and the key that decides it."""
    return Setting(deciding_key(config, task_name, name), name, getattr(config.task_policy(task_name), name))


SETTING_BEHIND: dict[Metric, str | dict[ExpiryReason, str]] = {
    m.MASKED_STALE_TOKENS: "max_token_staleness",
    m.RESET_TOKENS: {ExpiryReason.SEQUENCE: "max_staleness", ExpiryReason.TOKEN: "max_token_staleness"},
    m.DISCARDED_STALE_TOKENS: {ExpiryReason.SEQUENCE: "max_staleness", ExpiryReason.TOKEN: "max_token_staleness"},
    m.DISCARDED_FRESH_TOKENS: "tail_batch_trigger_size",
    m.RESTARTED_TOKENS: "enable_partial_rollout",
}
"""The policy key behind tokens that end in a place of the ledger, where need be by the reason of their expiry."""


def setting_behind(config: Config, task_name: str, metric: Metric, reason: ExpiryReason | None) -> Setting | None:
    """The setting that lost tokens rest on; None where the run itself lost them.

    Args:
        config: what the run was replayed or simulated under.
        task_name: their task.
        metric: where the ledger counts them.
        reason: why their response expired; None where nothing did.
    """
    name = SETTING_BEHIND.get(metric)
    if isinstance(name, dict):
        name = None if reason is None else name.get(reason)
    if name is None:
        return None
    setting = setting_of(config, task_name, name)
    # With partial rollouts on, what restarts is the run's own doing: a response that failed, for instance.
    return None if name == "enable_partial_rollout" and setting.value else setting


def looser_values(setting: Setting, last_step: int) -> Iterator[tuple[Looser, int | bool | None]]:
    """What to set instead of a value so that it loses less: one step looser, and off, where there is such a value.

    Args:
        setting: the setting.
        last_step: the last step of the run, which no staleness reaches.
    """
    value = setting.value
    match setting.name:
        case "max_staleness" if value is not None:
            if value < _LARGEST:
                yield Looser.STEP, int(value) + 1
            if value + 1 < last_step:
                yield Looser.OFF, last_step
        case "max_token_staleness" if value is not None:
            if value < _LARGEST:
                yield Looser.STEP, int(value) + 1
            yield Looser.OFF, None
        case "tail_batch_trigger_size" if value is not None and value != 0:
            # -1 discards; the smaller a number from 0 on, the less an expired group waits.
            if value > 1:
                yield Looser.STEP, int(value) - 1
            yield (Looser.OFF if value > 0 else Looser.STEP), 0
        case "enable_partial_rollout" if not value:
            yield Looser.OFF, True
        case _:
            return
