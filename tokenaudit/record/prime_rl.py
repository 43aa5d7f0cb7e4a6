"""Record a run of prime-rl from its orchestrator.

Read: src/prime_rl/orchestrator/{orchestrator,train_sink,metrics,trajectories}.py of PrimeIntellect-ai/prime-rl
559b4477, and verifiers/v1/{trace,episode}.py of PrimeIntellect-ai/verifiers a60a606e.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.contracts.schema import DEFAULT_TASK, Precision
from tokenaudit.lifecycle.types import Status
from tokenaudit.record.event_rows import Row
from tokenaudit.record.held import Held
from tokenaudit.record.hooks import Detach, Hook, Hooks, Record
from tokenaudit.record.ids import GroupIds, log_id
from tokenaudit.record.limits import Lack
from tokenaudit.record.recorder import Recorder
from tokenaudit.record.response_columns import RecordedGroup, put_group, response_of, span_columns, take_groups


def attach_prime_rl(orchestrator: Any, recorder: Recorder) -> Detach:
    """Record what an `Orchestrator` collects, drops and ships to its trainer, and new weights.

    Wrapped are its methods `finalize_train_batch`, which the monitors are told of a batch by, and `on_new_version`: the
    monitors alone see neither what was dropped nor new weights.

    prime-rl ships traces, not groups: those of a group that are shipped in one batch are put as a group of their own
    when that batch is shipped, and taken. Traces that are dropped are put when the next batch is: as failed where they
    have an error, as filtered where the curriculum turned the group away or no token was to be trained, and where they
    were too old, as completed, so that the rule of replay, which is prime-rl's, expires them: replay with the run's
    `max_off_policy_steps` as `max_staleness`.

    Args:
        orchestrator: the orchestrator, before `start()`.
        recorder: where events go; it stays open.

    Returns:
        A function that takes the wrappers off again, and puts what waits for a batch.

    Raises:
        TypeError: the orchestrator lacks one of the methods, or a recorder is attached to it already.
    """
    hooks = Hooks(recorder)
    run = _Run(orchestrator, recorder, hooks)
    methods = {
        "finalize_train_batch": Hook(run.shipping),
        "on_new_version": Hook(run.updated),
    }
    detach = hooks.attach_all([(orchestrator, methods)], "orchestrator", run.end)
    for lack in (Lack.WAITING, Lack.PARTS, Lack.CANCELLED):
        recorder.note_limit(lack)
    return detach


class _Trace(NamedTuple):
    """A trace whose group ended: its episode's task, group and oldest version, and its columns."""

    task_name: str
    group: str
    start: int | None
    rows: list[Row]


