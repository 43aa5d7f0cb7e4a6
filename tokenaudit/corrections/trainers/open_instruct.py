"""open-instruct's rho correction: a clamp and a mask of the ratio."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np
from pydantic import model_validator

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.tokens import Tokens

LIMIT = 10.0
"""Log ratios are cut here before anything else."""


class OpenInstruct(Correction):
    """Ratios of tokens, or their geometric means over rows, clamped as weights and 0 out of the bounds of a mask."""

    TRAINER: ClassVar = "open-instruct"
    SOURCE: ClassVar = "allenai/open-instruct e6c3044aa620, open_instruct/grpo_utils.py"
    DIVIDES_BY: ClassVar = "all tokens in the loss, dropped ones included"

    use_rho_correction: bool = True
    rho_clamp_lower_bound: float = 0.0
    rho_clamp_upper_bound: float = 2.0
    rho_mask_lower_bound: float = 0.0
    rho_mask_upper_bound: float = 0.0
    rho_mask_sequence_level: bool = False
    rho_mask_tv_divergence: bool = False

    @model_validator(mode="after")
    def _as_the_trainer_checks(self) -> Self:
        if not self.use_rho_correction:
            return self
        for name in ("rho_mask_lower_bound", "rho_clamp_lower_bound"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name}: the trainer takes less than 1, or 0 for none, not {getattr(self, name)}")
        for name in ("rho_mask_upper_bound", "rho_clamp_upper_bound"):
            if 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}: the trainer takes more than 1, or 0 for none, not {getattr(self, name)}")
        return self

    @property
    def needs_advantage(self) -> bool:
        """Whether tokens are dropped only where they drive the policies apart."""
        return self.use_rho_correction and self.rho_mask_tv_divergence and self._masks

    @property
    def _masks(self) -> bool:
        return self.rho_mask_lower_bound > 0 or self.rho_mask_upper_bound > 0

    def notes(self) -> tuple[str, ...]:  # noqa: D102 - see the base
        if not self.use_rho_correction:
            ignored = sorted(self.model_fields_set - {"use_rho_correction"})
            return tuple(f"{name} does nothing without use_rho_correction" for name in ignored)
        found = []
        if self.rho_mask_tv_divergence and not self._masks:
            found.append("rho_mask_tv_divergence does nothing without rho_mask_lower_bound or rho_mask_upper_bound")
        elif self.rho_mask_tv_divergence:
            found.append("the bounds of ratios are held against a mean of |ratio - 1|: an upper one below 1 is refused")
        if self.rho_mask_sequence_level or self.needs_advantage:
            found.append("a sequence is a row of the trainer's packed batch: responses packed together share one mean")
        if self.rho_mask_sequence_level:
            found.append("rho_mask_sequence_level makes the weight one for the row, too")
        return tuple(found)

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        xp = tokens.xp
        distance = tokens.distance
        stats = {
            "count": tokens.count,
            "distance": tokens.once("distance_sum", lambda: tokens.sum(distance)),
            "distance_max": tokens.once("distance_max", lambda: tokens.largest(distance)),
            "squares": tokens.once("sum of squares", lambda: tokens.sum(tokens.log_ratio * tokens.log_ratio)),
            "reverse_kl": tokens.once(
                "sum of reverse kl", lambda: -tokens.sum(tokens.rollout_probability * tokens.log_ratio)
            ),
        }
        if not self.use_rho_correction:
            return Applied(tokens.mask, tokens.mask, tokens.ones, stats)
        log_ratio = tokens.clipped_log_ratio(LIMIT)
        if self.rho_mask_sequence_level:
            ratio = tokens.spread(xp.exp(_row_mean(tokens, tokens.sum(log_ratio))))
        else:
            ratio = tokens.clipped_ratio(LIMIT)
        low, high = (bound if bound > 0 else None for bound in (self.rho_clamp_lower_bound, self.rho_clamp_upper_bound))
        at_low, at_high = _beyond(ratio, low, high)
        keep, weight = tokens.mask, xp.clip(ratio, low, high)
        nothing = tokens.count * 0
        for name, flags in zip(("dropped_low", "dropped_high"), self._dropped(tokens, ratio), strict=True):
            stats[name] = nothing if flags is None else tokens.count_of(flags)
            keep = keep if flags is None else keep & ~flags
        # weights are 0 for tokens out of the loss, too
        weight = tokens.zero_outside(weight) if keep is tokens.mask else xp.where(keep, weight, 0.0)
        clipped = [tokens.count_of(flags) for flags in (at_low, at_high) if flags is not None]
        stats |= {"weight": tokens.sum(weight), "clipped": sum(clipped, nothing)}
        return Applied(keep, tokens.mask, weight, stats, at_low, at_high)

    def _dropped(self, tokens: Tokens, ratio: Array) -> tuple[Array | None, Array | None]:
        """Tokens below the lower and above the upper bound of the mask; None: there is no such bound."""
        low, high = (bound if bound > 0 else None for bound in (self.rho_mask_lower_bound, self.rho_mask_upper_bound))
        if not self.needs_advantage:
            return _beyond(ratio, low, high)
        xp = tokens.xp
        gap = tokens.once("sum of |ratio - 1|", lambda: tokens.sum(xp.absolute(tokens.clipped_ratio(LIMIT) - 1.0)))
        positive, negative = (
            tokens.spread(xp.of(sign, "bool")) for sign in (tokens.advantage > 0, tokens.advantage < 0)
        )
        apart = ((tokens.log_ratio > 0) & positive) | ((tokens.log_ratio < 0) & negative)
        below, above = _beyond(_row_mean(tokens, gap), low, high)
        return (
            None if below is None else tokens.spread(below) & apart,
            None if above is None else tokens.spread(above) & apart,
        )

    def metrics(self, stats: Stats) -> dict[str, float]:
        """As its `val/rho_` and `debug/` figures."""
        count = int(stats["count"].sum())
        n = max(count, 1)
        total = {name: float(values.sum(dtype=np.float64)) for name, values in stats.items()}
        mean = total["distance"] / n
        variance = max(total["squares"] - total["distance"] * mean, 0.0) / max(count - 1, 1)
        found = {
            "debug/vllm_vs_local_logprob_diff_mean": mean,
            "debug/vllm_vs_local_logprob_diff_max": float(stats["distance_max"].max()) if count else 0.0,
            "debug/vllm_vs_local_logprob_diff_std": math.sqrt(variance) if count > 1 else 0.0,
            "debug/vllm_local_reverse_kl": total["reverse_kl"] / n,
        }
        if "weight" in stats:
            found |= {
                # the lower bound is below the upper one, so no token is beyond both
                "val/rho_drop_frac": (total["dropped_low"] + total["dropped_high"]) / n,
                "val/rho_drop_low_frac": total["dropped_low"] / n,
                "val/rho_drop_high_frac": total["dropped_high"] / n,
                "val/rho_weight": total["weight"] / n,
                "val/rho_clipfrac": total["clipped"] / n,
            }
        return found


def _beyond(values: Array, low: float | None, high: float | None) -> tuple[Array | None, Array | None]:
    """Which values are below the lower and above the upper bound; None for a bound that there isn't."""
    return None if low is None else values < low, None if high is None else values > high


def _row_mean(tokens: Tokens, sums: Array) -> Array:
    """Mean over the tokens in the loss of the row that each response is in, shape [R], from sums of responses."""
    if tokens.rows is None:
        return sums / tokens.at_least_one
    total, count = (np.bincount(tokens.rows, weights=tokens.xp.host(values)) for values in (sums, tokens.count))
    return tokens.xp.of((total / np.maximum(count, 1))[tokens.rows], tokens.dtype)
