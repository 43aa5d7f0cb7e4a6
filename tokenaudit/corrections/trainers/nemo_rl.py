"""NeMo-RL's importance-sampling correction."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.tokens import Tokens


class NemoRl(Correction):
    """Ratios of tokens or responses as weights; clamped, zeroed out of bounds, or zeroed by response."""

    TRAINER: ClassVar = "nemo-rl"
    SOURCE: ClassVar = "NVIDIA-NeMo/RL 7ea279abfbeb, nemo_rl/algorithms/loss/loss_functions.py"
    DIVIDES_BY: ClassVar = "all tokens in the loss, or all responses without token_level_loss, zeroed ones included"

    use_importance_sampling_correction: bool = False
    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None = None
    truncated_importance_sampling_ratio: float | None = None
    truncated_importance_sampling_ratio_min: float | None = None
    sequence_level_importance_ratios: bool = False
    token_level_loss: bool = True

    @model_validator(mode="after")
    def _as_the_trainer_checks(self) -> Self:
        kind, high, low = (
            self.truncated_importance_sampling_type,
            self.truncated_importance_sampling_ratio,
            self.truncated_importance_sampling_ratio_min,
        )
        if self.sequence_level_importance_ratios and self.token_level_loss:
            raise ValueError("sequence_level_importance_ratios: the trainer refuses it without token_level_loss false")
        if kind is None:
            if high is not None:
                raise ValueError(
                    "truncated_importance_sampling_ratio: without truncated_importance_sampling_type the trainer "
                    "stops at the first step"
                )
            return self
        if not self.use_importance_sampling_correction:
            raise ValueError(
                "truncated_importance_sampling_type: the trainer refuses it without use_importance_sampling_correction"
            )
        if high is None or not high > 0:
            raise ValueError(
                f"truncated_importance_sampling_ratio: the trainer takes a positive number with {kind}, not {high}"
            )
        if low is not None and low > high:
            raise ValueError(
                f"truncated_importance_sampling_ratio_min: the trainer takes at most "
                f"truncated_importance_sampling_ratio, {high}, not {low}"
            )
        if kind == "seq-mask-tis" and low is None:
            raise ValueError("truncated_importance_sampling_ratio_min: the trainer needs it with seq-mask-tis")
        if kind == "seq-mask-tis" and self.sequence_level_importance_ratios:
            raise ValueError("sequence_level_importance_ratios: the trainer refuses it with seq-mask-tis")
        return self

    def notes(self) -> tuple[str, ...]:  # noqa: D102 - see the base
        found, kind = [], self.truncated_importance_sampling_type
        if kind is None and self.truncated_importance_sampling_ratio_min is not None:
            found.append("truncated_importance_sampling_ratio_min does nothing without a type")
        if kind == "icepop" and self.truncated_importance_sampling_ratio_min is None:
            found.append("the trainer refuses icepop without truncated_importance_sampling_ratio_min; 0 is taken here")
        if kind == "tis":
            found.append("a ratio too large for the type of the tokens is taken for 0, and so isn't cut to the cap")
        if self.use_importance_sampling_correction and self.sequence_level_importance_ratios:
            found.append(
                "the weight is the product of a response's ratios, though the PPO ratio is their geometric mean"
            )
            found.append("sampling_importance_ratio is the sum of the weights of responses, not their mean")
        return tuple(found)

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        xp, sequence = tokens.xp, self.sequence_level_importance_ratios
        kind = self.truncated_importance_sampling_type
        if sequence:
            ratio = _or_zero(tokens, xp.exp(tokens.log_ratio_sum))
        else:
            ratio = tokens.once("finite ratio", lambda: _or_zero(tokens, tokens.ratio))
        weight, keep, outside, at_low, at_high = ratio, tokens.mask, None, None, None
        low, high = self.truncated_importance_sampling_ratio_min or 0.0, self.truncated_importance_sampling_ratio
        if kind == "tis":
            weight, at_low, at_high = xp.clip(ratio, low, high), ratio < low, ratio > high
            outside = at_low | at_high
        elif kind == "icepop":
            outside = ~((ratio >= low) & (ratio <= high))
            weight = xp.where(~outside, ratio, 0)
        stats: dict[str, Array] = {"count": tokens.count}
        if outside is not None:
            stats["outside"] = tokens.count * xp.cast(outside, "int64") if sequence else tokens.count_of(outside)
        if kind == "seq-mask-tis":
            mean = tokens.geometric_ratio
            kept = (mean >= low) & (mean <= high)
            weight = xp.where(tokens.spread(kept), ratio, 0.0)
            keep = keep & tokens.spread(kept)
            stats["outside"] = ~kept
        stats["weight"] = weight if sequence else tokens.sum(weight)
        if sequence:
            weight, outside, at_low, at_high = (
                None if values is None else tokens.spread(values) for values in (weight, outside, at_low, at_high)
            )
        if kind == "icepop" and outside is not None:
            keep = keep & ~outside
        if not self.use_importance_sampling_correction:
            weight = tokens.ones
        return Applied(keep, tokens.mask, weight, stats, at_low, at_high)

    def metrics(self, stats: Stats) -> dict[str, float]:
        """Its sampling_importance_ratio and is_oob_ratio."""
        tokens, responses = max(int(stats["count"].sum()), 1), max(len(stats["count"]), 1)
        total = float(stats["weight"].sum(dtype=np.float64))
        found = {"sampling_importance_ratio": total if self.sequence_level_importance_ratios else total / tokens}
        if "outside" in stats:
            parts = responses if self.truncated_importance_sampling_type == "seq-mask-tis" else tokens
            found["is_oob_ratio"] = float(stats["outside"].sum() / parts)
        return found


def _or_zero(tokens: Tokens, ratio: Array) -> Array:
    """Ratios, 0 where they overflow."""
    return tokens.xp.where(tokens.xp.finite(ratio), ratio, 0.0)
