"""Every number a step row holds: its name, unit, better direction and meaning.

Names are API: tables, JSON, gates and documentation take them from here, and no other module spells one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    """What a metric counts."""

    GROUPS = "groups"
    SAMPLES = "samples"
    TOKENS = "tokens"
    STEPS = "train steps"
    REWARD = "reward"
    VERSION = "version"
    MICROSECONDS = "microseconds"
    ROUNDS = "rounds"


class Better(StrEnum):
    """The direction in which a change of the metric is a gain, whatever else the run does."""

    LOWER = "lower"
    HIGHER = "higher"
    NEUTRAL = "neutral"


class Total(StrEnum):
    """How the values of tasks and steps combine."""

    SUM = "sum"
    """Tasks and steps add up."""
    LAST = "last"
    """A level: tasks add up, a run has the value of its last row."""
    MAX = "max"
    """The largest value; null where there is none."""
    RANK = "rank"
    """A nearest-rank quantile, taken anew over all the tokens behind it."""
    STATE = "state"
    """Belongs to a step as a whole: neither tasks nor totals have it."""
    STEP_SUM = "step_sum"
    """Belongs to a step as a whole: tasks don't have it, a run has the sum of its rows and its tail."""
    END = "end"
    """Known once a run has ended: the ledger has it, rows don't."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One column of a step row. Two metrics are the same only if they are the same object."""

    name: str
    unit: Unit
    better: Better
    total: Total
    help: str


@dataclass(frozen=True, slots=True, eq=False)
class Rate:
    """A quotient of sums of metrics. Rows hold the metrics, so that a rate is always worked out exactly.

    Attributes:
        numerator: metrics whose sum is counted.
        denominator: metrics whose sum it is divided by; where that is 0, there is no rate.
        is_share: whether it is read in percent.
    """

    name: str
    numerator: tuple[Metric, ...]
    denominator: tuple[Metric, ...]
    better: Better
    help: str
    is_share: bool = True


METRICS: dict[str, Metric] = {}
"""All metrics by name, in the order in which rows show them."""

RATES: dict[str, Rate] = {}
"""All rates by name; no metric has the name of a rate."""


def _metric(name: str, unit: Unit, help_text: str, better: Better = Better.NEUTRAL, total: Total = Total.SUM) -> Metric:
    metric = Metric(name, unit, better, total, help_text)
    METRICS[name] = metric
    return metric


_GROUPS, _SAMPLES, _TOKENS, _STEPS = Unit.GROUPS, Unit.SAMPLES, Unit.TOKENS, Unit.STEPS
_LOWER, _HIGHER = Better.LOWER, Better.HIGHER

# Directions. A metric is neutral if it can move either way without a gain: counts of what went in or is left grow with
# the work, wasted or not; a part of a sum shrinks when its tokens or groups move to another part; staleness falls where
# older tokens are dropped before they are trained; times of being busy or idle don't say what was made in them. Each
# metric with a direction says why it has one.

MODEL_STEP = _metric(
    "model_step", Unit.VERSION, "version in the engine at the take; null if unknown", total=Total.STATE
)

PUT_GROUPS = _metric("put_groups", _GROUPS, "groups put into the buffer")
PRODUCED_SAMPLES = _metric("produced_samples", _SAMPLES, "responses in those groups")
PRODUCED_TOKENS = _metric("produced_tokens", _TOKENS, "new tokens of this round, discarded groups included")
CARRIED_IN_TOKENS = _metric("carried_in_tokens", _TOKENS, "tokens made before a rollout's first put in the log")

# No setting turns a failure into another loss; its tokens may be lost before it, so they are neutral.
FAILED_SAMPLES = _metric("failed_samples", _SAMPLES, "responses of groups discarded as failed", _LOWER)
FAILED_TOKENS = _metric("failed_tokens", _TOKENS, "all tokens of groups discarded as failed")
FILTERED_SAMPLES = _metric("filtered_samples", _SAMPLES, "responses of groups the run's own filter rejected")
FILTERED_TOKENS = _metric("filtered_tokens", _TOKENS, "all tokens of groups the run's own filter rejected")

