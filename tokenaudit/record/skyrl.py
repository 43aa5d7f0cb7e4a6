"""Record a run of SkyRL's fully asynchronous trainer.

Read: skyrl/train/fully_async_trainer.py and skyrl/train/generators/base.py of NovaSky-AI/SkyRL a9564572.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tokenaudit.contracts.schema import DEFAULT_TASK
from tokenaudit.lifecycle.types import Status
from tokenaudit.record.event_rows import Row
from tokenaudit.record.held import Held
from tokenaudit.record.hooks import Detach, Hook, Hooks, Record
from tokenaudit.record.ids import GroupIds, rollout_id
from tokenaudit.record.limits import Lack
from tokenaudit.record.recorder import Recorder
from tokenaudit.record.response_columns import RecordedGroup, put_group, span_columns, take_groups


def attach_skyrl(trainer: Any, recorder: Recorder) -> Detach:
    """Record what a `FullyAsyncRayPPOTrainer` generates, takes for training and pushes to its engines.

    These methods of this one trainer's objects are wrapped: `generator.generate` (a group is put when it is finished),
    `convert_generation_group_mini_batch_to_training_input` (a batch is taken), `async_train_dataloader.
    mark_filtered_uids` (groups are dropped) and `dispatch.save_weights_for_sampler` (a sync). With `sample_full_batch`
    a group is put when the trainer has judged it, since a log can't take back what was put as completed.

    Args:
        trainer: the trainer, before `train()`.
        recorder: where events go; it stays open.

    Returns:
        A function that takes the wrappers off again. What wasn't judged until then is put as completed.

    Raises:
        TypeError: the trainer lacks one of the methods, or a recorder is attached to it already.
    """
    hooks = Hooks(recorder)
    run = _Run(trainer, recorder, hooks)
    takes = {"convert_generation_group_mini_batch_to_training_input": Hook(run.taken)}
    syncs = {"init_weight_sync_state": Hook(run.began)}
    puts = {"generate": Hook(run.generated)}
    drops = {"mark_filtered_uids": Hook(run.dropped)}
    parts = [(trainer, takes | syncs), (trainer.generator, puts), (trainer.async_train_dataloader, drops)]
    detach = hooks.attach_all(parts, "trainer", run.end)
    if run.is_judging:
        recorder.note_limit(Lack.WAITING)
    return detach


class _Finished(NamedTuple):
    """A group that is generated: what the generator returned, which names it, and what the log says of it."""

    output: Mapping[str, Any]
    uid: str
    task_name: str
    rows: list[Row]
    group_id: int


class _Run:
    """The handlers of one trainer."""

    def __init__(self, trainer: Any, recorder: Recorder, hooks: Hooks) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._hooks = hooks
        self._ids = GroupIds(recorder)
        self._live = 0
        """Train steps in the weights that the engines have."""
        self._taken_step = 0
        self._unjudged: Held[int, _Finished] = Held(hooks)
        """Groups that are finished and not put, by the identity of their output."""
        self._put: Held[int, tuple[Any, RecordedGroup]] = Held(hooks)
        """Groups that are put and not taken, with their output, by its identity."""
        self._detach_dispatch: Detach = lambda: None

    @property
    def is_judging(self) -> bool:
        """Whether the trainer may drop groups that are finished."""
        return bool(getattr(self._trainer, "sample_full_batch", False))

    def began(self, _: Mapping[str, Any]) -> Record:
        def record(_: Any) -> None:
            # the trainer may only have it now
            self._detach_dispatch()
            methods = {"save_weights_for_sampler": Hook(lambda _: self._synced)}
            self._detach_dispatch = self._hooks.attach(self._trainer.dispatch, methods, "trainer")

        return record

    def end(self) -> None:
        self._detach_dispatch()
        for finished in [*self._unjudged.values()]:
            self._enter(finished)

    def generated(self, arguments: Mapping[str, Any]) -> Record | None:
        request: Mapping[str, Any] = next(iter(arguments.values()))
        metadata = request.get("batch_metadata")
        if metadata is not None and metadata.training_phase != "train":
            return None
        started = self._live

        def record(output: Mapping[str, Any]) -> None:
            uid = str((request.get("trajectory_ids") or output["trajectory_ids"])[0].instance_id)
            tasks = request.get("env_classes") or [DEFAULT_TASK]
            group_id = self._ids.new(uid)
            rows = _rows(output, group_id, span_columns(started, self._live))
            finished = _Finished(output, uid, str(tasks[0]), rows, group_id)
            self._unjudged.hold(id(output), finished, rows)
            if not self.is_judging:
                self._enter(finished)

        return record

    def taken(self, arguments: Mapping[str, Any]) -> None:
        """The first argument is the batch, groups with their output."""
        outputs = [group.generator_output for group in next(iter(arguments.values()))]
        for output in outputs:
            if id(output) in self._unjudged:
                self._enter(self._unjudged[id(output)])
        self._taken_step = int(self._trainer.global_step)
        put = [self._put.drop(id(output)) for output in outputs]
        take_groups(self._recorder, [None if one is None else one[1] for one in put], self._taken_step)

    def dropped(self, arguments: Mapping[str, Any]) -> Record:
        uids = set(map(str, next(iter(arguments.values()))))

        def record(_: Any) -> None:
            for finished in [finished for finished in self._unjudged.values() if finished.uid in uids]:
                self._enter(finished, Status.FILTERED)

        return record

    def _enter(self, finished: _Finished, status: Status = Status.COMPLETED) -> None:
        """Put a group, at the step whose batch comes next."""
        self._unjudged.drop(id(finished.output))
        for row in finished.rows:
            row["status"] = status.value
        step = max(int(self._trainer.global_step), self._taken_step + 1)
        _, _, task_name, rows, group_id = finished
        group = self._hooks.guarded(put_group, self._recorder, rows, group_id, step, task_name)
        if group is not None and status is Status.COMPLETED:
            self._put.hold(id(finished.output), (finished.output, group), rows)

    def _synced(self, _: Any) -> None:
        self._live = int(self._trainer.global_step)
        if self._live > 0:
            self._recorder.sync(self._live, self._live)


def _rows(output: Mapping[str, Any], group_id: int, versions: Row) -> list[Row]:
    """The responses of a group; steps of one trajectory are segments of a rollout, with the reward of the last."""
    names = output.get("trajectory_ids") or [None] * len(output["response_ids"])
    members = [index if name is None else int(name.repetition_id) for index, name in enumerate(names)]
    is_last = output.get("is_last_step") or [True] * len(members)
    scored = zip(members, output["rewards"], is_last, strict=True)
    rewards = {member: _reward(reward) for member, reward, is_scored in scored if is_scored}
    rows: list[Row] = []
    for index, (ids, member) in enumerate(zip(output["response_ids"], members, strict=True)):
        row: Row = {
            "rollout_id": rollout_id(group_id, member),
            "response_len": len(ids),
            "response_ids": ids,
            "response_mask": output["loss_masks"][index],
            "reward": rewards.get(member),
            "agentic": members.count(member) > 1,
            "prompt_len": len(output["prompt_token_ids"][index]),
            "logprobs": _of(output, "rollout_logprobs", index),
            "finish_reason": _of(output, "stop_reasons", index),
        }
        seconds = output.get("trajectory_generation_times")
        if seconds is not None and len(seconds) == len(names):
            row["generate_time_us"] = round(seconds[index] * 1_000_000)
        rows.append(row | versions)
    return rows


def _of(output: Mapping[str, Any], name: str, index: int) -> Any:
    values: Sequence[Any] | None = output.get(name)
    return None if values is None else values[index]


def _reward(reward: float | Iterable[float] | None) -> float | None:
    """The reward of a response; those of its tokens are added up."""
    if reward is None:
        return None
    return float(sum(reward)) if isinstance(reward, Iterable) else float(reward)
