"""Where two runs part for the first time, and why, as far as their events show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tokenaudit.compare.group_events import NO_AGE, PLACES, REASONS, GroupEvents, Kind
from tokenaudit.compare.metric_values import Figure
from tokenaudit.config.model import OFF, Config
from tokenaudit.lifecycle.events import Where
from tokenaudit.lifecycle.staleness import ExpiryReason

Event = dict[str, Any]
"""A row of `GroupEvents.frame`."""

_EXPIRY = (Kind.RESET, Kind.DISCARDED)
_DECISIVE = (*_EXPIRY, Kind.TAKEN, Kind.SKIPPED, Kind.RECONCILED, Kind.MEMBERS_RESET)
"""Kinds that set the runs apart, the most decisive first."""
_TASK_SETTINGS = {
    Kind.RESET: ("max_token_staleness", "max_staleness", "tail_batch_trigger_size"),
    Kind.DISCARDED: ("max_token_staleness", "max_staleness", "tail_batch_trigger_size"),
    Kind.MEMBERS_RESET: ("max_token_staleness", "max_staleness"),
    Kind.TAKEN: ("max_token_staleness", "weight"),
    Kind.RECONCILED: ("enable_partial_rollout",),
}
_RUN_SETTINGS = (
    ("timeline", "sync_weights_interval"),
    ("timeline", "resync"),
    ("timeline", "train_batch_size"),
    ("buffer", "replay_policy"),
)


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step at which two runs differ.

    Attributes:
        train_step: the step; None: only what comes after the last one differs.
        figures: what differs there.
        why: what happened there first, in words, one line each.
    """

    train_step: int | None
    figures: tuple[Figure, ...]
    why: tuple[str, ...]


def explain(
    train_step: int | None, events: tuple[GroupEvents, GroupEvents], configs: tuple[Config, Config]
) -> tuple[str, ...]:
    """Why the events of a step differ between run A and run B.

    Args:
        train_step: the first step whose figures differ; None: what comes after the last one.
        events: the events of both runs.
        configs: their configs.
    """
    is_here = pl.col("train_step").is_null() if train_step is None else pl.col("train_step") == train_step
    a, b = (list(run.frame().filter(is_here).iter_rows(named=True)) for run in events)
    at = next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if at == len(a) == len(b):
        return ("the same happens to every group; the runs differ in what is counted when the step ends",)
    a, b = a[at:], b[at:]
    subject = min((*b[:1], *a[:1]), key=_rank)
    key = (subject["task"], subject["group_id"])
    firsts = [next((event for event in side if _decides(event, key)), None) for side in (a, b)]
    if firsts == [None, None]:
        firsts = [a[0] if a else None, b[0] if b else None]
    where = _place(firsts[1] or firsts[0], train_step)
    sides = [
        _description(event, config, other) for event, other, config in zip(firsts, firsts[::-1], configs, strict=True)
    ]
    lines = [f"{where} of {key[0]}/{key[1]}: {sides[1]} under B, {sides[0]} under A"]
    settings = _settings(key[0], Kind((firsts[1] or firsts[0] or subject)["kind"]), configs)
    if settings:
        lines.append(f"settings behind it: {', '.join(settings)}")
    return tuple(lines)


def _rank(event: Event) -> int:
    kind = event["kind"]
    return _DECISIVE.index(kind) if kind in _DECISIVE else len(_DECISIVE)


def _decides(event: Event, key: tuple[str, int]) -> bool:
    return (event["task"], event["group_id"]) == key and event["kind"] in _DECISIVE


def _place(event: Event | None, train_step: int | None) -> str:
    step = "after the last step" if train_step is None else f"step {train_step}"
    if event is None:
        return step
    if event["kind"] in _EXPIRY:
        return f"{step}, {PLACES[event['place']]}"
    if event["kind"] == Kind.MEMBERS_RESET:
        return f"{step}, {Where.REFRESH}"
    return f"{step}, {'take' if event['kind'] == Kind.TAKEN else Where.PUT}"


def _description(event: Event | None, config: Config, other: Event | None) -> str:
    """What happened to the group on one side, given what happened to it on the other."""
    if event is None:
        return _spared(config, other) if other is not None else "nothing"
    tokens = [event[f"tokens_{index}"] for index in range(3)]
    match Kind(event["kind"]):
        case Kind.RESET:
            return f"expired {_reason(event, config)} and is generated again ({tokens[0]:,} tokens lost)"
        case Kind.DISCARDED:
            fresh = f", {tokens[1]:,} of them fresh" if tokens[1] else ""
            return f"expired {_reason(event, config)} and is discarded ({sum(tokens[:2]):,} tokens lost{fresh})"
        case Kind.MEMBERS_RESET:
            return f"more members expire ({tokens[0]:,} tokens lost)"
        case Kind.TAKEN:
            return f"taken with {tokens[0]:,} tokens trained and {tokens[1]:,} masked as stale"
        case Kind.SKIPPED:
            return "the put would not have happened"
        case Kind.RECONCILED:
            return f"{tokens[0]:,} held tokens are restarted and {tokens[1]:,} generated again"
        case Kind.FAILED:
            return "discarded as failed"
        case Kind.FILTERED:
            return "discarded as filtered"
    return f"put with {tokens[0]:,} tokens"


def _spared(config: Config, other: Event) -> str:
    """What it means on one side that nothing happened to a group, given what happened to it on the other."""
    if other["kind"] in _EXPIRY:
        limit = _limit(other, config)
        return "kept" if limit is None else f"kept (limit {limit})"
    if other["kind"] == Kind.TAKEN:
        return "not taken"
    return "put as recorded" if other["kind"] in (Kind.SKIPPED, Kind.RECONCILED) else "not"


def _reason(event: Event, config: Config) -> str:
    if event["reason"] < 0 or REASONS[event["reason"]] is ExpiryReason.ARRIVED_EXPIRED:
        return "as put"
    reason = REASONS[event["reason"]]
    limit = _limit(event, config)
    age = "" if event["age"] == NO_AGE else f" (staleness {event['age']}, limit {limit})"
    return f"by {reason}{age}"


def _limit(event: Event, config: Config) -> int | str | None:
    """The staleness at which the rule behind an expiry strikes under a config."""
    reason = REASONS[event["reason"]]
    if reason is ExpiryReason.ARRIVED_EXPIRED:
        return None
    if reason is ExpiryReason.SEQUENCE:
        return config.stale_threshold(event["task"])
    limit = config.token_stale_threshold(event["task"])
    return OFF if limit is None else limit


def _settings(task: str, kind: Kind, configs: Sequence[Config]) -> list[str]:
    """Settings that bear on such an event and differ: name, value under A, value under B."""
    values: dict[str, list[Any]] = {}
    for name in _TASK_SETTINGS.get(kind, ()):
        values[f"{name} of {task}"] = [getattr(config.task_policy(task), name) for config in configs]
    for section, name in _RUN_SETTINGS:
        values[name] = [getattr(getattr(config, section), name) for config in configs]
    return [f"{name} {_shown(a)} → {_shown(b)}" for name, (a, b) in values.items() if a != b]


def _shown(value: object) -> str:
    return OFF if value is None else str(value)
