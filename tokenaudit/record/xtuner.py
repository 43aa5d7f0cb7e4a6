"""Attach a recorder to a trainer's replay buffer, so that a run is recorded without changing its code.

Nothing of the trainer is imported: a buffer is known by its public methods, a response by its attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.lifecycle.types import Status
from tokenaudit.record.event_rows import Row, copied
from tokenaudit.record.held import Held
from tokenaudit.record.hooks import Detach, Hook, Hooks
from tokenaudit.record.recorder import Recorder


def attach_xtuner(replay_buffer: Any, recorder: Recorder) -> Detach:
    """Record what an XTuner replay buffer is asked for: every put, sample, refresh and take.

    The asynchronous methods `put`, `get`, `refresh_staleness` and `take_batch` of this one object are wrapped. Each
    runs under a lock of the recorder's own, so that events are recorded in the order in which they take effect, with
    the arguments that were passed and the responses as they were before the buffer changed them; a take names the
    rollouts that the buffer gave. What a response continues from is derived from the token ids that it was sampled
    with. Calls that raise record nothing. Whatever can't be recorded is counted in the log, the first time with a
    `RuntimeWarning`; the call itself always goes through.

    The buffer doesn't see weight syncs: call `recorder.sync(train_step, model_step)` where they happen.

    Args:
        replay_buffer: the object. A response has the attributes `rollout_id`, `group_id` and `status`, and where it
            has them also `response_ids`, `response_model_steps`, `response_mask`, `reward` (a number, or a mapping
            with `score`), `input_ids`, `labels`, `logprobs`, `prompt_ids`, `finish_reason` and `seq_staleness`.
        recorder: where events go; it stays open.

    Returns:
        A function that takes the wrappers off again.

    Raises:
        TypeError: the object lacks one of the methods, or a recorder is attached to it already.
    """
    hooks = Hooks(recorder)
    buffer = _Buffer(recorder, hooks)
    handlers = {"put": buffer.put, "get": buffer.get, "refresh_staleness": buffer.refresh, "take_batch": buffer.take}
    methods = {name: Hook(handler, is_alone=True) for name, handler in handlers.items()}
    return hooks.attach(replay_buffer, methods)


class _Segment(NamedTuple):
    """One response of a rollout, which may have several in a group."""

    task_name: str
    rollout_id: int
    number: int


class _Fingerprint(NamedTuple):
    """Length and hash of token ids."""

    length: int
    hash: int


class _Buffer:
    """The handlers of one buffer. Each looks at the arguments, and returns what to record with the call's result."""

    def __init__(self, recorder: Recorder, hooks: Hooks) -> None:
        self._recorder = recorder
        self._train_step: int | None = None
        self._sampled: Held[_Segment, _Fingerprint] = Held(hooks)
        """The tokens that sampled responses were sampled with."""

    def put(self, arguments: Mapping[str, Any]) -> Callable[[Any], None]:
        states: Sequence[Any] = next(iter(arguments.values()))
        rows = [response_row(state) for state in states]
        train_step = self._step(arguments)
        task_name = arguments["task_name"]
        shared = {"model_step": arguments.get("model_step"), "task_name": task_name}

        def record(_: Any) -> None:
            if not rows:
                return
            for key, row in zip(_segments(task_name, [row["rollout_id"] for row in rows]), rows, strict=True):
                sampled = self._sampled.drop(key) or _Fingerprint(0, 0)
                # fewer versions than tokens say it already
                if len(row["response_model_steps"]) == row["response_len"]:
                    continues = _fingerprint(row["response_ids"][: sampled.length]) == sampled
                    row["prior_len"] = sampled.length if continues else 0
            if arguments.get("current_train_step") is not None:
                for row, state in zip(rows, states, strict=True):
                    row["seq_staleness"] = getattr(state, "seq_staleness", None)
            group_id = rows[0].pop("group_id")
            for row in rows[1:]:
                del row["group_id"]
            self._recorder.put(rows, group_id=group_id, train_step=train_step, **shared)

        return record

    def get(self, arguments: Mapping[str, Any]) -> Callable[[Any], None]:
        task_name: str = arguments["task_name"]
        pool = _text(arguments["group_status"])
        train_step = self._step({})

        def record(groups: Iterable[Sequence[Any]]) -> None:
            if pool == Status.COMPLETED:
                size = int(arguments["batch_size"])
                self._recorder.take(train_step, size, task_name=task_name, responses=_taken(groups))
                return
            for group in groups:
                keys = _segments(task_name, [int(state.rollout_id) for state in group])
                prints = (_fingerprint(_listed(state.response_ids)) for state in group)
                for key, tokens in zip(keys, prints, strict=True):
                    self._sampled.hold(key, tokens)
                self._recorder.sample(int(group[0].group_id), pool, task_name=task_name)

        return record

    def refresh(self, arguments: Mapping[str, Any]) -> Callable[[Any], None]:
        train_step = self._step(arguments)
        return lambda _: self._recorder.refresh(train_step)

    def take(self, arguments: Mapping[str, Any]) -> Callable[[Any], None]:
        sizes = {task: int(size) for task, size in next(iter(arguments.values())).items()}
        train_step = self._step(arguments)

        def record(batch: Any) -> None:
            for task_name, size in sizes.items():
                if size > 0:
                    groups = batch.get(task_name) if isinstance(batch, Mapping) else None
                    responses = None if groups is None else _taken(groups)
                    self._recorder.take(train_step, size, task_name=task_name, responses=responses)

        return record

    def _step(self, arguments: Mapping[str, Any]) -> int:
        """The step that was passed; a call without one belongs to the step of the call before it, or the first."""
        step = arguments.get("current_train_step", arguments.get("train_step"))
        if step is not None:
            self._train_step = int(step)
        return 1 if self._train_step is None else self._train_step


