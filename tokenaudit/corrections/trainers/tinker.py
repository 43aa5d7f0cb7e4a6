"""tinker-cookbook's figures: its losses run on a server, so that no mask and no weight can be told."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.mismatch import rollout_sum
from tokenaudit.corrections.tokens import Tokens


class Tinker(Correction):
    """Divergences alone; what a loss function does with the ratio isn't in the trainer's repository."""

    TRAINER: ClassVar = "tinker"
    SOURCE: ClassVar = "thinking-machines-lab/tinker-cookbook 9dfcc3a2cf44, tinker_cookbook/rl/metrics.py"
    DIVIDES_BY: ClassVar = "not known: the loss is made on the server"

    loss_fn: str = "importance_sampling"

    def notes(self) -> tuple[str, ...]:  # noqa: D102 - see the base
        return ("the loss runs on the server: its weights are not known, only the figures are given",)

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        stats = {
            "count": tokens.count,
            "log_ratio": tokens.log_ratio_sum,
            "squared_log_ratio": tokens.sum(tokens.log_ratio * tokens.log_ratio),
            "rollout": rollout_sum(tokens),
        }
        return Applied(tokens.mask, tokens.mask, None, stats)

    def metrics(self, stats: Stats) -> dict[str, float]:  # noqa: D102
        count = int(stats["count"].sum())
        if not count:
            return {}
        first, second, rollout = (
            float(stats[name].sum(dtype=np.float64) / count) for name in ("log_ratio", "squared_log_ratio", "rollout")
        )
        return {
            "optim/kl_sample_train_v1": -first,
            "optim/kl_sample_train_v2": second / 2,
            "optim/entropy": -rollout,
        }
