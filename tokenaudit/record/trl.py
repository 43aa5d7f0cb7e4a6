"""Record a run of TRL's asynchronous GRPO trainer.

Read: trl/experimental/async_grpo/{async_grpo_trainer,async_rollout_worker}.py of huggingface/trl f2cd5771.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tokenaudit.contracts.schema import DEFAULT_TASK, Precision
from tokenaudit.lifecycle.types import Status
from tokenaudit.record.event_rows import Row
from tokenaudit.record.held import Held
from tokenaudit.record.hooks import Detach, Hook, Hooks, Record
from tokenaudit.record.ids import GroupIds, rollout_id
from tokenaudit.record.limits import Lack
from tokenaudit.record.recorder import Recorder
from tokenaudit.record.response_columns import RecordedGroup, put_group, response_of, span_columns, take_groups


def attach_trl(trainer: Any, recorder: Recorder, *, task_name: str = DEFAULT_TASK) -> Detach:
    """Record the samples that an `AsyncGRPOTrainer` gets, drops and trains, and the weights that it pushes.

    These methods of this one trainer's objects are wrapped, on the main process, which has them all:
    `rollout_queue.get` (a sample comes), `get_train_dataloader` and the `torch_call` of the collator there (a
    micro-batch is made), `training_step` (it is trained) and `rollout_worker.update_model_version` (a sync).

    TRL trains samples, not groups: samples of a group that are trained in one step are put as a group of their own when
    that step ends, and taken. Samples that it drops as stale are put as completed, like the others of that step, so
    that the rule of replay, which is TRL's, expires them: replay with the run's `max_staleness`.

    Args:
        trainer: the trainer, before `train()`, on the main process.
        recorder: where events go; it stays open.
        task_name: the task of everything.

    Returns:
        A function that takes the wrappers off again. The step that isn't over is put and taken, and what waits is put.

    Raises:
        TypeError: the trainer lacks one of the methods, or a recorder is attached to it already.
    """
    hooks = Hooks(recorder)
    run = _Run(trainer, recorder, hooks, task_name)
    steps = {
        "get_train_dataloader": Hook(lambda _: run.loaded),
        "training_step": Hook(run.trained),
    }
    worker = {"update_model_version": Hook(run.synced)}
    queue = {"get": Hook(lambda _: run.got)}
    parts = [(trainer, steps), (trainer.rollout_worker, worker), (trainer.rollout_queue, queue)]
    detach = hooks.attach_all(parts, "trainer", run.end)
    for lack in (Lack.WAITING, Lack.PARTS):
        recorder.note_limit(lack)
    return detach


class _Got(NamedTuple):
    """A sample that came from the queue.

    Attributes:
        tokens: its tokens, the list itself, by which batches are told to hold it.
        group: its group.
        train_step: the step that ran or came next, whose versions TRL compares with.
        is_stale: whether TRL drops it for its version.
        row: its columns.
    """

    tokens: Any
    group: int
    train_step: int
    is_stale: bool
    row: Row


class _Run:
    """The handlers of one trainer."""

    def __init__(self, trainer: Any, recorder: Recorder, hooks: Hooks, task_name: str) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._hooks = hooks
        self._task_name = task_name
        self._ids = GroupIds(recorder)
        self._model_steps: dict[int, int] = {}
        """Train steps in the weights of every version that was pushed."""
        self._numbers = itertools.count()
        self._came: Held[int, _Got] = Held(hooks)
        """Samples that came and are in no micro-batch yet, in order."""
        self._made: Held[int, tuple[list[_Got], list[_Got]]] = Held(hooks)
        """Micro-batches that aren't trained yet: their samples, and those dropped before them."""
        self._trained: list[_Got] = []
        self._dropped: list[_Got] = []
        """The samples of the step that runs."""
        self._step = 0
        self._detach_collator: Detach = lambda: None

    def got(self, sample: Any) -> None:
        age = int(self._trainer.model_version) - int(sample.model_version)
        is_stale = age > self._trainer.args.max_staleness
        row = self._row(sample)
        got = _Got(sample.input_ids, int(sample.group_id), self._next_step(), is_stale, row)
        self._came.hold(next(self._numbers), got, [row])

    def _row(self, sample: Any) -> Row:
        start, live = (self._model_steps[int(of.model_version)] for of in (sample, self._trainer))
        reward = sample.metrics.get("reward")
        columns = response_of(sample.input_ids, sample.completion_mask, sample.old_log_probs)
        columns["advantage"] = float(sample.advantage)
        # the version is that of the group's beginning; its tokens may be of any since
        versions = span_columns(start, live, mixed=Precision.START)
        return columns | versions | {"reward": None if reward is None or math.isnan(reward) else float(reward)}

    def loaded(self, loader: Any) -> None:
        self._detach_collator()
        methods = {"torch_call": Hook(self.made)}
        self._detach_collator = self._hooks.attach(loader.collate_fn, methods, "trainer")

    def made(self, arguments: Mapping[str, Any]) -> None:
        """The first argument holds one micro-batch, with the samples of each rank; they have the very tokens that came.

        Samples are batched in the order in which they came, so those between that aren't in it were dropped.
        """
        kept: list[_Got] = []
        dropped: list[_Got] = []
        # there is one for every call, whatever it holds: they are trained in this order
        number = next(self._numbers)
        self._made.hold(number, (kept, dropped))
        (ranks,) = next(iter(arguments.values()))
        missing = {id(example["input_ids"]) for examples in ranks for example in examples}
        missing &= {id(got.tokens) for got in self._came.values()}
        while missing and self._came:
            got = self._came.drop_oldest()
            is_kept = id(got.tokens) in missing
            missing.discard(id(got.tokens))
            (kept if is_kept else dropped).append(got)
        self._made.hold(number, (kept, dropped), [got.row for got in (*kept, *dropped)])

    def trained(self, _: Mapping[str, Any]) -> Record:
        if self._next_step() != self._step:
            self._close()
            self._step = self._next_step()

        def record(_: Any) -> None:
            kept, dropped = self._made.drop_oldest()
            self._trained += kept
            self._dropped += dropped

        return record

    def synced(self, arguments: Mapping[str, Any]) -> Record:
        version = int(next(iter(arguments.values())))

        def record(_: Any) -> None:
            self._close()
            model_step = int(self._trainer.state.global_step)
            self._model_steps[version] = model_step
            if model_step > 0:
                self._recorder.sync(model_step, model_step)

        return record

    def end(self) -> None:
        self._detach_collator()
        self._close()
        for kept, dropped in self._made.values():
            self._drop(dropped)
            self._put(kept)
        self._put(self._came.values())

    def _next_step(self) -> int:
        return int(self._trainer.state.global_step) + 1

    def _close(self) -> None:
        """The step that ran is over: what it dropped and trained is put, and the latter taken."""
        trained, dropped, self._trained, self._dropped = self._trained, self._dropped, [], []
        self._drop(dropped)
        take_groups(self._recorder, self._put(trained), self._step)

    def _drop(self, samples: Iterable[_Got]) -> None:
        """Put what TRL dropped: what is stale expires, what is too long for its token budget is filtered."""
        for sample in samples:
            if not sample.is_stale:
                sample.row["status"] = Status.FILTERED.value
        self._put(samples)

    def _put(self, samples: Iterable[_Got]) -> list[RecordedGroup | None]:
        """Put samples, by group; those that were judged in different steps or ways are groups of their own."""
        groups: dict[tuple[int, int, str | None], list[Row]] = {}
        for sample in samples:
            key = sample.group, sample.train_step, sample.row.get("status")
            groups.setdefault(key, []).append(sample.row)
        return [self._put_group(name, train_step, rows) for (name, train_step, _), rows in groups.items()]

    def _put_group(self, name: int, train_step: int, rows: list[Row]) -> RecordedGroup | None:
        group_id = self._ids.new(name)
        for member, row in enumerate(rows):
            row["rollout_id"] = rollout_id(group_id, member)
        return self._hooks.guarded(put_group, self._recorder, rows, group_id, train_step, self._task_name)
