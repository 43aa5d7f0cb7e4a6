"""How far engine and trainer are apart: the figures that several trainers log under names of their own."""

from __future__ import annotations

import numpy as np

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Stats
from tokenaudit.corrections.tokens import Tokens

LOG_RATIO_LIMIT = 20.0
"""Log ratios are cut here before exp, by several trainers."""


def rollout_sum(tokens: Tokens) -> Array:
    """Sum of the engine's log-probabilities over the tokens in the loss of each response, shape [R]."""
    return tokens.once("rollout_sum", lambda: tokens.sum(tokens.rollout))


def cut_ratio(tokens: Tokens, log_ratio: Array) -> Array:
    """Exponential of log ratios of responses, cut at `LOG_RATIO_LIMIT` before, shape [R]."""
    return tokens.xp.exp(tokens.xp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def mismatch_stats(tokens: Tokens) -> dict[str, Array]:
    """Sums over the tokens in the loss of each response: what `mismatch` is worked out from."""

    def squared() -> Array:
        ratio = tokens.clipped_ratio(LOG_RATIO_LIMIT)
        return tokens.sum(ratio * ratio)

    return {
        "count": tokens.count,
        "log_ratio": tokens.log_ratio_sum,
        "rollout": rollout_sum(tokens),
        "trained": tokens.once("trained_sum", lambda: tokens.sum(tokens.trained)),
        "k3": tokens.once("k3_sum", lambda: tokens.sum(tokens.k3)),
        "squared": tokens.once("squared_sum", squared),
        "distance": tokens.once("distance_sum", lambda: tokens.sum(tokens.distance)),
    }


def mismatch(stats: Stats, *, as_one: bool = False) -> dict[str, float]:
    """Perplexities and divergences of a batch, named without prefix.

    kl is the mean of rollout - trained, k3_kl of ratio - log ratio - 1 (Schulman's estimator), chi2_token and
    chi2_seq the mean squared ratio of tokens and of responses, less 1. Perplexities are exp of minus the mean
    log-probability of a response, averaged over responses; one with nothing in the loss counts as 1.

    Args:
        stats: those of `mismatch_stats`.
        as_one: take the whole batch for one response.
    """
    count, log_ratio, rollout, trained = (
        stats[name].astype(np.float64) for name in ("count", "log_ratio", "rollout", "trained")
    )
    tokens = max(float(count.sum()), 1.0)
    if as_one:
        log_ratio, rollout, trained, count = (part.sum(keepdims=True) for part in (log_ratio, rollout, trained, count))
    length = np.maximum(count, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        trained_log_ppl, rollout_log_ppl, difference = -trained / length, -rollout / length, -log_ratio / length
        return {
            "training_ppl": float(np.exp(trained_log_ppl).mean()),
            "training_log_ppl": float(trained_log_ppl.mean()),
            "rollout_ppl": float(np.exp(rollout_log_ppl).mean()),
            "rollout_log_ppl": float(rollout_log_ppl.mean()),
            "kl": float(-log_ratio.sum() / tokens),
            "k3_kl": float(stats["k3"].astype(np.float64).sum() / tokens),
            "log_ppl_diff": float(difference.mean()),
            "log_ppl_abs_diff": float(np.abs(difference).mean()),
            "log_ppl_diff_max": float(difference.max()),
            "log_ppl_diff_min": float(difference.min()),
            "ppl_ratio": float(np.exp(difference).mean()),
            "chi2_token": float(stats["squared"].astype(np.float64).sum() / tokens - 1),
            "chi2_seq": float(np.exp(2 * np.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)).mean() - 1),
        }
