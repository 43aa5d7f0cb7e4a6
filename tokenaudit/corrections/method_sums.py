"""What a method does to a log, summed up batch by batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tokenaudit.corrections.ages import AGES, Grouping
from tokenaudit.corrections.applying import Asked
from tokenaudit.corrections.arrays import CODES, Array, Arrays
from tokenaudit.corrections.correction import Applied
from tokenaudit.corrections.figures import (
    AT_HIGH,
    AT_LOW,
    IN_LOSS,
    KEPT,
    MASKED,
    NOT_FINITE,
    ROWS,
    SQUARES,
    WEIGHT,
    PartSums,
    WeightBounds,
)
from tokenaudit.corrections.result import LimitOverlap, PartFigures, Sign, StepFigures
from tokenaudit.corrections.stretches import POSITIONS, Parts
from tokenaudit.corrections.tokens import Tokens
from tokenaudit.lifecycle.staleness import token_stale_threshold
from tokenaudit.log.columns import Bools, Floats, Int64s

Key = TypeVar("Key")

SIGNS = (Sign.POSITIVE, Sign.ZERO, Sign.NEGATIVE, Sign.UNKNOWN)
"""Signs by code."""
_FEW = 4
"""Weights of which up to this part differs from those of another method share its histogram."""
_SUM_LIMIT = 1e15
"""Weights above it have squares whose sums don't fit float32."""


def sign_codes(advantage: Floats) -> Int64s:
    """Indices into `SIGNS`."""
    return np.where(np.isnan(advantage), 3, 1 - np.sign(np.nan_to_num(advantage))).astype(np.int64)


class BatchParts(NamedTuple):
    """The parts of a batch with R responses and S stretches.

    Attributes:
        train_step: the step.
        parts: parts of its stretches.
        by_task: groups responses by task.
        by_sign: groups them by the sign of the advantage.
        task: task of each response.
        sign: sign of each.
        has_tokens: which responses have a token.
        masked: masked tokens of each stretch.
    """

    train_step: int
    parts: Parts
    by_task: Grouping
    by_sign: Grouping
    task: Int64s
    sign: Int64s
    has_tokens: Bools
    masked: Floats


