"""A comparison: what it says in words and cells, and its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tokenaudit.compare.compare import Comparison, Effect, FigureChange, Side, setting_cells
from tokenaudit.compare.exact import change_text, distinct_texts, number_text, relative_text
from tokenaudit.compare.metric_values import Missing
from tokenaudit.contracts.errors import plural, printable
from tokenaudit.render.blocks import (
    COLUMNS_HINT,
    NOTHING,
    Block,
    Fit,
    Form,
    Gap,
    Heading,
    Lines,
    Paragraph,
    Phrase,
    Table,
    TableColumn,
    TableRow,
    Tone,
    only,
    share_text,
)
from tokenaudit.render.cost import cost_blocks

_MOST_NAMES = 8
_CHANGE_FIT = Fit(("A", "B", "change", "effect", "relative"), columns_hint=COLUMNS_HINT)
_TONES = {Effect.NONE: Tone.PLAIN, Effect.BETTER: Tone.GOOD, Effect.WORSE: Tone.BAD}


def diff_blocks(comparison: Comparison, *, all_figures: bool = False) -> Iterator[Block]:
    """Sides, verdict, settings, totals, first difference, steps and groups.

    Args:
        comparison: what to show.
        all_figures: show totals that are the same, too.
    """
    yield Heading("tokenaudit diff")
    sides = [side_line("A", comparison.a), side_line("B", comparison.b)]
    yield Lines(sides, Tone.STRONG)
    yield Gap()
    summary = Paragraph(verdict(comparison), Tone.STRONG, literal=True)
    yield from only(Form.DOCUMENT, summary)
    if comparison.settings:
        columns = [TableColumn(name, "left", is_label=name == "setting") for name in ("setting", "A", "B", "from")]
        rows = [TableRow(setting_cells(change)) for change in comparison.settings]
        yield Table(columns, rows, free_text=True, fit=Fit(("A", "B", "from")))
        yield Gap()
    totals = [change for change in comparison.totals if all_figures or change.differs]
    if totals:
        yield _change_table("total", [(change.figure.name, change) for change in totals])
    same = [change.figure.name for change in comparison.totals if change not in totals]
    if same:
        yield Paragraph(f"{plural(len(same), 'metric')} the same: {_names(same)}", Tone.FAINT, literal=True)
    yield Gap()
    yield from cost_blocks(comparison.a.result.cost, comparison.b.result.cost)
    first, *why = divergence_lines(comparison)
    yield Paragraph(first, Tone.STRONG, literal=True)
    yield Lines(why, indent=2)
    yield Lines(step_lines(comparison))
    yield Gap()
    if comparison.ranked_by is not None:
        caption = f"steps with the largest change of {comparison.ranked_by.name}"
        yield _change_table("step", largest_rows(comparison), caption)
        yield Gap()
    if comparison.groups and comparison.groups.changes:
        columns = [TableColumn("groups that changed fate", "left"), TableColumn("groups"), TableColumn("tokens")]
        yield Table(columns, [TableRow(cells) for cells in group_rows(comparison)])
    yield Lines([*group_lines(comparison), *id_lines(comparison), counterfactual_line(comparison)])
    yield Gap()
    yield from only(Form.TERMINAL, summary)


def _change_table(label: str, rows: Sequence[tuple[str, FigureChange]], caption: str = "") -> Table:
    columns = [
        TableColumn(label, "left", is_label=True),
        *map(TableColumn, ("A", "B", "change", "relative")),
        TableColumn("effect", "left"),
    ]
    return Table(columns, [_change_row(name, change) for name, change in rows], caption, fit=_CHANGE_FIT)


def _change_row(name: str, change: FigureChange) -> TableRow:
    return TableRow((name, *(Phrase(cell, _TONES[change.effect]) for cell in change_cells(change))))


def side_line(name: str, side: Side) -> str:
    """What one side is."""
    inputs = ", ".join(printable(entry.name) for entry in side.result.inputs)
    steps = plural(len(side.result.steps), "step")
    selected = f" ({side.result.selection} only, totals are of the whole run)" if side.result.selection else ""
    return f"{name}: {printable(side.label)} · {inputs} · {steps}{selected} · {side.result.timeline} timeline"


def change_cells(change: FigureChange) -> tuple[str, str, str, str, str]:
    """Both values, the absolute and the relative change, and what it means."""
    if isinstance(change.a, Missing) or isinstance(change.b, Missing) or change.a is None or change.b is None:
        a, b = number_text(change.a, change.figure), number_text(change.b, change.figure)
        return a, b, "0" if not change.differs else NOTHING, NOTHING, ""
    a, b = distinct_texts([change.a, change.b], change.figure)
    moved = change_text(change.a, change.b, change.figure)
    return a, b, moved, relative_text(change.a, change.b), str(change.effect)


def divergence_lines(comparison: Comparison) -> list[str]:
    """Where the runs part, and why."""
    divergence = comparison.divergence
    if divergence is None:
        return ["no step differs" if comparison.a.result.steps else "there is no step to compare"]
    step = "after the last step" if divergence.train_step is None else f"at step {divergence.train_step}"
    names = _names([figure.name for figure in divergence.figures])
    lines = [f"first difference {step}" + (f": {names}" if names else "")]
    lines += [printable(line) for line in divergence.why]
    if not divergence.why:
        lines.append("saved results don't say why: compare configs with --log")
    return lines


def step_lines(comparison: Comparison) -> list[str]:
    """Steps that only one side has, and what is compared of results that hold selected steps."""
    lines = [
        f"{plural(len(steps), 'step')} only in {name}: {_ranges(steps)}"
        for name, steps in (("A", comparison.only_a), ("B", comparison.only_b))
        if steps
    ]
    selections = dict.fromkeys(side.result.selection for side in (comparison.a, comparison.b) if side.result.selection)
    if selections:
        lines.append(f"of the steps, only {' and '.join(map(printable, selections))} are compared")
    return lines


def largest_rows(comparison: Comparison) -> list[tuple[str, FigureChange]]:
    """Step and change, for the steps with the largest change."""
    return [
        (str(step.train_step), change)
        for step in comparison.largest
        for change in step.changes
        if change.figure is comparison.ranked_by
    ]


def group_lines(comparison: Comparison) -> list[str]:
    """How many groups changed fate, or why that isn't known."""
    groups = comparison.groups
    if groups is None:
        return [f"fates of groups: not available; {comparison.groups_missing}"]
    lines = [f"{groups.changed:,} of {plural(groups.compared, 'group')} changed fate"]
    return [*lines, groups.missing] if groups.missing else lines


