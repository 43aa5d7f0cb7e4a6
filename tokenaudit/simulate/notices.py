"""What a person should know about a workload, a config and their combination before trusting a simulated result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenaudit.config.loading import Settings
from tokenaudit.config.model import Config
from tokenaudit.config.warnings import config_warnings
from tokenaudit.contracts.errors import Notice, Problem
from tokenaudit.log.columns import Int64s, marked
from tokenaudit.log.files import Log
from tokenaudit.replay.notices import loss_notices, settings_notices
from tokenaudit.replay.request import PromptOrder, TimelineKind
from tokenaudit.replay.result import Result
from tokenaudit.simulate.workload import TaskWorkload, Workload

_GAPS = 10
"""One in so many numbers may be no group: some had not ended when the log did."""
_LOCAL = 10
"""Groups are away from their place by less than this part of the groups, on average."""


def stuck_problems(result: Result) -> list[Problem]:
    """Why a simulated run can't go on; empty for one that came to its end, and for a replay."""
    return [
        Problem(f"the run can't go on: {stuck.message}", f"task {stuck.task}, step {stuck.train_step}", stuck.hint)
        for stuck in (result.simulation.stuck if result.simulation else ())
    ]


def simulation_notices(
    workload: Workload,
    source: Log,
    settings: Settings,
    quarantined: tuple[int, int],
) -> list[Notice]:
    """Notices of a simulated run, in a fixed order.

    Args:
        workload: what is simulated.
        source: the files behind it.
        settings: the settings it is simulated under.
        quarantined: groups left out because of structural faults, and new tokens in their puts.
    """
    config = settings.config
    tasks = list(workload.tasks)
    warnings = config_warnings(config, None, tasks)
    return [
        *(warning.notice for warning in warnings),
        *_resync_notices(config),
        *loss_notices(source),
        *(Notice("log-note", note) for note in source.notes),
        *_workload_notices(workload, quarantined),
        *prompt_order_notices(workload),
        *_group_size_notices(config, workload),
        *settings_notices(settings, tasks, TimelineKind.SIMULATED),
    ]


def prompt_order_notices(workload: Workload) -> list[Notice]:
    """That group ids give an order of prompts that their first puts, which they stand by, don't.

    Ids are taken for a count of prompts where nearly every number between the least and the largest is a group, and
    groups ended near the place that their id has. Row numbers of a shuffled data set are dense too, but lie a third of
    the groups away from their place on average.
    """
    if workload.prompt_order is not PromptOrder.FIRST_PUT:
        return []
    ids = {name: task.responses.group_id[task.first_response[:-1]] for name, task in workload.tasks.items()}
    counted = {name: values for name, values in ids.items() if _is_mixed_count(values)}
    if not counted:
        return []
    groups = sum(map(len, counted.values()))
    ahead = sum(int((values > _least_from(values)).sum()) for values in counted.values())
    tasks = f"task{'s' * (len(counted) > 1)} {', '.join(counted)}"
    message = f"{tasks}: group ids are a count, and {ahead} of {groups} groups were put before one with a smaller id"
    cost = "If ids were counted as groups began, --prompt-order group-id is closer to the recorded run."
    return [Notice("prompt-order", message, cost)]


def _is_mixed_count(group_id: Int64s) -> bool:
    """Whether ids, in order of first put, are a count that is out of order by little."""
    groups = len(group_id)
    place = np.argsort(np.argsort(group_id))
    away = int(np.abs(place - np.arange(groups)).sum())
    # Python's integers: a span of ids may not fit 64 bits.
    span = int(group_id.max()) - int(group_id.min()) + 1
    return 0 < away * _LOCAL < groups * groups and (span - groups) * _GAPS <= span


def _least_from(values: Int64s) -> Int64s:
    """The least value at or behind each place."""
    return np.minimum.accumulate(values[::-1])[::-1]


def _resync_notices(config: Config) -> Iterator[Notice]:
    if config.timeline.resync:
        message = "timeline.resync is for replays of recorded logs, and off here"
        yield Notice("resync-off", message, "A simulation syncs weights by itself.")


def _workload_notices(workload: Workload, quarantined: tuple[int, int]) -> Iterator[Notice]:
    groups, tokens = quarantined
    if groups:
        message = f"{groups} groups with {tokens} new tokens are left out because of structural faults"
        yield Notice("quarantined", message)
    if workload.truncated_responses:
        message = f"{workload.truncated_responses} of {workload.responses} responses were never completed in the log"
        cost = "They are simulated as long as they were seen, which is shorter than they would have been."
        yield Notice("truncated-responses", message, cost)
    if workload.unscored_rewards:
        message = f"{workload.unscored_rewards} rewards are not finite numbers and count as unscored"
        yield Notice("unscored-rewards", message)


def _group_size_notices(config: Config, workload: Workload) -> Iterator[Notice]:
    """Groups that don't have as many rollouts as the config says; segments of one rollout count once."""
    for name, task in workload.tasks.items():
        size = config.task_policy(name).group_size
        if size is None:
            continue
        other = int((_rollouts(task) != size).sum())
        if other:
            message = f"task {name}: {other} of {task.prompts} groups don't have {size} responses (group_size)"
            yield Notice("group-size-differs", message)


def _rollouts(task: TaskWorkload) -> Int64s:
    """Rollouts of every group."""
    rollout_id = task.responses.rollout_id
    begins = marked(len(rollout_id), np.unique(rollout_id, return_index=True)[1])
    before = np.concatenate([[0], np.cumsum(begins)])
    return np.diff(before[task.first_response])
