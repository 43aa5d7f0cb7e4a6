"""SkyRL's off-policy correction: outliers, a mask of tokens, importance weights, a mask of responses, in this order."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.mismatch import LOG_RATIO_LIMIT
from tokenaudit.corrections.tokens import Tokens


class Skyrl(Correction):
    """Each step looks only at the tokens that the steps before it left; ratios are made in float32 throughout."""

    TRAINER: ClassVar = "skyrl"
    SOURCE: ClassVar = "NovaSky-AI/SkyRL a9564572eb8e, skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py"
    DIVIDES_BY: ClassVar = "all tokens in the loss, dropped ones included"

    tis_ratio_type: Literal["token", "sequence"] | None = None
    token_tis_ratio_clip_high: float = 2.0
    sequence_tis_ratio_clip_high: float = 5.0
    sequence_mask_metric: Literal["product", "geometric"] | None = None
    geo_mask_high: float = 1.01
    geo_mask_low: float = 0.99
    product_mask_high: float = 2.0
    product_mask_low: float = 0.5
    outlier_token_is_threshold_low: float | None = None
    outlier_token_is_threshold_high: float | None = None
    token_mask_is_threshold_low: float | None = None
    token_mask_is_threshold_high: float | None = None

    def notes(self) -> tuple[str, ...]:  # noqa: D102 - see the base
        found = []
        token_bounds = (self.token_mask_is_threshold_low, self.token_mask_is_threshold_high)
        if (token_bounds[0] is None) != (token_bounds[1] is None):
            found.append("with only one of token_mask_is_threshold_low and _high the trainer masks no token")
        used = {
            "token_tis_ratio_clip_high": self.tis_ratio_type == "token",
            "sequence_tis_ratio_clip_high": self.tis_ratio_type == "sequence",
            "geo_mask_high": self.sequence_mask_metric == "geometric",
            "geo_mask_low": self.sequence_mask_metric == "geometric",
            "product_mask_high": self.sequence_mask_metric == "product",
            "product_mask_low": self.sequence_mask_metric == "product",
        }
        found += [
            f"{name} does nothing here" for name, does in used.items() if name in self.model_fields_set and not does
        ]
        bounds = {
            "geo_mask": (self.geo_mask_low, self.geo_mask_high, self.sequence_mask_metric == "geometric"),
            "product_mask": (self.product_mask_low, self.product_mask_high, self.sequence_mask_metric == "product"),
            "token_mask_is_threshold": (*token_bounds, self._token_mask),
        }
        found += [
            f"{name}_low is above {name}_high, which the trainer doesn't check: nothing is kept"
            for name, (low, high, is_used) in bounds.items()
            if is_used and (low or 0) > (high or 0)
        ]
        return tuple(found)

    @property
    def _outliers(self) -> bool:
        return self.outlier_token_is_threshold_low is not None or self.outlier_token_is_threshold_high is not None

    @property
    def _token_mask(self) -> bool:
        return self.token_mask_is_threshold_low is not None and self.token_mask_is_threshold_high is not None

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        mask = tokens.mask
        if not (self._outliers or self._token_mask or self.tis_ratio_type or self.sequence_mask_metric):
            return Applied(mask, mask, None, {"count": tokens.count}, counted=mask)
        xp, lengths = tokens.xp, tokens.lengths
        if tokens.dtype == "float32":
            ratio = tokens.clipped_ratio(LOG_RATIO_LIMIT)
        else:
            ratio = tokens.once("ratio made in float32", lambda: _ratio(tokens, tokens.log_ratio))
        stats = {
            "count": tokens.count,
            "length": xp.of(lengths, "int64"),
            # of ratio - 1, which loses no digits where ratios are near 1
            "excess": tokens.once("sum of ratio - 1", lambda: tokens.sum(ratio - 1)),
            "spread": tokens.once("sum of (ratio - 1)²", lambda: tokens.sum((ratio - 1) * (ratio - 1))),
            "largest": tokens.largest(ratio, -np.inf),
            "smallest": tokens.smallest(ratio, np.inf),
        }
        if self._outliers:
            nothing = tokens.count < 0
            high, low = self.outlier_token_is_threshold_high, self.outlier_token_is_threshold_low
            stats["outlier_high"] = nothing if high is None else tokens.any(ratio > high)
            stats["outlier_low"] = nothing if low is None else tokens.any(ratio < low)
            mask = mask & tokens.spread(~(stats["outlier_high"] | stats["outlier_low"]))
        if self._token_mask:
            low, high = self.token_mask_is_threshold_low, self.token_mask_is_threshold_high
            stats["before_token_mask"] = xp.counts(mask, lengths)
            mask = mask & (ratio >= low) & (ratio <= high)
            stats["after_token_mask"] = xp.counts(mask, lengths)
        # what is left to weights and the mask of responses
        left = tokens.with_mask(mask) if self._outliers or self._token_mask else tokens
        weight = at_high = None
        if self.tis_ratio_type == "token":
            cap = self.token_tis_ratio_clip_high
            weight, at_high = xp.clip(ratio, None, cap), ratio > cap
            stats |= {"capped": left.count_of(at_high), "weighed": left.count}
        elif self.tis_ratio_type == "sequence":
            product = _ratio(tokens, left.log_ratio_sum)
            stats["capped"] = product > self.sequence_tis_ratio_clip_high
            weight = tokens.spread(xp.clip(product, None, self.sequence_tis_ratio_clip_high))
            at_high = tokens.spread(stats["capped"])
        if self.sequence_mask_metric == "geometric":
            mean = _ratio(tokens, left.log_ratio_mean)
            mask = self._responses(tokens, mask, stats, mean, self.geo_mask_low, self.geo_mask_high)
        elif self.sequence_mask_metric == "product":
            product = _ratio(tokens, left.log_ratio_sum)
            mask = self._responses(tokens, mask, stats, product, self.product_mask_low, self.product_mask_high)
        return Applied(mask, mask, weight, stats, at_high=at_high, counted=tokens.mask)

    @staticmethod
    def _responses(
        tokens: Tokens, mask: Array, stats: dict[str, Array], ratio: Array, low: float, high: float
    ) -> Array:
        """The mask without responses whose ratio is out of bounds."""
        stats["response_high"], stats["response_low"] = ratio > high, ratio < low
        return mask & tokens.spread(~(stats["response_high"] | stats["response_low"]))

    def metrics(self, stats: Stats) -> dict[str, float]:
        """As it logs them; is_ratio_min, _max and _std are over a matrix padded to the longest response, of 0 there."""
        if "length" not in stats or not stats["length"].any():
            return {}
        count, responses = int(stats["count"].sum()), max(len(stats["count"]), 1)
        cells = len(stats["length"]) * int(stats["length"].max())
        zeros = cells - count
        excess, spread = (float(stats[name].sum(dtype=np.float64)) for name in ("excess", "spread"))
        largest, smallest = float(stats["largest"].max()), float(stats["smallest"].min())
        squares, sums = spread + zeros, excess - zeros
        found = {
            "is_ratio_mean": (count + excess) / count if count else 0.0,
            "is_ratio_std": math.sqrt(max(squares - sums * sums / cells, 0.0) / (cells - 1)) if cells > 1 else math.nan,
            "is_ratio_max": max(largest, 0.0) if zeros else largest,
            "is_ratio_min": 0.0 if zeros else smallest,
        }
        if "outlier_high" in stats:
            high, low = stats["outlier_high"], stats["outlier_low"]
            found["outlier_seq_masked_ratio"] = float((high | low).sum() / responses)
            found["outlier_seq_over_high_ratio"] = float(high.sum() / responses)
            found["outlier_seq_under_low_ratio"] = float(low.sum() / responses)
        if "before_token_mask" in stats:
            before, after = int(stats["before_token_mask"].sum()), int(stats["after_token_mask"].sum())
            found["token_mask_ratio"] = (before - after) / max(before, 1)
        if self.tis_ratio_type == "token":
            found["tis_token_clip_high_ratio"] = float(stats["capped"].sum() / max(int(stats["weighed"].sum()), 1))
        elif self.tis_ratio_type == "sequence":
            found["tis_seq_clip_high_ratio"] = float(stats["capped"].sum() / responses)
        if "response_high" in stats:
            high, low = stats["response_high"], stats["response_low"]
            name = "geo" if self.sequence_mask_metric == "geometric" else "product"
            found[f"{name}_sequence_mask_masked_ratio"] = float((high | low).sum() / responses)
            found[f"{name}_sequence_mask_over_high_ratio"] = float(high.sum() / responses)
            found[f"{name}_sequence_mask_under_low_ratio"] = float(low.sum() / responses)
        return found


def _ratio(tokens: Tokens, log_ratio: Array) -> Array:
    """Its exponential, made in float32, in the type of the tokens."""
    xp = tokens.xp
    cut = xp.clip(xp.cast(log_ratio, "float32"), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return xp.cast(xp.exp32(cut), tokens.dtype) if tokens.dtype == "float64" else xp.exp(cut)
