"""What a curve may count: the metrics and rates of a step row, and what else trainers log of what they take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import RATES, Unit


class Definition(NamedTuple):
    """What a series counts.

    Attributes:
        name: its name, as `--map` takes it.
        unit: what its values are in.
        text: what it counts.
        family: definitions that one curve could be taken for.
    """

    name: str
    unit: str
    text: str
    family: str

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return self.unit not in ("share", "ratio", Unit.REWARD) and not self.name.endswith("_mean")


MEASURES: dict[str, tuple[str, str, str]] = {
    "oldest_staleness": (Unit.STEPS, "staleness of the oldest token of every response taken", "staleness"),
    "newest_staleness": (Unit.STEPS, "staleness of the newest token of every response taken", "staleness"),
    "start_staleness": (Unit.STEPS, "staleness of the version that every response taken began with", "staleness"),
    "group_staleness": (Unit.STEPS, "staleness of the oldest token of every group taken", "staleness"),
    "group_start_staleness": (Unit.STEPS, "staleness of the oldest version that a group's members began with",
                              "staleness"),
    "token_staleness": (Unit.STEPS, "staleness of every trained token", "staleness"),
    "oldest_staleness_in_syncs": ("syncs", "syncs between the oldest token of every response and the take",
                                  "staleness"),
    "newest_staleness_in_syncs": ("syncs", "syncs between the newest token of every response and the take",
                                  "staleness"),
    "version_span": ("versions", "newest version less the oldest, plus 1, of every response taken", "spans"),
    "oldest_version": (Unit.VERSION, "oldest version of every response taken", "versions"),
    "newest_version": (Unit.VERSION, "newest version of every response taken", "versions"),
    "response_len": (Unit.TOKENS, "length of every response taken", "lengths"),
    "trainable_len": (Unit.TOKENS, "tokens of every response taken that its own mask trains", "lengths"),
    "prompt_len": (Unit.TOKENS, "prompt length of every response taken", "lengths"),
    "reward": (Unit.REWARD, "reward of every rollout taken", "rewards"),
}  # fmt: skip
"""Unit, text and family of what is measured of every response, group or token taken."""
STATS = {"mean": "mean", "max": "largest", "min": "smallest"}
"""What is logged of a measure, and its word."""
_SINGLE = (
    Definition("taken_samples", Unit.SAMPLES, "rollouts in the batch", "counts"),
    Definition("taken_rows", "rows", "rows in the batch: a rollout may be several", "counts"),
    Definition("taken_trainable_tokens", Unit.TOKENS, "tokens of the batch that its own masks train, stale ones too",
               "tokens"),
    Definition("taken_all_tokens", Unit.TOKENS, "tokens of the batch and of its prompts", "tokens"),
    Definition("mixed_version_share", "share", "share of the responses taken with more than one version", "shares"),
    Definition("stale_group_share", "share", "share of the groups taken that began with a version older than the "
               "trainer's", "shares"),
    Definition("raw_reward_mean", Unit.REWARD, "mean reward of completed and filtered groups, as put", "rewards"),
    Definition("waiting_groups", Unit.GROUPS, "groups left right after the take, whatever their status", "counts"),
)  # fmt: skip
_FAMILIES = {
    Unit.TOKENS: "tokens", Unit.GROUPS: "counts", Unit.SAMPLES: "counts", Unit.STEPS: "staleness",
    Unit.REWARD: "rewards", Unit.VERSION: "versions",
}  # fmt: skip
_ROW_RATES = tuple(rate for rate in RATES.values() if {*rate.numerator, *rate.denominator} <= {*m.ROW_METRICS})


OF_TAKES = (
    m.TAKEN_GROUPS, m.TAKEN_TOKENS, m.TRAINED_TOKENS, m.MASKED_STALE_TOKENS, m.MASKED_SEMANTIC_TOKENS,
    m.SEQ_STALENESS_MAX, m.SEQ_STALENESS_SUM, *m.QUANTILES,
)  # fmt: skip
"""The metrics of what was taken."""


def _definitions() -> Iterator[Definition]:
    for metric in m.ROW_METRICS:
        yield Definition(metric.name, metric.unit, metric.help, _FAMILIES[metric.unit])
    for rate in _ROW_RATES:
        yield Definition(rate.name, "share" if rate.is_share else "ratio", rate.help, "shares")
    for name, (unit, text, family) in MEASURES.items():
        for stat, word in STATS.items():
            yield Definition(f"{name}_{stat}", unit, f"{word} {text}", family)
    yield from _SINGLE


DEFINITIONS: dict[str, Definition] = {one.name: one for one in _definitions()}
"""All definitions by name: the metrics and rates of a step row, and what else trainers log."""
