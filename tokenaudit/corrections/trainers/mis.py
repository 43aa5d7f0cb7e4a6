"""The MIS helper that slime and miles share: weights, rejection and veto of tokens and responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import BaseModel

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Applied, Stats
from tokenaudit.corrections.mismatch import LOG_RATIO_LIMIT, cut_ratio, mismatch, mismatch_stats
from tokenaudit.corrections.tokens import Tokens

Level = Literal["token", "sequence", "geometric"]

SMALLEST_MEAN = 1e-8
"""A mean weight of a batch up to here isn't divided by."""


class MisOptions(BaseModel):
    """Settings of the helper, with the values of its mis.yaml, which it comes with in both trainers."""

    use_tis: bool = True
    use_rs: bool = True
    tis_level: Level = "token"
    rs_level: Level = "token"
    tis_mode: Literal["truncate", "clip", "mask"] = "truncate"
    tis_lower_bound: float | None = 0.5
    tis_upper_bound: float = 2.0
    rs_lower_bound: float | None = None
    rs_upper_bound: float | None = None
    rs_veto_threshold: float | None = 1e-4
    tis_batch_normalize: bool = True


def tis_bounds(options: MisOptions) -> tuple[float, float]:
    """Lower and upper bound of weights."""
    lower = options.tis_lower_bound
    return 1.0 / options.tis_upper_bound if lower is None else lower, options.tis_upper_bound


def rs_bounds(options: MisOptions) -> tuple[float, float]:
    """Lower and upper bound of rejection: those of weights where they aren't set."""
    lower, upper = tis_bounds(options)
    return (
        lower if options.rs_lower_bound is None else options.rs_lower_bound,
        upper if options.rs_upper_bound is None else options.rs_upper_bound,
    )


def check(options: MisOptions) -> None:
    """Refuse what the helper refuses, when it comes to it.

    Raises:
        ValueError: the helper stops at these settings.
    """
    if options.tis_lower_bound is None and options.tis_upper_bound == 0:
        raise ValueError("tis_upper_bound: the trainer divides by it, and refuses 0")
    if not options.use_tis:
        return
    if options.tis_batch_normalize and options.tis_level == "geometric":
        raise ValueError("tis_batch_normalize: the trainer refuses it where tis_level is geometric")
    compared = [("tis", tis_bounds(options))] if options.tis_mode != "truncate" else []
    compared += [("rs", rs_bounds(options))] if options.use_rs else []
    for name, (lower, upper) in compared:
        if not lower < upper:
            raise ValueError(
                f"{name}_lower_bound: the trainer refuses {lower}, which isn't below {name}_upper_bound {upper}"
            )


def notes(options: MisOptions) -> tuple[str, ...]:
    """What the helper silently does with its settings."""
    if not options.use_tis:
        return ("use_tis: false switches rejection off too",) if options.use_rs else ()
    found, given = [], options.model_fields_set
    if options.tis_mode == "truncate" and "tis_lower_bound" in given and options.tis_lower_bound is not None:
        found.append("weights are not raised to tis_lower_bound where tis_mode is truncate")
    ignored = () if options.use_rs else ("rs_lower_bound", "rs_upper_bound", "rs_veto_threshold")
    found += [
        f"{name} is not looked at without use_rs"
        for name in ignored
        if name in given and getattr(options, name) is not None
    ]
    return tuple(found)


class _Ratios:
    """Ratios of a level, cut before exp: one per token, or one per response, which stands for each of its tokens."""

    def __init__(self, tokens: Tokens, level: Level) -> None:
        self._tokens = tokens
        self._of_tokens = level == "token"
        if self._of_tokens:
            self.values = tokens.clipped_ratio(LOG_RATIO_LIMIT)
        else:
            self.values = cut_ratio(tokens, tokens.log_ratio_sum if level == "sequence" else tokens.log_ratio_mean)

    def clipped(self, lower: float, upper: float) -> Array:
        """The ratios between two bounds."""
        return self._tokens.xp.clip(self.values, lower, upper)

    def spread(self, values: Array) -> Array:
        """Values of this level for every token, shape [N]."""
        return values if self._of_tokens else self._tokens.spread(values)

    def count(self, flags: Array) -> Array:
        """Tokens in the loss of each response that have a flag of this level, shape [R]."""
        return self._tokens.count_of(flags) if self._of_tokens else self._tokens.xp.where(flags, self._tokens.count, 0)

    def sum(self, values: Array) -> Array:
        """Sum of values of this level over the tokens in the loss of each response, shape [R]."""
        tokens = self._tokens
        return tokens.sum(values) if self._of_tokens else values * tokens.xp.cast(tokens.count, tokens.dtype)


