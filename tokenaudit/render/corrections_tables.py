"""The tables of what corrections do to a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tokenaudit.contracts.errors import NOTHING
from tokenaudit.corrections.result import (
    CorrectionsReport,
    LimitOverlap,
    MethodResult,
    PartFigures,
    Position,
    Sign,
    TokenCounts,
)
from tokenaudit.lifecycle.staleness import token_stale_threshold
from tokenaudit.render.blocks import (
    COLUMNS_HINT,
    Block,
    Fit,
    Gap,
    Table,
    TableColumn,
    TableRow,
    Tone,
    share_text,
)

_MOST_AGES = 8
_MOST_MATRIX = 8
"""Methods of which every pair is shown."""
_LONGEST_HEADING = 20
_TOTALS = (
    "share", "dropped", "dropped whole", "tokens in loss", "loss divides by", "kept", "responses", "masked before",
)  # fmt: skip
_WEIGHTS = ("mean", "effective", "at upper bound", "largest", "p95", "p5", "p50", "at lower bound")
"""Columns that a narrow terminal keeps longest first."""
_Parts = Mapping[str, PartFigures] | Mapping[Sign, PartFigures] | Mapping[Position, PartFigures]
_OVERLAP = ("both drop", "only the method", "only the limit", "in common")


def _label() -> TableColumn:
    return TableColumn("method", "left", is_label=True, free_text=True)


def _table(
    caption: str,
    names: Sequence[str],
    rows: Sequence[TableRow],
    priority: Sequence[str] = (),
    *,
    free_text: bool = False,
) -> Table:
    """A table of methods; `free_text`: the names of columns come from files."""
    columns = [_label(), *(TableColumn(name, free_text=free_text) for name in names)]
    return Table(columns, rows, caption, fit=Fit(["method", *(priority or names)], columns_hint=COLUMNS_HINT))


def totals_table(methods: Sequence[MethodResult]) -> Table:
    """What becomes of the tokens and responses under each method."""
    names = (
        "tokens in loss", "kept", "dropped", "share", "masked before", "responses", "dropped whole", "loss divides by",
    )  # fmt: skip
    rows = []
    for method in methods:
        counts = method.totals
        numbers = (counts.in_loss, counts.kept, counts.dropped)
        others = (counts.already_masked, counts.responses, counts.responses_dropped_whole, method.divisor)
        rows.append(TableRow([method.name, *_counted(numbers), dropped_share(counts), *_counted(others)]))
    return _table("what each method keeps", names, rows, _TOTALS)


def _counted(numbers: Sequence[int]) -> list[str]:
    return [f"{number:,}" for number in numbers]


def weights_table(methods: Sequence[MethodResult]) -> Table:
    """The weights of each method, which all have some."""
    names = ("mean", "p5", "p50", "p95", "largest", "at lower bound", "at upper bound", "effective")
    rows = []
    for method in methods:
        weights = method.weights
        assert weights is not None
        numbers = (weights.mean, weights.p5, weights.p50, weights.p95, weights.largest)
        shares = (weights.at_low, weights.at_high, weights.effective_share)
        rows.append(TableRow([method.name, *map(_number, numbers), *map(_percent, shares)]))
    return _table("weights of the tokens kept", names, rows, _WEIGHTS)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"


def _percent(share: float | None) -> str:
    if share is None:
        return NOTHING
    return "<0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def ages_table(methods: Sequence[MethodResult], report: CorrectionsReport) -> Table:
    """Shares by age; the oldest ages stand together."""
    ages = sorted({age for method in methods for age in method.by_age})
    alone, old = ages[:_MOST_AGES], ages[_MOST_AGES:]
    names = [*map(str, alone), *([f"{old[0]}+"] if old else [])]
    groups = [[age] for age in alone] + ([old] if old else [])
    sizes = [sum(part.counts.in_loss for part in _picked(methods[0].by_age, group)) for group in groups]
    rows = [TableRow(["tokens in the loss", *_counted(sizes)], Tone.FAINT)]
    rows += [
        TableRow([method.name, *(_share(_picked(method.by_age, group)) for group in groups)]) for method in methods
    ]
    caption = "dropped by age (staleness in train steps"
    limits = set(report.max_token_staleness.values())
    threshold = token_stale_threshold(limits.pop(), report.sync_weights_interval) if len(limits) == 1 else None
    if threshold is not None:
        caption += f"; your limit keeps ages up to {threshold - 1}"
    return _table(f"{caption})", names, rows)


def _picked(parts: Mapping[int, PartFigures], keys: Sequence[int]) -> list[PartFigures]:
    return [parts[key] for key in keys if key in parts]


def _share(parts: Sequence[PartFigures]) -> str:
    return share_text(sum(part.counts.dropped for part in parts), sum(part.counts.in_loss for part in parts))


def limits_table(methods: Sequence[MethodResult]) -> Table:
    """The nearest limit of each method, and what each drops that the other doesn't."""
    rows = []
    for method in methods:
        nearest = method.nearest_limit
        if nearest is None or method.totals.dropped == 0:
            rows.append(TableRow([method.name, NOTHING, *[NOTHING] * len(_OVERLAP)]))
            continue
        rows.append(TableRow([method.name, *_limit_cells(nearest)]))
    return _table("beside a limit on the staleness of tokens", ("nearest max_token_staleness", *_OVERLAP), rows)


