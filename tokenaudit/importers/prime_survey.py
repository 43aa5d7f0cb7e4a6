"""What has to be known of all files of a prime-rl run before the first event: groups, batches, and what was trained.

A line of what arrived names a group whose other lines may be anywhere behind it, and was trained in a batch that
another file tells. Nothing of a line is kept but a few numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.importers.base import Context
from tokenaudit.importers.batch import GroupKey
from tokenaudit.importers.fields import integer, mapping, number, objects, stable_id
from tokenaudit.importers.prime_episodes import Episode, episodes, records_of
from tokenaudit.importers.prime_exports import TrainedSequences, annotated, exported, exported_step, sequence_key

_RESTART_SECONDS = 30.0
"""How long a restarted run generates nothing, at least: it loads its model anew."""
_MOST_BATCHES = 8
"""How often a step may have been written, where only pauses tell."""


class BatchOf(NamedTuple):
    """Which batch something belongs to; batches are written in this order.

    Attributes:
        run: of a stream, how many times the run had been resumed.
        train_step: its step.
        again: of a step whose folder holds several batches, the number of this one.
    """

    run: int
    train_step: int
    again: int


@dataclass(slots=True)
class Run:
    """What has to be known of all files before the first event.

    Attributes:
        named: what the trainer recorded of branches.
        unnamed: what it recorded of sequences that only their tokens identify.
        lines: how many lines hold episodes of a group, which is put with the last of them.
        shipped: the batches that trained rollouts, by what identifies them.
        sizes: the groups that each batch was the first to train, by task.
        in_parts: the first batch of each group, where groups are known as they were trained only; None elsewhere.
    """

    named: TrainedSequences
    unnamed: TrainedSequences
    lines: Counter[GroupKey] = field(default_factory=Counter)
    shipped: dict[int, BatchOf] = field(default_factory=dict)
    sizes: dict[BatchOf, Counter[str]] = field(default_factory=dict)
    in_parts: dict[GroupKey, BatchOf] | None = None

    def group_of(self, group: GroupKey, batch: BatchOf) -> GroupKey:
        """The group in a log: where only what was trained is known, each part of a group is one of its own."""
        if self.in_parts is None or self.in_parts.setdefault(group, batch) == batch:
            return group
        return GroupKey(group.task_name, stable_id(f"{group.group_id}, again in step {batch.train_step}"))

    def shipped_in(self, episode: Episode, trace: dict[str, Any]) -> BatchOf | None:
        """The batch that trained a trace; None where none did, or nobody says so."""
        return self.shipped.get(episode.rollout_id(trace)) or self.shipped.get(_trace_key(trace.get("id")))

    def count(self, groups: Iterable[tuple[GroupKey, BatchOf]]) -> None:
        """Count groups for the first batch that trained them."""
        first: dict[GroupKey, BatchOf] = {}
        for group, batch in groups:
            own = self.group_of(group, batch)
            first[own] = min(batch, first.get(own, batch))
        for group, batch in first.items():
            self.sizes.setdefault(batch, Counter())[group.task_name] += 1


def _trace_key(trace_id: object) -> int:
    return stable_id(f"trace {trace_id}")


def survey_trained(paths: Sequence[Path], run: Run, context: Context) -> None:
    """Note which rollouts the batch of each step trained, and which steps hold several batches."""
    steps: list[list[_Shipped]] = []
    for path in paths:
        steps.append([])
        for episode in episodes(path, context):
            with context.noting(episode.where):
                steps[-1].append(_shipped(episode))
    totals = Counter(sum(len(line.rollouts) for line in lines) for lines in steps)
    usual = min(totals, default=0)
    is_usual = usual > 0 and totals[usual] > 1 and all(total % usual == 0 for total in totals)
    groups: list[tuple[GroupKey, BatchOf]] = []
    for lines in steps:
        for line, again in zip(lines, _batches_of(lines, usual if is_usual else None), strict=True):
            batch = BatchOf(0, line.train_step, again)
            run.shipped.update(dict.fromkeys(line.rollouts, batch))
            groups += [(line.group, batch)] if line.rollouts else []
    run.count(groups)


class _Shipped(NamedTuple):
    """A line of what was trained: step, group, rollouts, run, and when it began and ended (seconds; NaN: unknown)."""

    train_step: int
    group: GroupKey
    rollouts: tuple[int, ...]
    run: str
    begin: float
    end: float


def _shipped(episode: Episode) -> _Shipped:
    """What of a line is needed to know its batch."""
    times: list[float] = []
    for trace in episode.traces:
        stamps = [mapping(trace.get("timing"), "timing").get("start")]
        stamps += [node.get("timestamp") for node in objects(trace.get("nodes"), "nodes")]
        times += [time for stamp in stamps if (time := number(stamp, "timestamp"))]
    rollouts = tuple(episode.rollout_id(trace) for trace in episode.traces)
    nan = float("nan")
    return _Shipped(
        episode.train_step, episode.group, rollouts, episode.run, min(times, default=nan), max(times, default=nan)
    )


def _batches_of(lines: Sequence[_Shipped], usual: int | None) -> list[int]:
    """To which batch each line of a step belongs: 0, or more where the run was resumed and wrote the step again.

    That shows in the id of the run, in a multiple of the usual size, or in pauses between batches of one size: all
    behind one began `_RESTART_SECONDS` or more after the end of all before it.

    Args:
        lines: what the step shipped, in the order in which it was written.
        usual: the size of a batch, in rollouts, by other steps; None if they don't agree.
    """
    runs = [line.run for line in lines]
    if len(set(runs)) > 1:
        first_seen = {run: number for number, run in enumerate(dict.fromkeys(runs))}
        return [first_seen[run] for run in runs]
    before = np.cumsum([0, *(len(line.rollouts) for line in lines)])
    total = int(before[-1])
    if usual and total > usual and total % usual == 0:
        return [int(count) // usual for count in before[:-1]]
    for parts in range(_MOST_BATCHES, 1, -1):
        ends = np.arange(1, parts) * total // parts
        starts = np.searchsorted(before, ends)
        if total % parts == 0 and total and (before[starts] == ends).all() and _pauses(lines, starts.tolist()):
            return np.searchsorted(starts, np.arange(len(lines)), side="right").tolist()
    return [0] * len(lines)


def _pauses(lines: Sequence[_Shipped], starts: Sequence[int]) -> bool:
    """Whether nothing was generated for a while before each of some lines; one line without times says no."""
    return all(
        np.min([line.begin for line in lines[start:]]) - np.max([line.end for line in lines[:start]])
        >= _RESTART_SECONDS
        for start in starts
    )


def survey_annotations(paths: Sequence[Path], run: Run, context: Context) -> None:
    """Note which traces were shipped, and what the trainer recorded of their branches."""
    batch, time = BatchOf(0, 0, 0), object()
    for data, where in records_of(paths, context):
        with context.noting(where):
            ship = mapping(mapping(data.get("info"), "info").get("ship"), "ship")
            if ship:
                # one time for all traces of a batch: the step is shipped again if it comes with another one
                step = integer(ship, "step", low=1)
                is_again = step < batch.train_step or (step == batch.train_step and ship.get("time") != time)
                batch, time = BatchOf(batch.run + is_again, step, 0), ship.get("time")
                run.shipped[_trace_key(data.get("trace_id"))] = batch
            for key, tokens in annotated(data):
                run.named.add(key, tokens)


def survey_exports(paths: Sequence[Path], run: Run, context: Context) -> None:
    """Note what the trainer recorded of sequences; where the steps of traces are known, by step."""
    for data, where in records_of(paths, context):
        with context.noting(where):
            sequence = exported(data)
            step = exported_step(data) if run.shipped else None
            run.unnamed.add(sequence_key(sequence.digest, step), sequence.tokens)


def survey_groups(sources: Sequence[Path], streams: Sequence[Path], run: Run, context: Context) -> None:
    """Count the lines of every group, and the groups of batches that only traces name."""
    named: list[tuple[GroupKey, BatchOf]] = []
    for episode, batch in lines_of(sources, streams, run, context):
        run.lines[run.group_of(episode.group, batch)] += 1
        if not run.sizes:
            shipped_in = (run.shipped_in(episode, trace) for trace in episode.traces)
            named += [(episode.group, batch) for batch in shipped_in if batch is not None]
    run.count(named)


def lines_of(
    sources: Sequence[Path], streams: Sequence[Path], run: Run, context: Context
) -> Iterator[tuple[Episode, BatchOf]]:
    """Every episode, and the batch that was collected when it arrived."""
    for path in sources:
        again = 0
        for episode in episodes(path, context):
            own = [run.shipped_in(episode, trace) for trace in episode.traces]
            # what came behind a rollout of the second batch was written by the resumed run
            again = max(again, *(one.again for one in own if one and one.train_step == episode.train_step), 0)
            yield episode, BatchOf(0, episode.train_step, again)
    last, resumed = 0, 0
    for episode in chain.from_iterable(episodes(path, context) for path in streams):
        own = [run.shipped_in(episode, trace) for trace in episode.traces]
        resumed = max(resumed + (episode.train_step < last), *(one.run for one in own if one), 0)
        last = episode.train_step
        yield episode, BatchOf(resumed, episode.train_step, 0)
