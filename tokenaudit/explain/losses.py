"""Why tokens of a run were never trained: a fold over its events that adds up to the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

from tokenaudit.config.limits import Setting, setting_behind
from tokenaudit.config.model import Config
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import Metric
from tokenaudit.lifecycle.events import Fate, GroupExpired, GroupPut, GroupRejected, GroupTaken, MembersExpired, Where
from tokenaudit.lifecycle.members import MemberFacts
from tokenaudit.lifecycle.staleness import ExpiryReason
from tokenaudit.lifecycle.types import Status
from tokenaudit.replay.events import Key, PutReconciled, RunEvent

BY_SETTINGS: tuple[Metric, ...] = (*m.DROPPED_PARTS, m.RESTARTED_TOKENS)
"""The ends of tokens in the ledger that a setting may be behind."""


class Place(StrEnum):
    """The operation in which tokens were lost."""

    PUT = "put"
    """Their group came in."""
    REFRESH = "refresh"
    """Their group waited, completed or aborted."""
    WAITING = "refresh of an expired group"
    """Their group waited as expired already: members that are kept go on ageing."""
    TAKE = "take"
    """Their group was trained, without them."""


_PLACES = {Where.PUT: Place.PUT, Where.REFRESH: Place.REFRESH}


class CauseKey(NamedTuple):
    """What tokens are lost by: where the ledger counts them, the task, why a response expired, and the operation."""

    metric: Metric
    task: str
    reason: ExpiryReason | None
    place: Place

    @property
    def order(self) -> tuple[str, str, str, str]:
        """Comes in this order where as many tokens were lost."""
        return (self.task, self.metric.name, self.place, self.reason or "")


@dataclass(slots=True)
class Loss:
    """Tokens lost, and the groups (counted once per event) that lost them."""

    tokens: int = 0
    groups: int = 0


@dataclass(frozen=True, slots=True)
class Cause:
    """Tokens lost in one way.

    Attributes:
        key: the way.
        loss: how many.
        setting: the setting behind it; None where the run itself lost them.
    """

    key: CauseKey
    loss: Loss
    setting: Setting | None


@dataclass(slots=True)
class GroupLoss:
    """What one group lost.

    Attributes:
        expired: times that it expired.
        tokens: tokens lost, those masked at its take included.
        longest: tokens of its longest response, as far as it was seen since it first expired.
        samples: its responses.
        taken_at: the step that took it; None as long as none did.
        by_setting: tokens lost by each setting.
    """

    expired: int = 0
    tokens: int = 0
    longest: int = 0
    samples: int = 0
    taken_at: int | None = None
    by_setting: dict[Setting, int] = field(default_factory=dict)

    @property
    def bound_by(self) -> Setting | None:
        """The setting that most of its tokens were lost by; None where the run itself lost them."""
        return max(self.by_setting, key=lambda setting: (self.by_setting[setting], setting.key), default=None)


class Losses:
    """Follows a run; `causes` and `groups` are what it lost so far.

    Args:
        config: what it is replayed or simulated under.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._by_cause: dict[tuple[Metric, str, ExpiryReason | None, Place], Loss] = {}
        self._settings: dict[tuple[Metric, str, ExpiryReason | None], Setting | None] = {}
        self.groups: dict[Key, GroupLoss] = {}

    def observe(self, event: RunEvent) -> None:
        """Follow one event."""
        if isinstance(event, GroupTaken):
            self._observe_taken(event)
        elif isinstance(event, GroupExpired):
            self._observe_expired(event)
        elif isinstance(event, MembersExpired):
            for reason, tokens in _by_reason(event).items():
                self._add(event, m.RESET_TOKENS, reason, Place.WAITING, tokens)
        elif isinstance(event, GroupRejected):
            metric = m.FAILED_TOKENS if event.status is Status.FAILED else m.FILTERED_TOKENS
            self._add(event, metric, None, Place.PUT, event.responses.measures.tokens)
        elif isinstance(event, PutReconciled):
            self._add(event, m.RESTARTED_TOKENS, None, Place.PUT, event.restarted_tokens)
        elif isinstance(event, GroupPut) and (event.task_name, event.group_id) in self.groups:
            _measure(self.groups[event.task_name, event.group_id], event.responses.facts)

    def causes(self) -> list[Cause]:
        """The ways in which tokens were lost, those that cost most first."""
        causes = ((CauseKey(*key), loss) for key, loss in self._by_cause.items())
        ranked = sorted(causes, key=lambda item: (-item[1].tokens, item[0].order))
        return [Cause(key, loss, self._setting(key.metric, key.task, key.reason)) for key, loss in ranked]

    def by_setting(self, task: str | None = None) -> dict[Setting, Loss]:
        """What is lost by each setting, of one task or of all, the most costly first."""
        return by_setting(cause for cause in self.causes() if task in (None, cause.key.task))

    def worst_groups(self, most: int) -> list[tuple[Key, GroupLoss]]:
        """The groups that lost most tokens to settings, the worst first."""
        losing = [item for item in self.groups.items() if item[1].tokens]
        return sorted(losing, key=lambda item: (-item[1].tokens, -item[1].expired, item[0]))[:most]

    def _observe_taken(self, event: GroupTaken) -> None:
        measures = event.responses.measures
        self._add(event, m.MASKED_STALE_TOKENS, ExpiryReason.TOKEN, Place.TAKE, event.stale_tokens())
        semantic = measures.tokens - measures.trainable_tokens
        self._add(event, m.MASKED_SEMANTIC_TOKENS, None, Place.TAKE, semantic)
        group = self.groups.get((event.task_name, event.group_id))
        if group is not None:
            group.taken_at = event.train_step

    def _observe_expired(self, event: GroupExpired) -> None:
        is_reset, place = event.fate is Fate.RESET, _PLACES[event.where]
        group = self._group(event)
        group.expired += 1
        _measure(group, [*event.expired.facts(), *event.fresh.facts()])
        for reason, tokens in _by_reason(event).items():
            self._add(event, m.RESET_TOKENS if is_reset else m.DISCARDED_STALE_TOKENS, reason, place, tokens)
        if not is_reset:
            self._add(event, m.DISCARDED_FRESH_TOKENS, event.reason, place, event.fresh.tokens)

    def _add(
        self,
        event: GroupTaken | GroupExpired | MembersExpired | GroupRejected | PutReconciled,
        metric: Metric,
        reason: ExpiryReason | None,
        place: Place,
        tokens: int,
    ) -> None:
        if not tokens:
            return
        key = (metric, event.task_name, reason, place)
        loss = self._by_cause.get(key)
        if loss is None:
            loss = self._by_cause[key] = Loss()
        loss.tokens += tokens
        loss.groups += 1
        if metric in BY_SETTINGS:
            group, setting = self._group(event), self._setting(metric, event.task_name, reason)
            group.tokens += tokens
            if setting is not None:
                group.by_setting[setting] = group.by_setting.get(setting, 0) + tokens

    def _group(self, event: GroupTaken | GroupExpired | MembersExpired | GroupRejected | PutReconciled) -> GroupLoss:
        key = (event.task_name, event.group_id)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = GroupLoss()
        return group

    def _setting(self, metric: Metric, task: str, reason: ExpiryReason | None) -> Setting | None:
        known = (metric, task, reason)
        if known not in self._settings:
            self._settings[known] = setting_behind(self._config, task, metric, reason)
        return self._settings[known]


