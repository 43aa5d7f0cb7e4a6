"""prime-rl's orchestrator as far as a recorder sees it: signatures, order of calls, and what they carry.

After src/prime_rl/orchestrator/{orchestrator,train_sink,metrics}.py of PrimeIntellect-ai/prime-rl 559b4477, and
verifiers/v1/{trace,episode,graph}.py of PrimeIntellect-ai/verifiers a60a606e.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any


@dataclass(eq=False)
class MessageNode:
    parent: int | None
    sampled: bool
    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float] = field(default_factory=list)


@dataclass
class TimeSpan:
    start: float = 0.0
    end: float = 0.0

    @property
    def duration(self) -> float:
        return max(0.0, self.end - self.start) if self.end else 0.0


@dataclass
class ModelCall:
    node: int | None
    finish_reason: str | None = "stop"
    time: TimeSpan = field(default_factory=TimeSpan)


@dataclass
class Branch:
    nodes: list[MessageNode]
    calls: list[ModelCall]

    @property
    def token_ids(self) -> list[int]:
        return [token for node in self.nodes for token in node.token_ids]

    @property
    def logprobs(self) -> list[float]:
        values: list[float] = []
        for node in self.nodes:
            own = iter(node.logprobs)
            values += [next(own) if is_sampled else 0.0 for is_sampled in node.mask]
        return values


@dataclass
class Trace:
    id: str
    nodes: list[MessageNode]
    calls: list[ModelCall]
    rewards: dict[str, Any]
    ok: bool = True
    agent: Any = field(default_factory=lambda: SimpleNamespace(name="agent", trainable=True))

    @property
    def has_error(self) -> bool:
        return not self.ok

    @property
    def branches(self) -> list[Branch]:
        by_node = {call.node: call for call in self.calls}
        parents = {node.parent for node in self.nodes}
        found: list[Branch] = []
        for leaf in (place for place in range(len(self.nodes)) if place not in parents):
            path: list[int] = []
            place: int | None = leaf
            while place is not None:
                path.insert(0, place)
                place = self.nodes[place].parent
            calls = [by_node[place] for place in path if place in by_node]
            found.append(Branch([self.nodes[place] for place in path], calls))
        return found


@dataclass
class Episode:
    id: str
    env: Any
    group: Any
    run: Any
    traces: list[Trace]


@dataclass(frozen=True)
class TraceRecord:
    episode: Episode
    trace: Trace
    sampled: bool
    admitted: bool
    cancelled: bool


@dataclass
class TrainEpisodes:
    episodes: list[Episode] = field(default_factory=list)
    sampled_trace_ids: set[str] = field(default_factory=set)
    admitted: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)

    @property
    def records(self) -> list[TraceRecord]:
        return [
            TraceRecord(
                episode,
                trace,
                trace.id in self.sampled_trace_ids,
                episode.id in self.admitted,
                episode.id in self.cancelled,
            )
            for episode in self.episodes
            for trace in episode.traces
        ]

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.episodes)


@dataclass
class TrainBatch:
    episodes: TrainEpisodes
    cohort: TrainEpisodes
    samples: list[Any]


class TrainSink:
    """Queues the traces of groups that ended, drops what gets too old, and cuts batches of so many traces."""

    def __init__(self, orchestrator: Orchestrator, batch_size: int) -> None:
        self._orchestrator, self._batch_size = orchestrator, batch_size
        self.pending_episodes = TrainEpisodes()
        self.pending_batch: dict[str, list[Any]] = {}
        self._episode_of: dict[str, Episode] = {}
        self._swept_step = 0

    def _is_stale(self, episode: Episode) -> bool:
        oldest = self._orchestrator.progress.step - 1 - self._orchestrator.config.max_off_policy_steps
        policy = episode.run.work.policy
        return policy is not None and policy.start < oldest

    def end_group(self, group: list[Episode], *, is_cancelled: bool, is_admitted: bool) -> TrainBatch | None:
        window, told = self.pending_episodes, self._orchestrator.told
        window.episodes += group
        survivors = [(episode, trace) for episode in group for trace in episode.traces if trace.ok]
        for episode in group:
            if is_cancelled:
                window.cancelled.add(episode.id)
            elif is_admitted:
                window.admitted.add(episode.id)
            for trace in episode.traces:
                if not trace.ok:
                    told("failed", trace)
                elif is_cancelled:
                    told("stale", trace)
                elif not is_admitted:
                    told("filtered", trace)
        if not is_cancelled and is_admitted:
            for episode, trace in survivors:
                window.sampled_trace_ids.add(trace.id)
                self.pending_batch[trace.id] = [object()]
                self._episode_of[trace.id] = episode
            self._sweep([trace.id for _, trace in survivors])
        if self._swept_step != self._orchestrator.progress.step:
            self._swept_step = self._orchestrator.progress.step
            self._sweep([*self.pending_batch])
        return self._cut() if len(self.pending_batch) >= self._batch_size else None

    def _sweep(self, names: list[str]) -> None:
        for name in names:
            episode = self._episode_of[name]
            if self._is_stale(episode):
                del self.pending_batch[name], self._episode_of[name]
                self.pending_episodes.cancelled.add(episode.id)
                self._orchestrator.told("stale", *(trace for trace in episode.traces if trace.id == name))

    def left(self) -> list[tuple[Trace, bool]]:
        """What is queued, and whether it is too old."""
        episodes = [self._episode_of[name] for name in self.pending_batch]
        return [(trace, self._is_stale(episode)) for episode in episodes for trace in episode.traces]

    def _cut(self) -> TrainBatch:
        selected = [*self.pending_batch][: self._batch_size]
        cohort = TrainEpisodes()
        for name in selected:
            del self.pending_batch[name]
            episode = self._episode_of.pop(name)
            (trace,) = (trace for trace in episode.traces if trace.id == name)
            if self._orchestrator.has_advantage(trace):
                cohort.episodes.append(replace(episode, traces=[trace]))
                cohort.sampled_trace_ids.add(name)
            else:
                self._orchestrator.told("filtered", trace)
        # the cohort is gathered in any order
        self._orchestrator.random.shuffle(cohort.episodes)
        batch = TrainBatch(self.pending_episodes, cohort, [object() for _ in cohort.episodes])
        if batch.samples:
            self.pending_episodes = TrainEpisodes()
        return batch


class Orchestrator:
    """Collects groups that began under some version, and ships batches; weights follow a step or two behind.

    Attributes:
        journal: ("shipped", step, traces), ("failed", trace), ("filtered", trace) and ("stale", trace), in order.
    """

    def __init__(self, seed: int, steps: int, max_off_policy_steps: int, batch_size: int) -> None:
        self.random = Random(seed)
        self.config = SimpleNamespace(max_off_policy_steps=max_off_policy_steps)
        self.progress = SimpleNamespace(step=1)
        self.policy = SimpleNamespace(version=0)
        self.train_sink = TrainSink(self, batch_size)
        self.journal: list[tuple[Any, ...]] = []
        self._steps = steps
        self._numbers = itertools.count()

    def told(self, *event: Any) -> None:
        self.journal.append(event)

    def has_advantage(self, trace: Trace) -> bool:
        return len(trace.nodes[1].token_ids) % 7 != 0

    async def on_new_version(self, step: int) -> None:
        await asyncio.sleep(0)

    async def finalize_train_batch(self, batch: TrainBatch) -> None:
        if not batch.samples:
            return
        while self.policy.version < self.progress.step - 2:
            await self._update()
        await asyncio.sleep(0)
        self.told("shipped", self.progress.step, [trace for episode in batch.cohort for trace in episode.traces])
        self.progress.step += 1

    async def _update(self) -> None:
        self.policy.version += 1
        await self.on_new_version(self.policy.version)

    async def start(self) -> None:
        running: list[int] = []
        while self.progress.step <= self._steps:
            if self.policy.version < self.progress.step - 1 and self.random.random() < 0.3:
                await self._update()
            while len(running) < 6:
                running.append(self.policy.version)
            start = running.pop(0 if self.random.random() < 0.7 else self.random.randrange(6))
            group = self._group(start)
            oldest = self.progress.step - 1 - self.config.max_off_policy_steps
            is_cancelled = start < oldest and self.random.random() < 0.5
            if is_cancelled:
                group = group[: self.random.randint(0, 2)]
            batch = self.train_sink.end_group(group, is_cancelled=is_cancelled, is_admitted=self.random.random() < 0.8)
            if batch is not None:
                await self.finalize_train_batch(batch)

    def _group(self, start: int) -> list[Episode]:
        name = f"group {next(self._numbers)}"
        policy = SimpleNamespace(start=start, end=self.policy.version)
        run = SimpleNamespace(work=SimpleNamespace(type="train", step=self.progress.step, policy=policy))
        env, of_group = SimpleNamespace(id="env", name=self.random.choice(["math", "code"])), SimpleNamespace(id=name)
        return [Episode(f"{name} {index}", env, of_group, run, [self._trace()]) for index in range(4)]

    def _trace(self) -> Trace:
        def node(parent: int | None, context: int, sampled: int) -> MessageNode:
            tokens = [self.random.randint(0, 99) for _ in range(context + sampled)]
            return MessageNode(parent, sampled > 0, tokens, [False] * context + [True] * sampled, [-0.5] * sampled)

        # a prompt, an answer, and in half of the traces two ways on from it
        nodes = [node(None, 3, 0), node(0, 1, self.random.randint(1, 8))]
        if self.random.random() < 0.5:
            nodes += [node(1, 2, 0), node(2, 1, 3), node(1, 1, 2)]
        calls = [ModelCall(place, time=TimeSpan(10.0, 10.5)) for place, made in enumerate(nodes) if made.sampled]
        reward = None if self.random.random() < 0.1 else SimpleNamespace(value=float(self.random.randint(0, 1)))
        ok = self.random.random() < 0.9
        return Trace(f"trace {next(self._numbers)}", nodes, calls, {"correct": reward}, ok)
