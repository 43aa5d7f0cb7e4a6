"""What the numbers of a metric count, as results save it: figures of two results mean the same where it is the same.

A metric that is added, or whose better direction changes, makes no other metric incomparable. Standard library only.
"""

from __future__ import annotations

from tokenaudit.contracts.metrics import METRICS


def metric_definitions() -> dict[str, str]:
    """What every metric counts and how it is totalled, by name. Rates are worked out anew from metrics."""
    return {metric.name: f"{metric.unit} {metric.total}" for metric in METRICS.values()}


def definitions_of_fingerprint(fingerprint: object) -> dict[str, str]:
    """The definitions behind the fingerprint that results saved in their place; empty where it isn't known."""
    listed = _FINGERPRINTS.get(str(fingerprint), {})
    return {name: definition for definition, names in listed.items() for name in names.split()}


_FINGERPRINTS = {
    "7308df32890f0f87": {
        "version state": "model_step",
        "groups sum": (
            "put_groups expired_groups expired_at_put expired_at_refresh expired_by_sequence expired_by_token "
            "discarded_groups taken_groups shortfall_groups aborted_groups recycled_prompts"
        ),
        "samples sum": "produced_samples failed_samples filtered_samples raw_rewards_count",
        "tokens sum": (
            "produced_tokens carried_in_tokens failed_tokens filtered_tokens reset_tokens discarded_stale_tokens "
            "discarded_fresh_tokens taken_tokens trained_tokens masked_stale_tokens masked_semantic_tokens "
            "dropped_tokens restarted_tokens avoided_tokens regenerated_tokens counterfactual_tokens"
        ),
        "groups last": "leftover_completed leftover_aborted leftover_expired in_flight_groups",
        "train steps max": "seq_staleness_max",
        "train steps sum": "seq_staleness_sum",
        "train steps rank": "token_staleness_p50 token_staleness_p95 token_staleness_max",
        "reward sum": "raw_rewards_sum",
        "tokens end": "held_tokens in_flight_tokens",
        "microseconds state": "taken_at_us",
        "microseconds step_sum": (
            "wall_time_us trainer_wait_us trainer_busy_us rollout_idle_us rollout_busy_us producer_paused_us"
        ),
        "train steps step_sum": "expired_batch",
        "rounds sum": "tail_batch_rounds",
    }
}
"""Names of metrics by definition. The fingerprint was a hash over all metrics and rates with their directions."""
