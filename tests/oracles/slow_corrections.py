"""What off-policy corrections do to tokens, in plain Python, one token at a time.

Numbers are numpy scalars of the floating type in which the trainer computes; sums of a response are made in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Response:
    """One response: per token the engine's and the trainer's log-probability and whether it is in the loss."""

    rollout: tuple[float, ...]
    trained: tuple[float, ...]
    mask: tuple[bool, ...]
    advantage: float = 0.0

    @property
    def count(self) -> int:
        """Tokens in the loss."""
        return sum(self.mask)


@dataclass
class Outcome:
    """What becomes of every token, one list per response; `weight` is None where nothing is multiplied."""

    keep: list[list[bool]]
    mask: list[list[bool]]
    weight: list[list[float]] | None
    metrics: dict[str, Any]


Number = Callable[[Any], Any]
"""np.float32 or np.float64."""


def log_ratios(response: Response, number: Number) -> list[Any]:
    return [number(t) - number(r) for r, t in zip(response.rollout, response.trained, strict=True)]


def exp(value: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.exp(value)


def masked_sum(values: Sequence[Any], mask: Sequence[bool], number: Number) -> Any:
    return number(math.fsum(float(value) for value, there in zip(values, mask, strict=True) if there))


def masked_mean(values: Sequence[Any], response: Response, number: Number) -> Any:
    return masked_sum(values, response.mask, number) / number(max(response.count, 1))


def at_level(response: Response, level: str, number: Number) -> list[Any]:
    """Log ratio of every token: its own, or its response's sum or mean."""
    values = log_ratios(response, number)
    if level == "token":
        return values
    whole = masked_sum(values, response.mask, number)
    return [whole / number(max(response.count, 1)) if level == "geometric" else whole] * len(values)


def clipped(value: Any, low: float, high: float, number: Number) -> Any:
    return min(max(value, number(low)), number(high))


def sample_means(responses: Sequence[Response], values: Sequence[Sequence[Any]]) -> float:
    """slime's reducer: the sum over responses of the mean over their tokens in the loss."""
    return sum(
        math.fsum(float(value) for value, there in zip(row, response.mask, strict=True) if there)
        / max(response.count, 1)
        for response, row in zip(responses, values, strict=True)
    )


def slow_slime(option: Mapping[str, Any], responses: Sequence[Response], number: Number) -> Outcome:
    """vanilla_tis, icepop and opsm."""
    keep, weight, clipfrac, dropped_tokens = [], [], [], 0.0
    for response in responses:
        ratios = [exp(value) for value in log_ratios(response, number)]
        kept, weights = [True] * len(ratios), list(ratios)
        if option["function"] == "opsm":
            distance = -masked_sum(log_ratios(response, number), response.mask, number) / number(max(response.count, 1))
            dropped = response.advantage < 0 and distance > number(option["opsm_delta"])
            kept = [not dropped] * len(ratios)
            weights = [0.0 if dropped else 1.0] * len(ratios)
            dropped_tokens += dropped * len(ratios) / max(response.count, 1)
        elif option["function"] == "icepop":
            kept = [number(option["tis_clip_low"]) <= ratio <= number(option["tis_clip"]) for ratio in ratios]
            weights = [ratio if inside else 0.0 for ratio, inside in zip(ratios, kept, strict=True)]
        else:
            weights = [clipped(ratio, option["tis_clip_low"], option["tis_clip"], number) for ratio in ratios]
        keep.append([a and b for a, b in zip(response.mask, kept, strict=True)])
        weight.append(weights)
        clipfrac.append([float(a != b) for a, b in zip(weights, ratios, strict=True)])
    metrics = {"opsm_clipfrac": dropped_tokens}
    if option["function"] != "opsm":
        metrics = {"tis_clipfrac": sample_means(responses, clipfrac)}
    return Outcome(keep, [list(response.mask) for response in responses], weight, metrics)


