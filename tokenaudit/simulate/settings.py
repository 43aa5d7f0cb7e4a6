"""What a simulation is asked to do, checked before it begins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tokenaudit.config.model import Config, Mode, dotted, require_timeline, task_order, task_sizes
from tokenaudit.contracts.errors import ConfigError, Problem
from tokenaudit.simulate.scheduling import MAX_GROUPS_PER_STEP
from tokenaudit.simulate.workload import TaskWorkload, Workload

MAX_STEPS = 1_000_000
"""Steps a simulation may have."""


@dataclass(frozen=True, slots=True)
class DisaggregatedTimes:
    """How long things take in a disaggregated run, in microseconds."""

    train_time_us: int
    sync_time_us: int
    poll_interval_us: int


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A simulation that can begin.

    Attributes:
        steps: train steps to simulate.
        sizes: groups per batch by task, in task order.
        times: None in a colocated run.
    """

    steps: int
    sizes: dict[str, int]
    times: DisaggregatedTimes | None


def run_settings(workload: Workload, config: Config) -> RunSettings:
    """Check that a config can be simulated on a workload.

    Raises:
        ConfigError: keys that are missing, batches that the workload can't fill, numbers that no run has; all at once.
    """
    settings, problems = _settings(config, list(workload.tasks))
    problems += _task_problems(workload, config, settings.sizes)
    if problems:
        raise ConfigError(problems)
    return settings


def settings_problems(config: Config, tasks: Sequence[str]) -> list[Problem]:
    """What a config lacks for a simulation of some tasks, whatever their workload."""
    return _settings(config, tasks)[1]


def _settings(config: Config, tasks: Sequence[str]) -> tuple[RunSettings, list[Problem]]:
    """The settings, as far as the config gives them, and what is wrong with it."""
    problems: list[Problem] = []
    sizes: dict[str, int] = {}
    times: DisaggregatedTimes | None = None
    needed_by = f"a {config.mode.value} simulation"
    try:
        (steps,) = require_timeline(config, ["steps"], needed_by)
    except ConfigError as error:
        steps = 0
        problems += error.problems
    if steps > MAX_STEPS:
        what = f"a simulation of {steps} steps"
        problems.append(Problem(what, "timeline.steps", f"simulate at most {MAX_STEPS:,} steps"))
    try:
        sizes = task_sizes(config, task_order(config, tasks))
    except ConfigError as error:
        problems += error.problems
    if config.mode is Mode.DISAGGREGATED:
        keys = ["train_time_us", "sync_time_us", "poll_interval_us"]
        try:
            times = DisaggregatedTimes(*require_timeline(config, keys, needed_by))
        except ConfigError as error:
            problems += error.problems
    return RunSettings(steps, sizes, times), problems


def _task_problems(workload: Workload, config: Config, sizes: Mapping[str, int]) -> Iterator[Problem]:
    for task, size in sizes.items():
        if size == 0:
            continue
        prompts = workload.tasks.get(task)
        if prompts is None:
            hint = f"its tasks are {', '.join(workload.tasks)}; give this one weight 0 to leave it out"
            yield Problem(f"task {task} has no prompt in the workload", workload.name, hint)
        elif not _has_good_group(prompts):
            what = f"every group of task {task} is marked as failed or filtered, so its batch never fills"
            yield Problem(what, workload.name, "give the task weight 0, or prompts that can be trained")
        at_once = size * (1 + config.task_policy(task).over_sample_threshold)
        if not math.isfinite(at_once) or at_once > MAX_GROUPS_PER_STEP:
            where = f"timeline.train_batch_size, {dotted(('tasks', task, 'over_sample_threshold'))}"
            what = f"task {task} would begin more than {MAX_GROUPS_PER_STEP:,} groups at once"
            yield Problem(what, where, "set a smaller batch, or oversample less")


def _has_good_group(task: TaskWorkload) -> bool:
    is_lost = task.responses.failed | task.responses.filtered
    starts = task.first_response[:-1]
    return any(not is_lost[low:high].any() for low, high in zip(starts, task.first_response[1:], strict=True))
