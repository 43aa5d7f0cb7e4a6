"""Record the replay buffer of verl's v1 trainers.

Read: `ReplayBuffer` (verl/trainer/ppo/v1/replay_buffer.py), `_agent_loop_postprocess` (agent_loop_tq.py beside it) and
`_step_once` (trainer_base.py) of verl-project/verl 1dda039b.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tokenaudit.contracts.schema import DEFAULT_TASK, Precision
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.writer import Row
from tokenaudit.record.event_rows import copied
from tokenaudit.record.hooks import Detach, Hook, Hooks, Record
from tokenaudit.record.ids import log_id
from tokenaudit.record.limits import Lack
from tokenaudit.record.recorder import Recorder
from tokenaudit.record.response_columns import RecordedGroup, put_group, span_columns, take_groups
from tokenaudit.record.run_steps import RunSteps

PLACE_IN_GROUP = re.compile(r"_\d+_\d+$", re.ASCII)
"""What follows the uid of the prompt in the key of a response: its session, and its output of that."""
FIELDS = ("response_mask", "rm_scores", "num_turns", "data_source")
_ENDED = ("success", "finished", "completed")
_TRAIN = "train"
_EVICTED = "the version of verl has no _clear_groups: groups that its buffer evicted are missing"


def attach_verl(
    replay_buffer: Any,
    recorder: Recorder,
    *,
    fetch: Callable[..., Any] | None = None,
    fields: Sequence[str] = FIELDS,
) -> Detach:
    """Record the replay buffer of a v1 trainer: the batches that it samples for training, and what it evicts.

    Groups are made and stored elsewhere, so a group is put when the buffer gives it or evicts it. What stays in the
    buffer until the end is missing. The versions of a response are those of its first and its last call. A step that
    samples several times, as `parameter_sync_step` says, makes one take.

    Args:
        replay_buffer: a `ReplayBuffer` or `ReplayBufferAsync`.
        recorder: where events go; it stays open.
        fetch: `transfer_queue.kv_batch_get`, which brings masks, rewards and tasks; None: they are missing.
        fields: what is fetched; `responses` and `rollout_log_probs` are recorded too.

    Returns:
        A function that takes the wrappers off again.

    Raises:
        TypeError: the object has no method `sample`, or a recorder is attached to it already.
    """
    buffer = _ReplayBuffer(replay_buffer, recorder, fetch, tuple(fields))
    # `sample` waits and evicts too
    inner = {"_clear_groups": buffer.clear, "wait_for_sampleable": buffer.wait}
    own = {name: Hook(handler, is_own=True) for name, handler in inner.items() if hasattr(replay_buffer, name)}
    parts = [(replay_buffer, {"sample": Hook(buffer.sample)} | own)]
    detach = buffer.hooks.attach_all(parts, "buffer", buffer.end_step)
    if "_clear_groups" not in own:
        recorder.note_limit(_EVICTED)
    return detach


class _ReplayBuffer:
    """The handlers of a replay buffer. Weights `w` are those after step `w`."""

    def __init__(
        self, buffer: Any, recorder: Recorder, fetch: Callable[..., Any] | None, fields: Sequence[str]
    ) -> None:
        self.hooks = Hooks(recorder)
        self._buffer, self._recorder, self._fetch, self._fields = buffer, recorder, fetch, fields
        self._steps = RunSteps(recorder)
        self._sampled: list[RecordedGroup] = []
        """The groups of the step so far."""
        self._samples = 0

    def wait(self, arguments: Mapping[str, Any]) -> None:
        if arguments["partition_id"] == _TRAIN:
            self._ask(int(arguments["global_steps"]))

    def sample(self, arguments: Mapping[str, Any]) -> Record | None:
        if arguments["partition_id"] != _TRAIN:
            return None
        self._ask(int(arguments["global_steps"]))

        def record(sampled: Any) -> None:
            self._samples += 1
            self._sampled += self.hooks.guarded(self._given, sampled) or []
            # a sampler of somebody else may have none
            config = getattr(self._buffer, "trainer_config", None) or {}
            if self._samples >= int(config.get("parameter_sync_step", 1)):
                self.end_step()

        return record

    def _given(self, sampled: Any) -> list[RecordedGroup]:
        meta, _ = sampled
        return self._put(dict(zip(meta.keys, meta.tags, strict=True)), lambda uid: Status.COMPLETED)

    def clear(self, arguments: Mapping[str, Any]) -> None:
        """Put what is evicted: too old, of a prompt that failed, or filtered for its rewards or as surplus."""
        partition, uids = arguments["partition_id"], set(arguments["uids"])
        if partition == _TRAIN and uids:
            tags = self._buffer.partitions[_TRAIN]
            self._put({key: tag for key, tag in tags.items() if _uid(key) in uids}, self._status)

    def end_step(self) -> None:
        """Record what the step took."""
        groups, self._sampled, self._samples = self._sampled, [], 0
        take_groups(self._recorder, groups, self._steps.train_step)

    def _ask(self, global_steps: int) -> None:
        if global_steps != self._steps.train_step:
            self.end_step()
        self._steps.asked(global_steps - 1)

    def _status(self, uid: str) -> Status:
        buffer = self._buffer
        if uid in buffer.failure_keys[_TRAIN]:
            return Status.FAILED
        span = self._steps.train_step - buffer.prompt_global_steps[_TRAIN].get(uid, self._steps.train_step) + 1
        # what is too old expires by itself
        is_old = buffer.max_off_policy_strategy == "drop" and span > buffer.max_off_policy_threshold
        return Status.COMPLETED if is_old else Status.FILTERED

    def _put(self, tags: Mapping[str, Mapping[str, Any]], status_of: Callable[[str], Status]) -> list[RecordedGroup]:
        keys = [key for key, tag in tags.items() if not tag.get("is_padding")]
        data: Any = self.hooks.guarded(self._fetched, keys)
        groups: dict[str, list[int]] = {}
        for index, key in enumerate(keys):
            groups.setdefault(_uid(key), []).append(index)
        put = []
        for uid, indices in groups.items():
            members = {index: keys[index] for index in indices}
            put.append(self.hooks.guarded(self._put_group, uid, members, tags, data, status_of))
        return [group for group in put if group is not None]

    def _fetched(self, keys: Sequence[str]) -> Any:
        """The fields of responses, which the trainer's storage keeps."""
        if self._fetch is None or not keys:
            return {}
        return self._fetch(keys=keys, partition_id=_TRAIN, select_fields=list(self._fields))

    def _put_group(
        self,
        uid: str,
        members: Mapping[int, str],
        tags: Mapping[str, Mapping[str, Any]],
        data: Any,
        status_of: Callable[[str], Status],
    ) -> RecordedGroup:
        status = status_of(uid)
        rows = []
        task_name = DEFAULT_TASK
        for index, key in members.items():
            tag, fields = tags[key], {name: value_of(data, name, index) for name in self._fields}
            turns = fields.get("num_turns")
            row = queue_columns(tag["status"], int(tag["response_len"]), None if turns is None else int(turns))
            row["rollout_id"] = log_id(key)
            if status is not Status.COMPLETED:
                row["status"] = status
            if tag.get("prompt_len") is not None:
                row["prompt_len"] = int(tag["prompt_len"])
            row |= tag_versions(tag.get("min_global_steps"), tag.get("max_global_steps"), 1)
            row |= token_columns(row["response_len"], fields)
            task_name = str(fields["data_source"]) if fields.get("data_source") is not None else task_name
            rows.append(row)
        self._steps.saw(max((row.get("model_step_end", row.get("model_step", 0)) for row in rows), default=0))
        step = self._steps.train_step
        put = put_group(self._recorder, rows, group_id=log_id(uid), train_step=step, task_name=task_name)
        if "response_mask" not in rows[0]:
            self._recorder.note_limit(Lack.MASK)
        return put


