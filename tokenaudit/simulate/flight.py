"""A group while it is generated, and what its members are when it ends or is cut off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tokenaudit.lifecycle.types import Response, Status, VersionRun, token_count
from tokenaudit.simulate.prompts import Prompt
from tokenaudit.simulate.workload import TaskWorkload


class Flight:
    """A group that has been spawned.

    Attributes:
        task_index: its task, in task order.
        prompt: where it comes from.
        held: its members as they were sampled; empty for a prompt.
        prior: tokens each member continues from.
        remaining: tokens each member still has to make; 0 for one that is completed already.
        token_time_us: time per token of each member.
        start: when each member's generation began; None before.
        unfinished: members whose generation hasn't ended.
        order: place in the order of spawning, over all tasks.
        attempt: see `scheduling.ProgressWatch`; None for a group that continues.
    """

    __slots__ = (
        "attempt",
        "held",
        "order",
        "prior",
        "prompt",
        "remaining",
        "start",
        "task_index",
        "token_time_us",
        "unfinished",
    )

    def __init__(
        self,
        task_index: int,
        prompt: Prompt,
        held: Sequence[Response],
        prior: list[int],
        remaining: list[int],
        token_time_us: list[int],
    ) -> None:
        self.task_index = task_index
        self.prompt = prompt
        self.held = held
        self.prior = prior
        self.remaining = remaining
        self.token_time_us = token_time_us
        self.start: list[int | None] = [None] * len(prior)
        self.unfinished = 0
        self.order = -1
        self.attempt: tuple[int, int] | None = None

    def is_done_before(self, member: int) -> bool:
        """Whether a member was completed before this flight began."""
        return bool(self.held) and self.held[member].status is Status.COMPLETED


class Landing(NamedTuple):
    """What a flight comes to.

    Attributes:
        responses: the members as they are put.
        generate_time_us: how long each was generated in this flight.
        restarted_tokens: tokens held of the members that they did not continue from.
    """

    responses: tuple[Response, ...]
    generate_time_us: tuple[int, ...]
    restarted_tokens: int


class Generation:
    """The responses of one task's workload, as the engine needs them."""

    def __init__(self, workload: TaskWorkload, *, partial_rollout: bool) -> None:
        responses = workload.responses
        self._partial = partial_rollout
        self._masks = workload.masks
        self._lengths = responses.response_len.data
        self._token_times = responses.token_time_us.data
        self._agentic = responses.agentic.data
        self._failed = responses.failed.data
        self._filtered = responses.filtered.data
        self._rewards = responses.reward.data
        self._rollout_ids = responses.rollout_id.data
        self._segments = _segments(workload)

    def flight(self, task_index: int, prompt: Prompt, held: Sequence[Response]) -> Flight:
        """Begin to generate a group; `held` are its members as sampled, empty for a prompt."""
        lengths = self._lengths[prompt.first : prompt.last].tolist()
        prior = [0] * len(lengths)
        for member, response in enumerate(held):
            if response.status is Status.COMPLETED or (self._partial and response.status is Status.ABORTED):
                prior[member] = response.tokens
        remaining = [length - tokens for length, tokens in zip(lengths, prior, strict=True)]
        return Flight(
            task_index, prompt, held, prior, remaining, self._token_times[prompt.first : prompt.last].tolist()
        )

    def land(self, flight: Flight, model_step: int, now: int) -> Landing:
        """What the members of a flight are at an instant, when it has ended or is cut off."""
        responses: list[Response] = []
        times: list[int] = []
        for member, start in enumerate(flight.start):
            held = flight.held[member] if flight.held else None
            if held is not None and held.status is Status.COMPLETED:
                responses.append(_with_prior(held, held.tokens))
                times.append(0)
                continue
            remaining, token_time = flight.remaining[member], flight.token_time_us[member]
            elapsed = 0 if start is None else now - start
            is_over = start is not None and elapsed >= remaining * token_time
            times.append(remaining * token_time if is_over else elapsed)
            new_tokens = remaining if is_over else elapsed // token_time
            responses.append(self._member(flight, member, held, new_tokens, is_over, model_step))
        rows = range(flight.prompt.first, flight.prompt.last)
        if any(self._filtered[row] for row in rows) and all(r.status is Status.COMPLETED for r in responses):
            responses = [_with_status(response, Status.FILTERED) for response in responses]
        # A member that failed continues from nothing, whatever it began with.
        restarted = token_count(flight.held) - sum(r.prior_len for r in responses) if flight.held else 0
        return Landing(tuple(responses), tuple(times), restarted)

    def _member(
        self, flight: Flight, member: int, held: Response | None, new_tokens: int, is_over: bool, model_step: int
    ) -> Response:
        row = flight.prompt.first + member
        rollout_id = self._rollout_ids[row] + flight.prompt.rollout_shift
        segment = self._segments.get(row, 0)
        was_agentic = held is not None and held.agentic
        if is_over and self._failed[row]:
            return Response(rollout_id, Status.FAILED, (), segment=segment, agentic=was_agentic)
        prior = flight.prior[member]
        runs: tuple[VersionRun, ...] = held.runs if held is not None and prior else ()
        if new_tokens:
            before = held.trainable_tokens if held is not None and prior else 0
            trainable = self._masks.trainable(row, prior + new_tokens) - before
            runs = _extended(runs, (model_step, new_tokens, trainable))
        if not is_over:
            return Response(rollout_id, Status.ABORTED, runs, prior_len=prior, segment=segment, agentic=was_agentic)
        reward = self._rewards[row]
        return Response(
            rollout_id,
            Status.COMPLETED,
            runs,
            prior_len=prior,
            segment=segment,
            agentic=was_agentic or bool(self._agentic[row]),
            reward=None if math.isnan(reward) else reward,
        )


def _segments(workload: TaskWorkload) -> dict[int, int]:
    """Place among the rows of its rollout of every response that isn't the first; most workloads have none."""
    rollout_ids = workload.responses.rollout_id
    segments: dict[int, int] = {}
    if len(set(rollout_ids.tolist())) < len(rollout_ids):
        seen: dict[int, int] = {}
        for row, rollout_id in enumerate(rollout_ids.tolist()):
            segment = seen.get(rollout_id, 0)
            seen[rollout_id] = segment + 1
            if segment:
                segments[row] = segment
    return segments


def _extended(runs: tuple[VersionRun, ...], run: VersionRun) -> tuple[VersionRun, ...]:
    """Runs with another one behind; the same version goes on in the same run."""
    if runs and runs[-1][0] == run[0]:
        model_step, tokens, trainable = runs[-1]
        return (*runs[:-1], (model_step, tokens + run[1], trainable + run[2]))
    return (*runs, run)


def _with_prior(response: Response, prior_len: int) -> Response:
    return Response(
        response.rollout_id,
        response.status,
        response.runs,
        prior_len=prior_len,
        segment=response.segment,
        agentic=response.agentic,
        reward=response.reward,
    )


def _with_status(response: Response, status: Status) -> Response:
    return Response(
        response.rollout_id,
        status,
        response.runs,
        prior_len=response.prior_len,
        segment=response.segment,
        agentic=response.agentic,
        reward=response.reward,
    )
