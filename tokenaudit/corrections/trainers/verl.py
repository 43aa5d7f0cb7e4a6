"""verl's rollout correction: importance weights, and rejection by divergences."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import field_validator, model_validator

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.mismatch import LOG_RATIO_LIMIT, cut_ratio, mismatch, mismatch_stats
from tokenaudit.corrections.tokens import Tokens

PREFIX = "rollout_corr/"
REJECTIONS = (
    *(f"{level}_k{kind}" for level in ("token", "seq_sum", "seq_mean") for kind in (1, 2, 3)),
    "seq_max_k2",
    "seq_max_k3",
)


class Rejection(NamedTuple):
    """One option of `rollout_rs`.

    Attributes:
        name: the option.
        lower: smallest log ratio of rollout over trainer that is kept; None for k2 and k3.
        upper: largest such log ratio, or for k2 and k3 the largest divergence.
    """

    name: str
    lower: float | None
    upper: float


class Verl(Correction):
    """Weights of tokens or responses, capped or zeroed outside bounds; rejection of tokens or responses."""

    TRAINER: ClassVar = "verl"
    SOURCE: ClassVar = "verl-project/verl 1dda039b9c63, verl/trainer/ppo/rollout_corr_helper.py"
    DIVIDES_BY: ClassVar = "tokens that are kept; those zeroed by a lower_upper threshold still count"

    rollout_is: Literal["token", "sequence"] | None = None
    rollout_is_threshold: float | str | None = 2.0
    rollout_is_batch_normalize: bool = False
    rollout_rs: str | None = None
    rollout_rs_threshold: float | str | None = None
    bypass_mode: bool = False
    loss_type: Literal["ppo_clip", "reinforce"] = "ppo_clip"

    @field_validator("rollout_is_threshold", "rollout_rs_threshold", mode="before")
    @classmethod
    def _no_truth_value(cls, threshold: Any) -> Any:
        if isinstance(threshold, bool):
            raise ValueError("a number or a text like 0.5_5.0, not true or false")
        return threshold

    @model_validator(mode="after")
    def _thresholds_can_be_read(self) -> Self:
        self._bounds()
        self._rejections()
        return self

    @property
    def over_batch(self) -> bool:
        """Whether weights are divided by their mean over the batch."""
        return self.rollout_is_batch_normalize and self._weighs

    @property
    def _weighs(self) -> bool:
        return self.rollout_is is not None and self.rollout_is_threshold is not None

    @property
    def _weight_is_applied(self) -> bool:
        return not (self.bypass_mode and self.loss_type == "ppo_clip")

    def notes(self) -> tuple[str, ...]:  # noqa: D102 - see the base
        found = []
        threshold = self.rollout_is_threshold
        if self.rollout_is is not None and threshold is None:
            found.append("without rollout_is_threshold the trainer switches rollout_is off")
        if self._weighs and isinstance(threshold, float) and threshold < 1:
            found.append(
                f"rollout_is_threshold {threshold:g} caps every weight below 1; YAML reads an unquoted 0.5_5 as 0.55, "
                "bounds need quotes: '0.5_5.0'"
            )
        if self._weighs and not self._weight_is_applied:
            found.append("in bypass_mode with loss_type ppo_clip the trainer logs the weights and doesn't apply them")
        if self.rollout_is_batch_normalize and self._weighs:
            found.append("weights are divided by their mean after the cap, so they can exceed it")
        if self.rollout_is_batch_normalize and not self._weighs:
            found.append("rollout_is_batch_normalize does nothing while rollout_is is off")
        if self.rollout_is is None and threshold not in (None, 2.0):
            found.append("rollout_is_threshold does nothing while rollout_is is off")
        if self.rollout_rs is None and self.rollout_rs_threshold is not None:
            found.append("rollout_rs_threshold does nothing while rollout_rs is off")
        if any(rejection.lower is not None for rejection in self._rejections()):
            found.append("k1 bounds the inverse of the weight, so that 0.5_5.0 would keep weights of 0.2 to 2")
        if not self.bypass_mode and self.loss_type != "ppo_clip":
            found.append("loss_type does nothing while bypass_mode is off")
        return tuple(found)

    def _bounds(self) -> tuple[float | None, float]:
        """Lower bound, None for a mere cap, and upper bound of the weights."""
        threshold = self.rollout_is_threshold
        if not self._weighs or threshold is None:
            return None, math.inf
        if isinstance(threshold, str):
            parts = [_number("rollout_is_threshold", part) for part in threshold.strip().split("_", 1)]
            lower, upper = (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])
        else:
            lower, upper = None, threshold
        if upper <= 0 or (lower is not None and not 0 < lower <= upper):
            raise ValueError(
                f"rollout_is_threshold: the trainer takes positive bounds, the lower one first, not {threshold}"
            )
        return lower, upper

    def _rejections(self) -> list[Rejection]:
        if self.rollout_rs is None:
            return []
        names = list(dict.fromkeys(part.strip() for part in self.rollout_rs.split(",") if part.strip()))
        unknown = [name for name in names if name not in REJECTIONS]
        if unknown or not names:
            raise ValueError(f"rollout_rs: the trainer knows {', '.join(REJECTIONS)}, not {', '.join(unknown) or '-'}")
        if self.rollout_rs_threshold is None:
            raise ValueError("rollout_rs_threshold: the trainer needs it when rollout_rs is set")
        specs = [part.strip() for part in str(self.rollout_rs_threshold).split(",") if part.strip()]
        if len(specs) not in (1, len(names)):
            raise ValueError(
                f"rollout_rs_threshold: the trainer takes one for all or one for each of the {len(names)} options, "
                f"not {len(specs)}"
            )
        specs = specs * len(names) if len(specs) == 1 else specs
        return [_rejection(name, spec) for name, spec in zip(names, specs, strict=True)]

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        stats = mismatch_stats(tokens)
        mask = self._rejected(tokens, stats)
        if not self._weighs:
            return Applied(mask, mask, None, stats)
        xp, (lower, upper) = tokens.xp, self._bounds()
        sequence = self.rollout_is == "sequence"
        total = tokens.log_ratio_sum
        ratio = cut_ratio(tokens, total) if sequence else tokens.clipped_ratio(LOG_RATIO_LIMIT)
        # the trainer's figures take a lower bound of 1 / upper where none is given, and logarithms in float32
        floor = 1 / upper if lower is None else lower
        high, low = ratio > upper, ratio < floor
        weight = xp.clip(ratio, None, upper) if lower is None else xp.where(~(high | low), ratio, 0)
        spread = (weight - 1) * (weight - 1)
        if sequence:
            count = xp.cast(tokens.count, tokens.dtype)
            stats |= {"weight": weight * count, "weight_spread": spread * count, "total": total}
            stats["high"] = total > float(np.log(np.float32(upper)))
            stats["low"] = total < float(np.log(np.float32(floor)))
            stats["outside"] = tokens.count * xp.cast(high | low, "int64")
        else:
            stats |= {"weight": tokens.sum(weight), "weight_spread": tokens.sum(spread)}
            stats |= {"high": tokens.count_of(high), "low": tokens.count_of(low)}
            stats |= {"largest": tokens.largest(weight, -np.inf), "smallest": tokens.smallest(weight, np.inf)}
        if not self._weight_is_applied:
            return Applied(mask, mask, None, stats)
        if self.rollout_is_batch_normalize:
            weight = weight / self._batch_norm(xp.host(stats["weight"]), xp.host(tokens.count), tokens.dtype)
        if sequence:
            weight, high, low = tokens.spread(weight), tokens.spread(high), tokens.spread(low)
        keep = mask if lower is None else mask & ~(high | low)
        return Applied(keep, mask, tokens.zero_outside(weight), stats, at_high=high if lower is None else None)

    def _rejected(self, tokens: Tokens, stats: dict[str, Array]) -> Array:
        """The mask after rejection; adds the counts of rejected tokens to `stats`."""
        mask, rejections = tokens.mask, self._rejections()
        for rejection in rejections:
            level, kind = rejection.name.rsplit("_", 1)
            if level == "token":
                values = _divergence(tokens, kind)
            elif level == "seq_sum":
                values = _divergence_sum(tokens, kind)
            elif level == "seq_mean":
                values = _divergence_sum(tokens, kind) / tokens.at_least_one
            else:
                values = tokens.largest(_divergence(tokens, kind))
            if rejection.lower is None:
                kept = values <= rejection.upper
            else:  # k1 is minus the log ratio
                kept = (values <= -rejection.lower) & (values >= -rejection.upper)
            if level == "token":
                stats[rejection.name] = tokens.count_of(~kept)
            else:
                stats[rejection.name] = tokens.count * tokens.xp.cast(~kept, "int64")
                kept = tokens.spread(kept)
            mask = mask & kept
        if rejections:
            stats["rejected"] = tokens.count - tokens.xp.counts(mask, tokens.lengths)
        return mask

    def _batch_norm(self, weight: np.ndarray, count: np.ndarray, dtype: str) -> float:
        """The mean that weights are divided by, from sums of weights and counts of tokens of each response."""
        if self.rollout_is == "token":
            mean = weight.sum(dtype=np.float64) / max(int(count.sum()), 1)
        else:
            filled = count > 0
            mean = (weight[filled].astype(np.float64) / count[filled]).sum() / max(int(filled.sum()), 1)
        mean = float(mean.astype(dtype))
        return mean if mean > 1e-8 else 1.0

    def metrics(self, stats: Stats) -> dict[str, float]:
        """As its `rollout_corr/` figures; none without a token in the loss, where the trainer stops."""
        count = stats["count"]
        if not count.any():
            return {}
        tokens, responses = max(int(count.sum()), 1), max(len(count), 1)
        found = mismatch(stats)
        if "weight" in stats:
            found |= self._weight_metrics(stats, tokens, responses)
        for rejection in self._rejections():
            dropped = stats[rejection.name]
            filled = max(int((count > 0).sum()), 1)
            found[f"rollout_rs_{rejection.name}_masked_fraction"] = float(dropped.sum() / tokens)
            found[f"rollout_rs_{rejection.name}_seq_masked_fraction"] = float((dropped > 0).sum() / filled)
        if "rejected" in stats:
            found["rollout_rs_masked_fraction"] = float(stats["rejected"].sum() / tokens)
            found["rollout_rs_seq_masked_fraction"] = float((stats["rejected"] > 0).sum() / responses)
        return {f"{PREFIX}{name}": value for name, value in found.items()}

    def _weight_metrics(self, stats: Stats, tokens: int, responses: int) -> dict[str, float]:
        count, weight = stats["count"], stats["weight"].astype(np.float64)
        mean = float(weight.sum() / tokens)
        spread = float(stats["weight_spread"].sum(dtype=np.float64) / tokens)
        # E x² - (E x)², by way of x - 1, that loses no digits
        square = spread + 2 * mean - 1
        means = weight / np.maximum(count, 1)
        found = {
            "rollout_is_mean": mean,
            "rollout_is_std": math.sqrt(max(spread - (mean - 1) ** 2, 0.0)) if count.sum() > 1 else 0.0,
            "rollout_is_eff_sample_size": (mean + 1e-8) ** 2 / square if square > 0 else math.inf,
            "rollout_is_seq_mean": float(means.mean()),
            "rollout_is_seq_std": float(means.std(ddof=1)) if len(means) > 1 else 0.0,
            "rollout_is_seq_max": float(means.max()),
            "rollout_is_seq_min": float(means.min()),
            "rollout_is_seq_max_deviation": float(np.abs(means - 1).max()),
        }
        if self.rollout_is == "sequence":
            total = stats["total"].astype(np.float64)
            with np.errstate(over="ignore"):
                found["rollout_is_max"] = float(np.exp(min(total.max(), LOG_RATIO_LIMIT)))
                found["rollout_is_min"] = float(np.exp(total.min().astype(stats["total"].dtype)))
            parts, outside = responses, stats["outside"]
        else:
            found["rollout_is_max"] = float(stats["largest"].max())
            found["rollout_is_min"] = float(stats["smallest"].min())
            parts, outside = tokens, stats["high"] + stats["low"]
        found["rollout_is_ratio_fraction_high"] = float(stats["high"].sum() / parts)
        found["rollout_is_ratio_fraction_low"] = float(stats["low"].sum() / parts)
        if self._bounds()[0] is not None:
            found["rollout_is_oob_ratio"] = float(outside.sum() / tokens)
        if self.rollout_is_batch_normalize:
            found["rollout_is_batch_norm_factor"] = self._batch_norm(weight, count, str(stats["weight"].dtype))
        return found


def _divergence(tokens: Tokens, kind: str) -> Array:
    """The log ratio (k1 is minus it), or the k2 or k3 of each token, all of them cut before anything else."""
    cut = tokens.clipped_log_ratio(LOG_RATIO_LIMIT)
    if kind == "k1":
        return cut
    if kind == "k2":
        return tokens.once("k2 of cut log ratios", lambda: 0.5 * (cut * cut))
    return tokens.once("k3 of cut log ratios", lambda: tokens.clipped_ratio(LOG_RATIO_LIMIT) - 1.0 - cut)


def _divergence_sum(tokens: Tokens, kind: str) -> Array:
    return tokens.once(f"sum of cut {kind}", lambda: tokens.sum(_divergence(tokens, kind)))


def _rejection(name: str, spec: str) -> Rejection:
    numbers = [_number("rollout_rs_threshold", part) for part in spec.split("_", 1)]
    if not name.endswith("k1"):
        if len(numbers) > 1 or numbers[0] <= 0:
            raise ValueError(f"rollout_rs_threshold: the trainer takes one positive number for {name}, not {spec}")
        return Rejection(name, None, numbers[0])
    if len(numbers) == 1 and numbers[0] > 0:
        numbers = [1.0 / numbers[0], *numbers]
    if len(numbers) == 1 or not 0 < numbers[0] <= numbers[1]:
        raise ValueError(
            f"rollout_rs_threshold: for {name} the trainer takes lower_upper or a number of at least 1, not {spec}"
        )
    # logarithms of Python's numbers, so in float64, whatever the tokens are
    return Rejection(name, math.log(numbers[0]), math.log(numbers[1]))


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{name}: the trainer can't read {text!r} as a number") from None
    if math.isnan(number):
        raise ValueError(f"{name}: nan is no bound")
    return number
