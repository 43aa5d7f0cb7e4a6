"""A comparison as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tokenaudit.compare.compare import Comparison, Effect, FigureChange
from tokenaudit.render.console import drawn
from tokenaudit.render.diff_text import (
    CHANGE_HEADER,
    GROUP_HEADER,
    SETTING_HEADER,
    change_cells,
    counterfactual_line,
    divergence_lines,
    group_lines,
    group_rows,
    id_lines,
    largest_rows,
    same_line,
    setting_cells,
    shown_totals,
    side_line,
    step_lines,
    verdict,
)

_STYLES = {Effect.NONE: "", Effect.BETTER: "green", Effect.WORSE: "red"}


def render_diff_table(
    comparison: Comparison, *, all_figures: bool = False, color: bool = False, unicode: bool = True
) -> str:
    """Draw a comparison; ends with a line feed.

    Args:
        comparison: what to draw.
        all_figures: show totals that are the same, too.
        color: use colour.
        unicode: use characters beyond ASCII.
    """
    return drawn(_parts(comparison, all_figures, unicode), color=color, unicode=unicode)


def _parts(comparison: Comparison, all_figures: bool, unicode: bool) -> Iterator[RenderableType]:
    lines = box.SIMPLE_HEAD if unicode else box.ASCII
    yield Text(side_line("A", comparison.a), style="bold")
    yield Text(side_line("B", comparison.b), style="bold")
    yield Text()
    if comparison.settings:
        yield _table(lines, SETTING_HEADER, [setting_cells(change) for change in comparison.settings], texts=4)
        yield Text()
    totals = shown_totals(comparison, all_figures=all_figures)
    if totals:
        yield _change_table(lines, "total", [(change.figure.name, change) for change in totals])
    same = same_line(comparison, totals)
    if same:
        yield Text(same, style="dim")
    yield Text()
    first, *why = divergence_lines(comparison)
    yield Text(first, style="bold")
    yield from (Text(f"  {line}") for line in why)
    yield from map(Text, step_lines(comparison))
    yield Text()
    if comparison.ranked_by is not None:
        yield Text(f"steps with the largest change of {comparison.ranked_by.name}", style="bold")
        yield _change_table(lines, "step", largest_rows(comparison))
        yield Text()
    if comparison.groups and comparison.groups.changes:
        yield _table(lines, GROUP_HEADER, group_rows(comparison), texts=1)
    yield from map(Text, (*group_lines(comparison), *id_lines(comparison)))
    yield Text(counterfactual_line(comparison))
    yield Text()
    yield Text(verdict(comparison), style="bold")


def _table(lines: box.Box, header: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int) -> Table:
    table = Table(box=lines, show_edge=False, pad_edge=False, header_style="bold")
    for position, name in enumerate(header):
        table.add_column(name, justify="left" if position < texts else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _change_table(lines: box.Box, label: str, rows: Sequence[tuple[str, FigureChange]]) -> Table:
    table = Table(box=lines, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column(label, no_wrap=True, justify="left")
    for name in CHANGE_HEADER:
        table.add_column(name, no_wrap=True, justify="left" if name == "effect" else "right")
    for name, change in rows:
        style = _STYLES[change.effect]
        table.add_row(Text(name), *(Text(cell, style=style) for cell in change_cells(change)))
    return table
