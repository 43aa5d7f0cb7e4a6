"""What corrections do to a log, for people: an answer per method, then tables that show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tokenaudit.contracts.errors import NOTHING, plural, printable
from tokenaudit.corrections.result import (
    AdvantageSource,
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
    Command,
    Fit,
    Gap,
    Heading,
    Lines,
    Pairs,
    Paragraph,
    Table,
    TableColumn,
    TableRow,
    Tone,
    share_text,
)

_MOST_AGES = 8
_MOST_MATRIX = 8
"""Methods of which every pair is shown."""
_MOST_TASKS = 3
"""Tasks whose limits an answer names."""
_LONGEST_HEADING = 20
_TOTALS = (
    "share", "dropped", "dropped whole", "tokens in loss", "loss divides by", "kept", "responses", "masked before",
)  # fmt: skip
_WEIGHTS = ("mean", "effective", "at upper bound", "largest", "p95", "p5", "p50", "at lower bound")
"""Columns that a narrow terminal keeps longest first."""
_Parts = Mapping[str, PartFigures] | Mapping[Sign, PartFigures] | Mapping[Position, PartFigures]
_OVERLAP = ("both drop", "only the method", "only the limit", "in common")


def corrections_blocks(
    report: CorrectionsReport, next_command: Callable[[str], str], *, verbose: bool = False
) -> Iterator[Block]:
    """An answer per method, then totals, ages, staleness limits, and further parts of the tokens.

    Args:
        report: the report.
        next_command: the command that writes the masks of a method, by its name.
        verbose: also signs, positions and steps, and what the trainers log.
    """
    yield Heading("tokenaudit corrections", _title(report))
    labels = _labels(report.methods)
    ran = [replace(one, name=labels[one.name]) for one in report.methods if one.not_run is None]
    yield Lines([*(_answer(method, report) for method in ran), *_not_run(report.methods, labels)], Tone.STRONG)
    yield Gap()
    if ran:
        yield _totals(ran)
        yield Gap()
        if any(method.weights for method in ran):
            yield _weights([method for method in ran if method.weights])
            yield Gap()
        yield _ages(ran, report)
        yield Gap()
    if any(method.totals.dropped for method in ran):
        yield _limits(ran)
        yield Gap()
    if sum(method.totals.dropped > 0 for method in ran) > 1:
        yield _between(report, labels, [method for method in ran if method.totals.dropped])
        yield Gap()
    if len({task for method in ran for task in method.by_task}) > 1:
        yield _shares("dropped by task", ran, lambda method: method.by_task)
        yield Gap()
    if verbose:
        yield from _further(ran)
    settings = [(labels[one.name], printable(one.setting)) for one in report.methods]
    if ran and any(label != setting for label, setting in settings):
        yield Paragraph("the settings, as --method takes them", Tone.FAINT)
        yield Pairs(settings)
        yield Gap()
    lines = [f"note: {note}" for note in (*_caveats(report), *report.notes)]
    for note in dict.fromkeys(note for method in ran for note in method.notes):
        names = ", ".join(method.name for method in ran if note in method.notes)
        lines.append(f"note: {names}: {note}")
    if lines:
        yield Lines([printable(line) for line in lines], Tone.FAINT)
        yield Gap()
    yield from _next(report.methods, labels, next_command)


def _labels(methods: Sequence[MethodResult]) -> dict[str, str]:
    """What tables call each method: its name, or the preset alone where that is a text with options."""
    labels: dict[str, str] = {}
    for method in methods:
        short = method.trainer if ":" in method.name else printable(method.name)
        label, number = short, 1
        while label in labels.values() or (label != method.name and any(label == one.name for one in methods)):
            number += 1
            label = f"{short} #{number}"
        labels[method.name] = label
    return labels


def _title(report: CorrectionsReport) -> str:
    of = "taken" if report.is_taken else "completed (the log holds no take)"
    loss = f"{report.in_loss + report.not_judged.tokens:,} of {report.tokens:,} tokens in the loss"
    responses = f"{report.responses:,} responses {of}"
    return printable(f"{report.name} · {plural(report.steps, 'step')} · {responses} · {loss} · {report.device}")


def _answer(method: MethodResult, report: CorrectionsReport) -> str:
    """What a method drops, how much of it the config's limit keeps, and which limit comes nearest."""
    counts, weights = method.totals, method.weights
    if counts.dropped == 0:
        as_is = "" if ":" in method.setting else " with its defaults"
        if weights is None or weights.effective_share is None:
            return f"{method.name} drops nothing and weighs nothing{as_is}"
        if weights.mean == weights.largest == 1:
            return f"{method.name} drops nothing, and all weights are 1{as_is}"
        return f"{method.name} drops nothing; its weights leave an effective {100 * weights.effective_share:.1f} %"
    text = f"{method.name} drops {_dropped(counts)} of the tokens in the loss"
    text += _younger(method, report)
    nearest = method.nearest_limit
    if nearest is not None:
        text += f"; max_token_staleness {nearest.max_token_staleness} comes nearest"
        text += f" ({share_text(nearest.both, nearest.either)} in common)"
    return printable(text)