def queue_columns(status: str, tokens: int, num_turns: int | None) -> Row:
    """The columns of a response that its tag gives.

    Args:
        status: the status of its agent loop.
        tokens: its length.
        num_turns: messages of its conversation, if they are known; more than two are an agent's.
    """
    return {
        "status": "completed" if status in _ENDED else "failed",
        "response_len": tokens,
        "agentic": num_turns is not None and num_turns > 2,
    }


def tag_versions(oldest: Any, newest: Any, interval: int) -> Row:
    """The version columns of a response: those of its first and its last call, which count `interval` steps each."""
    if oldest is None or newest is None:
        return {"version_precision": Precision.NONE}
    return span_columns(int(oldest) * interval, int(newest) * interval)


def token_columns(tokens: int, fields: Mapping[str, Any]) -> Row:
    """Mask, reward, ids and log-probabilities, from rows that may be padded."""
    row: Row = {}
    if fields.get("rm_scores") is not None:
        total = float(np.asarray(copied(fields["rm_scores"]), dtype=float).sum())
        row["reward"] = total if np.isfinite(total) else None
    columns = {"response_mask": "response_mask", "response_ids": "responses", "logprobs": "rollout_log_probs"}
    for column, name in columns.items():
        values = fields.get(name)
        if values is not None and len(values) >= tokens:
            row[column] = copied(values[:tokens])
    return row


def value_of(columns: Any, name: str, index: int) -> Any:
    """A value of a column of a TensorDict or a dictionary; None where it is missing."""
    column = None if columns is None else columns.get(name, None)
    if column is None:
        return None
    value = column[index]
    # what is no tensor stands in a wrapper there
    return value if isinstance(value, np.ndarray | np.generic) else getattr(value, "data", value)


def _uid(key: str) -> str:
    """The uid of the prompt of a response."""
    return PLACE_IN_GROUP.sub("", key)
