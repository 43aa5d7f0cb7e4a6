"""A small model of an asynchronous run, whose healthy log a test changes in one place.

Groups are in flight over several steps. The weight sync after a step cuts off what isn't finished; it is put as aborted
and goes on from its tokens, or begins again where partial rollout is off. A step takes the groups that were completed
first and names their responses. Log-probabilities of the trainer lie around the engine's, the farther the older the
weights are. Equal runs give equal rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from tests.builders import Row, put, refresh, sample, sync, take

END = 2
"""Token id that ends a finished response."""


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        steps: train steps.
        batch: groups that a step takes.
        group_size: responses per group.
        in_flight: groups generated at once; None: twice the batch.
        round_tokens: tokens that a response gets at most per round; a step has as many rounds as its batch needs.
        mean_tokens: about what responses have.
        most_tokens: length limit.
        partial: whether aborted responses go on from their tokens.
        tools: whether responses have tool output, which isn't trained.
        names_takes: whether takes name responses.
        task: the task.
        seed: of the random numbers.
        first_step: number of the first step; the version before it is one less.
        first_group: id of the first group.
        reward: reward of a response, from random numbers and how easy its prompt is, between 0 and 1.
    """

    steps: int = 12
    batch: int = 4
    group_size: int = 4
    in_flight: int | None = None
    round_tokens: int = 12
    mean_tokens: int = 20
    most_tokens: int = 60
    partial: bool = True
    tools: bool = False
    names_takes: bool = True
    task: str = "math"
    seed: int = 1
    first_step: int = 1
    first_group: int = 0
    reward: Callable[[random.Random, float], float] = lambda rng, ease: float(rng.random() < ease)

    @property
    def config(self) -> tuple[str, ...]:
        """Settings under which the log is healthy."""
        return (
            "mode=disaggregated",
            "timeline.sync_weights_interval=1",
            f"timeline.train_batch_size={self.batch}",
            "buffer.replay_policy=fifo",
            "policy.max_staleness=20",
            "policy.tail_batch_trigger_size=4",
            f"policy.enable_partial_rollout={str(self.partial).lower()}",
            f"tasks.{self.task}.group_size={self.group_size}",
        )


@dataclass
class _Response:
    rollout_id: int
    flags: list[int]
    """Whether each token that it will have is the model's own."""
    ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prior: int = 0

    @property
    def is_done(self) -> bool:
        return len(self.ids) == len(self.flags)

    def grow(self, tokens: int, version: int, rng: random.Random, most: int) -> None:
        for flag in self.flags[len(self.ids) :][:tokens]:
            is_end = len(self.ids) + 1 == len(self.flags) < most
            self.ids.append(END if is_end else rng.randint(10, 30_000))
            self.versions.append(version)
            spread = 1.0 if rng.random() < 0.6 else 0.02
            self.logprobs.append(round(-rng.expovariate(1.6) * spread - 1e-4, 5) if flag else 0.0)

    def trained(self, step: int, rng: random.Random) -> list[float]:
        """Log-probabilities of the same tokens under the weights of a step."""
        return [
            _drifted(logprob, step - version - 1, rng) if flag else 0.0
            for logprob, version, flag in zip(self.logprobs, self.versions, self.flags, strict=False)
        ]


def _drifted(logprob: float, age: int, rng: random.Random) -> float:
    spread = 0.015 + 0.06 * max(0, age)
    # The mean of the ratio stays 1; sure tokens differ by a share of what they have.
    drift = rng.gauss(-spread * spread / 2, spread) if logprob < -0.25 else logprob * rng.gauss(0, 0.1)
    return round(min(logprob + drift, -1e-6), 7)


@dataclass
class _Group:
    group_id: int
    prompt_len: int
    ease: float
    members: list[_Response]
    waits: bool = False
    """Whether the buffer holds it as aborted."""

    @property
    def is_done(self) -> bool:
        return all(member.is_done for member in self.members)