# The sum of all ways to expire: each is work to do again or lost.
EXPIRED_GROUPS = _metric("expired_groups", _GROUPS, "groups that became expired, discarded ones included", _LOWER)
EXPIRED_AT_PUT = _metric("expired_at_put", _GROUPS, "groups that became expired when they were put")
EXPIRED_AT_REFRESH = _metric("expired_at_refresh", _GROUPS, "groups that became expired while they waited")
EXPIRED_BY_SEQUENCE = _metric("expired_by_sequence", _GROUPS, "groups expired because a whole response was too old")
EXPIRED_BY_TOKEN = _metric(
    "expired_by_token", _GROUPS, "groups expired because a response had no fresh token left to train"
)
RESET_TOKENS = _metric("reset_tokens", _TOKENS, "tokens of expired responses that are generated again")
DISCARDED_GROUPS = _metric("discarded_groups", _GROUPS, "expired groups that are lost")
DISCARDED_STALE_TOKENS = _metric("discarded_stale_tokens", _TOKENS, "tokens of the expired responses of lost groups")
DISCARDED_FRESH_TOKENS = _metric(
    "discarded_fresh_tokens", _TOKENS, "tokens of fresh responses lost with an expired member of their group"
)

TAKEN_GROUPS = _metric("taken_groups", _GROUPS, "groups in the batch")
TAKEN_TOKENS = _metric("taken_tokens", _TOKENS, "tokens in the batch")
# What all the work is for.
TRAINED_TOKENS = _metric("trained_tokens", _TOKENS, "tokens of the batch that are in the loss", _HIGHER)
MASKED_STALE_TOKENS = _metric(
    "masked_stale_tokens", _TOKENS, "tokens of the batch left out of the loss because they are stale"
)
MASKED_SEMANTIC_TOKENS = _metric(
    "masked_semantic_tokens", _TOKENS, "tokens of the batch that the recorded mask leaves out of the loss"
)
# The sum of all that is lost to staleness, whichever way.
DROPPED_TOKENS = _metric("dropped_tokens", _TOKENS, "reset, discarded (stale and fresh) and masked as stale", _LOWER)
# A batch that isn't full trains on less than the config asks for.
SHORTFALL_GROUPS = _metric("shortfall_groups", _GROUPS, "groups asked for that weren't there to take", _LOWER)

LEFTOVER_COMPLETED = _metric(
    "leftover_completed", _GROUPS, "completed groups left right after the take", total=Total.LAST
)
LEFTOVER_ABORTED = _metric("leftover_aborted", _GROUPS, "aborted groups left right after the take", total=Total.LAST)
LEFTOVER_EXPIRED = _metric(
    "leftover_expired", _GROUPS, "expired groups that wait to be generated again", total=Total.LAST
)

SEQ_STALENESS_MAX = _metric(
    "seq_staleness_max", _STEPS, "staleness of the oldest response taken; null if none", total=Total.MAX
)
SEQ_STALENESS_SUM = _metric("seq_staleness_sum", _STEPS, "sum over the responses taken")
TOKEN_STALENESS_P50 = _metric(
    "token_staleness_p50", _STEPS, "median staleness of the trained tokens; null if none", total=Total.RANK
)
TOKEN_STALENESS_P95 = _metric(
    "token_staleness_p95", _STEPS, "95th percentile over the trained tokens; null if none", total=Total.RANK
)
TOKEN_STALENESS_MAX = _metric(
    "token_staleness_max", _STEPS, "staleness of the oldest trained token; null if none", total=Total.RANK
)

RAW_REWARDS_SUM = _metric("raw_rewards_sum", Unit.REWARD, "rewards of completed and of filtered groups, as put")
RAW_REWARDS_COUNT = _metric("raw_rewards_count", _SAMPLES, "responses behind that sum")

RESTARTED_TOKENS = _metric("restarted_tokens", _TOKENS, "held tokens that a later put did not continue from")
AVOIDED_TOKENS = _metric("avoided_tokens", _TOKENS, "new tokens of recorded puts this config would not have asked for")
REGENERATED_TOKENS = _metric(
    "regenerated_tokens", _TOKENS, "recorded prefix tokens this config has lost and makes again"
)
COUNTERFACTUAL_TOKENS = _metric(
    "counterfactual_tokens",
    _TOKENS,
    "avoided, regenerated, and restarted where this config would have continued: tokens that replay had to "
    "reason about because the run went another way",
)

HELD_TOKENS = _metric("held_tokens", _TOKENS, "tokens in the buffer at the end", total=Total.END)
IN_FLIGHT_TOKENS = _metric(
    "in_flight_tokens", _TOKENS, "tokens of groups sampled and not put again by the end", total=Total.END
)

