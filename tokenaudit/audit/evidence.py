"""How off-policy tokens of one age are: the figures that a report shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
        kl: mean of ratio - 1 - log ratio, an estimate of the divergence of the rollout from the trained policy.
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
        figures = {
            "mean_abs": self.mean_abs,
            "p95_abs": self.p95_abs,
            "mean_ratio": self.mean_ratio,
            "effective_share": self.effective_share,
            "outside_share": self.outside_share,
            "kl": self.kl,
        }
        rounded = {name: float(f"{value:.6g}") for name, value in figures.items()}
        return {"staleness": self.staleness, "tokens": self.tokens} | rounded
