"""What corrections do to a log: plain values for tables, files and rules.

Tokens are those of the responses that the steps took, or of all completed ones where the log holds no take. Of their
tokens some are masked already, some can't be judged, and the others are in the loss: a method keeps or drops these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tokenaudit.contracts.errors import plural, printable

_MOST_SHOWN = 4
"""Methods that a report names in one line."""
PERCENTILE_RESOLUTION = 2**-8
"""Percentiles of weights are cut down to a multiple of this share of the power of 2 below them: 0.4 % at most."""


class AdvantageSource(StrEnum):
    """Where the sign of the advantage comes from."""

    COLUMN = "column"
    """The column `advantage`."""
    REWARD = "reward less group mean"
    """The reward less the mean of the taken members of its group."""
    BOTH = "column, else reward less group mean"
    """The column for some responses, the rewards for others."""
    NONE = "none"
    """Neither is there."""


class Position(StrEnum):
    """Where in its response a token stands, masked tokens counted; the only token of one is in its first tenth."""

    FIRST = "first tenth"
    MIDDLE = "middle"
    LAST = "last tenth"


class Sign(StrEnum):
    """The sign of the advantage of a token's response."""

    POSITIVE = "positive"
    ZERO = "zero"
    NEGATIVE = "negative"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What becomes of tokens.

    Attributes:
        already_masked: tokens that the log's own mask leaves out of the loss.
        in_loss: tokens in the loss that can be judged: `kept` and `dropped`.
        kept: those that the method keeps.
        dropped: those that it drops, by the mask or by a weight of 0.
        responses: responses that have a token here.
        responses_dropped_whole: those that have tokens in the loss here, and none that is kept.
    """

    already_masked: int = 0
    in_loss: int = 0
    kept: int = 0
    dropped: int = 0
    responses: int = 0
    responses_dropped_whole: int = 0

    @property
    def dropped_share(self) -> float | None:
        """Dropped tokens over tokens in the loss; None without any."""
        return self.dropped / self.in_loss if self.in_loss else None


@dataclass(frozen=True, slots=True)
class WeightFigures:
    """Weights of kept tokens.

    Attributes:
        mean: their mean.
        p5: 5th percentile, nearest rank, cut as `PERCENTILE_RESOLUTION` says; None where only sums are made.
        p50: the median, as before.
        p95: 95th percentile, as before.
        largest: the largest.
        at_low: share raised to the lower bound; None: the method has no such bound.
        at_high: share cut to the upper bound; None: the method has no such bound.
        effective_share: effective sample size over tokens, (sum of weights)^2 / (tokens x sum of squared weights);
            None where all weights are 0.
        not_finite: tokens whose weight is infinite or no number, as it becomes in the trainer; they count nowhere else.
    """

    mean: float
    p5: float | None
    p50: float | None
    p95: float | None
    largest: float
    at_low: float | None
    at_high: float | None
    effective_share: float | None
    not_finite: int = 0


@dataclass(frozen=True, slots=True)
class PartFigures:
    """A method on a part of the tokens; weights are None where it has none, or keeps no token here."""

    counts: TokenCounts
    weights: WeightFigures | None


@dataclass(frozen=True, slots=True)
class StepFigures:
    """A method on the batch of a step.

    Attributes:
        train_step: the step.
        counts: what becomes of its tokens.
        weights: the weights of those that are kept.
        divisor: tokens that the loss divides by.
        metrics: the figures that the trainer logs, under its own names; empty for a batch without a token in the loss.
    """

    train_step: int
    counts: TokenCounts
    weights: WeightFigures | None
    divisor: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LimitOverlap:
    """A method beside a staleness limit: tokens in the loss that either of them drops.

    Attributes:
        max_token_staleness: the limit, as the config has it.
        both: tokens that both drop.
        only_method: tokens that only the method drops.
        only_limit: tokens that only the limit drops. Agentic groups are exempt from it, as in a run.
    """

    max_token_staleness: int
    both: int
    only_method: int
    only_limit: int

    @property
    def either(self) -> int:
        """Tokens that either drops."""
        return self.both + self.only_method + self.only_limit

    @property
    def jaccard(self) -> float:
        """Tokens that both drop over those that either drops; 1 where neither drops any."""
        return self.both / self.either if self.either else 1.0


@dataclass(frozen=True, slots=True)
class MethodOverlap:
    """Two methods side by side: tokens that either of them drops."""

    first: str
    second: str
    both: int
    only_first: int
    only_second: int

    @property
    def either(self) -> int:
        """Tokens that either drops."""
        return self.both + self.only_first + self.only_second

    @property
    def jaccard(self) -> float:
        """Tokens that both drop over those that either drops; 1 where neither drops any."""
        return self.both / self.either if self.either else 1.0


@dataclass(frozen=True, slots=True)
class MethodResult:
    """What a method does to the log.

    Attributes:
        name: its name here, unlike those of the others.
        setting: the preset and the options that were given, as `--method` takes them.
        trainer: the preset of the trainer.
        dtype: the type it was computed in.
        options: all options, under the trainer's names, as resolved.
        source: repository, commit and file of the formulas.
        divides_by: what the loss divides by, in words.
        notes: what the trainer does with these options that people don't expect, and how a log differs from a run.
        not_run: why it wasn't run; None where it was. What follows is empty then.
        unknown_advantage_tokens: tokens in the loss, left out as the method asks for an advantage that isn't known.
        totals: what becomes of all tokens.
        weights: the weights of those that are kept.
        dropped_fresh: dropped tokens that the `max_token_staleness` of their task keeps.
        divisor: tokens that the loss divides by, all steps together.
        metrics: the figures that the trainer logs, under its own names: the mean over the batches of steps that have
            them, those of the batch itself where there is one.
        by_step: the batch of each step, ascending.
        by_task: each task, as the config orders them.
        by_age: each staleness that has tokens, ascending; see `staleness.staleness`. Older tokens than
            `ages.OLDEST_AGE` count with it, all of those from the future as -1.
        by_sign: each sign of the advantage that has tokens.
        by_position: each part of a response.
        staleness: each `max_token_staleness` from 0 to the first that drops no token.
        nearest_limit: the one whose dropped tokens overlap most with the method's (Jaccard); of several the largest.
            None: no limit drops any token that the method drops.
    """

    name: str
    setting: str
    trainer: str
    dtype: str
    options: Mapping[str, Any]
    source: str
    divides_by: str
    notes: tuple[str, ...] = ()
    not_run: str | None = None
    unknown_advantage_tokens: int = 0
    totals: TokenCounts = field(default_factory=TokenCounts)
    weights: WeightFigures | None = None
    dropped_fresh: int = 0
    divisor: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    by_step: tuple[StepFigures, ...] = ()
    by_task: Mapping[str, PartFigures] = field(default_factory=dict)
    by_age: Mapping[int, PartFigures] = field(default_factory=dict)
    by_sign: Mapping[Sign, PartFigures] = field(default_factory=dict)
    by_position: Mapping[Position, PartFigures] = field(default_factory=dict)
    staleness: tuple[LimitOverlap, ...] = ()
    nearest_limit: LimitOverlap | None = None


@dataclass(frozen=True, slots=True)
class NotJudged:
    """Tokens in the loss, by the log's own mask, that no method judges; each counts once, the first reason that fits.

    Attributes:
        no_logprobs: their response has no list of the engine's.
        no_train_logprobs: it has no list of the trainer's.
        other_length: a list isn't as long as the response.
        null: a log-probability is null.
        not_finite: one is infinite, or no number.
        sentinel: one is so small that it stands for something else, such as -9999.
        responses: responses left out as a whole, by the first three.
    """

    no_logprobs: int = 0
    no_train_logprobs: int = 0
    other_length: int = 0
    null: int = 0
    not_finite: int = 0
    sentinel: int = 0
    responses: int = 0

    @property
    def tokens(self) -> int:
        """All of them."""
        lists = self.no_logprobs + self.no_train_logprobs + self.other_length
        return lists + self.null + self.not_finite + self.sentinel


@dataclass(frozen=True, slots=True, repr=False)
class CorrectionsReport:
    """What corrections do to a log.

    Attributes:
        name: name of the log, without folders.
        is_taken: whether responses are those that the steps took; else all completed ones, by the step of their put,
            as the log holds no take.
        steps: steps with a batch.
        responses: responses that are looked at.
        tokens: their tokens.
        in_loss: those of them that are in the loss and can be judged.
        not_judged: those in the loss that can't.
        sync_weights_interval: of the config, by which limits become thresholds.
        max_token_staleness: of the config, by task; None: no limit.
        advantage_source: where the sign of the advantage comes from.
        unknown_advantages: responses whose advantage isn't known.
        notes: what a person should know about these figures.
        methods: the methods, in the order they were asked for.
        between: every pair of methods that were run, in this order.
        device: what computed.
    """

    name: str
    is_taken: bool
    steps: int
    responses: int
    tokens: int
    in_loss: int
    not_judged: NotJudged
    sync_weights_interval: int
    max_token_staleness: Mapping[str, int | None]
    advantage_source: AdvantageSource
    unknown_advantages: int
    notes: tuple[str, ...]
    methods: tuple[MethodResult, ...]
    between: tuple[MethodOverlap, ...]
    device: str = "numpy"

    def __repr__(self) -> str:
        said = [f"{printable(method.name)[:40]} {_percent(method)}" for method in self.methods[:_MOST_SHOWN]]
        more = ", …" if len(self.methods) > _MOST_SHOWN else ""
        judged = f"{self.in_loss:,} tokens judged"
        return (
            f"CorrectionsReport({self.name}: {plural(self.steps, 'step')}, {judged}; dropped: {', '.join(said)}{more})"
        )


def _percent(method: MethodResult) -> str:
    share = method.totals.dropped_share
    return "not run" if share is None else f"{100 * share:.1f} %"