def apply(options: MisOptions, tokens: Tokens, mean_weight: float | None = None) -> Applied:
    """Weights by `use_tis`, then rejection and veto by `use_rs`; the loss divides by the tokens before them.

    Args:
        options: the settings.
        tokens: a batch, or part of one.
        mean_weight: what weights are divided by under `tis_batch_normalize`; None: what it is for these tokens.
    """
    stats = mismatch_stats(tokens)
    if not options.use_tis:
        return Applied(tokens.mask, tokens.mask, None, stats)
    ratios, keep = _Ratios(tokens, options.tis_level), tokens.mask
    lower, upper = tis_bounds(options)
    low, high = ratios.values < lower, ratios.values > upper
    stats |= {"before": ratios.sum(ratios.values), "tis_high": ratios.count(high)}
    weight, at_low, at_high = _bounded(options, ratios), None, None
    if options.tis_mode == "truncate":
        at_high = ratios.spread(high)
    else:
        stats["tis_low"] = ratios.count(low)
    if options.tis_mode == "clip":
        at_low, at_high = ratios.spread(low), ratios.spread(high)
    if options.tis_mode == "mask":
        keep = keep & ratios.spread(~(low | high))
    stats["after"] = ratios.sum(weight)
    if options.use_rs:
        keep = _reject(options, tokens, keep, stats)
    if options.tis_batch_normalize:
        if mean_weight is None:
            mean_weight = _mean_weight(options, tokens.xp.host(stats["after"]), tokens.xp.host(tokens.count))
        stats["factor"] = tokens.xp.of(np.full(len(tokens.lengths), mean_weight), tokens.dtype)
        weight = weight / mean_weight
    weight = tokens.zero_outside(ratios.spread(weight))
    return Applied(keep, keep, weight, stats, at_low, at_high, counted=tokens.mask)


def mean_weight(options: MisOptions, parts: Iterable[Tokens]) -> float:
    """What `tis_batch_normalize` divides the weights of a batch by."""
    sums: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    for tokens in parts:
        ratios = _Ratios(tokens, options.tis_level)
        sums.append(tokens.xp.host(ratios.sum(_bounded(options, ratios))))
        counts.append(tokens.xp.host(tokens.count))
    return _mean_weight(options, np.concatenate(sums), np.concatenate(counts)) if sums else 1.0


def _bounded(options: MisOptions, ratios: _Ratios) -> Array:
    """The weights of its level, cut by `tis_mode`."""
    if options.tis_mode == "mask":
        return ratios.values
    lower, upper = tis_bounds(options)
    return ratios.clipped(0.0 if options.tis_mode == "truncate" else lower, upper)


def _reject(options: MisOptions, tokens: Tokens, keep: Array, stats: dict[str, Array]) -> Array:
    ratios, (lower, upper) = _Ratios(tokens, options.rs_level), rs_bounds(options)
    low, high = ratios.values < lower, ratios.values > upper
    stats |= {"rs_low": ratios.count(low), "rs_high": ratios.count(high)}
    keep = keep & ratios.spread(~(low | high))
    if options.rs_veto_threshold is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            # the helper takes this logarithm in float32, whatever its input; that of a negative number vetoes nothing
            threshold = float(np.log(np.float32(options.rs_veto_threshold)))
        stats["catastrophic"] = tokens.count_of(tokens.log_ratio < threshold)
        keep = keep & tokens.spread(stats["catastrophic"] == 0)
    return keep


def _mean_weight(options: MisOptions, weights: np.ndarray, count: np.ndarray) -> float:
    """Mean weight of a batch's tokens, or of its responses; 1 where that is next to nothing.

    Args:
        options: the settings.
        weights: sum over the tokens of each response, shape [R].
        count: tokens of each.
    """
    if options.tis_level == "token":
        mean = float(weights.sum()) / max(int(count.sum()), 1)
    else:
        mean = float((weights / np.maximum(count, 1).astype(weights.dtype)).sum()) / max(len(count), 1)
    return mean if mean > SMALLEST_MEAN else 1.0


def metrics(options: MisOptions, stats: Stats) -> dict[str, float]:
    """The helper's `mis_` figures: sums over responses of their means, 0 for one with nothing in the loss."""
    filled = stats["count"] > 0
    part = {name: values[filled] for name, values in stats.items()}
    if not filled.any():
        return {}
    count = part["count"]
    found = {name: value * len(count) for name, value in mismatch(part).items() if not name.endswith(("_max", "_min"))}

    def mean_sum(values: np.ndarray) -> float:
        return float((values.astype(np.float64) / count).sum())

    found |= {"kl": -mean_sum(part["log_ratio"]), "k3_kl": mean_sum(part["k3"])}
    found["chi2_token"] = mean_sum(part["squared"]) - len(count)
    if "after" in part:
        final = part["after"]
        if "factor" in part:
            found["batch_norm_factor"] = float(part["factor"].sum(dtype=np.float64))
            final = final / part["factor"]
        kind = {"truncate": "truncate_fraction", "clip": "clip_fraction_high", "mask": "mask_fraction_high"}
        found |= {
            "tis_weight_before_bound": mean_sum(part["before"]),
            "tis_weight_after_bound": mean_sum(part["after"]),
            "is_ratio_mean_after_tis_rs": mean_sum(part["after"]),
            "is_ratio_mean_final": mean_sum(final),
            f"tis_{kind[options.tis_mode]}": mean_sum(part["tis_high"]),
        }
    if "tis_low" in part:
        found[f"tis_{options.tis_mode}_fraction_low"] = mean_sum(part["tis_low"])
    if "rs_low" in part:
        found["rs_mask_fraction_low"] = mean_sum(part["rs_low"])
        found["rs_mask_fraction_high"] = mean_sum(part["rs_high"])
    if "catastrophic" in part:
        found["rs_catastrophic_token_fraction"] = mean_sum(part["catastrophic"])
        found["rs_catastrophic_seq_fraction"] = float((part["catastrophic"] > 0).sum())
    return {f"mis_{name}": value for name, value in found.items()}
