"""Record what slime and miles train, as the log function of their rollouts: each batch when it is complete.

Read: `log_rollout_data` (slime/observability/rollout_metrics.py), `Sample` (slime/utils/types.py), `generate` and
`_convert_samples_to_train_data` (slime/ray/rollout.py), train.py and train_async.py of THUDM/slime 624b824a;
miles/ray/rollout/metrics.py, miles/utils/types.py and train_async.py of radixark/miles 31f1ca96.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tokenaudit.contracts.schema import DEFAULT_TASK
from tokenaudit.log.writer import Row
from tokenaudit.record.hooks import Hooks
from tokenaudit.record.ids import GroupIds, log_id, rollout_id
from tokenaudit.record.limits import Lack
from tokenaudit.record.recorder import Recorder
from tokenaudit.record.response_columns import RecordedGroup, mask_bits, put_group, take_groups
from tokenaudit.record.run_steps import pushes_between
from tokenaudit.record.slime_versions import (
    GENERATE,
    STREAMED,
    Calls,
    Sampled,
    VersionSpan,
    is_version,
    oldest_weights,
    version_columns,
)

FINISH_REASONS = {"truncated": "length", "aborted": "abort", "failed": "error"}
NOT_COMPLETED = (
    "members that failed or were aborted were trained like others (only remove_sample keeps one out), so they count as "
    "completed; finish_reason says what they were"
)
SEVERAL_REWARDS = "rewards with several numbers are left out: none of them is the one that was trained on for sure"

LogFunction = Callable[[int, Any, Sequence[Any], Any, float], bool]


def log_function(
    make_recorder: Callable[[], Recorder],
    *,
    task_of: Callable[[Any], str] = lambda sample: DEFAULT_TASK,
    sync_interval: int | None = None,
) -> LogFunction:
    """A function for `--custom-rollout-log-function-path`, which goes on with the trainer's own logging.

    Every call puts the groups of a batch and takes them: slime and miles give it what is trained, so what was dropped,
    filtered or left over is missing. A weight push is known by the first batch that has its version.

    Args:
        make_recorder: makes the recorder, in the process of the rollout manager, when the first batch is complete.
        task_of: the task of a sample.
        sync_interval: train steps between weight pushes; None: what `--update-weights-interval` says.
    """
    run = _Run(make_recorder, task_of, sync_interval)

    def log_rollout_data(
        rollout_id: int, args: Any, samples: Sequence[Any], rollout_extra_metrics: Any, rollout_time: float
    ) -> bool:
        del rollout_extra_metrics, rollout_time
        run.hooks.guarded(run.record, rollout_id, args, samples)
        return False

    return log_rollout_data


class _Run:
    """One process of a trainer: its versions count weight pushes, the first of which brings the initial weights."""

    def __init__(
        self, make_recorder: Callable[[], Recorder], task_of: Callable[[Any], str], sync_interval: int | None
    ) -> None:
        self.hooks = Hooks(make_recorder)
        self._task_of, self._sync_interval = task_of, sync_interval
        self._ids: GroupIds | None = None
        self._first_step = 0
        self._pushed = 1

    def record(self, rollout: int, args: Any, samples: Sequence[Any]) -> None:
        """Record a batch."""
        recorder = self.hooks.recorder
        if self._ids is None:
            self._ids, self._first_step = GroupIds(recorder), int(rollout)
            recorder.note_limit(Lack.DROPPED)
        step = int(rollout) + 1
        interval = int(self._sync_interval or getattr(args, "update_weights_interval", None) or 1)
        groups: dict[tuple[str, str | int], list[Any]] = {}
        for index, sample in enumerate(samples):
            named = self.hooks.guarded(self._named, sample, f"sample {index} of step {step}")
            if named is not None:
                groups.setdefault(named, []).append(sample)
        self.hooks.guarded(self._push, samples, interval)
        put = [self.hooks.guarded(self._put, named, members, args, step, interval) for named, members in groups.items()]
        take_groups(recorder, put, step)

    def _named(self, sample: Any, alone: str) -> tuple[str, str | int]:
        """Task and group of a sample; one without a group is a group of its own, by the name `alone`."""
        return self._task_of(sample), alone if sample.group_index is None else log_id(sample.group_index)

    def _push(self, samples: Iterable[Any], interval: int) -> None:
        """Record the pushes up to the newest version of a batch."""
        newest = max((version for sample in samples for version in _pushes(sample)), default=0)
        for version in pushes_between(self._pushed, newest):
            model_step = self._model_step(version, interval)
            self.hooks.recorder.sync(model_step, model_step)
        self._pushed = max(self._pushed, newest)

    def _model_step(self, version: int, interval: int) -> int:
        """Train steps in the weights of a push: the first one comes before any training, others every `interval`."""
        return self._first_step if version <= 1 else (self._first_step // interval + version - 1) * interval

    def _put(
        self, named: tuple[str, str | int], samples: Sequence[Any], args: Any, step: int, interval: int
    ) -> RecordedGroup:
        task_name, name = named
        assert self._ids is not None
        group_id = self._ids.new(name)
        rows: list[Row] = []
        for index, sample in enumerate(samples):
            row = self._row(sample, step, interval)
            row["rollout_id"] = rollout_id(group_id, index) if sample.index is None else log_id(sample.index)
            row["reward"] = self._reward(sample.reward, getattr(args, "reward_key", None))
            rows.append(row)
        return put_group(self.hooks.recorder, rows, group_id=group_id, train_step=step, task_name=task_name)

    def _row(self, sample: Any, step: int, interval: int) -> Row:
        note = self.hooks.recorder.note_limit
        tokens, all_tokens = int(sample.response_length), len(sample.tokens)
        status = getattr(sample.status, "value", sample.status)
        mask = None if sample.loss_mask is None else mask_bits(sample.loss_mask)
        row = sample_columns(status, tokens, all_tokens, mask, is_removed=bool(sample.remove_sample))
        if all_tokens >= tokens:
            row["response_ids"] = sample.tokens[all_tokens - tokens :]
        if sample.rollout_log_probs is not None and len(sample.rollout_log_probs) == tokens:
            row["logprobs"] = sample.rollout_log_probs
        start = (getattr(sample, "metadata", None) or {}).get("start_rollout_id")
        oldest = oldest_weights(None if start is None else int(start), interval)
        sampled = Sampled(row["response_mask"], tokens, row.get("prompt_len"), step, oldest)
        row |= version_columns(_calls(sample), sampled, lambda version: self._model_step(version, interval), note)
        if status in ("aborted", "failed"):
            note(NOT_COMPLETED)
        return row

    def _reward(self, reward: Any, key: str | None) -> float | None:
        if isinstance(reward, Mapping):
            numbers = reward_numbers(reward.values()) if key is None else [reward[key]]
            if len(numbers) > 1:
                self.hooks.recorder.note_limit(SEVERAL_REWARDS)
            reward = numbers[0] if len(numbers) == 1 else None
        return None if reward is None else float(reward)


def sample_columns(
    status: object, tokens: int, all_tokens: int, mask: np.ndarray[Any, Any] | None, *, is_removed: bool
) -> Row:
    """The columns of a sample that was trained, but for its versions.

    Args:
        status: its status.
        tokens: tokens of its response.
        all_tokens: those with its prompt.
        mask: its loss mask, shape [tokens]; None means ones.
        is_removed: whether it was kept out of the loss.

    Raises:
        ValueError: the mask doesn't fit the response.
    """
    if is_removed:
        mask = np.zeros(tokens, dtype=np.int8)
    elif mask is not None:
        if len(mask) != tokens:
            raise ValueError(f"{len(mask)} loss_mask entries for {tokens} tokens")
        mask = (mask != 0).astype(np.int8)
    row: Row = {
        "status": "completed",
        "response_len": tokens,
        "response_mask": mask,
        "agentic": mask is not None and not mask.all() and not is_removed,
        "finish_reason": FINISH_REASONS.get(str(status)),
    }
    return row | {"prompt_len": all_tokens - tokens} if all_tokens >= tokens else row


def reward_numbers(values: Iterable[Any]) -> list[float]:
    """The numbers among the values of a reward; where there are none, those that say whether it was right."""
    values = list(values)
    numbers = [value for value in values if type(value) in (int, float)]
    return numbers or [value for value in values if isinstance(value, bool)]


def _pushes(sample: Any) -> list[int]:
    """The versions of a sample."""
    calls = _calls(sample).versions
    stamps = [stamp for call in calls for stamp in ([call] if isinstance(call, str) else [span.stamp for span in call])]
    return [int(stamp) for stamp in stamps if is_version(stamp)]


def _calls(sample: Any) -> Calls:
    trace = getattr(sample, "trace", None)
    events = trace.get("events") or () if isinstance(trace, Mapping) else ()
    lengths: list[int | None] = []
    for event in events:
        attributes = event.get("attrs") or {}
        if event.get("name") in GENERATE and "completion_tokens" in attributes:
            lengths.append(int(attributes["completion_tokens"]))
        elif event.get("name") == STREAMED and event.get("type") == "span_end":
            lengths.append(None)
    return Calls([_spans(call) for call in getattr(sample, "weight_versions", None) or ()], lengths)


def _spans(call: Any) -> str | list[VersionSpan]:
    """The stamp of a call, or its spans, which are listed as they are, or beside those of its prompt."""
    spans = getattr(call, "spans", call)
    if not isinstance(spans, list | tuple):
        return str(spans)
    return [VersionSpan(str(span.version), int(span.abs_start), int(span.abs_end)) for span in spans]