def slow_mis(option: Mapping[str, Any], responses: Sequence[Response], number: Number) -> Outcome:
    """The MIS helper of slime and miles."""
    masks = [list(response.mask) for response in responses]
    if not option["use_tis"]:
        return Outcome(masks, masks, None, {})
    upper = option["tis_upper_bound"]
    lower = 1.0 / upper if option["tis_lower_bound"] is None else option["tis_lower_bound"]
    rs_lower = lower if option["rs_lower_bound"] is None else option["rs_lower_bound"]
    rs_upper = upper if option["rs_upper_bound"] is None else option["rs_upper_bound"]
    keep, weight, catastrophic, outside = [], [], [], []
    for response in responses:
        kept, weights = list(response.mask), []
        for place, value in enumerate(at_level(response, option["tis_level"], number)):
            ratio = exp(clipped(value, -20, 20, number))
            if option["tis_mode"] == "truncate":
                weights.append(clipped(ratio, 0, upper, number))
            elif option["tis_mode"] == "clip":
                weights.append(clipped(ratio, lower, upper, number))
            else:
                weights.append(ratio)
                kept[place] = kept[place] and bool(number(lower) <= ratio <= number(upper))
        weights = [value if there else 0.0 for value, there in zip(weights, response.mask, strict=True)]
        if option["use_rs"]:
            rejected = []
            for value in at_level(response, option["rs_level"], number):
                ratio = exp(clipped(value, -20, 20, number))
                rejected.append(not number(rs_lower) <= ratio <= number(rs_upper))
            kept = [a and not b for a, b in zip(kept, rejected, strict=True)]
            outside.append(rejected)
            if option["rs_veto_threshold"] is not None:
                threshold = number(np.log(np.float32(option["rs_veto_threshold"])))
                low = [value < threshold for value in log_ratios(response, number)]
                catastrophic.append(low)
                if any(a and b for a, b in zip(low, response.mask, strict=True)):
                    kept = [False] * len(kept)
        keep.append(kept)
        weight.append(weights)
    metrics = {"mis_is_ratio_mean_after_tis_rs": sample_means(responses, weight)}
    if option["tis_batch_normalize"]:
        if option["tis_level"] == "token":
            total = math.fsum(float(value) for row in weight for value in row)
            mean = total / max(sum(response.count for response in responses), 1)
        else:
            mean = sample_means(responses, weight) / max(len(responses), 1)
        if mean > 1e-8:
            weight = [[value / mean for value in row] for row in weight]
        metrics["mis_is_ratio_mean_final"] = sample_means(responses, weight)
    if option["use_rs"] and option["rs_veto_threshold"] is not None:
        metrics["mis_rs_catastrophic_token_fraction"] = sample_means(responses, catastrophic)
    return Outcome(keep, keep, weight, metrics)


def slow_prime(option: Mapping[str, Any], responses: Sequence[Response], number: Number) -> Outcome:
    """prime-rl's three losses; figures are one per response."""
    kind, keep, weight = option["type"], [], []
    prefix = "ref_kl/" if kind == "ref_kl" else ""
    names = [f"{prefix}{name}" for name in ("masked_mismatch_kl", "unmasked_mismatch_kl", "is_masked")]
    metrics: dict[str, list[float]] = {name: [] for name in names}
    for response in responses:
        kept, weights, divergence = [], [], {True: [], False: []}
        for rollout, trained, there in zip(response.rollout, response.trained, response.mask, strict=True):
            gap = exp(number(trained)) - exp(number(rollout))
            if kind == "ref_kl":
                dropped = gap < number(-0.2)
            elif kind == "ipo":
                dropped = abs(gap) > number(option["ipo_threshold"])
            elif response.advantage > 0:
                dropped = gap > number(option["dppo_mask_high"])
            else:
                dropped = gap < number(-option["dppo_mask_low"])
            log_ratio = number(trained) - number(rollout)
            kept.append(bool(there and not dropped))
            weights.append(exp(log_ratio))
            if there:
                divergence[bool(dropped)].append(float(exp(log_ratio) - log_ratio - number(1)))
        keep.append(kept)
        weight.append(weights)
        for name, values in zip(names, (divergence[True], divergence[False]), strict=False):
            metrics[name].append(math.fsum(values) / max(len(values), 1))
        metrics[names[2]].append(len(divergence[True]) / max(response.count, 1))
    return Outcome(keep, [list(response.mask) for response in responses], weight, metrics)


