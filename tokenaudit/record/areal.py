"""Record a run of AReaL from the workflow executor of one rank.

Read: areal/infra/workflow_executor.py and areal/infra/staleness_manager.py of areal-project/AReaL cbff54d6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np

from tokenaudit.contracts.schema import DEFAULT_TASK, Precision
from tokenaudit.lifecycle.types import Status
from tokenaudit.record.event_rows import Row, copied
from tokenaudit.record.held import Held
from tokenaudit.record.hooks import Detach, Hook, Hooks, Record
from tokenaudit.record.ids import GroupIds, rollout_id
from tokenaudit.record.limits import Lack
from tokenaudit.record.recorder import Recorder
from tokenaudit.record.response_columns import RecordedGroup, put_group, response_of, spread, take_groups


def attach_areal(executor: Any, recorder: Recorder, *, task_name: str = DEFAULT_TASK) -> Detach:
    """Record the tasks that a `WorkflowExecutor` finishes, the batches that it gives, and new weights.

    A task is a group. The staleness manager counts it when it ends: `on_rollout_accepted`, or `on_rollout_rejected`,
    after which it is put as filtered where `should_accept_fn` or the workflow itself turned it away, else as failed.
    What is accepted is put when `dispatcher.active_submit_and_wait` or `dispatcher.wait_results` gives it, and taken:
    AReaL takes in the order in which tasks began, and a log in that of its puts. `inference_engine.set_version` is a
    sync. All of them are wrapped, of this one executor; `dispatcher.task_factory` too, so that a task's trajectory is
    seen. Evaluations are left out.

    Args:
        executor: the executor after `initialize`, such as `rollout.workflow_executor`.
        recorder: where events go; it stays open. Every executor needs a folder of its own.
        task_name: the task of everything.

    Returns:
        A function that takes the wrappers off again, and puts what was accepted and not given.

    Raises:
        TypeError: the executor lacks one of the methods, or a recorder is attached to it already.
    """
    hooks = Hooks(recorder)
    run = _Run(executor, recorder, hooks, task_name)
    gives = {name: Hook(lambda _: run.gave) for name in ("active_submit_and_wait", "wait_results")}
    ends = {
        "on_rollout_accepted": Hook(lambda _: lambda _: run.ended(is_accepted=True)),
        "on_rollout_rejected": Hook(lambda _: lambda _: run.ended(is_accepted=False)),
    }
    factory = {"task_factory": Hook(run.submitted)}
    syncs = {"set_version": Hook(run.synced)}
    parts = [
        (executor.dispatcher, gives | factory),
        (executor.staleness_manager, ends),
        (executor.inference_engine, syncs),
    ]
    detach = hooks.attach_all(parts, "executor", run.end)
    recorder.note_limit(Lack.WAITING)
    return detach


class _Task:
    """A task on its way through the executor, in the places of its workflow and its `should_accept_fn`."""

    def __init__(self, task: Any) -> None:
        self.task_id = int(task.task_id)
        self.trajectory: Mapping[str, Any] | None = None
        self.is_rejected = False
        self._workflow = task.workflow
        self._should_accept: Callable[[Any], bool] | None = task.should_accept_fn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workflow, name)

    async def arun_episode(self, *args: Any, **kwargs: Any) -> Any:
        """What the workflow makes; None is its way to reject a task."""
        _running.set(self)
        trajectory = await self._workflow.arun_episode(*args, **kwargs)
        self.is_rejected = trajectory is None
        return trajectory

    def judge(self, trajectory: Any) -> bool:
        """Whether a task is accepted; the executor asks with the trajectory as it is trained."""
        self.trajectory = trajectory
        is_accepted = self._should_accept is None or bool(self._should_accept(trajectory))
        self.is_rejected = not is_accepted
        return is_accepted


_running: ContextVar[_Task | None] = ContextVar("tokenaudit_areal_task", default=None)
"""The task that the executor's coroutine runs."""