ROW_METRICS: tuple[Metric, ...] = tuple(metric for metric in METRICS.values() if metric.total is not Total.END)
"""What a step row holds, in order."""

TAKEN_AT_US = _metric("taken_at_us", Unit.MICROSECONDS, "time of the take since the run began", total=Total.STATE)
# All time counts, whatever it is spent on.
WALL_TIME_US = _metric(
    "wall_time_us",
    Unit.MICROSECONDS,
    "time from the end of the row before to the end of this one",
    _LOWER,
    Total.STEP_SUM,
)
TRAINER_WAIT_US = _metric(
    "trainer_wait_us", Unit.MICROSECONDS, "time the trainer waited for a batch", total=Total.STEP_SUM
)
TRAINER_BUSY_US = _metric("trainer_busy_us", Unit.MICROSECONDS, "time the trainer trained", total=Total.STEP_SUM)
ROLLOUT_IDLE_US = _metric(
    "rollout_idle_us", Unit.MICROSECONDS, "time in which no response was being generated", total=Total.STEP_SUM
)
ROLLOUT_BUSY_US = _metric(
    "rollout_busy_us", Unit.MICROSECONDS, "time in which a response was being generated", total=Total.STEP_SUM
)
PRODUCER_PAUSED_US = _metric(
    "producer_paused_us",
    Unit.MICROSECONDS,
    "time the producer was stopped because new rollouts would be too old (status expired)",
    total=Total.STEP_SUM,
)
EXPIRED_BATCH = _metric(
    "expired_batch", _STEPS, "1 if the producer's status was expired at the take, else 0", total=Total.STEP_SUM
)
IN_FLIGHT_GROUPS = _metric(
    "in_flight_groups", _GROUPS, "groups begun and not put, right after the take", total=Total.LAST
)
ABORTED_GROUPS = _metric("aborted_groups", _GROUPS, "groups cut off before they ended")
TAIL_BATCH_ROUNDS = _metric("tail_batch_rounds", Unit.ROUNDS, "rounds of a task that began in tail-batch mode")
RECYCLED_PROMPTS = _metric("recycled_prompts", _GROUPS, "groups begun from prompts of a further pass over the workload")

SIMULATED_METRICS: tuple[Metric, ...] = tuple(
    metric for metric in METRICS.values() if metric not in ROW_METRICS and metric.total is not Total.END
)
"""What a step row of a simulated run holds beyond `ROW_METRICS`, in order."""

LEVELS: tuple[Metric, ...] = tuple(metric for metric in METRICS.values() if metric.total is Total.LAST)
"""Metrics of which a run has the value of its last row."""


QUANTILES: dict[Metric, int] = {TOKEN_STALENESS_P50: 50, TOKEN_STALENESS_P95: 95, TOKEN_STALENESS_MAX: 100}
"""Rank metrics over the trained tokens, with their percentage."""

LEDGER_SOURCES = (PRODUCED_TOKENS, CARRIED_IN_TOKENS)
"""Where tokens come from."""

LEDGER_FATES = (
    TRAINED_TOKENS,
    MASKED_STALE_TOKENS,
    MASKED_SEMANTIC_TOKENS,
    RESET_TOKENS,
    DISCARDED_STALE_TOKENS,
    DISCARDED_FRESH_TOKENS,
    FAILED_TOKENS,
    FILTERED_TOKENS,
    RESTARTED_TOKENS,
    HELD_TOKENS,
    IN_FLIGHT_TOKENS,
)
"""Where tokens end."""

NEVER_TRAINED = tuple(
    metric
    for metric in LEDGER_FATES
    if metric not in (TRAINED_TOKENS, MASKED_SEMANTIC_TOKENS, HELD_TOKENS, IN_FLIGHT_TOKENS)
)
"""Ends of tokens that were meant for the loss, or whose response was, and that can no longer reach it."""

DROPPED_PARTS = (RESET_TOKENS, DISCARDED_STALE_TOKENS, DISCARDED_FRESH_TOKENS, MASKED_STALE_TOKENS)
"""The parts of `DROPPED_TOKENS`."""


def _rate(
    name: str,
    numerator: tuple[Metric, ...],
    denominator: tuple[Metric, ...],
    help_text: str,
    better: Better = Better.NEUTRAL,
    *,
    is_share: bool = True,
) -> Rate:
    rate = Rate(name, numerator, denominator, better, help_text, is_share)
    RATES[name] = rate
    return rate


