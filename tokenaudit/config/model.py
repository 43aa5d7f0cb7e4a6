"""What a config holds and allows: plain data in, a valid config out, and what it says about tasks and batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import add
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictStr, ValidationError

from tokenaudit.config.toml import dotted
from tokenaudit.contracts.errors import ConfigError, Problem
from tokenaudit.lifecycle.buffer import ReplayPolicy
from tokenaudit.lifecycle.staleness import ExpiryPolicy, stale_threshold, token_stale_threshold

OFF = "off"
"""How a config spells an absent token rule."""

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class Mode(StrEnum):
    """How rollout and training share the GPUs."""

    COLOCATED = "colocated"
    """The same GPUs generate, then train: a window of rollouts closes before every step."""
    DISAGGREGATED = "disaggregated"
    """Rollout and training run side by side on their own GPUs and share a clock."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What an error says a key may hold, and a remark for values outside of it."""

    text: str
    hint: str | None = None


def _whole(low: int, high: int = _INT32_MAX, unit: str = "", hint: str | None = None) -> Any:
    """Annotations of a strict whole number from `low` to `high`."""
    return Field(strict=True, ge=low, le=high), Allowed(f"a whole number{unit} from {low} to {high}", hint)


_US = " of microseconds"
_TRIGGER_HINT = "-1 discards expired groups, 0 rolls them again at once, N > 0 waits for N of them"
_TOKEN_RULE = Allowed(
    f'a whole number from 0 to {_INT32_MAX}, or "{OFF}"',
    f'for no token rule write "{OFF}" or leave the key out',
)

_Positive = Annotated[int, *_whole(1)]
_Natural = Annotated[int, *_whole(0)]
_Trigger = Annotated[int, *_whole(-1, hint=_TRIGGER_HINT)]
_Time = Annotated[int, *_whole(0, _INT64_MAX, _US)]
_Interval = Annotated[int, *_whole(1, _INT64_MAX, _US)]
_Factor = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False), Allowed("a finite number, 0 or more")]
_Price = Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False), Allowed("a number from 0 to 1000000")]
_Switch = Annotated[StrictBool, Allowed("true or false")]
_TokenRuleOverride = Annotated[_Natural | Literal["off"] | None, _TOKEN_RULE]
_TokenRule = Annotated[_Natural | None, BeforeValidator(lambda value: None if value == OFF else value), _TOKEN_RULE]


