"""Differences between both log-probabilities, token by token: the slow twin of what the audit sums up."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from tests.builders import Row
from tokenaudit.audit.offpolicy import AgeEvidence

Token = tuple[int, float]
"""Staleness, and the difference of its log-probabilities."""


def tokens_of(row: Row, step: int) -> Iterable[Token]:
    """The trainable tokens of a put that have a version and both log-probabilities, given the step of its take."""
    old, new = row.get("logprobs"), row.get("train_logprobs")
    if not old or not new or len(old) != len(new):
        return
    runs = row.get("response_version_runs")
    versions, mask = row.get("response_model_steps") or [], row.get("response_mask")
    if runs is not None:
        versions = [run["model_step"] for run in runs for _ in range(run["tokens"])]
        mask = [run["trainable"] == run["tokens"] for run in runs for _ in range(run["tokens"])]
        if len(versions) != len(old):
            return
    else:
        versions = versions + [row["model_step"]] * (len(old) - len(versions))
        if len(versions) > len(old) or None in versions or (mask is not None and len(mask) != len(old)):
            return
    for place, version in enumerate(versions):
        values = (old[place], new[place])
        if any(value is None or not math.isfinite(value) or abs(value) >= 1000 for value in values):
            continue
        if mask is None or mask[place]:
            age = min(max(step - version - 1, -1), 127)
            yield age, min(max(values[1] - values[0], -80.0), 80.0)


def slow_evidence(rows: Iterable[tuple[Row, int]], epsilon: float) -> list[AgeEvidence]:
    """The figures of every age of puts, each with the step of its take; all values count for the percentile."""
    by_age: dict[int, list[float]] = defaultdict(list)
    for row, step in rows:
        for age, delta in tokens_of(row, step):
            by_age[age].append(delta)
    found: list[AgeEvidence] = []
    for age, deltas in sorted(by_age.items()):
        ratios, count = [math.exp(delta) for delta in deltas], len(deltas)
        found.append(
            AgeEvidence(
                staleness=age,
                tokens=count,
                mean_abs=sum(map(abs, deltas)) / count,
                p95_abs=math.floor(sorted(map(abs, deltas))[math.ceil(0.95 * count) - 1] * 1000 + 5e-4) / 1000,
                mean_ratio=sum(ratios) / count,
                effective_share=sum(ratios) ** 2 / (count * sum(ratio**2 for ratio in ratios)),
                outside_share=sum(abs(ratio - 1) > epsilon for ratio in ratios) / count,
                kl=sum(ratio - 1 - delta for ratio, delta in zip(ratios, deltas, strict=True)) / count,
            )
        )
    return found
