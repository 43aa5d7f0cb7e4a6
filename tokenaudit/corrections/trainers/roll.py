"""ROLL's train-infer correction: an importance weight, and filters by ratios or by differences of probabilities."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.tokens import Tokens

Level = Literal["token", "segment", "geometric", "sequence"]
LEVELS: tuple[Level, ...] = ("token", "geometric", "sequence", "segment")


class IsWeight(BaseModel):
    """`train_infer_correction.is_weight`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = False
    weight_type: Level = "token"
    upper_bound: float | None = 1.2
    detach: bool = True


class Filter(BaseModel):
    """One of `train_infer_correction.filters`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = False
    agg_type: Level = "token"
    ratio_enabled: bool = True
    ratio_low: float = 0.8
    ratio_high: float = 1.2
    diff_enabled: bool = False
    diff_low: float = -0.2
    diff_high: float = 0.2

    def tests(self) -> list[tuple[str, float, float]]:
        """What is held against which bounds: "ratio" or "diff", low and high."""
        if not self.enabled:
            return []
        ratio = [("ratio", self.ratio_low, self.ratio_high)] if self.ratio_enabled else []
        return ratio + ([("diff", self.diff_low, self.diff_high)] if self.diff_enabled else [])


class Roll(Correction):
    """Ratios and differences of tokens, of runs of tokens in the loss (segments), or of responses."""

    TRAINER: ClassVar = "roll"
    SOURCE: ClassVar = "alibaba/ROLL 8eb27cc2dc34, roll/utils/train_infer_corrections.py"
    DIVIDES_BY: ClassVar = "tokens that are kept, for each response, then responses with a token in the loss"

    is_weight: IsWeight = IsWeight()
    filters: tuple[Filter, ...] = ()

    def notes(self) -> tuple[str, ...]:  # noqa: D102 - see the base
        found = []
        if not self.is_weight.enabled and self.is_weight.model_fields_set - {"enabled"}:
            found.append("is_weight does nothing while it isn't enabled")
        for number, part in enumerate(self.filters):
            if not part.tests():
                found.append(f"filters[{number}] does nothing: neither it nor one of its tests is enabled")
            for name, low, high in part.tests():
                if low > high:
                    found.append(f"filters[{number}] keeps nothing: {name}_low is above {name}_high")
        if any(part.tests() for part in self.filters):
            found.append(
                "with loss_agg_mode token-mean the trainer's loss leaves the mask out: filters drop nothing then"
            )
        return tuple(found)

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        xp = tokens.xp
        stats = {
            "count": tokens.count,
            "length": xp.of(tokens.lengths, "int64"),
            "log_ratio": tokens.log_ratio_sum,
            "ratio": tokens.once("sum of ratio", lambda: tokens.sum(tokens.ratio)),
            "overflows": tokens.xp.counts(~(xp.finite(tokens.ratio) | tokens.mask), tokens.lengths),
            "diff": tokens.once("sum of probability gap", lambda: tokens.sum(tokens.probability_gap)),
            "segment": tokens.once("sum of segment ratios", lambda: _segment_sum(tokens)),
        }
        keep = tokens.mask
        for number, part in enumerate(self.filters):
            for name, low, high in part.tests():
                values = _values(tokens, name, part.agg_type)
                inside = (values >= low) & (values <= high)
                stats[f"{number} {name}"] = _passes(tokens, inside, part.agg_type)
                keep = keep & _spread(tokens, inside, part.agg_type)
        stats["kept"] = xp.counts(keep, tokens.lengths)
        if not self.is_weight.enabled:
            return Applied(keep, keep, tokens.ones, stats)
        weight, cap, at_high = _values(tokens, "ratio", self.is_weight.weight_type), self.is_weight.upper_bound, None
        if cap is not None:
            above = weight > cap
            stats["clipped"] = _passes(tokens, above, self.is_weight.weight_type)
            weight, at_high = xp.clip(weight, 0.0, cap), _spread(tokens, above, self.is_weight.weight_type)
        return Applied(keep, keep, _spread(tokens, weight, self.is_weight.weight_type), stats, at_high=at_high)

    def metrics(self, stats: Stats) -> dict[str, float]:
        """As its `actor/` figures. Clipped weights and passes of filters are counted over the padded matrix, too."""
        count, length = stats["count"], stats["length"]
        filled = count > 0
        tokens, responses = max(int(count.sum()), 1), max(int(filled.sum()), 1) + 1e-8
        width = int(length.max()) if len(length) else 0
        pads = width * len(length) - int(length.sum())
        n, log_ratio = np.maximum(count, 1), stats["log_ratio"]
        with np.errstate(over="ignore"):
            product, mean = np.exp(log_ratio), np.exp((log_ratio / n).astype(log_ratio.dtype))
        # infinity times a mask of 0 is nan to the trainer
        nan, outside = np.float64("nan"), count < width
        ratios = {
            "token": np.where(stats["overflows"] > 0, nan, stats["ratio"] / n),
            "geometric": np.where(np.isinf(mean) & outside, nan, mean),
            "sequence": np.where(np.isinf(product) & outside, nan, product),
            "segment": stats["segment"] / n,
        }
        found = {}
        for level in LEVELS:
            diff = stats["diff"] if level == "sequence" else stats["diff"] / n
            for name, values in (("ratio", ratios[level]), ("diff", diff)):
                total = float(values[filled].sum(dtype=np.float64))
                found[f"actor/train_infer_{name}_{level}_mean@sum"] = total / responses
        if "clipped" in stats:
            cap = self.is_weight.upper_bound or 0.0
            padded = _padded(stats["clipped"], self.is_weight.weight_type, width, pads * (cap < 1))
            found["actor/is_weight_clipfrac@sum"] = padded / tokens
        for number, part in enumerate(self.filters):
            for name, low, high in part.tests():
                passes = pads * (low <= (1 if name == "ratio" else 0) <= high)
                padded = _padded(stats[f"{number} {name}"], part.agg_type, width, passes)
                found[f"actor/train_infer_{part.agg_type}_{name}_mask_mean@sum"] = padded / tokens
        if self.filters:
            found["actor/train_infer_final_mask_mean"] = float(stats["kept"].sum() / tokens)
        return found


def _values(tokens: Tokens, name: str, level: Level) -> Array:
    """Ratios or differences of every token, run of tokens, or response."""
    if name == "ratio":
        return tokens.ratio if level == "token" else tokens.xp.exp(_aggregate(tokens, tokens.log_ratio, level))
    return tokens.probability_gap if level == "token" else _aggregate(tokens, tokens.probability_gap, level)


def _aggregate(tokens: Tokens, values: Array, level: Level) -> Array:
    if level == "segment":
        xp, runs = tokens.xp, tokens.runs
        mean = xp.sums(values, runs.lengths) / xp.of(runs.lengths, tokens.dtype)
        return xp.where(xp.of(runs.in_loss, "bool"), mean, 0.0)
    return tokens.sum(values) if level == "sequence" else tokens.mean(values)


def _segment_sum(tokens: Tokens) -> Array:
    """Sum over the tokens in the loss of each response of the ratio of their run."""
    runs = tokens.runs
    ratio = _values(tokens, "ratio", "segment")
    weighed = ratio * tokens.xp.of(runs.lengths * runs.in_loss, tokens.dtype)
    return tokens.xp.sums(weighed, runs.of_response)


def _spread(tokens: Tokens, values: Array, level: Level) -> Array:
    if level == "token":
        return values
    return tokens.xp.spread(values, tokens.runs.lengths) if level == "segment" else tokens.spread(values)


def _passes(tokens: Tokens, flags: Array, level: Level) -> Array:
    """Tokens with a flag in each response, those out of the loss included; 0 or 1 for flags of responses."""
    if level in ("geometric", "sequence"):
        return tokens.xp.cast(flags, "int64")
    return tokens.xp.counts(_spread(tokens, flags, level), tokens.lengths)


def _padded(passes: np.ndarray, level: Level, width: int, pads: int) -> float:
    """Cells of the padded matrix with a flag: a response's flag is in all cells of its row."""
    return float(passes.sum()) * width if level in ("geometric", "sequence") else float(passes.sum()) + pads
