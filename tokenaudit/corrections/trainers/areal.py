"""AReaL's rejection sampling, and M2PO's mask before it."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.tokens import Tokens


class RejectionSampling(BaseModel):
    """What is dropped, or cut, by how far trainer and engine are apart; computed in float32."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Literal["token", "sequence"] = "token"
    action: Literal["mask", "clamp"] = "mask"
    metric: Literal["ratio", "kl_k1", "kl_k2", "kl_k3"] = "ratio"
    agg: Literal["mean", "sum", "max"] = "mean"
    upper: float = 5.0
    lower: float | None = None

    @model_validator(mode="after")
    def _as_the_trainer_takes_them(self) -> Self:
        if self.lower is not None and self.lower > self.upper:
            raise ValueError(f"the trainer refuses lower {self.lower} above upper {self.upper}")
        if self.metric == "ratio" and not self.upper > 1:
            raise ValueError(f"the trainer refuses an upper bound of ratios that isn't above 1: {self.upper}")
        if self.metric == "ratio" and self.lower is not None and not self.lower > 0:
            raise ValueError(f"the trainer refuses a lower bound of ratios that isn't above 0: {self.lower}")
        if self.metric in ("kl_k2", "kl_k3") and not self.upper > 0:
            raise ValueError(f"the trainer refuses an upper bound of {self.metric} that isn't above 0: {self.upper}")
        if self.action == "clamp" and self.metric != "ratio":
            raise ValueError(f"the trainer clamps ratios only, not {self.metric}")
        return self

    def inside(self, values: Array) -> Array:
        """Whether values are in the bounds, which belong to them."""
        below = values <= self.upper
        return below if self.lower is None else (values >= self.lower) & below

    def measured(self, tokens: Tokens) -> Array:
        """The metric of each token, shape [N]; the k3 is that of engine over trainer."""
        if self.metric == "ratio":
            return tokens.ratio
        log_ratio = tokens.log_ratio
        if self.metric == "kl_k1":
            return log_ratio
        if self.metric == "kl_k2":
            return log_ratio * log_ratio / 2
        return tokens.xp.exp(-log_ratio) - 1 + log_ratio

    def aggregated(self, tokens: Tokens) -> Array:
        """The metric of each response, shape [R]; ratios are summed, averaged and compared as logarithms."""
        values = tokens.log_ratio if self.metric == "ratio" else self.measured(tokens)
        if self.agg == "max":
            found = tokens.largest(values)
        else:
            found = tokens.log_ratio_sum if values is tokens.log_ratio else tokens.sum(values)
            if self.agg == "mean":
                found = found / tokens.at_least_one
        return tokens.xp.exp(found) if self.metric == "ratio" else found

    def apply(self, tokens: Tokens) -> Applied:
        """What it does to tokens in float32; the loss divides by those in the loss before it."""
        return self._mask(tokens) if self.action == "mask" else self._clamp(tokens)

    def _mask(self, tokens: Tokens) -> Applied:
        if self.level == "token":
            keep = tokens.mask & self.inside(self.measured(tokens))
            weight = tokens.ratio
        else:
            keep = tokens.mask & tokens.spread(self.inside(self.aggregated(tokens)))
            weight = tokens.spread(tokens.geometric_ratio) if self.metric == "ratio" else tokens.ratio
        stats = {"count": tokens.count, "filtered": tokens.count - tokens.count_of(keep)}
        return Applied(keep, keep, tokens.xp.where(keep, weight, 0), stats, counted=tokens.mask)

    def _clamp(self, tokens: Tokens) -> Applied:
        if self.level == "token":
            weight = tokens.ratio
            clamped = self._cut(tokens, weight)
            low, high = weight < clamped, weight > clamped
            filtered = tokens.count_of(low | high)
        else:
            weight = tokens.geometric_ratio
            clamped = tokens.xp.where(self.inside(self.aggregated(tokens)), weight, self._cut(tokens, weight))
            low, high = weight < clamped, weight > clamped
            filtered = tokens.xp.where(low | high, tokens.count, 0)
            clamped, low, high = (tokens.spread(part) for part in (clamped, low, high))
        stats = {"count": tokens.count, "filtered": filtered}
        at_low = None if self.lower is None else low
        return Applied(tokens.mask, tokens.mask, tokens.zero_outside(clamped), stats, at_low, high, tokens.mask)

    def _cut(self, tokens: Tokens, weight: Array) -> Array:
        return tokens.xp.clip(weight, self.lower, self.upper)


