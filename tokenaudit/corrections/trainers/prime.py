"""prime-rl's loss masks: tokens whose probability moved too far are dropped."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.tokens import Tokens

REF_KL_LOW = 0.2
"""ref_kl drops tokens whose probability fell by more; it's no option."""

SETTINGS = {
    "default": ("dppo_mask_low", "dppo_mask_high", "adv_tau", "kl_tau"),
    "ipo": ("ipo_threshold", "adv_tau", "kl_tau"),
    "ref_kl": (),
}
"""What each type of loss has to set."""


class PrimeRl(Correction):
    """Masks by the difference of probabilities, not by their ratio; the ratio weighs the tokens that are kept."""

    TRAINER: ClassVar = "prime-rl"
    SOURCE: ClassVar = "PrimeIntellect-ai/prime-rl 559b44772e47, src/prime_rl/trainer/rl/loss.py"
    DIVIDES_BY: ClassVar = "tokens in the loss, those that are dropped included"

    type: Literal["default", "ipo", "ref_kl"] = "default"
    dppo_mask_low: float = Field(0.2, ge=0)
    dppo_mask_high: float = Field(0.2, ge=0)
    ipo_threshold: float = Field(0.1, ge=0)
    adv_tau: float = Field(1.0, ge=0)
    kl_tau: float = Field(1e-3, ge=0)

    @model_validator(mode="after")
    def _of_its_type(self) -> Self:
        for name in sorted(self.model_fields_set - {"type", *SETTINGS[self.type]}):
            raise ValueError(f"{name}: the trainer's loss of type {self.type} has no such setting")
        return self

    @property
    def needs_advantage(self) -> bool:  # noqa: D102 - see the base
        return self.type == "default"

    def notes(self) -> tuple[str, ...]:  # noqa: D102
        differences = "bounds are on differences of probabilities: a rare token may get any weight and is kept"
        if self.type == "default":
            return (differences, "an advantage of 0 is treated as a negative one")
        return (differences,)

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        stats = {"count": tokens.count}
        dropped = tokens.mask & self._far(tokens, stats)
        keep = tokens.mask & ~dropped
        stats |= {
            "dropped": tokens.count_of(dropped),
            "dropped_k3": tokens.xp.sums(tokens.xp.where(dropped, tokens.k3, 0), tokens.lengths),
            "kept_k3": tokens.xp.sums(tokens.xp.where(keep, tokens.k3, 0), tokens.lengths),
        }
        return Applied(keep, tokens.mask, tokens.ratio, stats)

    def _far(self, tokens: Tokens, stats: dict[str, Array]) -> Array:
        """Whether the probability of each token moved too far; counts by the sign of the advantage go to `stats`."""
        gap = tokens.probability_gap
        if self.type == "ref_kl":
            return gap < -REF_KL_LOW
        if self.type == "ipo":
            return tokens.xp.absolute(gap) > self.ipo_threshold
        positive = tokens.xp.of(tokens.advantage > 0, "bool")
        far = tokens.xp.where(tokens.spread(positive), gap > self.dppo_mask_high, gap < -self.dppo_mask_low)
        stats |= {"positive": positive, "negative": tokens.xp.of(tokens.advantage < 0, "bool")}
        return far

    def metrics(self, stats: Stats) -> dict[str, float]:  # noqa: D102
        return {name: float(values.mean()) if len(values) else 0.0 for name, values in self.per_response(stats).items()}

    def per_response(self, stats: Stats) -> dict[str, np.ndarray]:  # noqa: D102
        count, dropped = stats["count"], stats["dropped"]
        share = dropped / np.maximum(count, 1)
        found = {
            "masked_mismatch_kl": stats["dropped_k3"].astype(np.float64) / np.maximum(dropped, 1),
            "unmasked_mismatch_kl": stats["kept_k3"].astype(np.float64) / np.maximum(count - dropped, 1),
            "is_masked": share,
        }
        if self.type == "ref_kl":
            return {f"ref_kl/{name}": values for name, values in found.items()}
        if self.type == "default":
            positive, negative = stats["positive"], stats["negative"]
            found["is_masked_high"] = np.where(positive, share, 0.0)
            found["is_masked_low"] = np.where(negative, share, 0.0)
            found["masked_advantage_positive"] = (positive & (dropped > 0)).astype(np.float64)
            found["masked_advantage_negative"] = (negative & (dropped > 0)).astype(np.float64)
        return found