class _Run:
    """The handlers of one executor."""

    def __init__(self, executor: Any, recorder: Recorder, hooks: Hooks, task_name: str) -> None:
        self._executor = executor
        self._recorder = recorder
        self._hooks = hooks
        self._task_name = task_name
        self._ids = GroupIds(recorder)
        self._taken_step = 0
        self._accepted: Held[int, tuple[int, list[Row]]] = Held(hooks)
        """Ids and responses of the groups that are accepted and not given, by task."""

    def submitted(self, arguments: Mapping[str, Any]) -> None:
        task: Any = next(iter(arguments.values()))
        if not task.is_eval:
            watched = _Task(task)
            task.workflow, task.should_accept_fn = watched, watched.judge

    def ended(self, *, is_accepted: bool) -> None:
        task = _running.get()
        if task is None:
            return
        group_id = self._ids.new(task.task_id)
        if task.trajectory is None:
            self._recorder.note_limit(Lack.REJECTED)
        rejected = Status.FILTERED if task.is_rejected else Status.FAILED
        status = Status.COMPLETED if is_accepted else rejected
        rows = [row | {"status": status.value} for row in _rows(task.trajectory, group_id)]
        if is_accepted:
            self._accepted.hold(task.task_id, (group_id, rows), rows)
        else:
            self._put(group_id, rows, self._next_step())

    def gave(self, results: Iterable[Any]) -> None:
        named = [result.task_id for result in results if result is not None]
        given = [group for group in map(self._accepted.drop, named) if group is not None]
        if given:
            self._taken_step = self._version() + 1
            take_groups(self._recorder, [self._put(*group, self._taken_step) for group in given], self._taken_step)

    def end(self) -> None:
        for group in self._accepted.values():
            self._put(*group, self._next_step())

    def _put(self, group_id: int, rows: list[Row], train_step: int) -> RecordedGroup | None:
        return self._hooks.guarded(put_group, self._recorder, rows, group_id, train_step, self._task_name)

    def _next_step(self) -> int:
        """The step whose batch comes next."""
        return max(self._version(), self._taken_step) + 1

    def synced(self, arguments: Mapping[str, Any]) -> Record:
        version = int(arguments["version"])

        def record(_: Any) -> None:
            if version > 0:
                self._recorder.sync(version, version)

        return record

    def _version(self) -> int:
        """Train steps in the weights."""
        return int(self._executor.inference_engine.get_version())


def _rows(trajectory: Mapping[str, Any] | None, group_id: int) -> list[Row]:
    """The samples of a task; one without tokens where nothing says what was generated."""
    if trajectory is None or "input_ids" not in trajectory:
        return [{"rollout_id": rollout_id(group_id, 0), "response_len": 0}]
    rewards = trajectory.get("rewards")
    scores = [None] * len(trajectory["input_ids"]) if rewards is None else copied(rewards)
    return [
        {"rollout_id": rollout_id(group_id, index), "reward": None if score is None else float(score)}
        | _sample(trajectory, index)
        for index, score in enumerate(scores)
    ]


def _sample(trajectory: Mapping[str, Any], index: int) -> Row:
    """A sample without its padding; versions are -1 where no model generated."""
    tokens = int(np.count_nonzero(copied(trajectory["attention_mask"][index])))

    def of(name: str) -> Any:
        return copied(trajectory[name][index][:tokens]) if name in trajectory else None

    versions = of("versions")
    if versions is None:
        row = response_of(of("input_ids"), of("loss_mask"), of("logprobs"))
        return row | {"version_precision": Precision.NONE}
    stamped = np.array(versions, dtype=np.int64)
    row = response_of(of("input_ids"), of("loss_mask"), of("logprobs"), stamped >= 0)
    stamped = stamped[row["prompt_len"] :]
    is_generated = stamped >= 0
    if not is_generated.any():
        return row | {"version_precision": Precision.NONE}
    return row | {"response_model_steps": spread(stamped[is_generated], is_generated)}