def log_of(run: Run) -> list[Row]:
    """The rows of a run in the order of its events, which are numbered from 0."""
    rng, rows = random.Random(run.seed), list[list[Row]]()
    flight, ready, started = list[_Group](), list[_Group](), run.first_group
    for step in range(run.first_step, run.first_step + run.steps):
        version = step - 1
        rows.append([refresh(train_step=step)])
        while len(ready) < run.batch:
            while len(flight) < (run.in_flight or 2 * run.batch):
                flight.append(_new_group(run, started, rng))
                started += 1
            for group in flight:
                if group.waits:
                    rows.append([sample(group_id=group.group_id, task_name=run.task)])
                    group.waits = False
                for member in group.members:
                    member.grow(run.round_tokens, version, rng, run.most_tokens)
                if group.is_done:
                    rows.append(_put(run, group, step, rng))
                    ready.append(group)
            flight = [group for group in flight if not group.is_done]
        for group in (group for group in flight if not group.waits):
            rows.append(_put(run, group, step, rng))
            group.waits = True
            if not run.partial:
                group.members = [_Response(member.rollout_id, member.flags) for member in group.members]
        rows.append(_take(run, ready[: run.batch], step))
        del ready[: run.batch]
        rows.append([sync(train_step=step, model_step=step)])
    return renumbered(rows)


def _new_group(run: Run, group_id: int, rng: random.Random) -> _Group:
    members: list[_Response] = []
    for number in range(run.group_size):
        tokens = max(4, min(run.most_tokens, int(rng.lognormvariate(0, 0.55) * run.mean_tokens)))
        flags = [1] * tokens
        if run.tools:
            for first in range(rng.randint(3, 8), tokens - 3, 11):
                flags[first : first + 3] = [0] * 3
        members.append(_Response(group_id * 100 + number, flags))
    return _Group(group_id, rng.randint(20, 80), rng.betavariate(1.2, 1.2), members)


def _put(run: Run, group: _Group, step: int, rng: random.Random) -> list[Row]:
    rows: list[Row] = []
    for member in group.members:
        tokens, has_room = len(member.ids), len(member.flags) < run.most_tokens
        row: Row = put(
            group_id=group.group_id, rollout_id=member.rollout_id, train_step=step, model_step=step - 1, tokens=tokens,
            status="completed" if member.is_done else "aborted", prior_len=member.prior, task_name=run.task,
            response_ids=list(member.ids), response_model_steps=list(member.versions), logprobs=list(member.logprobs),
            train_logprobs=member.trained(step, rng), prompt_len=group.prompt_len, start_model_step=step - 1,
            finish_reason=("stop" if has_room else "length") if member.is_done else "abort",
            reward=run.reward(rng, group.ease) if group.is_done else None,
        )  # fmt: skip
        if run.tools:
            flags = member.flags[:tokens]
            turns = sum(now < before for before, now in zip([1, *flags], flags, strict=False))
            row |= {"response_mask": flags, "tool_turns": turns}
        rows.append(row)
        member.prior = tokens
    return rows


def _take(run: Run, groups: list[_Group], step: int) -> list[Row]:
    row = take(train_step=step, batch_size=run.batch, task_name=run.task)
    if not run.names_takes:
        return [row]
    return [row | {"rollout_id": member.rollout_id} for group in groups for member in group.members]


def renumbered(events: Iterable[list[Row]]) -> list[Row]:
    """The rows of events, with event ids from 0 on in that order."""
    return [row | {"event_id": event_id} for event_id, rows in enumerate(events) for row in rows]


def events_of(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each event; rows are copies, so that tests may change them."""
    return [[dict(row) for row in event] for _, event in groupby(rows, key=lambda row: row["event_id"])]


def changed(rows: Iterable[Row], values: Callable[[Row], dict[str, Any] | None], event: str = "put") -> list[Row]:
    """The rows, those of an event with other values where `values` gives some."""
    return [row | ((values(row) if row["event"] == event else None) or {}) for row in rows]


def restarted(run: Run, steps: int) -> list[Row]:
    """A run, and another one without what was in flight, which begins `steps` steps before the end of the first."""
    again = replace(
        run, seed=run.seed + 1, first_step=run.first_step + run.steps - steps, first_group=run.first_group + 1_000
    )
    return renumbered([*events_of(log_of(run)), *events_of(log_of(again))])