def by_setting(causes: Iterable[Cause]) -> dict[Setting, Loss]:
    """What is lost by each setting, the most costly first."""
    sums: dict[Setting, Loss] = {}
    for cause in causes:
        if cause.setting is not None:
            loss = sums.setdefault(cause.setting, Loss())
            loss.tokens += cause.loss.tokens
            loss.groups += cause.loss.groups
    return dict(sorted(sums.items(), key=lambda item: (-item[1].tokens, item[0].key)))


def bound_most(causes: Iterable[Cause]) -> tuple[Setting, Fraction] | None:
    """The setting that bound most, and its share of what settings lost; None where none did."""
    sums = by_setting(causes)
    if not sums:
        return None
    setting, loss = next(iter(sums.items()))
    return setting, Fraction(loss.tokens, sum(other.tokens for other in sums.values()))


def _by_reason(event: GroupExpired | MembersExpired) -> dict[ExpiryReason, int]:
    """Tokens of the expired members, by their own reason."""
    sums: dict[ExpiryReason, int] = {}
    for reason, facts in zip(event.reasons, event.expired.facts(), strict=True):
        _, tokens, _, _, _, _, _ = facts
        sums[reason] = sums.get(reason, 0) + tokens
    return sums


def _measure(group: GroupLoss, members: Iterable[MemberFacts]) -> None:
    lengths = [tokens for _, tokens, _, _, _, _, _ in members]
    group.longest = max((group.longest, *lengths))
    group.samples = max(group.samples, len(lengths))
