"""XTuner's rollout importance sampling."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.mismatch import LOG_RATIO_LIMIT, cut_ratio, mismatch, mismatch_stats
from tokenaudit.corrections.tokens import Tokens

Bounds = tuple[float, float]
"""Upper and lower bound, in this order."""


class Xtuner(Correction):
    """Weights of tokens, responses or their geometric means; a mask by bounds; a veto by single tokens."""

    TRAINER: ClassVar = "xtuner"
    SOURCE: ClassVar = "InternLM/xtuner b934f462095c, xtuner/v1/rl/rollout_is.py"
    DIVIDES_BY: ClassVar = "tokens that are kept"

    rollout_is_level: Literal["token", "sequence", "geometric"] = "token"
    rollout_is_mode: Literal["truncate", "mask", "both"] = "truncate"
    rollout_is_threshold: Bounds | None = None
    rollout_is_mask_threshold: Bounds | None = None
    rollout_is_veto_threshold: Bounds | None = None

    @model_validator(mode="after")
    def _upper_first(self) -> Self:
        for name in ("rollout_is_threshold", "rollout_is_mask_threshold", "rollout_is_veto_threshold"):
            bounds = getattr(self, name)
            if bounds is not None and not bounds[0] > bounds[1]:
                raise ValueError(f"{name}: the trainer takes (upper, lower), and refuses {bounds}")
        return self

    def notes(self) -> tuple[str, ...]:  # noqa: D102 - see the base
        if self.rollout_is_threshold is None and (self.rollout_is_mask_threshold or self.rollout_is_veto_threshold):
            return ("without rollout_is_threshold the trainer switches mask and veto off too",)
        if self.rollout_is_mode == "truncate" and self.rollout_is_mask_threshold:
            return ("rollout_is_mask_threshold does nothing where rollout_is_mode is truncate",)
        return ()

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        stats = mismatch_stats(tokens)
        if self.rollout_is_threshold is None:
            return Applied(tokens.mask, tokens.mask, None, stats)
        ratio, (upper, lower) = self._ratio(tokens), self.rollout_is_threshold
        stats |= {"weight": tokens.sum(ratio)}
        keep, weight, at_low, at_high = tokens.mask, ratio, None, None
        if self.rollout_is_mode in ("mask", "both"):
            mask_upper, mask_lower = self.rollout_is_mask_threshold or self.rollout_is_threshold
            inside = (ratio >= mask_lower) & (ratio <= mask_upper)
            keep = keep & inside
            stats["outside"] = tokens.count_of(~inside)
        if self.rollout_is_mode in ("truncate", "both"):
            weight = tokens.xp.clip(ratio, lower, upper)
            at_low, at_high = ratio < lower, ratio > upper
        stats["vetoed"] = tokens.count < 0
        if self.rollout_is_veto_threshold is not None:
            # the trainer takes these logarithms in float32, whatever its input
            with np.errstate(divide="ignore", invalid="ignore"):
                high, low = (float(np.log(np.float32(bound))) for bound in self.rollout_is_veto_threshold)
            vetoed = tokens.any((tokens.log_ratio < low) | (tokens.log_ratio > high))
            keep = keep & tokens.spread(~vetoed)
            stats["vetoed"] = vetoed
        return Applied(keep, keep, tokens.zero_outside(weight), stats, at_low, at_high)

    def _ratio(self, tokens: Tokens) -> Array:
        if self.rollout_is_level == "token":
            return tokens.clipped_ratio(LOG_RATIO_LIMIT)
        of_sequence = self.rollout_is_level == "sequence"
        return tokens.spread(cut_ratio(tokens, tokens.log_ratio_sum if of_sequence else tokens.log_ratio_mean))

    def metrics(self, stats: Stats) -> dict[str, float]:
        """As its `mismatch/` figures, a whole batch taken for one packed sequence, as its packed micro-batches are."""
        found = {f"mismatch/mismatch_{name}": value for name, value in mismatch(stats, as_one=True).items()}
        del found["mismatch/mismatch_chi2_token"], found["mismatch/mismatch_chi2_seq"]
        count = stats["count"]
        total = max(int(count.sum()), 1)
        found["mismatch/mismatch_logprob_abs_diff"] = float(stats["distance"].sum(dtype=np.float64) / total)
        if "weight" in stats:
            found["mismatch/rollout_is_mean"] = float(stats["weight"].sum(dtype=np.float64) / total)
        if "outside" in stats:
            found["mismatch/rollout_is_masked_fraction"] = float(stats["outside"].sum() / total)
        if "vetoed" in stats:
            with_tokens = max(int((count > 0).sum()), 1)
            found["mismatch/rollout_is_veto_fraction"] = float((stats["vetoed"] & (count > 0)).sum() / with_tokens)
        return found
