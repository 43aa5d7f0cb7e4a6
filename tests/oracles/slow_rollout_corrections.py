"""What verl, SkyRL, NeMo-RL, ROLL, TRL and open-instruct do to tokens, in plain Python, one token at a time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.oracles.slow_corrections import (
    Number,
    Outcome,
    Response,
    clipped,
    exp,
    log_ratios,
    masked_mean,
    masked_sum,
)

Option = Mapping[str, Any]
Responses = Sequence[Response]


def both(left: Sequence[Any], right: Sequence[Any]) -> list[bool]:
    return [bool(a and b) for a, b in zip(left, right, strict=True)]


def masks_of(responses: Responses) -> list[list[bool]]:
    return [list(response.mask) for response in responses]


def in_loss(rows: Sequence[Sequence[Any]], responses: Responses) -> list[float]:
    """The values of all tokens in the loss."""
    return [
        float(value)
        for row, response in zip(rows, responses, strict=True)
        for value, there in zip(row, response.mask, strict=True)
        if there
    ]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(len(values), 1)


def slow_verl(option: Option, responses: Responses, number: Number) -> Outcome:
    """Weights and rejection; each rule of rejection looks at the original mask."""
    masks, dropped_by_weight, weights = [], [], []
    level, (lower, upper) = option["rollout_is"], option["bounds"]
    for response in responses:
        values = log_ratios(response, number)
        cut = [clipped(value, -20, 20, number) for value in values]
        mask = list(response.mask)
        for name, (low, high) in option["rules"].items():
            kind = name[-2:]
            terms = {
                "k1": [-value for value in cut],
                "k2": [number(0.5) * value * value for value in cut],
                "k3": [exp(value) - number(1) - value for value in cut],
            }[kind]
            if name.startswith("seq_sum"):
                terms = [masked_sum(terms, response.mask, number)] * len(terms)
            elif name.startswith("seq_mean"):
                terms = [masked_mean(terms, response, number)] * len(terms)
            elif name.startswith("seq_max"):
                there = [term for term, flag in zip(terms, response.mask, strict=True) if flag]
                terms = [max(there, default=number(0))] * len(terms)
            if kind == "k1":
                good = [number(math.log(low)) <= term <= number(math.log(high)) for term in terms]
            else:
                good = [term <= number(high) for term in terms]
            mask = both(mask, good)
        masks.append(mask)
        whole = clipped(masked_sum(values, response.mask, number), -20, 20, number)
        ratios = [exp(value) for value in (cut if level == "token" else [whole] * len(cut))]
        popped = [lower is not None and not number(lower) <= ratio <= number(upper) for ratio in ratios]
        row = [number(0) if pop else min(ratio, number(upper)) for ratio, pop in zip(ratios, popped, strict=True)]
        weights.append([value if there else number(0) for value, there in zip(row, response.mask, strict=True)])
        dropped_by_weight.append(popped)
    total = sum(response.count for response in responses)
    lost = [response.count - sum(mask) for response, mask in zip(responses, masks, strict=True)]
    metrics = {
        "rollout_corr/rollout_rs_masked_fraction": sum(lost) / max(total, 1),
        "rollout_corr/rollout_rs_seq_masked_fraction": sum(count > 0 for count in lost) / max(len(lost), 1),
    }
    if not option["rules"]:
        metrics = {}
    if level is None:
        return Outcome(masks, masks, None, metrics)
    applied = in_loss(weights, responses)
    metrics["rollout_corr/rollout_is_mean"] = mean(applied)
    metrics["rollout_corr/rollout_is_std"] = statistics.pstdev(applied) if applied else 0.0
    means = [float(masked_mean(row, response, number)) for row, response in zip(weights, responses, strict=True)]
    if option["rollout_is_batch_normalize"]:
        filled = [value for value, response in zip(means, responses, strict=True) if response.count]
        factor = float(number(mean(applied if level == "token" else filled)))
        if factor > 1e-8:
            weights = [[value / number(factor) for value in row] for row in weights]
    keep = [both(mask, [not pop for pop in popped]) for mask, popped in zip(masks, dropped_by_weight, strict=True)]
    return Outcome(keep, masks, weights, metrics)


def slow_skyrl(option: Option, responses: Responses, number: Number) -> Outcome:
    """Four steps, each on what the one before it left; exp in float32."""

    def ratio(value: Any) -> Any:
        single = np.float32(min(max(np.float32(value), np.float32(-20)), np.float32(20)))
        return number(exp(single) if number is np.float32 else np.float32(math.exp(float(single))))

    def out(value: Any, low: float | None, high: float | None) -> bool:
        return bool((high is not None and value > number(high)) or (low is not None and value < number(low)))

    outlier = (option["outlier_token_is_threshold_low"], option["outlier_token_is_threshold_high"])
    bounds = (option["token_mask_is_threshold_low"], option["token_mask_is_threshold_high"])
    masks, weights, cells = [], [], []
    outliers = 0
    for response in responses:
        values = log_ratios(response, number)
        ratios = [ratio(value) for value in values]
        mask = list(response.mask)
        cells.append([float(value) if there else 0.0 for value, there in zip(ratios, mask, strict=True)])
        if any(there and out(value, *outlier) for value, there in zip(ratios, mask, strict=True)):
            mask, outliers = [False] * len(mask), outliers + 1
        if None not in bounds:
            mask = both(mask, [not out(value, *bounds) for value in ratios])
        total, count = masked_sum(values, mask, number), sum(mask)
        if option["tis_ratio_type"] == "token":
            weights.append([min(value, number(option["token_tis_ratio_clip_high"])) for value in ratios])
        elif option["tis_ratio_type"] == "sequence":
            weights.append([min(ratio(total), number(option["sequence_tis_ratio_clip_high"]))] * len(mask))
        if option["sequence_mask_metric"] is not None:
            geometric = option["sequence_mask_metric"] == "geometric"
            value = ratio(total / number(max(count, 1))) if geometric else ratio(total)
            name = "geo" if geometric else "product"
            if out(value, option[f"{name}_mask_low"], option[f"{name}_mask_high"]):
                mask = [False] * len(mask)
        masks.append(mask)
    metrics: dict[str, Any] = {}
    width = max((len(row) for row in cells), default=0)
    on = (option["tis_ratio_type"], option["sequence_mask_metric"], *outlier, None if None in bounds else bounds)
    if any(part is not None for part in on) and width:
        padded = [value for row in cells for value in row + [0.0] * (width - len(row))]
        metrics = {"is_ratio_max": max(padded), "is_ratio_min": min(padded)}
        metrics["is_ratio_mean"] = math.fsum(padded) / max(sum(response.count for response in responses), 1)
        if outlier != (None, None):
            metrics["outlier_seq_masked_ratio"] = outliers / len(responses)
        # with ratios of 1e8 and more the deviation has no digits to compare
        if len(padded) > 1 and max(padded) < 100:
            metrics["is_ratio_std"] = statistics.stdev(padded)
    return Outcome(masks, masks, weights if option["tis_ratio_type"] else None, metrics)


def slow_nemo(option: Option, responses: Responses, number: Number) -> Outcome:
    """A ratio that overflows is 0 before anything else."""
    keep, weights, per_response, outside = [], [], [], []
    kind, low, high = option["type"], option["low"] or 0.0, option["high"]
    for response in responses:
        values = log_ratios(response, number)
        if option["sequence"]:
            values = [masked_sum(values, response.mask, number)] * len(values)
        ratios = [exp(value) for value in values]
        ratios = [value if np.isfinite(value) else number(0) for value in ratios]
        row, kept, wrong = ratios, [True] * len(ratios), [False] * len(ratios)
        if kind in ("tis", "icepop"):
            wrong = [not number(low) <= value <= number(high) for value in ratios]
        if kind == "tis":
            row = [clipped(value, low, high, number) for value in ratios]
        elif kind == "icepop":
            kept = [not flag for flag in wrong]
            row = [value if good else number(0) for value, good in zip(ratios, kept, strict=True)]
        elif kind == "seq-mask-tis":
            good = bool(number(low) <= exp(masked_mean(values, response, number)) <= number(high))
            kept, row = [good] * len(ratios), [value * number(good) for value in ratios]
            outside.append(float(not good))
        keep.append(both(response.mask, kept))
        weights.append(row)
        per_response.append(wrong)
    metrics = {}
    if not option["sequence"]:
        metrics["sampling_importance_ratio"] = mean(in_loss(weights, responses))
    if kind is not None:
        metrics["is_oob_ratio"] = mean(outside if kind == "seq-mask-tis" else in_loss(per_response, responses))
    return Outcome(keep, masks_of(responses), weights, metrics)


def slow_roll(option: Option, responses: Responses, number: Number) -> Outcome:
    """Aggregates of log ratios and of differences of probabilities; filters look at the original mask."""

    def aggregate(values: list[Any], response: Response, level: str) -> list[Any]:
        if level == "token":
            return values
        if level == "sequence":
            return [masked_sum(values, response.mask, number)] * len(values)
        if level == "geometric":
            return [masked_mean(values, response, number)] * len(values)
        found, start = [number(0)] * len(values), 0
        while start < len(values):
            end = start
            while end < len(values) and response.mask[end]:
                end += 1
            if end > start:
                total = number(math.fsum(float(value) for value in values[start:end]))
                found[start:end] = [total / number(end - start)] * (end - start)
            start = max(end, start + 1)
        return found

    masks, weights = [], []
    means: dict[str, list[float]] = {}
    for response in responses:
        values = log_ratios(response, number)
        gaps = [exp(number(t)) - exp(number(r)) for r, t in zip(response.rollout, response.trained, strict=True)]
        mask = list(response.mask)
        for part in option["filters"]:
            level = part["agg_type"]
            ratios = [exp(value) for value in aggregate(values, response, level)]
            if part["ratio_enabled"]:
                mask = both(mask, [number(part["ratio_low"]) <= v <= number(part["ratio_high"]) for v in ratios])
            if part["diff_enabled"]:
                found = aggregate(gaps, response, level)
                mask = both(mask, [number(part["diff_low"]) <= v <= number(part["diff_high"]) for v in found])
        masks.append(mask)
        row = [exp(value) for value in aggregate(values, response, option["is_weight"]["weight_type"])]
        cap = option["is_weight"]["upper_bound"]
        if not option["is_weight"]["enabled"]:
            row = [number(1)] * len(row)
        elif cap is not None:
            row = [clipped(value, 0.0, cap, number) for value in row]
        weights.append(row)
        if response.count:
            for level in ("segment", "token"):
                ratios = [float(exp(value)) for value in aggregate(values, response, level)]
                # infinity times a mask of 0
                spoilt = any(math.isinf(v) and not there for v, there in zip(ratios, response.mask, strict=True))
                figure = math.nan if spoilt else mean(in_loss([ratios], [response]))
                means.setdefault(f"actor/train_infer_ratio_{level}_mean@sum", []).append(figure)
            figure = mean(in_loss([gaps], [response]))
            means.setdefault("actor/train_infer_diff_token_mean@sum", []).append(figure)
    metrics = {name: sum(found) / (len(found) + 1e-8) for name, found in means.items()}
    return Outcome(masks, masks, weights, metrics)


def slow_trl(option: Option, responses: Responses, number: Number) -> Outcome:
    """Importance sampling, with log ratios of 0 out of the loss, and the mask of off-policy responses."""
    low, high, mode = option["low"], option["high"], option["mode"]
    keep, weights, of_responses, distances = [], [], [], []
    for response in responses:
        values = log_ratios(response, number)
        inside = [value if there else number(0) for value, there in zip(values, response.mask, strict=True)]
        if mode.startswith("sequence"):
            inside = [masked_sum(values, response.mask, number)] * (len(inside) or 1)
        row, kept = [], []
        for value in inside:
            ratio = exp(value)
            wrong = (low is not None and ratio < number(low)) or (high is not None and ratio > number(high))
            if mode.endswith("truncate"):
                ratio = max(ratio, number(low)) if low is not None else ratio
                ratio = min(ratio, number(high)) if high is not None else ratio
                wrong = False
            row.append(number(0) if wrong else ratio)
            kept.append(not wrong)
        of_responses.append(float(row[0]) if row else 0.0)
        distances.append([abs(value) for value in values])
        row, kept = row[: len(values)], kept[: len(values)]
        if option["threshold"] is not None:
            near = response.advantage >= 0 or -masked_mean(values, response, number) <= number(option["threshold"])
            row, kept = [value if near else number(0) for value in row], [flag and near for flag in kept]
        keep.append(both(response.mask, kept))
        weights.append(row)
    far = in_loss(distances, responses)
    metrics = {
        "sampling/sampling_logp_difference/mean": mean(far),
        "sampling/sampling_logp_difference/max": max(far, default=0.0),
    }
    if option["threshold"] is None:
        found = of_responses if mode.startswith("sequence") else in_loss(weights, responses)
        figures = {"min": min(found, default=0.0), "max": max(found, default=0.0)}
        if all(math.isfinite(value) for value in found):
            figures["mean"] = mean(found)
        metrics |= {f"sampling/importance_sampling_ratio/{name}": value for name, value in figures.items()}
    return Outcome(keep, masks_of(responses), weights, metrics)


def slow_open_instruct(option: Option, responses: Responses, number: Number) -> Outcome:
    """Bounds of 0 are none; means are over the tokens in the loss of a response."""
    keep, weights, clips, kls = [], [], [], []

    def beyond(value: Any, low: float, high: float) -> bool:
        return bool((low > 0 and value < number(low)) or (high > 0 and value > number(high)))

    for response in responses:
        values = log_ratios(response, number)
        cut = [clipped(value, -10, 10, number) for value in values]
        ratios = [exp(value) for value in cut]
        gaps = [abs(value - number(1)) for value in ratios]
        if option["rho_mask_sequence_level"]:
            ratios = [exp(masked_mean(cut, response, number))] * len(ratios)
        bounds = (option["rho_mask_lower_bound"], option["rho_mask_upper_bound"])
        dropped = [beyond(value, *bounds) for value in ratios]
        if option["rho_mask_tv_divergence"]:
            far = beyond(masked_mean(gaps, response, number), *bounds)
            dropped = [bool(far and value * number(response.advantage) > 0) for value in values]
        kept, (low, high) = both(response.mask, [not flag for flag in dropped]), option["clamp"]
        row = [max(value, number(low)) if low > 0 else value for value in ratios]
        row = [min(value, number(high)) if high > 0 else value for value in row]
        clips.append([a != b for a, b in zip(row, ratios, strict=True)])
        weights.append([value if there else number(0) for value, there in zip(row, kept, strict=True)])
        keep.append(kept)
        kls.append([-exp(number(r)) * value for r, value in zip(response.rollout, values, strict=True)])
    metrics = {
        "val/rho_drop_frac": 1 - mean(in_loss(keep, responses)) if any(r.count for r in responses) else 0.0,
        "val/rho_weight": mean(in_loss(weights, responses)),
        "val/rho_clipfrac": mean(in_loss(clips, responses)),
        "debug/vllm_local_reverse_kl": mean(in_loss(kls, responses)),
    }
    return Outcome(keep, masks_of(responses), weights, metrics)