class MethodSums:
    """The sums of one method.

    Args:
        asked: the correction.
        tasks: number of tasks.
    """

    def __init__(self, asked: Asked, tasks: int) -> None:
        self._correction = asked.correction
        self._total = PartSums(1)
        self._by_task, self._by_sign = PartSums(tasks), PartSums(len(SIGNS))
        self._by_age, self._by_position = PartSums(AGES), PartSums(len(POSITIONS))
        self._limits = np.zeros((2, AGES))
        self._by_stale = np.zeros((2, 2))
        self._steps: list[StepFigures] = []
        self._histogram = np.zeros(CODES, dtype=np.int64)
        self._bounds: WeightBounds = None
        self._begin()

    def _begin(self) -> None:
        """Begin a batch."""
        self._sums: list[Floats] = []
        self._largest: list[Floats] = []
        self._stats: dict[str, list[np.ndarray]] = defaultdict(list)
        self._batch_histogram = np.zeros(CODES, dtype=np.int64)
        self._divisor = 0

    def add_chunk(self, xp: Arrays, tokens: Tokens, applied: Applied, lengths: Int64s) -> bool:
        """Add what it does to a chunk, cut into stretches of `lengths`; whether it drops any token of it."""
        in_loss = tokens.once(f"in_loss {len(lengths)}", lambda: xp.host(xp.counts(tokens.mask, lengths)))
        keep, weight = applied.keep, applied.weight
        sums = np.zeros((ROWS, len(lengths)))
        sums[IN_LOSS] = in_loss
        sums[KEPT] = in_loss if keep is tokens.mask else xp.host(xp.counts(keep, lengths))
        self._divisor += int(sums[KEPT].sum()) if applied.divides is keep else xp.total(applied.divides)
        largest = np.full(len(lengths), -np.inf)
        if weight is not None:
            self._add_weights(tokens, applied, keep, lengths, sums, largest)
        self._sums.append(sums)
        self._largest.append(largest)
        for name, values in applied.stats.items():
            self._stats[name].append(xp.host(values))
        return bool((sums[KEPT] < in_loss).any())

    def _add_weights(
        self, tokens: Tokens, applied: Applied, keep: np.ndarray, lengths: Int64s, sums: Floats, largest: Floats
    ) -> None:
        xp = tokens.xp
        self._bounds = (applied.at_low is not None, applied.at_high is not None)
        values = xp.where(keep, applied.weight, 0)
        of_weight = xp.host(xp.sums(values, lengths))
        if not np.isfinite(of_weight).all():
            finite = xp.finite(values)
            sums[NOT_FINITE] = lengths - xp.host(xp.counts(finite, lengths))
            values = xp.where(finite, values, 0)
            keep = keep & finite
            of_weight = None
        largest[:] = xp.host(xp.largest(values, lengths, 0))
        exact = xp.cast(values, "float64") if largest.max(initial=0) > _SUM_LIMIT else values
        sums[WEIGHT] = of_weight if of_weight is not None and exact is values else xp.host(xp.sums(exact, lengths))
        sums[SQUARES] = xp.host(xp.sums(exact * exact, lengths))
        largest[sums[KEPT] == sums[NOT_FINITE]] = -np.inf
        for row, flags in ((AT_LOW, applied.at_low), (AT_HIGH, applied.at_high)):
            if flags is not None and xp.total(flags):
                sums[row] = xp.host(xp.counts(flags & keep, lengths))
        counted = int(sums[KEPT].sum() - sums[NOT_FINITE].sum())
        if counted:
            for sign, part in _histograms(tokens, values):
                first, counts = part
                self._batch_histogram[first : first + len(counts)] += sign * counts
            # what isn't kept stands among the values as 0
            self._batch_histogram[0] -= len(values) - counted

    def end_batch(self, batch: BatchParts) -> None:
        """Sum up the chunks of a batch, which were all of it."""
        sums = np.concatenate(self._sums, axis=1) if self._sums else np.zeros((ROWS, 0))
        largest = np.concatenate(self._largest) if self._largest else np.zeros(0)
        sums[MASKED] = batch.masked
        parts = batch.parts
        cells, largest_cells = parts.by_cell.sums(sums), parts.by_cell.largest(largest)
        shape = (AGES, len(POSITIONS))
        for by, axis in ((self._by_age, 1), (self._by_position, 0)):
            by.sums += cells.reshape(ROWS, *shape).sum(axis=1 + axis)
            np.maximum(by.largest, largest_cells.reshape(shape).max(axis=axis), out=by.largest)
        of_loss = sums[[IN_LOSS, KEPT]]
        for by, (grouping, part) in ((self._by_age, parts.age_pairs), (self._by_position, parts.position_pairs)):
            by.add_responses(part, *grouping.sums(of_loss))
        self._limits += parts.by_limit_age.sums(of_loss)
        self._by_stale += parts.by_stale.sums(of_loss)
        responses, largest_of = parts.by_response.sums(sums), parts.by_response.largest(largest)
        step = PartSums(1)
        everything = Grouping(np.zeros(len(batch.task), dtype=np.int64), 1)
        there = batch.has_tokens
        for by, grouping, part in (
            (self._by_task, batch.by_task, batch.task),
            (self._by_sign, batch.by_sign, batch.sign),
            (step, everything, np.zeros(len(batch.task), dtype=np.int64)),
        ):
            by.add(grouping, responses, largest_of)
            by.add_responses(part[there], responses[IN_LOSS][there], responses[KEPT][there])
        self._total.join(step)
        self._histogram += self._batch_histogram
        stats = {name: np.concatenate(values) for name, values in self._stats.items()}
        counts = step.counts(0)
        metrics = self._correction.metrics(stats) if counts.in_loss else {}
        weights = step.weights(0, self._bounds, self._batch_histogram)
        self._steps.append(StepFigures(batch.train_step, counts, weights, self._divisor, metrics))
        self._begin()

    def figures(self, tasks: Sequence[str], sync_weights_interval: int) -> dict[str, Any]:
        """The figures of a `MethodResult`."""
        steps = sorted(self._steps, key=lambda step: step.train_step)
        limits = self._limit_overlaps(sync_weights_interval)
        return {
            "totals": self._total.counts(0),
            "weights": self._total.weights(0, self._bounds, self._histogram),
            "dropped_fresh": int(self._by_stale[0, 0] - self._by_stale[1, 0]),
            "divisor": sum(step.divisor for step in steps),
            "metrics": _means(steps),
            "by_step": tuple(steps),
            "by_task": self._parts(self._by_task, tasks),
            "by_age": self._parts(self._by_age, range(-1, AGES - 1)),
            "by_sign": self._parts(self._by_sign, SIGNS),
            "by_position": self._parts(self._by_position, POSITIONS),
            "staleness": limits,
            "nearest_limit": _nearest(limits),
        }

    def _parts(self, by: PartSums, keys: Sequence[Key]) -> dict[Key, PartFigures]:
        return {key: by.figures(index, self._bounds) for index, key in enumerate(keys) if by.responses[index]}

    def _limit_overlaps(self, sync_weights_interval: int) -> tuple[LimitOverlap, ...]:
        in_loss, kept = self._limits.astype(np.int64)
        dropped = in_loss - kept
        found: list[LimitOverlap] = []
        for limit in range(AGES):
            threshold = token_stale_threshold(limit, sync_weights_interval)
            assert threshold is not None
            stale = slice(min(threshold + 1, AGES), None)
            both = int(dropped[stale].sum())
            only_limit = int(in_loss[stale].sum()) - both
            found.append(LimitOverlap(limit, both, int(dropped.sum()) - both, only_limit))
            if both + only_limit == 0:
                break
        return tuple(found)


def _histograms(tokens: Tokens, values: Array) -> list[tuple[int, tuple[int, Int64s]]]:
    """Histograms to add and take off for that of values: the first method's of these tokens, and what differs."""
    xp = tokens.xp
    others, histogram = tokens.once("weights", lambda: (values, xp.histogram(values)))
    if others is values:
        return [(1, histogram)]
    differs = others != values
    count = xp.total(differs)
    if count > len(values) / _FEW:
        return [(1, xp.histogram(values))]
    if not count:
        return [(1, histogram)]
    return [(1, histogram), (-1, xp.histogram(others[differs])), (1, xp.histogram(values[differs]))]


def _means(steps: Sequence[StepFigures]) -> dict[str, float]:
    """The mean of each figure over the steps that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        for name, value in step.metrics.items():
            values[name].append(value)
    return {name: of_steps[0] if len(of_steps) == 1 else float(np.mean(of_steps)) for name, of_steps in values.items()}


def _nearest(limits: Sequence[LimitOverlap]) -> LimitOverlap | None:
    """The limit whose dropped tokens overlap most; of several the largest; None where none overlaps."""
    best = max(limits, key=lambda limit: (limit.jaccard, limit.max_token_staleness), default=None)
    return best if best is not None and best.jaccard > 0 else None
