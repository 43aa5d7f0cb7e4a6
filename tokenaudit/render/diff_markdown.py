"""A comparison as Markdown, for pull requests."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.compare.compare import Comparison
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
from tokenaudit.render.markdown import inline, markdown_table


def render_diff_markdown(comparison: Comparison, *, all_figures: bool = False) -> str:
    """Sides, verdict, settings, totals, first difference, steps and groups."""
    return "\n".join(_blocks(comparison, all_figures)).rstrip("\n") + "\n"


def _blocks(comparison: Comparison, all_figures: bool) -> Iterator[str]:
    yield "## tokenaudit diff\n"
    yield f"- {inline(side_line('A', comparison.a))}"
    yield f"- {inline(side_line('B', comparison.b))}\n"
    yield f"**{verdict(comparison)}**\n"
    if comparison.settings:
        rows = [setting_cells(change) for change in comparison.settings]
        yield markdown_table(SETTING_HEADER, rows, texts=4, cell=inline) + "\n"
    totals = shown_totals(comparison, all_figures=all_figures)
    if totals:
        rows = [(change.figure.name, *change_cells(change)) for change in totals]
        yield markdown_table(("total", *CHANGE_HEADER), rows) + "\n"
    same = same_line(comparison, totals)
    if same:
        yield f"{same}\n"
    first, *why = divergence_lines(comparison)
    yield f"**{first}**\n"
    yield from (f"- {inline(line)}" for line in (*why, *step_lines(comparison)))
    yield ""
    if comparison.ranked_by is not None:
        yield f"Steps with the largest change of {comparison.ranked_by.name}:\n"
        rows = [(step, *change_cells(change)) for step, change in largest_rows(comparison)]
        yield markdown_table(("step", *CHANGE_HEADER), rows) + "\n"
    if comparison.groups and comparison.groups.changes:
        yield markdown_table(GROUP_HEADER, group_rows(comparison)) + "\n"
    for line in (*group_lines(comparison), *id_lines(comparison), counterfactual_line(comparison)):
        yield f"- {inline(line)}"
