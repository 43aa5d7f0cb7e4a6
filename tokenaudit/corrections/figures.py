"""Figures of a method over parts of the tokens: sums that batches add to, and what they come to in the end."""

from __future__ import annotations

import math

import numpy as np

from tokenaudit.corrections.ages import Grouping
from tokenaudit.corrections.arrays import CODES
from tokenaudit.corrections.result import PartFigures, TokenCounts, WeightFigures
from tokenaudit.log.columns import Floats, Int64s

IN_LOSS, KEPT, MASKED, WEIGHT, SQUARES, AT_LOW, AT_HIGH, NOT_FINITE = range(8)
"""Rows of sums: tokens in the loss, of these the kept, masked tokens; of the weights of kept tokens their sum, that of
their squares, how many were raised to the lower bound and cut to the upper one; kept tokens without a finite weight."""
ROWS = 8


class PartSums:
    """The sums of K parts.

    Attributes:
        sums: see `ROWS`, of shape [8 x K].
        largest: the largest weight, -inf where there is none, shape [K].
        responses: responses with a token, shape [K].
        dropped_whole: those with tokens in the loss of which none is kept, shape [K].
    """

    def __init__(self, count: int) -> None:
        self.sums = np.zeros((ROWS, count))
        self.largest = np.full(count, -np.inf)
        self.responses = np.zeros(count, dtype=np.int64)
        self.dropped_whole = np.zeros(count, dtype=np.int64)

    def add(self, grouping: Grouping, sums: Floats, largest: Floats) -> None:
        """Add the figures of rows, of shape [8 x S] and [S]."""
        self.sums += grouping.sums(sums)
        np.maximum(self.largest, grouping.largest(largest), out=self.largest)

    def add_responses(self, part: Int64s, in_loss: Floats, kept: Floats) -> None:
        """Add responses, each with a token in a part, shape [R]; they may stand in several parts."""
        count = len(self.responses)
        self.responses += np.bincount(part, minlength=count)
        self.dropped_whole += np.bincount(part[(in_loss > 0) & (kept == 0)], minlength=count)

    def join(self, other: PartSums) -> None:
        """Add those of another."""
        self.sums += other.sums
        np.maximum(self.largest, other.largest, out=self.largest)
        self.responses += other.responses
        self.dropped_whole += other.dropped_whole

    def counts(self, part: int) -> TokenCounts:
        """What becomes of the tokens of a part."""
        in_loss, kept, masked = self.sums[[IN_LOSS, KEPT, MASKED], part].astype(np.int64).tolist()
        responses, dropped_whole = int(self.responses[part]), int(self.dropped_whole[part])
        return TokenCounts(masked, in_loss, kept, in_loss - kept, responses, dropped_whole)

    def figures(self, part: int, weights: WeightBounds) -> PartFigures:
        """The figures of a part."""
        return PartFigures(self.counts(part), self.weights(part, weights))

    def weights(self, part: int, bounds: WeightBounds, histogram: Int64s | None = None) -> WeightFigures | None:
        """The weights of a part; None where there are none. Percentiles need the histogram of its kept tokens."""
        of_part = self.sums[:, part]
        not_finite = int(of_part[NOT_FINITE])
        tokens = int(of_part[KEPT]) - not_finite
        if bounds is None or tokens <= 0:
            return None
        has_low, has_high = bounds
        weight, squares = float(of_part[WEIGHT]), float(of_part[SQUARES])
        return WeightFigures(
            mean=weight / tokens,
            **dict(zip(("p5", "p50", "p95"), _percentiles(histogram, tokens), strict=True)),
            largest=float(self.largest[part]),
            at_low=float(of_part[AT_LOW]) / tokens if has_low else None,
            at_high=float(of_part[AT_HIGH]) / tokens if has_high else None,
            effective_share=weight * (weight / squares) / tokens if squares > 0 else None,
            not_finite=not_finite,
        )


WeightBounds = tuple[bool, bool] | None
"""Whether weights have a lower and an upper bound; None: there are no weights."""


def _percentiles(histogram: Int64s | None, tokens: int) -> tuple[float | None, float | None, float | None]:
    """5th, 50th and 95th percentile of as many weights, nearest rank."""
    if histogram is None:
        return None, None, None
    ranks = [max(math.ceil(share * tokens / 100), 1) for share in (5, 50, 95)]
    codes = np.searchsorted(np.cumsum(histogram), ranks)
    p5, p50, p95 = (np.minimum(codes, CODES - 1).astype(np.uint32) << 15).view(np.float32).tolist()
    return p5, p50, p95
