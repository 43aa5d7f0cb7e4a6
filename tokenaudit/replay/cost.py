"""What a run cost in vain, where the config has a [cost]: GPU-hours on tokens never trained, and of a waiting trainer.

Times and tokens are integers; GPU-hours and prices are exact quotients of them, rounded where they are printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from tokenaudit.config.model import Config, Mode, Policy
from tokenaudit.contracts import metrics as m
from tokenaudit.replay.run_times import RunTimes

HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class RunCost:
    """What a run cost in vain.

    Attributes:
        rollout_gpus: GPUs that generate; None if the config doesn't say.
        train_gpus: GPUs that train beside them; None if it doesn't say.
        usd_per_gpu_hour: price of one of them; None if it doesn't say.
        tokens: tokens that came in, produced or carried in.
        untrained_tokens: those of them that ended as `metrics.NEVER_TRAINED`.
        rollout_us: as in `RunTimes`.
        wait_us: as in `RunTimes`.
        rollout_missing: what the GPU-hours of rollouts lack; empty where they are known.
        wait_missing: what those of the trainer lack.
        is_for_simulation: whether the times are those of a log that this config would have run otherwise.
    """

    rollout_gpus: int | None
    train_gpus: int | None
    usd_per_gpu_hour: float | None
    tokens: int
    untrained_tokens: int
    rollout_us: int | None
    wait_us: int | None
    rollout_missing: str = ""
    wait_missing: str = ""
    is_for_simulation: bool = False

    @property
    def rollout_gpu_hours(self) -> Fraction | None:
        """GPU-hours of all rollouts."""
        if self.rollout_gpus is None or self.rollout_us is None:
            return None
        return Fraction(self.rollout_gpus * self.rollout_us, HOUR_US)

    @property
    def untrained_gpu_hours(self) -> Fraction | None:
        """GPU-hours of rollouts by the share of the tokens that were never trained."""
        whole = self.rollout_gpu_hours
        return None if whole is None else whole * Fraction(self.untrained_tokens, max(1, self.tokens))

    @property
    def wait_gpu_hours(self) -> Fraction | None:
        """GPU-hours in which the trainer waited."""
        if self.train_gpus is None or self.wait_us is None:
            return None
        return Fraction(self.train_gpus * self.wait_us, HOUR_US)

    def usd(self, gpu_hours: Fraction | None) -> Fraction | None:
        """The price of GPU-hours, in US dollars."""
        if gpu_hours is None or self.usd_per_gpu_hour is None:
            return None
        # as the config spells it: 0.1 is a tenth
        return gpu_hours * Fraction(repr(self.usd_per_gpu_hour))

    @property
    def amounts(self) -> dict[str, Fraction | None]:
        """GPU-hours and US dollars by name; None where they are unknown."""
        untrained, wait = self.untrained_gpu_hours, self.wait_gpu_hours
        return {
            "rollout_gpu_hours": self.rollout_gpu_hours,
            "untrained_gpu_hours": untrained,
            "untrained_usd": self.usd(untrained),
            "wait_gpu_hours": wait,
            "wait_usd": self.usd(wait),
        }

    def data(self) -> dict[str, Any]:
        """Its fields and its amounts as plain data; those are floats, next to the exact value."""
        return asdict(self) | {name: None if value is None else float(value) for name, value in self.amounts.items()}


def run_cost(config: Config, ledger: Mapping[str, int], times: RunTimes, *, is_for_simulation: bool = False) -> RunCost:
    """The cost of a run whose config has a [cost].

    Args:
        config: the config of the run.
        ledger: its account of all tokens, by name of `metrics.LEDGER_SOURCES` and `metrics.LEDGER_FATES`.
        times: how long it took.
        is_for_simulation: as in `RunCost`.
    """
    cost = config.cost
    is_colocated = config.mode is Mode.COLOCATED
    return RunCost(
        rollout_gpus=cost.rollout_gpus,
        train_gpus=cost.train_gpus,
        usd_per_gpu_hour=cost.usd_per_gpu_hour,
        tokens=sum(ledger[metric.name] for metric in m.LEDGER_SOURCES),
        untrained_tokens=untrained_tokens(ledger),
        rollout_us=times.rollout_us,
        wait_us=times.wait_us,
        rollout_missing=_missing("rollout_gpus", cost.rollout_gpus is None, times.rollout_missing),
        wait_missing=_missing("train_gpus", cost.train_gpus is None and not is_colocated, times.wait_missing),
        is_for_simulation=is_for_simulation,
    )


def held_gpus(config: Config) -> int | None:
    """GPUs that a run holds as long as it takes; None where the config gives none."""
    given = [config.cost.rollout_gpus, None if config.mode is Mode.COLOCATED else config.cost.train_gpus]
    return sum(filter(None, given)) or None


def untrained_tokens(ledger: Mapping[str, int]) -> int:
    """The tokens of an account that were never trained."""
    return sum(ledger.get(metric.name, 0) for metric in m.NEVER_TRAINED)


def _missing(key: str, is_key_missing: bool, of_times: str) -> str:
    return "; ".join(filter(None, (f"the config has no cost.{key}" * is_key_missing, of_times)))


def runs_otherwise(config: Config, recorded: Config | None, tasks: tuple[str, ...], counterfactual_tokens: int) -> bool:
    """Whether a config would have run otherwise than a log: by the log's own config, else by its replay.

    Args:
        config: the config of a replay.
        recorded: the log's own; None where it has none.
        tasks: the tasks of the log.
        counterfactual_tokens: tokens of the replay that rest on the rules for puts that went another way.
    """
    if recorded is None:
        return counterfactual_tokens > 0
    return _decisions(config, tasks) != _decisions(recorded, tasks)


def _decisions(config: Config, tasks: tuple[str, ...]) -> tuple[object, ...]:
    """What decides how a log with these tasks came about, as far as a replay follows it."""
    policies = (config.task_policy(task) for task in tasks)
    values = [[getattr(policy, name) for name in Policy.model_fields] for policy in policies]
    return (config.mode, config.timeline.sync_weights_interval, config.timeline.resync, config.buffer, values)