def _every_limit(methods: Sequence[MethodResult]) -> Table:
    """Every limit beside every method that drops something."""
    rows = [
        TableRow([method.name, *_limit_cells(limit)])
        for method in methods
        if method.totals.dropped
        for limit in method.staleness
    ]
    return _table("beside every limit on the staleness of tokens", ("max_token_staleness", *_OVERLAP), rows)


def _limit_cells(limit: LimitOverlap) -> list[str]:
    counts = _counted((limit.both, limit.only_method, limit.only_limit))
    return [str(limit.max_token_staleness), *counts, share_text(limit.both, limit.either)]


def between_table(report: CorrectionsReport, labels: Mapping[str, str], methods: Sequence[MethodResult]) -> Table:
    """The share of dropped tokens that two methods have in common: every pair of a few, else the nearest of each."""
    common: dict[tuple[str, str], str] = {}
    nearest: dict[str, tuple[float, str]] = {}
    for pair in report.between:
        text = share_text(pair.both, pair.either)
        first, second = labels[pair.first], labels[pair.second]
        for one, other in ((first, second), (second, first)):
            common[one, other] = text
            if pair.both and pair.jaccard > nearest.get(one, (0.0, ""))[0]:
                nearest[one] = (pair.jaccard, other)
    caption = "dropped tokens in common (of those that either drops)"
    names = [method.name for method in methods]
    if len(names) <= _MOST_MATRIX and max(map(len, names)) <= _LONGEST_HEADING:
        rows = [TableRow([one, *(common.get((one, other), "") for other in names)]) for one in names]
        return _table(caption, names, rows, free_text=True)
    columns = [_label(), TableColumn("nearest method", "left", free_text=True), TableColumn("in common")]
    rows = []
    for method in methods:
        other = nearest.get(method.name, (0.0, ""))[1]
        rows.append(TableRow([method.name, other or NOTHING, common[method.name, other] if other else NOTHING]))
    return Table(columns, rows, caption)


def shares_table(caption: str, methods: Sequence[MethodResult], parts_of: Callable[[MethodResult], _Parts]) -> Table:
    """The share that each method drops of every part of the tokens."""
    parts = [{str(key): part for key, part in parts_of(method).items()} for method in methods]
    names = list(dict.fromkeys(name for of_method in parts for name in of_method))
    rows = [
        TableRow([method.name, *(_share([of_method[name]] if name in of_method else []) for name in names)])
        for method, of_method in zip(methods, parts, strict=True)
    ]
    return _table(caption, names, rows, free_text=True)


def further_blocks(methods: Sequence[MethodResult]) -> Iterator[Block]:
    """By sign, position, limit and step, and what the trainers log."""
    yield shares_table("dropped by sign of the advantage", methods, lambda method: method.by_sign)
    yield Gap()
    yield shares_table("dropped by position in the response", methods, lambda method: method.by_position)
    yield Gap()
    yield _every_limit(methods)
    yield Gap()
    steps = list(dict.fromkeys(step.train_step for method in methods for step in method.by_step))
    shares = [{step.train_step: dropped_share(step.counts) for step in method.by_step} for method in methods]
    columns = [TableColumn("step", is_label=True), *(TableColumn(method.name, free_text=True) for method in methods)]
    rows = [TableRow([str(step), *(of_step.get(step, NOTHING) for of_step in shares)]) for step in steps]
    yield Table(columns, rows, "dropped by step", fit=Fit(["step", *(method.name for method in methods)]))
    yield Gap()
    for method in methods:
        rows = [TableRow([name, _number(value)]) for name, value in method.metrics.items()]
        if rows:
            columns = [TableColumn("figure", "left", is_label=True), TableColumn("mean over steps")]
            yield Table(columns, rows, f"what {method.trainer} logs under {method.name}")
            yield Gap()


def dropped_share(counts: TokenCounts) -> str:
    """Dropped tokens of those in the loss."""
    return share_text(counts.dropped, counts.in_loss)
