"""The config as plain data: checked when it comes in, complete when it goes out, and shared out over tasks.

A config is plain data from TOML or JSON (`parse_config`) and turns back into it (`resolved`). Finding and
merging files is `tokenaudit.config.loading`; what a valid config costs is `tokenaudit.config.warnings`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from pydantic import ValidationError

from tokenaudit.config.faults import config_problems, dotted
from tokenaudit.config.model import OFF, Config, Policy
from tokenaudit.contracts.errors import ConfigError, Problem


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
        raise ConfigError(config_problems(error, data, source)) from None


def resolved(config: Config) -> dict[str, Any]:
    """The config as plain JSON data, complete and in a fixed order; `parse_config` reads it back.

    A [policy] without a token rule says "off"; a task holds only the policy keys it overrides.
    """
    data = config.model_dump(mode="json")
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
        Problem(f"{needed_by} needs timeline.{key}", f"timeline.{key}", f"-s timeline.{key}={_EXAMPLES[key]}")
        for key, value in values.items()
        if value is None
    ]
    if problems:
        raise ConfigError(problems)
    return tuple(values.values())


_EXAMPLES = {
    "train_batch_size": 24,
    "steps": 30,
    "train_time_us": 12_000_000,
    "sync_time_us": 2_000_000,
    "poll_interval_us": 1_000_000,
}


def _weight_problem(what: str, task_names: Mapping[str, float], bound: str) -> Problem:
    where = ", ".join(dotted(("tasks", name, "weight")) for name in task_names)
    return Problem(what, where, f"give a task a weight {bound}")