class _Run:
    """The handlers of one orchestrator."""

    def __init__(self, orchestrator: Any, recorder: Recorder, hooks: Hooks) -> None:
        self._orchestrator = orchestrator
        self._recorder = recorder
        self._hooks = hooks
        self._ids = GroupIds(recorder)
        self._seen: set[str] = set()
        """Traces that were looked at since the last batch was shipped: a batch that is empty shows them again."""
        self._waiting: Held[str, _Trace] = Held(hooks)
        """Traces that may be shipped yet, by their ids, in the order in which their groups ended."""
        self._dropped: Held[str, tuple[Status, _Trace]] = Held(hooks)
        """Traces that won't be, with the status with which they are put."""

    def shipping(self, arguments: Mapping[str, Any]) -> Record:
        batch: Any = next(iter(arguments.values()))
        step = int(self._orchestrator.progress.step)

        def record(_: Any) -> None:
            self._collect(batch.episodes)
            if int(self._orchestrator.progress.step) == step:
                # an empty batch isn't shipped, nor is one behind the last step
                return
            self._seen.clear()
            shipped = {trace.id for episode in batch.cohort for trace in episode.traces}
            trained = [trace for name in [*self._waiting] if name in shipped and (trace := self._waiting.drop(name))]
            self._drop_gone(step)
            take_groups(self._recorder, self._put(trained, Status.COMPLETED, step), step)

        return record

    def updated(self, arguments: Mapping[str, Any]) -> Record:
        version = int(next(iter(arguments.values())))
        return lambda _: self._recorder.sync(version, version)

    def end(self) -> None:
        self._collect(self._orchestrator.train_sink.pending_episodes)
        step = int(self._orchestrator.progress.step)
        self._drop_gone(step)
        self._put(self._waiting.values(), Status.COMPLETED, step)

    def _collect(self, episodes: Any) -> None:
        """Sort the traces of groups that ended into those that wait and those that were dropped."""
        for record in episodes.records:
            trace = record.trace
            if trace.id in self._seen or not trace.agent.trainable:
                continue
            self._seen.add(trace.id)
            collected = self._hooks.guarded(_collected, record.episode, trace)
            if collected is None:
                continue
            if trace.has_error:
                self._drop(trace.id, Status.FAILED, collected)
            elif record.cancelled:
                self._drop(trace.id, Status.COMPLETED, collected)
            elif not record.admitted or not record.sampled:
                self._drop(trace.id, Status.FILTERED, collected)
            else:
                self._waiting.hold(trace.id, collected, collected.rows)

    def _drop(self, name: str, status: Status, trace: _Trace) -> None:
        self._dropped.hold(name, (status, trace), trace.rows)

    def _drop_gone(self, step: int) -> None:
        """Put what was dropped, and what left the queue without being shipped: as too old, or filtered."""
        oldest = step - 1 - int(self._orchestrator.config.max_off_policy_steps)
        for name in [name for name in self._waiting if name not in self._orchestrator.train_sink.pending_batch]:
            gone = self._waiting[name]
            is_stale = gone.start is not None and gone.start < oldest
            self._waiting.drop(name)
            self._drop(name, Status.COMPLETED if is_stale else Status.FILTERED, gone)
        by_status: dict[Status, list[_Trace]] = {}
        while self._dropped:
            status, trace = self._dropped.drop_oldest()
            by_status.setdefault(status, []).append(trace)
        for status, traces in by_status.items():
            self._put(traces, status, step)

    def _put(self, traces: Iterable[_Trace], status: Status, step: int) -> list[RecordedGroup | None]:
        """Put traces, by group."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for trace in traces:
            groups.setdefault((trace.task_name, trace.group), []).extend(trace.rows)
        return [
            self._hooks.guarded(
                put_group,
                self._recorder,
                [row | {"status": status.value} for row in rows],
                self._ids.new(name),
                step,
                task_name,
            )
            for (task_name, name), rows in groups.items()
        ]


def _collected(episode: Any, trace: Any) -> _Trace:
    policy = episode.run.work.policy
    versions: Row = {"version_precision": Precision.NONE}
    if policy is not None:
        versions = span_columns(int(policy.start), int(policy.end))
    scored = [reward.value for reward in trace.rewards.values() if reward is not None]
    shared: Row = {
        "rollout_id": log_id(f"{episode.id} {trace.id}"),
        "reward": float(sum(scored)) if scored else None,
        "agentic": len(trace.calls) > 1 or len(episode.traces) > 1,
    }
    rows = [shared | versions | row for row in _samples(trace)]
    task_name = episode.env.name or episode.env.id or DEFAULT_TASK
    return _Trace(task_name, episode.group.id, None if policy is None else int(policy.start), rows)


def _samples(trace: Any) -> list[Row]:
    """One row per training sample: a branch, from the first message with tokens to train on.

    A sampled message that branches share is trained in the first of them. A trace without any sample is its last
    branch, from the first sampled message on.
    """
    trained: set[int] = set()
    rows: list[Row] = []
    branches = list(trace.branches)
    for branch in branches:
        own = [node for node in branch.nodes if any(node.mask) and id(node) not in trained]
        if own:
            rows.append(_sample(branch, own[0], {*map(id, own)}))
            trained.update(map(id, own))
    if not rows:
        sampled = [node for branch in branches[-1:] for node in branch.nodes if node.sampled]
        rows = [_sample(branches[-1], sampled[0], set())] if sampled else [{"response_len": 0}]
    return rows


def _sample(branch: Any, first: Any, trained: set[int]) -> Row:
    """The response of a branch from its node `first` on, where the nodes `trained` are trained, given by identity."""
    masks = [np.asarray(node.mask, dtype=np.bool_) & (id(node) in trained) for node in branch.nodes]
    place = next(place for place, node in enumerate(branch.nodes) if node is first)
    mask, before = np.concatenate(masks), sum(map(len, masks[:place]))
    row = response_of(branch.token_ids, mask, branch.logprobs, np.arange(len(mask)) >= before)
    spans = [call.time for call in branch.calls]
    if spans and all(span.end for span in spans):
        row["generate_time_us"] = round(sum(span.duration for span in spans) * 1_000_000)
    return row | {"finish_reason": branch.calls[-1].finish_reason if branch.calls else None}
