"""OpenRLHF's importance sampling between engine and trainer."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import field_validator

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.tokens import Tokens


class OpenRlhf(Correction):
    """Weights of tokens, cut at both bounds or set to 0 outside of them; of a policy loss of type ppo."""

    TRAINER: ClassVar = "openrlhf"
    SOURCE: ClassVar = "OpenRLHF/OpenRLHF 3c3be6234e0c, openrlhf/models/loss.py"
    DIVIDES_BY: ClassVar = "tokens in the loss, those with a weight of 0 included"

    is_correction_enable: bool = False
    is_correction_type: Literal["tis", "icepop", "seq-mask-tis"] = "tis"
    is_correction_threshold: tuple[float, float] = (0.5, 5.0)

    @field_validator("is_correction_threshold", mode="before")
    @classmethod
    def _as_the_flag_has_it(cls, threshold: Any) -> Any:
        """Two numbers with a space between, as on the trainer's command line, are two numbers."""
        return threshold.split() if isinstance(threshold, str) else threshold

    def notes(self) -> tuple[str, ...]:  # noqa: D102 - see the base
        if not self.is_correction_enable:
            ignored = sorted(self.model_fields_set - {"is_correction_enable"})
            return tuple(f"{name} is not looked at without is_correction_enable" for name in ignored)
        low, high = self.is_correction_threshold
        if low > high:
            return (f"the lower bound {low} is above the upper one {high}, which the trainer doesn't check",)
        if self.is_correction_type == "tis":
            return ("weights are raised to the lower bound too",)
        overflow = "a token whose ratio overflows isn't dropped: the loss becomes nan"
        if self.is_correction_type == "seq-mask-tis":
            return ("weights of the responses that are kept are not cut, the name notwithstanding", overflow)
        return (overflow,)

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        stats = {"count": tokens.count}
        if not self.is_correction_enable:
            return Applied(tokens.mask, tokens.mask, None, stats)
        stats["log_ratio"] = tokens.log_ratio_sum
        ratio, (low, high) = tokens.ratio, self.is_correction_threshold
        if self.is_correction_type == "tis":
            weight = tokens.xp.clip(ratio, low, high)
            return Applied(tokens.mask, tokens.mask, weight, stats, ratio < low, ratio > high)
        if self.is_correction_type == "icepop":
            inside = (ratio >= low) & (ratio <= high)
        else:
            geometric = tokens.geometric_ratio
            # the trainer's mean of nothing is nan, which is in no bounds
            inside = tokens.spread((geometric >= low) & (geometric <= high) & (tokens.count > 0))
        return Applied(tokens.mask & inside, tokens.mask, _zeroed(tokens, ratio, inside), stats)

    def metrics(self, stats: Stats) -> dict[str, float]:  # noqa: D102
        if "log_ratio" not in stats:
            return {}
        count = int(stats["count"].sum())
        return {"vllm_kl": float(-stats["log_ratio"].sum(dtype=np.float64) / count) if count else float("nan")}


def _zeroed(tokens: Tokens, ratio: Array, inside: Array) -> Array:
    """Ratios times 1 inside and 0 outside, as the trainer has it: one that is infinite gives nan outside."""
    weight = tokens.xp.where(inside, ratio, 0.0)
    return tokens.xp.where(inside | tokens.xp.finite(ratio), weight, float("nan"))
