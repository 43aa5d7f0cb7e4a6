"""What corrections share of a batch of responses; each thing is computed once, when the first one asks for it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import NamedTuple, Self

import numpy as np

from tokenaudit.corrections.arrays import Array, Arrays
from tokenaudit.log.columns import Bools, Floats, Int64s


class Runs(NamedTuple):
    """S runs of tokens, in numpy.

    Attributes:
        lengths: tokens of each run, int64 of shape [S].
        in_loss: whether they are in the loss, bool of shape [S].
        of_response: runs of each response, int64 of shape [R].
    """

    lengths: Int64s
    in_loss: Bools
    of_response: Int64s


_OF_ALL = ("log_ratio", "ratio", "distance", "reach")
"""What doesn't depend on which tokens are in the loss."""


class Tokens:
    """R responses with N tokens, whose log-probabilities are finite, in one floating type.

    Sums, counts and the like are over tokens in the loss, one per response.

    Attributes:
        xp: the functions of its arrays.
        dtype: float32 or float64.
        lengths: tokens of each response, int64 of shape [R], in numpy.
        rollout: log-probabilities under the engine that made the tokens, shape [N].
        trained: those under the trainer, shape [N].
        mask: whether each token is in the loss, bool of shape [N].
        advantage: of each response, float64 of shape [R], in numpy; NaN where it isn't known.
        rows: which row of the trainer's batch each response is packed into, int64 of shape [R], in numpy; None: each
            has a row of its own.
    """

    def __init__(
        self,
        xp: Arrays,
        dtype: str,
        lengths: Int64s,
        rollout: np.ndarray,
        trained: np.ndarray,
        mask: Bools,
        advantage: Floats | None = None,
        rows: Int64s | None = None,
    ) -> None:
        self.xp = xp
        self.dtype = dtype
        self.lengths = lengths
        self.rollout = xp.of(rollout, dtype)
        self.trained = xp.of(trained, dtype)
        self.mask = xp.of(mask, "bool")
        self.advantage = np.full(len(lengths), np.nan) if advantage is None else advantage
        self.rows = rows
        self._all_in_loss = bool(mask.all())
        self._known: dict[str, Array] = {}

    def with_mask(self, mask: Array) -> Self:
        """The same tokens, fewer of them in the loss."""
        other = copy(self)
        other.mask = mask
        other._all_in_loss = False
        other._known = {name: self._known[name] for name in _OF_ALL if name in self._known}
        return other

    def in_float32(self) -> Self:
        """The same tokens in float32."""
        if self.dtype == "float32":
            return self
        other = copy(self)
        other.dtype = "float32"
        other.rollout, other.trained = (self.xp.cast(part, "float32") for part in (self.rollout, self.trained))
        other._known = {}
        return other

    def once(self, name: str, compute: Callable[[], Array]) -> Array:
        """What was computed under a name before, else what `compute` gives now."""
        if name not in self._known:
            self._known[name] = compute()
        return self._known[name]

    @property
    def count(self) -> Array:
        """Tokens in the loss of each response, int64 of shape [R]."""
        return self.once("count", lambda: self.xp.counts(self.mask, self.lengths))

    @property
    def log_ratio(self) -> Array:
        """Trainer's log-probability minus the engine's, shape [N]."""
        return self.once("log_ratio", lambda: self.trained - self.rollout)

    @property
    def distance(self) -> Array:
        """Its absolute value, shape [N]."""
        return self.once("distance", lambda: self.xp.absolute(self.log_ratio))

    @property
    def ratio(self) -> Array:
        """Trainer's probability over the engine's, shape [N]; infinite where that overflows."""
        return self.once("ratio", lambda: self.xp.exp(self.log_ratio))

    @property
    def k3(self) -> Array:
        """Schulman's estimate of the divergence of each token, shape [N]: ratio - log ratio - 1."""
        return self.once("k3", lambda: self.ratio - self.log_ratio - 1)

    @property
    def probability_gap(self) -> Array:
        """Trainer's probability minus the engine's, shape [N]."""
        return self.once("probability_gap", lambda: self.xp.exp(self.trained) - self.rollout_probability)

    @property
    def rollout_probability(self) -> Array:
        """The engine's probability of each token, shape [N]."""
        return self.once("rollout_probability", lambda: self.xp.exp(self.rollout))

    @property
    def ones(self) -> Array:
        """Weights that change nothing, shape [N]."""
        return self.once("ones", lambda: self.xp.cast(self.mask | ~self.mask, self.dtype))

    def clipped_log_ratio(self, limit: float) -> Array:
        """`log_ratio` between -limit and limit; the same array where nothing is cut."""
        if self.once("reach", lambda: float(self.distance.max()) if len(self.distance) else 0.0) <= limit:
            return self.log_ratio
        return self.once(f"log_ratio {limit}", lambda: self.xp.clip(self.log_ratio, -limit, limit))

    def clipped_ratio(self, limit: float) -> Array:
        """Its exponential, shape [N]."""
        cut = self.clipped_log_ratio(limit)
        return self.ratio if cut is self.log_ratio else self.once(f"ratio {limit}", lambda: self.xp.exp(cut))

    @property
    def log_ratio_sum(self) -> Array:
        """Sum of `log_ratio` of each response, shape [R]."""
        return self.once("log_ratio_sum", lambda: self.sum(self.log_ratio))

    @property
    def log_ratio_mean(self) -> Array:
        """`log_ratio_sum` over `count`, shape [R]; 0 for a response with nothing in the loss."""
        return self.once("log_ratio_mean", lambda: self.log_ratio_sum / self.at_least_one)

    @property
    def geometric_ratio(self) -> Array:
        """Geometric mean of the ratios of each response, shape [R]; 1 for one with nothing in the loss."""
        return self.once("geometric_ratio", lambda: self.xp.exp(self.log_ratio_mean))

    def sum(self, values: Array) -> Array:
        """Sum over the tokens in the loss of each response, shape [R]."""
        return self.xp.sums(values if self._all_in_loss else self.xp.where(self.mask, values, 0), self.lengths)

    def mean(self, values: Array) -> Array:
        """`sum` over `count`, shape [R]; 0 for a response with nothing in the loss."""
        return self.sum(values) / self.at_least_one

    @property
    def at_least_one(self) -> Array:
        """`count` in the type of the tokens, 1 where it is 0."""
        return self.once("at_least_one", lambda: self.xp.cast(self.xp.clip(self.count, 1, None), self.dtype))

    def largest(self, values: Array, empty: float = 0.0) -> Array:
        """Largest value over the tokens in the loss of each response; `empty` where nothing is in it."""
        if self._all_in_loss:
            return self.xp.largest(values, self.lengths, empty)
        found = self.xp.largest(self.xp.where(self.mask, values, -np.inf), self.lengths, empty)
        return self.xp.where(self.count > 0, found, empty)

    def smallest(self, values: Array, empty: float = 0.0) -> Array:
        """Smallest value over the tokens in the loss of each response; `empty` where nothing is in it."""
        if self._all_in_loss:
            return self.xp.smallest(values, self.lengths, empty)
        found = self.xp.smallest(self.xp.where(self.mask, values, np.inf), self.lengths, empty)
        return self.xp.where(self.count > 0, found, empty)

    def count_of(self, flags: Array) -> Array:
        """Tokens in the loss of each response that have a flag, int64 of shape [R]."""
        return self.xp.counts(flags if self._all_in_loss else flags & self.mask, self.lengths)

    def any(self, flags: Array) -> Array:
        """Whether a token in the loss of each response has a flag, bool of shape [R]."""
        return self.count_of(flags) > 0

    @property
    def runs(self) -> Runs:
        """The runs of tokens that are all in the loss or all out of it; none goes beyond its response."""
        return self.once("runs", lambda: _runs(self.xp.host(self.mask), self.lengths))

    def spread(self, values: Array) -> Array:
        """Values of shape [R] for every token, shape [N]."""
        return self.xp.spread(values, self.lengths)

    def zero_outside(self, values: Array) -> Array:
        """Values, 0 for tokens out of the loss."""
        return values if self._all_in_loss else self.xp.where(self.mask, values, 0)

    def one_outside(self, values: Array) -> Array:
        """Values, 1 for tokens out of the loss."""
        return values if self._all_in_loss else self.xp.where(self.mask, values, 1.0)


def _runs(mask: Bools, lengths: Int64s) -> Runs:
    ends = np.cumsum(lengths)
    starts = ends - lengths
    edges = np.zeros(len(mask), dtype=bool)
    edges[1:] = mask[1:] != mask[:-1]
    edges[starts[lengths > 0]] = True
    begins = np.flatnonzero(edges)
    of_response = np.searchsorted(begins, ends) - np.searchsorted(begins, starts)
    return Runs(np.diff(begins, append=len(mask)), mask[begins], of_response.astype(np.int64, copy=False))