class Areal(Correction):
    """M2PO's mask over the batch, then rejection sampling; as with use_decoupled_loss, without which both are off."""

    TRAINER: ClassVar = "areal"
    SOURCE: ClassVar = "areal-project/AReaL cbff54d645d2, areal/utils/functional/functional.py"
    DIVIDES_BY: ClassVar = "tokens that M2PO keeps, those that rejection sampling drops included"

    rejection_sampling: RejectionSampling | None = None
    m2_threshold: float | None = None

    @property
    def over_batch(self) -> bool:  # noqa: D102 - see the base
        return self.m2_threshold is not None

    def notes(self) -> tuple[str, ...]:  # noqa: D102
        rule = self.rejection_sampling
        if rule is None:
            return ("without rejection_sampling the trainer has no weights between engine and trainer either",)
        found = []
        if rule.level == "token" and "agg" in rule.model_fields_set:
            found.append("agg is not looked at where level is token")
        if rule.level == "sequence" and rule.metric == "ratio" and rule.agg != "mean":
            found.append(f"weights are geometric means, although bounds are put to the {rule.agg}")
        if rule.metric == "kl_k1":
            found.append("kl_k1 is the trainer's log-probability minus the engine's")
        if rule.metric == "kl_k3":
            found.append("kl_k3 is made of the ratio engine over trainer")
        return tuple(found)

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        if self.m2_threshold is not None:
            tokens = tokens.with_mask(_smallest_squares(tokens, self.m2_threshold))
        if self.rejection_sampling is None:
            return Applied(tokens.mask, tokens.mask, None, {"count": tokens.count})
        return self.rejection_sampling.apply(tokens.in_float32())

    def metrics(self, stats: Stats) -> dict[str, float]:  # noqa: D102
        if "filtered" not in stats:
            return {"filtered_fraction": 0.0}
        return {"filtered_fraction": float(stats["filtered"].sum() / max(int(stats["count"].sum()), 1))}


def _smallest_squares(tokens: Tokens, threshold: float) -> Array:
    """M2PO's mask: the smallest squared log ratios, as many as have a mean below a threshold; at least one.

    Of equal ones at the limit the last are kept, as by the trainer's sort.
    """
    xp = tokens.xp
    squares = tokens.log_ratio * tokens.log_ratio
    # the mean of these is below the threshold, however it is rounded
    is_small = tokens.mask & (squares < threshold / 2)
    small = xp.total(is_small)
    ordered = xp.host(xp.sorted(squares[tokens.mask & ~is_small]))
    if not len(ordered):
        return tokens.mask
    exact = xp.cast(xp.where(is_small, squares, 0), "float64" if "float64" in xp.dtypes else tokens.dtype)
    sums = np.cumsum(ordered, dtype=np.float64) + float(xp.host(xp.sums(exact, tokens.lengths)).sum(dtype=np.float64))
    counts = np.arange(small + 1, small + len(ordered) + 1, dtype=ordered.dtype)
    below = np.flatnonzero(sums.astype(ordered.dtype) / counts < threshold)
    if small and not len(below):
        return is_small
    kept = int(below[-1]) + 1 if len(below) else 1
    limit = float(ordered[kept - 1])
    up_to = int(np.searchsorted(ordered, limit, "right"))
    at_limit = tokens.mask & (squares == limit)
    if kept < up_to:
        at_limit = at_limit & (at_limit.cumsum(0) > up_to - kept)
    return at_limit | (tokens.mask & (squares < limit))
