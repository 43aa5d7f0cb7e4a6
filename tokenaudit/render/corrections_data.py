"""What corrections do to a log, as JSON and as flat rows for CSV, JSON Lines and Parquet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tokenaudit import __version__
from tokenaudit.contracts.files import json_text
from tokenaudit.corrections.result import (
    CorrectionsReport,
    LimitOverlap,
    MethodResult,
    PartFigures,
    TokenCounts,
    WeightFigures,
)
from tokenaudit.render.blocks import csv_lines
from tokenaudit.render.json_documents import PlainNumber

KIND_CORRECTIONS = "tokenaudit.corrections"
CORRECTIONS_SCHEMA_VERSION = 1
COUNTS = tuple(one.name for one in fields(TokenCounts))
WEIGHTS = tuple(one.name for one in fields(WeightFigures))
OVERLAPS = ("both", "only_method", "only_limit")
ROW_COLUMNS = ("method", "part", "key", *COUNTS, *(f"weight_{name}" for name in WEIGHTS), *OVERLAPS, "value")
"""Columns of a flat row: a method, which part of the tokens, which of them, and its figures."""


@dataclass
class WeightsJson:
    """Weights of kept tokens; null where a method has no such bound, or no such figure is made."""

    mean: PlainNumber
    p5: PlainNumber
    p50: PlainNumber
    p95: PlainNumber
    largest: PlainNumber
    at_low: PlainNumber
    at_high: PlainNumber
    effective_share: PlainNumber
    not_finite: int


@dataclass
class PartJson:
    """A part of the tokens.

    Attributes:
        already_masked: tokens that the log's own mask leaves out of the loss.
        in_loss: tokens in the loss that can be judged.
        dropped_share: dropped tokens over those in the loss; null without any.
        responses_dropped_whole: responses with tokens in the loss here, and none that is kept.
        weights: null where the method has none, or keeps no token here.
        train_step: the step, in `by_step`.
        divisor: tokens that the loss divides by, in `by_step`.
        metrics: what the trainer logs, in `by_step`.
        task: the task, in `by_task`.
        staleness: train steps, in `by_age`.
        sign: of the advantage, in `by_sign`.
        position: which part of a response, in `by_position`.
    """

    already_masked: int
    in_loss: int
    kept: int
    dropped: int
    dropped_share: float | None
    responses: int
    responses_dropped_whole: int
    weights: WeightsJson | None
    train_step: int = 0
    divisor: int = 0
    metrics: dict[str, PlainNumber] | None = None
    task: str = ""
    staleness: int = 0
    sign: str = ""
    position: str = ""


@dataclass
class LimitJson:
    """A method beside a limit on the staleness of tokens: tokens that both drop, and that only one does."""

    max_token_staleness: int
    both: int
    only_method: int
    only_limit: int
    jaccard: float


@dataclass
class MethodJson:
    """A method.

    Attributes:
        setting: the preset and the options that were given, as `--method` takes them.
        options: all options under the trainer's names, as resolved.
        not_run: why it wasn't run; null where it was.
        dropped_fresh: dropped tokens that the `max_token_staleness` of their task keeps.
        divisor: tokens that the loss divides by, all steps together.
        metrics: what the trainer logs, under its own names: the mean over steps.
        nearest_limit: the limit whose dropped tokens overlap most with the method's.
    """

    name: str
    setting: str
    trainer: str
    dtype: str
    options: dict[str, Any]
    source: str
    divides_by: str
    notes: list[str]
    not_run: str | None
    unknown_advantage_tokens: int
    totals: PartJson
    dropped_fresh: int
    divisor: int
    metrics: dict[str, PlainNumber]
    by_step: list[PartJson]
    by_task: list[PartJson]
    by_age: list[PartJson]
    by_sign: list[PartJson]
    by_position: list[PartJson]
    staleness: list[LimitJson]
    nearest_limit: LimitJson | None


@dataclass
class BetweenJson:
    """Two methods: tokens that both drop, and that only one does."""

    first: str
    second: str
    both: int
    only_first: int
    only_second: int
    jaccard: float


@dataclass
class CorrectionsJson:
    """What corrections do to a log.

    Attributes:
        is_taken: whether responses are those that steps took; else all completed ones.
        in_loss: tokens in the loss that can be judged.
        not_judged: tokens in the loss that can't, by reason, and responses left out as a whole.
        max_token_staleness: of the config, by task; null: no limit.
    """

    tool: str
    name: str
    is_taken: bool
    steps: int
    responses: int
    tokens: int
    in_loss: int
    not_judged: dict[str, int]
    sync_weights_interval: int
    max_token_staleness: dict[str, int | None]
    advantage_source: str
    unknown_advantages: int
    notes: list[str]
    device: str
    methods: list[MethodJson]
    between: list[BetweenJson]


def corrections_json(report: CorrectionsReport) -> str:
    """The report as JSON; equal ones give equal bytes."""
    own = ("name", "is_taken", "steps", "responses", "tokens", "in_loss", "sync_weights_interval", "unknown_advantages")
    return json_text(
        {"kind": KIND_CORRECTIONS, "schema_version": CORRECTIONS_SCHEMA_VERSION, "tool": f"tokenaudit {__version__}"}
        | {name: getattr(report, name) for name in own}
        | {
            "not_judged": asdict(report.not_judged),
            "max_token_staleness": dict(report.max_token_staleness),
            "advantage_source": report.advantage_source,
            "notes": list(report.notes),
            "device": report.device,
            "methods": [_method(method) for method in report.methods],
            "between": [asdict(pair) | {"jaccard": pair.jaccard} for pair in report.between],
        }
    )


def _method(method: MethodResult) -> dict[str, Any]:
    own = (
        "name", "setting", "trainer", "dtype", "source", "divides_by", "not_run", "unknown_advantage_tokens",
        "dropped_fresh", "divisor",
    )  # fmt: skip
    return {name: getattr(method, name) for name in own} | {
        "options": _plain(method.options),
        "notes": list(method.notes),
        "totals": _part(PartFigures(method.totals, method.weights)),
        "metrics": _plain(method.metrics),
        "by_step": [
            {"train_step": step.train_step, "divisor": step.divisor}
            | _part(PartFigures(step.counts, step.weights))
            | {"metrics": _plain(step.metrics)}
            for step in method.by_step
        ],
        "by_task": [{"task": task} | _part(part) for task, part in method.by_task.items()],
        "by_age": [{"staleness": age} | _part(part) for age, part in method.by_age.items()],
        "by_sign": [{"sign": str(sign)} | _part(part) for sign, part in method.by_sign.items()],
        "by_position": [{"position": str(place)} | _part(part) for place, part in method.by_position.items()],
        "staleness": [_limit(limit) for limit in method.staleness],
        "nearest_limit": None if method.nearest_limit is None else _limit(method.nearest_limit),
    }


def _limit(limit: LimitOverlap) -> dict[str, Any]:
    return asdict(limit) | {"jaccard": limit.jaccard}


def _part(part: PartFigures) -> dict[str, Any]:
    weights = None if part.weights is None else _plain({name: getattr(part.weights, name) for name in WEIGHTS})
    return _counts(part.counts) | {"dropped_share": part.counts.dropped_share, "weights": weights}


def _counts(counts: TokenCounts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in COUNTS}


def _plain(value: Any) -> Any:
    """Values as JSON holds them: infinite numbers, and those that are none, as texts."""
    match value:
        case Mapping():
            return {name: _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case float() if not math.isfinite(value):
            return str(value)
    return value


def corrections_rows(report: CorrectionsReport) -> Iterator[dict[str, Any]]:
    """One row per method and part of the tokens, limit, or figure that the trainer logs; see `ROW_COLUMNS`."""
    for method in report.methods:
        if method.not_run is not None:
            yield _row(method, "not run", method.not_run)
            continue
        yield _row(method, "total", "", PartFigures(method.totals, method.weights))
        for step in method.by_step:
            yield _row(method, "step", str(step.train_step), PartFigures(step.counts, step.weights))
        groups = {
            "task": method.by_task, "age": method.by_age, "sign": method.by_sign, "position": method.by_position,
        }  # fmt: skip
        for name, parts in groups.items():
            for key, part in parts.items():
                yield _row(method, name, str(key), part)
        for limit in method.staleness:
            overlap = {name: getattr(limit, name) for name in OVERLAPS}
            yield _row(method, "max_token_staleness", str(limit.max_token_staleness)) | overlap
        for name, value in method.metrics.items():
            yield _row(method, "metric", name) | {"value": float(value)}


def corrections_records(report: CorrectionsReport) -> Iterator[dict[str, Any]]:
    """The flat rows as JSON holds them."""
    return map(_plain, corrections_rows(report))


def _row(method: MethodResult, part: str, key: str, figures: PartFigures | None = None) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(ROW_COLUMNS) | {"method": method.name, "part": part, "key": key}
    if figures is not None:
        row |= _counts(figures.counts)
        if figures.weights is not None:
            row |= {f"weight_{name}": getattr(figures.weights, name) for name in WEIGHTS}
    return row


def corrections_csv(report: CorrectionsReport) -> str:
    """The flat rows as CSV."""
    return csv_lines(ROW_COLUMNS, corrections_rows(report))