def id_lines(comparison: Comparison) -> list[str]:
    """The groups of every change, where they were asked for."""
    changes = comparison.groups.changes if comparison.groups else ()
    return [
        f"{change.change}, {printable(task)}: {' '.join(map(str, ids))}"
        for change in changes
        for task, ids in change.ids.items()
    ]


def group_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Change, groups and tokens."""
    changes = comparison.groups.changes if comparison.groups else ()
    return [
        (change.change, f"{change.groups:,}", NOTHING if change.tokens is None else f"{change.tokens:,}")
        for change in changes
    ]


def counterfactual_line(comparison: Comparison) -> str:
    """How much of the figures rests on rules for puts that went another way in the log."""
    shares = []
    sides = (("B", comparison.b), ("A", comparison.a))
    for name, side in sides:
        coverage = side.result.coverage
        whole = coverage.counterfactual_of_tokens
        share = share_text(coverage.counterfactual_tokens, whole) if whole else "none"
        shares.append(f"{share} of {name}'s tokens")
    is_for_simulation = any(side.result.coverage.is_for_simulation for _, side in sides)
    return f"{', '.join(shares)} rest on counterfactual rules{', --simulate decides' if is_for_simulation else ''}"


def verdict(comparison: Comparison) -> str:
    """What the comparison comes to, in a line."""
    effects = [change.effect for change in comparison.totals if change.differs]
    if not comparison.differs:
        return "nothing differs"
    parts = [f"{effects.count(effect)} {effect}" for effect in (Effect.WORSE, Effect.BETTER) if effects.count(effect)]
    neutral = effects.count(Effect.NONE)
    if neutral:
        parts.append(f"{neutral} neither")
    figures = f"{plural(len(effects), 'metric')} of the totals {'differs' if len(effects) == 1 else 'differ'}"
    return " · ".join(
        (
            figures + (f" ({', '.join(parts)})" if parts else ""),
            plural(len(comparison.steps) + len(comparison.only_a) + len(comparison.only_b), "step"),
            plural(len(comparison.settings), "setting"),
        )
    )


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _ranges(steps: Iterable[int]) -> str:
    """Steps as ranges, such as 1..3, 7."""
    ranges: list[list[int]] = []
    for step in sorted(steps):
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    return _names([str(low) if low == high else f"{low}..{high}" for low, high in ranges])
