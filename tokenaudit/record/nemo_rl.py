"""Record the replay buffers of NeMo-RL: of asynchronous GRPO, and of its single controller.

Read: `ReplayBufferImpl` and `TQReplayBuffer` (nemo_rl/algorithms/async_utils/replay_buffer.py), `BaseSampler`
(staleness_sampler.py beside it) and `PromptGroupRecord` (nemo_rl/experience/interfaces.py) of NVIDIA-NeMo/RL 7ea279ab.
A version counts train steps there: weights `w` are those after step `w`, and what is sampled with them is trained in
step `w + 1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tokenaudit.contracts.schema import DEFAULT_TASK, Precision
from tokenaudit.log.writer import Row
from tokenaudit.record.event_rows import copied
from tokenaudit.record.held import Held
from tokenaudit.record.hooks import Detach, Hook, Hooks, Record
from tokenaudit.record.ids import GroupIds, log_id, rollout_id
from tokenaudit.record.recorder import Recorder
from tokenaudit.record.response_columns import (
    RecordedGroup,
    mask_bits,
    message_mask,
    put_group,
    response_of,
    span_columns,
    take_groups,
)
from tokenaudit.record.run_steps import RunSteps

_AGAIN = "groups that a checkpoint of NeMo-RL brought back into its buffer are put once more"


def attach_nemo_rl(replay_buffer: Any, recorder: Recorder) -> Detach:
    """Record the replay buffer of asynchronous GRPO: every group added, and every batch sampled.

    The object is a `ReplayBufferImpl`, in the process where it lives; for one that is a Ray actor, see
    `recorded_replay_buffer`. A group is known by its start version, and no token is newer than the step it is meant
    for. A sample for new weights is a refresh, and one that gives groups a take that names them.

    Returns:
        A function that takes the wrappers off again.

    Raises:
        TypeError: the object has no methods `add` and `sample`, or a recorder is attached to it already.
    """
    return _ReplayBuffer(replay_buffer, Hooks(recorder)).attach(replay_buffer)


def recorded_replay_buffer(base: type[Any], make_recorder: Callable[[], Recorder]) -> type[Any]:
    """A class like NeMo-RL's `ReplayBufferImpl`, each of whose objects is recorded where Ray makes it.

    Ray calls the methods of the class of an actor, not those of the object, so that wrappers on that aren't seen.

    Args:
        base: `ReplayBufferImpl`.
        make_recorder: makes the recorder, in the process of the actor.
    """

    class RecordedReplayBuffer(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._recorded = SimpleNamespace(add=super().add, sample=super().sample)
            hooks = Hooks(make_recorder)
            hooks.guarded(lambda: _ReplayBuffer(self, hooks).attach(self._recorded))

        def add(self, *args: Any, **kwargs: Any) -> Any:
            return self._recorded.add(*args, **kwargs)

        def sample(self, *args: Any, **kwargs: Any) -> Any:
            return self._recorded.sample(*args, **kwargs)

    return RecordedReplayBuffer


def attach_nemo_rl_controller(buffer: Any, sampler: Any, recorder: Recorder) -> Detach:
    """Record the buffer of the single controller, a `TQReplayBuffer`, and the sampler that takes from it.

    A group is put when it is committed, with the versions before and behind its rollout. `evict` with new weights is a
    refresh, a `select` that gives groups is a take that names them.

    Returns:
        A function that takes the wrappers off again.

    Raises:
        TypeError: the buffer has no method `commit`, or the sampler no `select` and `evict`, or a recorder is attached
            to one of them already.
    """
    hooks = Hooks(recorder)
    controller = _Controller(recorder, hooks)
    selecting = {"select": Hook(controller.select), "evict": Hook(controller.evict)}
    parts = [(buffer, {"commit": Hook(controller.commit)}), (sampler, selecting)]
    return hooks.attach_all(parts, "buffer", controller.end_step)


class _Steps(RunSteps):
    """Puts the groups of a run too."""

    def put(self, rows: list[Row], start: int, end: int, mixed: Precision, group_id: int, task: Any) -> RecordedGroup:
        """Record a group whose responses have versions from `start` to `end`."""
        self.saw(start)
        rows = [row | span_columns(start, end, mixed=mixed) for row in rows]
        task_name = task if isinstance(task, str) and task else DEFAULT_TASK
        return put_group(self.recorder, rows, group_id=group_id, train_step=self.train_step, task_name=task_name)


class _ReplayBuffer:
    """The handlers of a `ReplayBufferImpl`, which names no groups: they are numbered."""

    def __init__(self, replay_buffer: Any, hooks: Hooks) -> None:
        self._buffer, self._hooks, self._recorder = replay_buffer, hooks, hooks.recorder
        self._steps, self._ids = _Steps(self._recorder), GroupIds(self._recorder)
        self._numbers = 0
        self._known: Held[int, tuple[Any, RecordedGroup | None]] = Held(hooks)
        """Groups in the buffer by the identity of their trajectory, which is kept so that no other one gets it.

        None for one that can't be recorded.
        """

    def attach(self, target: Any) -> Detach:
        """Wrap the methods of the buffer, or of what stands for them."""
        return self._hooks.attach(
            target, {"add": Hook(self._add, is_alone=True), "sample": Hook(self._sample, is_alone=True)}
        )

    def _add(self, arguments: Mapping[str, Any]) -> Record:
        def record(status: Any) -> None:
            if status == "success":
                start, target = int(arguments["weight_version"]), int(arguments["target_weight_version"])
                self._put(arguments["trajectory"], start, target)

        return record

    def _put(self, trajectory: Any, start: int, target: int) -> None:
        self._known.hold(id(trajectory), (trajectory, None))
        batch = trajectory["batch"]
        logs = batch["message_log"]
        rewards, tasks = batch.get("total_reward"), batch.get("task_name")
        truncated = batch.get("truncated")
        group_id = self._ids.new(self._numbers)
        self._numbers += 1
        rows = [
            _row(
                rollout_id(group_id, index),
                log,
                None if rewards is None else rewards[index],
                truncated is not None and bool(truncated[index]),
            )
            for index, log in enumerate(logs)
        ]
        group = self._steps.put(
            rows, start, max(start, target), Precision.START, group_id, tasks[0] if tasks else DEFAULT_TASK
        )
        self._known.hold(id(trajectory), (trajectory, group), rows)

    def _sample(self, arguments: Mapping[str, Any]) -> Record:
        self._put_restored()
        self._steps.asked(int(arguments["current_weight_version"]))

        def record(sampled: Any) -> None:
            if sampled is not None:
                trajectories = sampled["trajectories"]
                taken = [self._known.get(id(trajectory), (None, None))[1] for trajectory in trajectories]
                take_groups(self._recorder, taken, self._steps.train_step)
            for gone in self._known.keys() - set(map(id, self._buffer.trajectories)):
                self._known.drop(gone)

        return record

    def _put_restored(self) -> None:
        """Put what a checkpoint brought into the buffer, or what was there before it was recorded."""
        columns = (self._buffer.trajectories, self._buffer.trajectory_versions, self._buffer.target_weight_versions)
        for trajectory, start, target in list(zip(*columns, strict=True)):
            if id(trajectory) not in self._known:
                if self._recorder.first_event_id > 1:
                    self._recorder.note_limit(_AGAIN)
                self._hooks.guarded(self._put, trajectory, int(start), int(target))


class _Controller:
    """The handlers of a `TQReplayBuffer` and its sampler. Its groups have names that no other group has.

    A step may select its groups in parts, which are one take.
    """

    def __init__(self, recorder: Recorder, hooks: Hooks) -> None:
        self._recorder = recorder
        self._steps = _Steps(recorder)
        self._tasks: Held[int, str] = Held(hooks)
        """The tasks of groups that are in the buffer."""
        self._selected: list[RecordedGroup] = []
        """The groups of the step so far."""

    def commit(self, arguments: Mapping[str, Any]) -> Record:
        name, group = str(arguments["group_id"]), arguments["record"]
        start, end = int(arguments["start_weight_version"]), int(arguments["end_weight_version"])
        rows = [
            _row(log_id(f"{name}_g{index}"), completion.message_log, completion.reward, completion.truncated)
            for index, completion in enumerate(group.completions)
        ]
        task = (group.metadata or {}).get("task_name")

        def record(_: Any) -> None:
            put = self._steps.put(rows, start, end, Precision.SPAN, log_id(name), task)
            self._tasks.hold(put.group_id, put.task_name)

        return record

    def evict(self, arguments: Mapping[str, Any]) -> None:
        self._ask(arguments)

    def select(self, arguments: Mapping[str, Any]) -> Record:
        self._ask(arguments)

        def record(selected: Any) -> None:
            meta, size = selected
            if meta is not None:
                self._selected += self._groups(meta.sample_ids)
                if size >= arguments["max_prompt_groups"]:
                    self.end_step()

        return record

    def end_step(self) -> None:
        """Record what a step took; one that found fewer groups than it asked for ends with the next one."""
        groups, self._selected = self._selected, []
        take_groups(self._recorder, groups, self._steps.train_step)

    def _ask(self, arguments: Mapping[str, Any]) -> None:
        version = int(arguments["current_train_weight"])
        if version + 1 != self._steps.train_step:
            self.end_step()
        self._steps.asked(version)

    def _groups(self, sample_ids: Sequence[str]) -> Iterable[RecordedGroup]:
        """The groups of samples, which are named `<group>_g<number>`."""
        members: dict[str, list[int]] = {}
        for sample in sample_ids:
            members.setdefault(sample.rpartition("_g")[0], []).append(log_id(sample))
        for name, rollouts in members.items():
            group_id = log_id(name)
            yield RecordedGroup(self._tasks.drop(group_id) or DEFAULT_TASK, group_id, tuple(rollouts))


def _row(rollout: int, log: Sequence[Mapping[str, Any]], reward: Any, is_truncated: bool) -> Row:
    """The row of a conversation, whose messages hold tokens; those of assistants are trained, unless a mask says it."""
    has_logprobs = any(message.get("generation_logprobs") is not None for message in log)
    row = response_of(
        np.concatenate([_ids(message) for message in log]),
        np.concatenate([_mask(message) for message in log]),
        np.concatenate([_logprobs(message) for message in log]) if has_logprobs else None,
    )
    row |= {
        "rollout_id": rollout,
        "status": "completed",
        "reward": None if reward is None else float(reward),
        "agentic": not row["response_mask"].all(),
    }
    return row | {"finish_reason": "length"} if is_truncated else row


def _ids(message: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(copied(message["token_ids"]), dtype=np.int64)


def _mask(message: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    mask = message.get("token_loss_mask")
    return message_mask(None if mask is None else mask_bits(mask), message.get("role"), len(message["token_ids"]))


def _logprobs(message: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    logprobs = message.get("generation_logprobs")
    return np.zeros(len(message["token_ids"])) if logprobs is None else np.asarray(copied(logprobs), dtype=float)