class Section(BaseModel):
    """Part of a config: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Timeline(Section):
    """When steps end and weights move."""

    sync_weights_interval: _Positive = 1
    """Train steps between weight syncs: more means fewer interruptions and older weights."""
    train_batch_size: _Positive | None = None
    """Groups per train step, all tasks together; needed by simulated timelines only."""
    steps: _Positive | None = None
    """Train steps of a simulated timeline; unset: up to the last step in the log."""
    train_time_us: _Time | None = None
    """Microseconds a train step takes in a disaggregated simulation."""
    sync_time_us: _Time | None = None
    """Microseconds a weight sync takes in a disaggregated simulation."""
    poll_interval_us: _Interval | None = None
    """Microseconds until a waiting producer or trainer looks again: less waiting, more looks."""
    resync: _Switch = False
    """Replay each version as the one live had weights moved every sync_weights_interval."""
    stamp_missing: _Switch = False
    """Give tokens without any version the one that sync_weights_interval implies: a guess."""


class Buffer(Section):
    """How the replay buffer hands out what it holds."""

    replay_policy: Annotated[ReplayPolicy, Allowed('"staleness" or "fifo"')] = ReplayPolicy.STALENESS
    """Order out of a pool: oldest weights first, or order of arrival."""


class Policy(Section):
    """Staleness policy of every task that does not say otherwise."""

    max_staleness: _Natural = 0
    """Weight syncs a response may lag: more wastes fewer responses, trains on older ones."""
    max_token_staleness: _TokenRule = None
    """Weight syncs a token may lag before it is masked; off: only whole responses expire."""
    tail_batch_trigger_size: _Trigger = -1
    """Expired groups: -1 discards them, 0 rolls them again at once, N waits for N of them."""
    over_sample_threshold: _Factor = 0.0
    """Groups a simulation starts beyond the batch, as a share of it: less waiting, more leftovers."""
    enable_partial_rollout: _Switch = False
    """Aborted responses go on from their tokens: saves GPU time, mixes versions."""


class Task(Section):
    """What one task does differently; None inherits from [policy], "off" turns its token rule off."""

    max_staleness: _Natural | None = None
    """As in [policy]."""
    max_token_staleness: _TokenRuleOverride = None
    """As in [policy]."""
    tail_batch_trigger_size: _Trigger | None = None
    """As in [policy]."""
    over_sample_threshold: _Factor | None = None
    """As in [policy]."""
    enable_partial_rollout: _Switch | None = None
    """As in [policy]."""
    weight: _Factor = 1.0
    """Share of the batch relative to the other tasks; 0 takes none."""
    group_size: _Positive | None = None
    """Responses per group, for information and checks; unset: whatever the log holds."""


class Gate(Section):
    """Rules that `gate` judges."""

    rules: Annotated[tuple[StrictStr, ...], Allowed('a list of texts such as ["expired_groups <= 0"]')] = ()
    """Limits on metrics, one text each."""


class Cost(Section):
    """GPUs and their price: adds the GPU-hours that were lost, and decides nothing."""

    rollout_gpus: _Positive | None = None
    """GPUs that generate; colocated, those that generate and train in turns."""
    train_gpus: _Positive | None = None
    """GPUs that train beside them; a colocated run has none."""
    usd_per_gpu_hour: _Price | None = None
    """Price of one GPU for an hour, in US dollars."""

    @property
    def is_given(self) -> bool:
        """Whether a config sets any of it."""
        return self != Cost()


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """What holds for one task, with every inherited value filled in; fields as in `Policy` and `Task`.

    `max_token_staleness` is None when the task has no token rule.
    """

    max_staleness: int
    max_token_staleness: int | None
    tail_batch_trigger_size: int
    over_sample_threshold: float
    enable_partial_rollout: bool
    weight: float = 1.0
    group_size: int | None = None


class Config(Section):
    """Everything that decides a replay or a simulation."""

    mode: Annotated[Mode, Allowed('"colocated" or "disaggregated"')] = Mode.COLOCATED
    """Rollout and training take turns on the same GPUs, or run side by side."""
    timeline: Timeline = Timeline()
    """When steps end and weights move."""
    buffer: Buffer = Buffer()
    """How the replay buffer hands out what it holds."""
    policy: Policy = Policy()
    """Staleness policy of every task that does not say otherwise."""
    tasks: dict[str, Task] = Field(default_factory=dict)
    """What single tasks do differently, by task name."""
    gate: Gate = Gate()
    """Rules that `gate` judges."""
    cost: Cost = Cost()
    """GPUs and their price: adds the GPU-hours that were lost, and decides nothing."""

    def task_policy(self, task_name: str) -> TaskPolicy:
        """The policy of a task; a task the config does not name has the values of [policy]."""
        task = self.tasks.get(task_name, Task())
        values = {name: getattr(self.policy, name) for name in Policy.model_fields}
        for name in Policy.model_fields:
            own = getattr(task, name)
            if own is not None:
                values[name] = None if own == OFF else own
        return TaskPolicy(**values, weight=task.weight, group_size=task.group_size)

    def stale_threshold(self, task_name: str) -> int:
        """Staleness, in train steps, at which a response of the task is too old."""
        return stale_threshold(self.task_policy(task_name).max_staleness, self.timeline.sync_weights_interval)

    def token_stale_threshold(self, task_name: str) -> int | None:
        """Staleness, in train steps, at which a token of the task is no longer fresh; None: no token rule."""
        return token_stale_threshold(
            self.task_policy(task_name).max_token_staleness, self.timeline.sync_weights_interval
        )

    def expiry_policy(self, task_name: str) -> ExpiryPolicy:
        """The policy of a task as the replay buffer takes it."""
        return ExpiryPolicy(
            self.stale_threshold(task_name),
            self.token_stale_threshold(task_name),
            self.task_policy(task_name).tail_batch_trigger_size,
        )


def parse_config(data: Mapping[str, Any], source: str) -> Config:
    """Check plain data and make a config of it.

    Args:
        data: what a TOML or JSON parser returned. A null stands for a key that is left out, if it may be.
        source: what error messages call it, such as "async.toml".

    Raises:
        ConfigError: unknown keys or values out of range; holds up to 20 faults, then their count.
    """
    try:
        return Config.model_validate(dict(data))
    except ValidationError as error:
        from tokenaudit.config.faults import config_problems

        raise ConfigError(config_problems(error, data, source)) from None


def resolved(config: Config) -> dict[str, Any]:
    """The config as plain JSON data, complete and in a fixed order; `parse_config` reads it back.

    A [policy] without a token rule says "off"; a task holds only the policy keys it overrides. Without any value in
    [cost] there is no such section, as in what was saved before there was one.
    """
    data = config.model_dump(mode="json")
    if not config.cost.is_given:
        del data["cost"]
    if data["policy"]["max_token_staleness"] is None:
        data["policy"]["max_token_staleness"] = OFF
    for task in data["tasks"].values():
        for name in Policy.model_fields:
            if task[name] is None:
                del task[name]
    return data


def dotted_items(config: Config) -> dict[str, Any]:
    """Every value of `resolved` under its dotted key, spelled as `-s` takes it."""
    return {dotted(path): value for path, value in leaves(resolved(config))}


def leaves(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Path and value of everything in nested tables that is not a table itself, in order."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def task_order(config: Config, seen: Sequence[str]) -> list[str]:
    """Task names in config order, then those of `seen` in order of first appearance."""
    return list(dict.fromkeys((*config.tasks, *seen)))


def task_sizes(config: Config, task_names: Sequence[str]) -> dict[str, int]:
    """Groups each task contributes to a batch of a simulated timeline; they add up to train_batch_size.

    Largest remainder in double precision; of equal remainders the task named first goes first.

    Args:
        config: gives train_batch_size and the weights.
        task_names: the tasks that share the batch, in task order.

    Raises:
        ConfigError: train_batch_size is missing, or the weights can't be shared out.
    """
    (batch_size,) = require_timeline(config, ["train_batch_size"], "a simulated timeline")
    weights = {name: config.task_policy(name).weight for name in task_names}
    if not weights:
        return {}
    # Newer Pythons make sum() more exact than one addition after the other; shares must not depend on that.
    total = reduce(add, weights.values())
    if total == 0:
        raise ConfigError(_weight_problem("every task has weight 0, so a batch has no groups", weights, "above 0"))
    quotas = {name: batch_size * weight / total for name, weight in weights.items()}
    # An overflow on the way gives inf, nan or a total that dwarfs every weight to 0.
    if not (math.isfinite(total) and all(map(math.isfinite, quotas.values()))):
        raise ConfigError(_weight_problem("the weights are too large to share out a batch", weights, "below 1e9"))
    sizes = {name: math.floor(quota) for name, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda name: sizes[name] - quotas[name])
    for name in by_remainder[: batch_size - sum(sizes.values())]:
        sizes[name] += 1
    return sizes


def require_timeline(config: Config, keys: Sequence[str], needed_by: str) -> tuple[int, ...]:
    """Values of [timeline] keys that have no default, where they are needed.

    Args:
        config: where to look.
        keys: names in [timeline], such as "train_time_us".
        needed_by: what needs them, such as "a disaggregated simulation".

    Raises:
        ConfigError: names every key that is not set.
    """
    values = {key: getattr(config.timeline, key) for key in keys}
    problems = [
        Problem(f"{needed_by} needs timeline.{key}", f"timeline.{key}", f"-s timeline.{key}={EXAMPLES[key]}")
        for key, value in values.items()
        if value is None
    ]
    if problems:
        raise ConfigError(problems)
    return tuple(values.values())


EXAMPLES = {
    "train_batch_size": 24,
    "steps": 30,
    "train_time_us": 12_000_000,
    "sync_time_us": 2_000_000,
    "poll_interval_us": 1_000_000,
    "group_size": 8,
    "rollout_gpus": 64,
    "train_gpus": 32,
    "usd_per_gpu_hour": 2.5,
}
"""A value for every key that has no default."""


def _weight_problem(what: str, task_names: Mapping[str, float], bound: str) -> Problem:
    where = ", ".join(dotted(("tasks", name, "weight")) for name in task_names)
    return Problem(what, where, f"give a task a weight {bound}")
