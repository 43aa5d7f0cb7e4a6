"""Which responses get a mask, at which step and under which rule: what a replay takes, row by row."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tokenaudit.config.model import Config
from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.events import GroupTaken
from tokenaudit.lifecycle.staleness import oldest_fresh_version
from tokenaudit.lifecycle.types import Response
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE, Digest
from tokenaudit.masks.backends import Int32s
from tokenaudit.replay.events import HeldGroup, HeldGroups, Key, RunEvent, StepClosed
from tokenaudit.replay.open_loop import replay, run_tasks
from tokenaudit.replay.request import TimelineKind
from tokenaudit.replay.result import no_such_step

_REFRESH = KIND_CODE[EventKind.REFRESH]
_COLUMNS = (
    "row", "train_step", "task", "group_id", "rollout_id", "segment", "oldest_fresh", "is_taken", "run_count",
)  # fmt: skip


class Selection(NamedTuple):
    """Which masks are wanted.

    Attributes:
        steps: first and last train step; None: all.
        tasks: task names; None: all.
        untaken_step: also what is held right after the take of this step, masked as at this step; None: only what
            is taken.
    """

    steps: tuple[int, int] | None = None
    tasks: frozenset[str] | None = None
    untaken_step: int | None = None


class MaskPlan(NamedTuple):
    """M responses to mask, in the order of their rows in the log; arrays have the shape [M] unless they say so.

    Attributes:
        tasks: task names by code.
        log_row: row of the log, all files together.
        train_step: the step.
        task: index into `tasks`.
        group_id: the group.
        rollout_id: the rollout.
        segment: position among the segments of a split rollout.
        oldest_fresh: the oldest version that is fresh; see `staleness.oldest_fresh_version`.
        is_taken: False for responses that are only held.
        first_run: the first version run of each, shape [M + 1].
        run_version: version of each run, under the timeline of the replay.
        run_tokens: tokens of each run.
        run_trainable: tokens of each run whose semantic mask is not 0.
    """

    tasks: tuple[str, ...]
    log_row: Int64s
    train_step: Int64s
    task: Int64s
    group_id: Int64s
    rollout_id: Int64s
    segment: Int64s
    oldest_fresh: Int32s
    is_taken: Bools
    first_run: Int64s
    run_version: Int32s
    run_tokens: Int32s
    run_trainable: Int32s

    def of(self, entries: Int64s) -> MaskPlan:
        """Some of the responses, in the order of `entries`."""
        counts = np.diff(self.first_run)[entries]
        first = np.concatenate([[0], np.cumsum(counts)])
        runs = np.repeat(self.first_run[entries] - first[:-1], counts) + np.arange(first[-1])
        per_response = (
            "log_row", "train_step", "task", "group_id", "rollout_id", "segment", "oldest_fresh", "is_taken",
        )  # fmt: skip
        return self._replace(
            first_run=first,
            **{name: getattr(self, name)[entries] for name in per_response},
            **{name: getattr(self, name)[runs] for name in ("run_version", "run_tokens", "run_trainable")},
        )

    def tokens(self) -> Int64s:
        """Tokens of each response, shape [M]."""
        before = np.concatenate([[0], np.cumsum(self.run_tokens, dtype=np.int64)])
        return np.diff(before[self.first_run])


def plan_masks(
    digest: Digest,
    config: Config,
    timeline: TimelineKind | None = None,
    selection: Selection | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> MaskPlan:
    """Replay a log and list the responses it takes.

    A response is listed with the row of its last put. One that is held at the untaken step and taken later is
    listed twice, held first. A member that was reset has no token left, and an empty mask.

    Raises:
        UsageError, ConfigError: this log can't be replayed this way, or the selection names a step or a task that
            the run doesn't have.
    """
    wanted = selection or Selection()
    tasks = run_tasks(digest, config)
    check_tasks(wanted, tasks, digest.name)
    planner = _Planner(tasks, config, wanted, digest)
    planner.follow(replay(digest, config, timeline, on_progress, planner.begin_log_event))
    return planner.plan(digest)


def check_tasks(wanted: Selection, tasks: Sequence[str], name: str) -> None:
    """Refuse a selection that names a task which a run doesn't have.

    Raises:
        UsageError: it does.
    """
    unknown = sorted((wanted.tasks or frozenset()).difference(tasks))
    if unknown:
        raise UsageError(Problem(f"there is no task {unknown[0]!r}", name, f"tasks: {', '.join(tasks)}"))


class _Planner:
    """Gathers what is wanted from the events of a run."""

    def __init__(self, tasks: list[str], config: Config, wanted: Selection, digest: Digest) -> None:
        self._tasks = tasks
        self._wanted = wanted
        self._untaken_step = wanted.untaken_step
        self._log_events = digest.events
        self._held = HeldGroups()
        self._before_refresh: Mapping[Key, HeldGroup] | None = None
        self._codes = {task: code for code, task in enumerate(tasks)}
        self._policies = {task: config.expiry_policy(task) for task in tasks}
        self._columns: dict[str, array[int]] = {name: array("q") for name in _COLUMNS}
        self._runs = array("i")

    def begin_log_event(self, index: int) -> None:
        """Keep what is held before a refresh that may belong to the row of the untaken step.

        The row then closes before the next event of the log, and what was held right after its take counts.
        """
        self._before_refresh = None
        events, untaken_step = self._log_events, self._untaken_step
        if untaken_step is not None and events.kind[index] == _REFRESH and events.train_step[index] == untaken_step + 1:
            self._before_refresh = dict(self._held)

    def follow(self, events: Iterable[RunEvent]) -> None:
        """Go through a run; what is held is followed until the row of the untaken step closes."""
        steps: list[int] = []
        for event in events:
            if isinstance(event, GroupTaken):
                threshold = event.token_stale_threshold
                self._add(event.task_name, event.group_id, event.train_step, threshold, event.responses, True)
            if isinstance(event, StepClosed):
                steps.append(event.train_step)
                if event.train_step == self._untaken_step:
                    held = self._held if self._before_refresh is None else self._before_refresh
                    self._hold(held, event.train_step)
                    self._untaken_step = None
            elif self._untaken_step is not None:
                self._held.observe(event)
        if self._untaken_step is not None:
            raise no_such_step(f"--include-untaken {self._untaken_step}", steps)
        if self._wanted.steps is not None:
            first, last = self._wanted.steps
            if not any(first <= step <= last for step in steps):
                raise no_such_step(f"--step {first}..{last}", steps)

    def _hold(self, held: Mapping[Key, HeldGroup], train_step: int) -> None:
        for (task, group_id), (_, responses) in held.items():
            threshold = self._policies[task].token_threshold(responses.measures.is_agentic)
            self._add(task, group_id, train_step, threshold, responses, False)

    def _add(
        self,
        task: str,
        group_id: int,
        train_step: int,
        threshold: int | None,
        responses: Iterable[Response],
        is_taken: bool,
    ) -> None:
        steps, tasks = self._wanted.steps, self._wanted.tasks
        if tasks is not None and task not in tasks:
            return
        if is_taken and steps is not None and not steps[0] <= train_step <= steps[1]:
            return
        oldest_fresh = oldest_fresh_version(train_step, threshold)
        columns = self._columns.values()
        for response in responses:
            values = (
                response.row,
                train_step,
                self._codes[task],
                group_id,
                response.rollout_id,
                response.segment,
                oldest_fresh,
                is_taken,
                len(response.runs),
            )
            for column, value in zip(columns, values, strict=True):
                column.append(value)
            for run in response.runs:
                self._runs.extend(run)

    def plan(self, digest: Digest) -> MaskPlan:
        """What was gathered, in the order of the log."""
        columns = {name: np.array(column, dtype=np.int64) for name, column in self._columns.items()}
        log_row = digest.log_row[columns["row"]]
        order = np.lexsort((columns["is_taken"], log_row))
        counts = columns["run_count"]
        first_run = np.cumsum(counts) - counts
        ordered_counts = counts[order]
        ordered_first = np.concatenate([[0], np.cumsum(ordered_counts)])
        shift = np.repeat(first_run[order] - ordered_first[:-1], ordered_counts)
        runs = np.array(self._runs, dtype=np.int32).reshape(-1, 3)[np.arange(len(shift)) + shift]
        return MaskPlan(
            tasks=tuple(self._tasks),
            log_row=log_row[order],
            **{name: columns[name][order] for name in ("train_step", "task", "group_id", "rollout_id", "segment")},
            oldest_fresh=columns["oldest_fresh"][order].astype(np.int32),
            is_taken=columns["is_taken"][order] == 1,
            first_run=ordered_first,
            run_version=np.ascontiguousarray(runs[:, 0]),
            run_tokens=np.ascontiguousarray(runs[:, 1]),
            run_trainable=np.ascontiguousarray(runs[:, 2]),
        )
