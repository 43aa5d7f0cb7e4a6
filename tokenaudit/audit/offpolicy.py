"""How off-policy each age really is: log-probabilities at rollout and under the trained weights, by staleness."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tokenaudit.audit.differences import Differences
from tokenaudit.corrections.ages import AGES, Grouping, ages
from tokenaudit.log.columns import Int64s

_RESOLUTION = 1_000


@dataclass(frozen=True, slots=True)
class AgeEvidence:
    """Trainable tokens of one staleness; log-probabilities are natural, the ratio is trained over rollout.

    Attributes:
        staleness: train steps at the take, or at the put for responses that were never taken.
        tokens: tokens with both log-probabilities.
        mean_abs: mean of |difference of log-probabilities|.
        p95_abs: its 95th percentile, nearest rank, to 0.001.
        mean_ratio: mean importance ratio.
        effective_share: effective sample size over tokens, (sum of ratios)^2 / (tokens x sum of squared ratios).
        outside_share: share of tokens whose ratio is outside [1 - epsilon, 1 + epsilon].
        kl: mean of ratio - 1 - log ratio, an estimate of the divergence of the rollout from the trained policy; of
            float32 columns to about 1e-7, as their ratios have single precision.
    """

    staleness: int
    tokens: int
    mean_abs: float
    p95_abs: float
    mean_ratio: float
    effective_share: float
    outside_share: float
    kl: float

    def data(self) -> dict[str, Any]:
        """As plain data, rounded to what single precision holds."""
        return {name: v if isinstance(v, int) else float(f"{v:.6g}") for name, v in asdict(self).items()}


def trained_ages(found: Differences, train_step: Int64s) -> Int64s:
    """The age of every stretch, see `ages.ages`; -2 where no step is known.

    Args:
        found: the differences of a log.
        train_step: for every row, the step that its tokens were trained at, or would be; negative: leave it out.
    """
    step = train_step[found.row]
    return np.where(step >= 0, ages(found.version, step), -2)


def age_evidence(found: Differences, train_step: Int64s) -> tuple[AgeEvidence, ...]:
    """The figures of every age that has tokens; the arguments are those of `trained_ages`."""
    age = trained_ages(found, train_step) + 1
    counted = (age >= 0) & (found.tokens > 0)
    figures = (found.tokens, found.delta, found.abs_delta, found.ratio, found.squared_ratio, found.outside)
    by_age = Grouping(age[counted], AGES)
    tokens, delta, abs_delta, ratio, squared_ratio, outside = by_age.sums(
        np.stack(figures).astype(np.float64, copy=False)[:, counted]
    )
    thousandths, weights, bounds = _samples_by_age(found, np.where(counted, age, AGES))
    return tuple(
        AgeEvidence(
            staleness=index - 1,
            tokens=int(tokens[index]),
            mean_abs=float(abs_delta[index] / tokens[index]),
            p95_abs=_percentile_95(*(values[bounds[index] : bounds[index + 1]] for values in (thousandths, weights))),
            mean_ratio=float(ratio[index] / tokens[index]),
            effective_share=float(ratio[index] ** 2 / (tokens[index] * squared_ratio[index])),
            outside_share=float(outside[index] / tokens[index]),
            kl=float((ratio[index] - tokens[index] - delta[index]) / tokens[index]),
        )
        for index in np.flatnonzero(tokens).tolist()
    )


def _thousandths(values: np.ndarray[Any, np.dtype[np.float32]]) -> Int64s:
    """Values cut to 0.001, as whole numbers of that."""
    # half a millionth more, as float32 may fall short of a thousandth
    return (values.astype(np.float64) * _RESOLUTION + 5e-4).astype(np.int64)


def _samples_by_age(found: Differences, age: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Samples in thousandths, the tokens that each stands for, by the age of their stretch; where each age begins."""
    order = np.argsort(age, kind="stable")
    counts = found.sampled[order]
    shift = (np.cumsum(found.sampled) - found.sampled)[order] - (np.cumsum(counts) - counts)
    place = np.arange(len(found.samples)) + np.repeat(shift, counts)
    bounds = np.append(0, np.cumsum(counts))[np.searchsorted(age[order], np.arange(AGES + 1))]
    return _thousandths(found.samples[place]), np.repeat(found.stride[order], counts), bounds


def _percentile_95(thousandths: Int64s, weights: Int64s) -> float:
    """By nearest rank, of values that stand for `weights` tokens each."""
    reached = np.cumsum(np.bincount(thousandths, weights))
    return float(np.searchsorted(reached, 0.95 * reached[-1]) / _RESOLUTION) if len(reached) else 0.0
