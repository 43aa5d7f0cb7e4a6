"""Which responses corrections look at: those that the steps took, else all that were completed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokenaudit.config.model import Config
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.staleness import ALWAYS_FRESH
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.digest import KIND_CODE, STATUS_CODE, Digest
from tokenaudit.masks.plan import MaskPlan, Selection, check_tasks, plan_masks
from tokenaudit.replay.open_loop import run_tasks
from tokenaudit.replay.request import TimelineKind
from tokenaudit.replay.result import no_such_step


def has_takes(digest: Digest, timeline: TimelineKind | None) -> bool:
    """Whether steps take something: the log has takes, or a simulated timeline, which makes them, is asked for."""
    return timeline is TimelineKind.SIMULATED or bool((digest.events.kind == KIND_CODE[EventKind.TAKE]).any())


def taken_responses(
    digest: Digest,
    config: Config,
    timeline: TimelineKind | None = None,
    selection: Selection | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> MaskPlan:
    """The responses that the steps take; where nothing is taken (`has_takes`), every completed one, at its put's step.

    Arguments and errors as for `plan.plan_masks`.
    """
    if has_takes(digest, timeline):
        return plan_masks(digest, config, timeline, selection, on_progress)
    wanted = selection or Selection()
    tasks = run_tasks(digest, config)
    check_tasks(wanted, tasks, digest.name)
    events, responses, runs = digest.events, digest.responses, digest.runs
    owner = np.repeat(np.arange(len(events.kind)), np.diff(events.first_response))
    code = {task: index for index, task in enumerate(tasks)}
    task = np.array([code[name] for name in digest.tasks], dtype=np.int64)[events.task[owner]]
    plan = MaskPlan(
        tasks=tuple(tasks),
        log_row=digest.log_row,
        train_step=events.train_step[owner],
        task=task,
        group_id=events.group_id[owner],
        rollout_id=responses.rollout_id,
        segment=responses.segment,
        oldest_fresh=np.full(len(owner), ALWAYS_FRESH, dtype=np.int32),
        is_taken=np.zeros(len(owner), dtype=np.bool_),
        first_run=responses.first_run,
        run_version=runs.model_step,
        run_tokens=runs.tokens,
        run_trainable=runs.trainable,
    )
    is_wanted = responses.status == STATUS_CODE[Status.COMPLETED]
    if wanted.tasks is not None:
        is_wanted &= np.isin(task, [code[name] for name in wanted.tasks])
    if wanted.steps is not None:
        first, last = wanted.steps
        is_in_steps = (plan.train_step >= first) & (plan.train_step <= last)
        if not is_in_steps.any():
            raise no_such_step(f"--step {first}..{last}", np.unique(plan.train_step).tolist())
        is_wanted &= is_in_steps
    return plan.of(np.flatnonzero(is_wanted))
