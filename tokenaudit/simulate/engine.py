"""The rollout engine: groups in flight make one token per member and token time, and end with their last member."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tokenaudit.lifecycle.types import Response, Status, VersionRun, token_count
from tokenaudit.simulate.workload import Prompt, TaskWorkload


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
                responses.append(held.changed(prior_len=held.tokens))
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
            responses = [response.changed(status=Status.FILTERED) for response in responses]
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


class Meter:
    """Adds up the simulated time in which it is on, in microseconds. It begins off."""

    __slots__ = ("_counted", "_since", "_total")

    def __init__(self) -> None:
        self._total = 0
        self._counted = 0
        self._since: int | None = None

    def set(self, is_on: bool, now: int) -> None:
        """Turn it on or off at an instant that is not before the last one; to what it already is, too."""
        if self._since is not None:
            self._total += now - self._since
        self._since = now if is_on else None

    def lap(self, now: int) -> int:
        """Time it was on since the last lap ended."""
        total = self._total if self._since is None else self._total + now - self._since
        lap = total - self._counted
        self._counted = total
        return lap


class Engine:
    """Groups being generated.

    Ends come in order of time; those of one instant in order of spawning over all tasks, then in member order, so
    the order is total and doesn't depend on how the heap was filled.

    Args:
        max_concurrency: responses generated at once, first spawned first served; None: any number.
    """

    def __init__(self, max_concurrency: int | None = None) -> None:
        self._slots = max_concurrency
        self._flights: dict[int, Flight] = {}
        self._ends: list[tuple[int, int, int]] = []
        self._waiting: deque[tuple[int, int]] = deque()
        self._next_order = 0
        self.busy = Meter()
        """On while a response is being generated."""

    @property
    def next_end(self) -> int | None:
        """When the next member ends; None if none is being generated."""
        return self._ends[0][0] if self._ends else None

    def spawn(self, flight: Flight, now: int) -> None:
        """Begin to generate the members of a group that aren't completed."""
        order = flight.order = self._next_order
        self._next_order += 1
        self._flights[order] = flight
        for member in range(len(flight.start)):
            if not flight.is_done_before(member):
                flight.unfinished += 1
                self._waiting.append((order, member))
        self._fill(now)

    def pop_end(self) -> Flight | None:
        """End the next member; its group, if that was the last one.

        Raises:
            IndexError: nothing is being generated.
        """
        now, order, _ = heapq.heappop(self._ends)
        flight = self._flights[order]
        flight.unfinished -= 1
        self._fill(now)
        if flight.unfinished:
            return None
        return self._flights.pop(order)

    def abort(self, now: int) -> list[Flight]:
        """Cut off everything; the groups that haven't ended, in order of spawning."""
        flights = list(self._flights.values())
        self._flights.clear()
        self._ends.clear()
        self._waiting.clear()
        self.busy.set(False, now)
        return flights

    def flights(self) -> list[Flight]:
        """The groups that haven't ended, in order of spawning."""
        return list(self._flights.values())

    def _fill(self, now: int) -> None:
        while self._waiting and (self._slots is None or len(self._ends) < self._slots):
            order, member = self._waiting.popleft()
            flight = self._flights[order]
            flight.start[member] = now
            end = now + flight.remaining[member] * flight.token_time_us[member]
            heapq.heappush(self._ends, (end, order, member))
        self.busy.set(bool(self._ends), now)