def slow_m2po(threshold: float, responses: Sequence[Response], number: Number) -> list[Response]:
    """Responses without the tokens that M2PO drops: the largest squared log ratios, until the rest is small enough."""
    left = []
    for row, response in enumerate(responses):
        for place, value in enumerate(log_ratios(response, number)):
            if response.mask[place]:
                left.append((value * value, row, place))
    left.sort(key=lambda token: -float(token[0]))  # of equal ones, the first stand first
    while len(left) > 1:
        mean = number(math.fsum(float(value) for value, _, _ in left)) / number(len(left))
        if mean < number(threshold):
            break
        left.pop(0)
    there = {(row, place) for _, row, place in left}
    return [
        replace(response, mask=tuple((row, place) in there for place in range(len(response.mask))))
        for row, response in enumerate(responses)
    ]


def slow_areal(option: Mapping[str, Any], responses: Sequence[Response], number: Number) -> Outcome:
    """AReaL: M2PO in the type given, rejection sampling in float32."""
    if option.get("m2_threshold") is not None:
        responses = slow_m2po(option["m2_threshold"], responses, number)
    masks = [list(response.mask) for response in responses]
    rule = option["rejection_sampling"]
    if rule is None:
        return Outcome(masks, masks, None, {"filtered_fraction": 0.0})
    single, keep, weight, filtered = np.float32, [], [], 0
    lower = rule.get("lower")

    def inside(value: Any) -> bool:
        return bool(value <= single(rule["upper"]) and (lower is None or value >= single(lower)))

    def metric(value: Any) -> Any:
        return {
            "ratio": lambda: exp(value),
            "kl_k1": lambda: value,
            "kl_k2": lambda: value * value / single(2),
            "kl_k3": lambda: exp(-value) - single(1) + value,
        }[rule["metric"]]()

    for response in responses:
        values = log_ratios(response, single)
        weights = [exp(value) for value in values]
        if rule["level"] == "token":
            good = [inside(metric(value)) for value in values]
        else:
            terms = values if rule["metric"] == "ratio" else [metric(value) for value in values]
            if rule["metric"] == "ratio":
                weights = [exp(masked_mean(values, response, single))] * len(values)
            if rule["agg"] == "max":
                found = max(
                    (term for term, there in zip(terms, response.mask, strict=True) if there), default=single(0)
                )
            elif rule["agg"] == "sum":
                found = masked_sum(terms, response.mask, single)
            else:
                found = masked_mean(terms, response, single)
            good = [inside(exp(found) if rule["metric"] == "ratio" else found)] * len(values)
        kept = list(response.mask)
        for place, there in enumerate(response.mask):
            if rule["action"] == "mask":
                kept[place] = there and good[place]
                filtered += there and not good[place]
            elif rule["level"] == "token" or not good[place]:
                cut = clipped(weights[place], lower or 0.0, rule["upper"], single)
                filtered += there and cut != weights[place]
                weights[place] = cut
        keep.append(kept)
        weight.append([value if there else 0.0 for value, there in zip(weights, kept, strict=True)])
    total = max(sum(response.count for response in responses), 1)
    return Outcome(keep, keep, weight, {"filtered_fraction": filtered / total})


def slow_openrlhf(option: Mapping[str, Any], responses: Sequence[Response], number: Number) -> Outcome:
    """OpenRLHF; a weight is dropped by multiplying it with 0."""
    low, high = (number(bound) for bound in option["is_correction_threshold"])
    keep, weight = [], []
    for response in responses:
        values = log_ratios(response, number)
        ratios = [exp(value) for value in values]
        if option["is_correction_type"] == "tis":
            kept = list(response.mask)
            weights = [min(max(ratio, low), high) for ratio in ratios]
        else:
            good = [low <= ratio <= high for ratio in ratios]
            if option["is_correction_type"] == "seq-mask-tis":
                whole = response.count > 0 and low <= exp(masked_mean(values, response, number)) <= high
                good = [whole] * len(ratios)
            kept = [bool(a and b) for a, b in zip(response.mask, good, strict=True)]
            weights = [float(ratio) * float(bool(there)) for ratio, there in zip(ratios, good, strict=True)]
        keep.append(kept)
        weight.append(weights)
    count = sum(response.count for response in responses)
    total = sum(float(masked_sum(log_ratios(response, number), response.mask, number)) for response in responses)
    metrics = {"vllm_kl": -total / count if count else math.nan}
    return Outcome(keep, [list(response.mask) for response in responses], weight, metrics)
