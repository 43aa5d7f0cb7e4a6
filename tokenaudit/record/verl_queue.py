"""Record the queue of verl's fully asynchronous trainer.

Read: `MessageQueueClient` (verl/experimental/fully_async_policy/message_queue.py), `_process_single_sample_streaming`
(fully_async_rollouter.py), `_get_samples_from_queue` (fully_async_trainer.py) and `_postprocess`
(verl/experimental/agent_loop/agent_loop.py) of verl-project/verl 1dda039b.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tokenaudit.contracts.schema import DEFAULT_TASK
from tokenaudit.log.writer import Row
from tokenaudit.record.event_rows import copied
from tokenaudit.record.hooks import Detach, Hook, Hooks, Record
from tokenaudit.record.ids import log_id
from tokenaudit.record.recorder import Recorder
from tokenaudit.record.response_columns import RecordedGroup, put_group, take_groups
from tokenaudit.record.run_steps import pushes_between
from tokenaudit.record.verl import queue_columns, tag_versions, token_columns, value_of

_DROPPED = "the queue of verl was full: the groups that it dropped stay in the log as if they had been left over"


def attach_verl_queue(client: Any, recorder: Recorder, *, required_samples: int, sync_interval: int = 1) -> Detach:
    """Record the queue of the fully asynchronous trainer, in the process of its rollouter or of its trainer.

    The rollouter's client puts, the trainer's takes: give each process a recorder with a rank on the same folder. Every
    `required_samples` groups that the trainer gets are the batch of a step.

    Args:
        client: a `MessageQueueClient`.
        recorder: where events go; it stays open.
        required_samples: groups of a batch, `ppo_mini_batch_size` times `require_batches`.
        sync_interval: steps between weight pushes, `trigger_parameter_sync_step`.

    Returns:
        A function that takes the wrappers off again.

    Raises:
        TypeError: the object has no methods `put_sample` and `get_sample`, or a recorder is attached to it already.
    """
    hooks = Hooks(recorder)
    queue = _Queue(hooks, required_samples, sync_interval)
    handlers = {"put_sample": Hook(queue.put), "get_sample": Hook(queue.get)}
    return hooks.attach(client, handlers, noun="queue")


def recorded_queue_client(
    base: type[Any], make_recorder: Callable[[int, int], Recorder], *, required_samples: int, sync_interval: int = 1
) -> type[Any]:
    """A class like `MessageQueueClient`, whose objects record themselves in every process that they are sent to.

    Args:
        base: `MessageQueueClient`.
        make_recorder: makes the recorder of a rank, 0 where groups are put and 1 where they are taken, of 2.
        required_samples: as for `attach_verl_queue`.
        sync_interval: as for `attach_verl_queue`.
    """

    def wrapped(client: Any, name: str, rank: int) -> Callable[..., Any]:
        calls = vars(client).setdefault("_recorded", {})
        if name not in calls:
            hooks = Hooks(lambda: make_recorder(rank, 2))
            queue = _Queue(hooks, required_samples, sync_interval)
            handler = queue.put if rank == 0 else queue.get
            calls[name] = hooks.wrapped(getattr(super(RecordedQueueClient, client), name), Hook(handler))
        return calls[name]

    class RecordedQueueClient(base):
        async def put_sample(self, *args: Any, **kwargs: Any) -> Any:
            return await wrapped(self, "put_sample", 0)(*args, **kwargs)

        async def get_sample(self, *args: Any, **kwargs: Any) -> Any:
            return await wrapped(self, "get_sample", 1)(*args, **kwargs)

        def __getstate__(self) -> dict[str, Any]:
            return {name: value for name, value in vars(self).items() if name != "_recorded"}

    return RecordedQueueClient


class _Queue:
    """The handlers of a client of the queue, which holds a group as a pickled `RolloutSample`."""

    def __init__(self, hooks: Hooks, required_samples: int, sync_interval: int) -> None:
        self._hooks, self._required, self._interval = hooks, required_samples, sync_interval
        self._train_step = 1
        self._newest = 0
        self._got: list[RecordedGroup | None] = []
        """The groups of the step so far; None for one that can't be recorded."""

    def put(self, arguments: Mapping[str, Any]) -> Record:
        """Record a group before it is sent, so that it stands before the take of another process."""
        sample = arguments["sample"]
        if sample is not None:
            task_name, group_id, rows = self._group(sample)
            self._hooks.guarded(self._saw, rows)
            step = self._newest + 1
            put_group(self._hooks.recorder, rows, group_id=group_id, train_step=step, task_name=task_name)
        return self._note_drop

    def get(self, arguments: Mapping[str, Any]) -> Record:
        del arguments

        def record(got: Any) -> None:
            if got is None or got[0] is None:
                return
            self._got.append(self._hooks.guarded(self._taken, got[0]))
            if len(self._got) == self._required:
                groups, self._got = self._got, []
                take_groups(self._hooks.recorder, groups, self._train_step)
                self._train_step += 1

        return record

    def _taken(self, sample: Any) -> RecordedGroup:
        task_name, group_id, rows = self._group(sample)
        return RecordedGroup(task_name, group_id, tuple(row["rollout_id"] for row in rows))

    def _note_drop(self, has_room: Any) -> None:
        if has_room is False:
            self._hooks.recorder.note_limit(_DROPPED)

    def _saw(self, rows: Iterable[Row]) -> None:
        newest = max((row.get("model_step_end", row.get("model_step", 0)) for row in rows), default=0)
        for model_step in pushes_between(self._newest, newest, self._interval):
            self._hooks.recorder.sync(model_step, model_step)
            self._newest = model_step

    def _group(self, sample: Any) -> tuple[str, int, list[Row]]:
        """Task, id and rows of a group."""
        # what this trainer itself has pickled, or goes on to unpickle
        group = pickle.loads(sample) if isinstance(sample, bytes) else sample
        tensors, others = group.full_batch.batch, group.full_batch.non_tensor_batch
        attention = np.asarray(copied(tensors["attention_mask"]))
        width = attention.shape[1] - tensors["responses"].shape[1]
        rows = []
        task_name = DEFAULT_TASK
        for index, mask in enumerate(attention):
            names = ("response_mask", "rm_scores", "responses", "rollout_log_probs")
            fields = {name: value_of(tensors, name, index) for name in names}
            turns = value_of(others, "__num_turns__", index)
            row = queue_columns("success", int(mask[width:].sum()), None if turns is None else int(turns))
            row |= {"rollout_id": log_id(f"{group.sample_id}_{index}"), "prompt_len": int(mask[:width].sum())}
            oldest, newest = (value_of(others, name, index) for name in ("min_global_steps", "max_global_steps"))
            row |= tag_versions(oldest, newest, self._interval)
            row |= token_columns(row["response_len"], fields)
            source = value_of(others, "data_source", index)
            task_name = task_name if source is None else str(source)
            rows.append(row)
        return task_name, log_id(str(group.sample_id)), rows