def _taken(groups: Iterable[Sequence[Any]]) -> list[Row]:
    """The rollouts of the groups that a buffer gave for training, each once."""
    named = [(int(state.group_id), int(state.rollout_id)) for group in groups for state in group]
    return [{"group_id": group_id, "rollout_id": rollout_id} for group_id, rollout_id in dict.fromkeys(named)]


def _segments(task_name: str, rollout_ids: Sequence[int]) -> list[_Segment]:
    """What names each response of a group."""
    counts = (rollout_ids[:index].count(rollout) for index, rollout in enumerate(rollout_ids))
    return [_Segment(task_name, rollout, count) for rollout, count in zip(rollout_ids, counts, strict=True)]


def _fingerprint(ids: Any) -> _Fingerprint:
    array = np.asarray(ids, dtype=np.int64)
    return _Fingerprint(len(array), hash(array.tobytes()))


def response_row(state: Any) -> Row:
    """What a recorder keeps of one XTuner rollout state, as it is now; `group_id` belongs to the whole put."""
    ids, steps, mask, logprobs = (
        _listed(getattr(state, name, None))
        for name in ("response_ids", "response_model_steps", "response_mask", "logprobs")
    )
    prompt = getattr(state, "prompt_ids", None)
    row: Row = {
        "group_id": int(state.group_id),
        "rollout_id": int(state.rollout_id),
        "status": _text(state.status),
        "response_len": len(ids),
        "response_ids": ids,
        "response_model_steps": steps,
        # a response without tokens has an empty mask, which says as much as none
        "response_mask": mask if len(mask) else None,
        "agentic": any(getattr(state, name, None) is not None for name in ("input_ids", "labels")),
        "reward": _reward(getattr(state, "reward", None)),
        "finish_reason": getattr(state, "finish_reason", None),
        "prompt_len": None if prompt is None else len(prompt),
    }
    if len(logprobs) == len(ids) > 0:
        row["logprobs"] = logprobs
    return row


def _listed(values: Any) -> Any:
    """A copy of a list, array or tensor; an absent one is empty."""
    return [] if values is None else copied(values)


def _text(status: Any) -> str:
    return str(getattr(status, "value", status))


def _reward(reward: Any) -> float | None:
    if isinstance(reward, Mapping):
        reward = reward.get("score")
    return None if reward is None else float(reward)