def _not_run(methods: Sequence[MethodResult], labels: Mapping[str, str]) -> Iterator[str]:
    """Which methods weren't run, by the reason."""
    for reason in dict.fromkeys(method.not_run for method in methods if method.not_run is not None):
        names = ", ".join(labels[method.name] for method in methods if method.not_run == reason)
        yield printable(f"not run: {names}: {reason}")


def _younger(method: MethodResult, report: CorrectionsReport) -> str:
    """How many dropped tokens the config's own limits would keep, where there are any."""
    limits = {task: limit for task, limit in report.max_token_staleness.items() if limit is not None}
    if not limits:
        return ""
    share = share_text(method.dropped_fresh, method.totals.dropped)
    same = len(set(limits.values())) == 1 and len(limits) == len(report.max_token_staleness)
    of = f"limit of {next(iter(limits.values()))}" if same else f"limits ({_by_task(limits)})"
    return f"; {share} of them are younger than your {of}"


def _by_task(limits: Mapping[str, int]) -> str:
    shown = [f"{task} {limit}" for task, limit in limits.items()]
    return ", ".join(shown[:_MOST_TASKS]) + (", …" if len(shown) > _MOST_TASKS else "")


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


def _totals(methods: Sequence[MethodResult]) -> Table:
    names = (
        "tokens in loss", "kept", "dropped", "share", "masked before", "responses", "dropped whole", "loss divides by",
    )  # fmt: skip
    rows = []
    for method in methods:
        counts = method.totals
        numbers = (counts.in_loss, counts.kept, counts.dropped)
        others = (counts.already_masked, counts.responses, counts.responses_dropped_whole, method.divisor)
        rows.append(TableRow([method.name, *_counted(numbers), _dropped(counts), *_counted(others)]))
    return _table("what each method keeps", names, rows, _TOTALS)


def _counted(numbers: Sequence[int]) -> list[str]:
    return [f"{number:,}" for number in numbers]


def _weights(methods: Sequence[MethodResult]) -> Table:
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


def _ages(methods: Sequence[MethodResult], report: CorrectionsReport) -> Table:
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


def _limits(methods: Sequence[MethodResult]) -> Table:
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


def _between(report: CorrectionsReport, labels: Mapping[str, str], methods: Sequence[MethodResult]) -> Table:
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


def _shares(caption: str, methods: Sequence[MethodResult], parts_of: Callable[[MethodResult], _Parts]) -> Table:
    parts = [{str(key): part for key, part in parts_of(method).items()} for method in methods]
    names = list(dict.fromkeys(name for of_method in parts for name in of_method))
    rows = [
        TableRow([method.name, *(_share([of_method[name]] if name in of_method else []) for name in names)])
        for method, of_method in zip(methods, parts, strict=True)
    ]
    return _table(caption, names, rows, free_text=True)


def _further(methods: Sequence[MethodResult]) -> Iterator[Block]:
    yield _shares("dropped by sign of the advantage", methods, lambda method: method.by_sign)
    yield Gap()
    yield _shares("dropped by position in the response", methods, lambda method: method.by_position)
    yield Gap()
    yield _every_limit(methods)
    yield Gap()
    steps = list(dict.fromkeys(step.train_step for method in methods for step in method.by_step))
    shares = [{step.train_step: _dropped(step.counts) for step in method.by_step} for method in methods]
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


def _dropped(counts: TokenCounts) -> str:
    return share_text(counts.dropped, counts.in_loss)


def _caveats(report: CorrectionsReport) -> Iterator[str]:
    left_out = report.not_judged
    if left_out.tokens:
        reasons = {
            "have no `logprobs`": left_out.no_logprobs,
            "have no `train_logprobs`": left_out.no_train_logprobs,
            "have lists of another length": left_out.other_length,
            "are null": left_out.null,
            "are not finite": left_out.not_finite,
            "are sentinels such as -9999": left_out.sentinel,
        }
        said = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        yield f"{plural(left_out.tokens, 'token')} in the loss not judged: {said}"
    if report.advantage_source in (AdvantageSource.REWARD, AdvantageSource.BOTH):
        which = "some responses have" if report.advantage_source is AdvantageSource.BOTH else "the log has"
        yield f"{which} no `advantage`; its sign is that of the reward less the mean of the group's taken members"
    if report.unknown_advantages:
        unknown = plural(report.unknown_advantages, "response")
        yield f"the advantage of {unknown} isn't known; record `advantage` or `reward`"


def _next(
    methods: Sequence[MethodResult], labels: Mapping[str, str], next_command: Callable[[str], str]
) -> Iterator[Block]:
    """How to write the mask of the method that drops most; else where to read on."""
    most = max(methods, key=lambda method: method.totals.dropped, default=None)
    if most is not None and most.totals.dropped:
        yield Paragraph(f"next, to write the masks of {labels[most.name]}:")
        yield Command(next_command(most.name))
    else:
        of = "how to record what they need" if all(one.not_run is not None for one in methods) else "what can be set"
        yield Paragraph(f"next, {of}:")
        yield Command("tokenaudit help corrections")