# A rate is an outcome where both its counts are whole: a change of volume alone leaves it as it is.
DROPPED_TOKEN_RATE = _rate(
    "dropped_token_rate",
    (DROPPED_TOKENS,),
    (PRODUCED_TOKENS,),
    "dropped_tokens of produced_tokens; in one step it can exceed 100 %, as what is dropped was produced before",
    _LOWER,
)
EXPIRED_GROUP_RATE = _rate(
    "expired_group_rate", (EXPIRED_GROUPS,), (PUT_GROUPS,), "expired_groups of put_groups", _LOWER
)
# Masked tokens pass through the trainer for nothing, whatever became of those that were dropped before.
MASKED_TOKEN_RATE = _rate(
    "masked_token_rate",
    (MASKED_STALE_TOKENS,),
    (TRAINED_TOKENS, MASKED_STALE_TOKENS),
    "masked_stale_tokens of the tokens of the batch that the recorded mask keeps in the loss",
    _LOWER,
)
# A part of the dropped share, and so neutral.
FRESH_LOSS_RATE = _rate(
    "fresh_loss_rate", (DISCARDED_FRESH_TOKENS,), (PRODUCED_TOKENS,), "discarded_fresh_tokens of produced_tokens"
)
TRAINED_TOKEN_RATE = _rate(
    "trained_token_rate", (TRAINED_TOKENS,), (PRODUCED_TOKENS,), "trained_tokens of produced_tokens", _HIGHER
)

TOKENS_PER_TRAINED_TOKEN = _rate(
    "tokens_per_trained_token",
    (PRODUCED_TOKENS,),
    (TRAINED_TOKENS,),
    "tokens generated per token that is trained",
    _LOWER,
    is_share=False,
)

SIMULATED_RATES: tuple[Rate, ...] = (
    TOKENS_PER_TRAINED_TOKEN,
    # A trainer that is slower, and engines that generate waste, are busier: neutral.
    _rate(
        "trainer_utilization",
        (TRAINER_BUSY_US,),
        (WALL_TIME_US,),
        "share of the simulated time in which the trainer trained",
    ),
    _rate(
        "rollout_utilization",
        (ROLLOUT_BUSY_US,),
        (WALL_TIME_US,),
        "share of the simulated time in which responses were generated",
    ),
)
"""The rates that the totals of a simulated run hold, as numerator and denominator."""

OUTCOMES: tuple[Metric | Rate, ...] = (
    DROPPED_TOKEN_RATE,
    TRAINED_TOKEN_RATE,
    TOKENS_PER_TRAINED_TOKEN,
    MASKED_TOKEN_RATE,
    EXPIRED_GROUP_RATE,
    SHORTFALL_GROUPS,
)
"""What a run comes to, volume aside; all of them have a direction."""

CORRECTION_METRICS: tuple[Metric, ...] = (
    CORRECTION_LOSS_TOKENS := Metric(
        "correction_loss_tokens", _TOKENS, Better.NEUTRAL, Total.SUM, "tokens in the loss that a correction judges"
    ),
    # Each is a token that was generated, waited for, and taken, for nothing.
    CORRECTION_DROPPED_TOKENS := Metric(
        "correction_dropped_tokens", _TOKENS, _LOWER, Total.SUM, "tokens in the loss that a correction drops"
    ),
    CORRECTION_RESPONSES := Metric(
        "correction_responses", _SAMPLES, Better.NEUTRAL, Total.SUM, "responses that a correction looks at"
    ),
    CORRECTION_DROPPED_RESPONSES := Metric(
        "correction_dropped_responses", _SAMPLES, _LOWER, Total.SUM, "responses of which a correction keeps no token"
    ),
)
"""What gate rules with a method judge; no row of a run holds them."""

CORRECTION_RATES: tuple[Rate, ...] = (
    Rate(
        "correction_dropped_token_rate",
        (CORRECTION_DROPPED_TOKENS,),
        (CORRECTION_LOSS_TOKENS,),
        _LOWER,
        "correction_dropped_tokens of correction_loss_tokens",
    ),
    Rate(
        "correction_dropped_response_rate",
        (CORRECTION_DROPPED_RESPONSES,),
        (CORRECTION_RESPONSES,),
        _LOWER,
        "correction_dropped_responses of correction_responses",
    ),
)
"""Their shares."""
