"""The result as a table for people: steps, a small chart, where the tokens went, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tokenaudit.contracts import metrics as m
from tokenaudit.render.console import drawn
from tokenaudit.render.summary import (
    DROPPED_SHARE,
    STEP_METRICS,
    TASK_PRIORITY,
    dropped_shares,
    expired_by_step,
    ledger_lines,
    peak_step,
    simulation_lines,
    step_columns,
    step_values,
    task_header,
    task_rows,
    title,
    verdict,
    width_priority,
)
from tokenaudit.render.text import count_text, printable, share_text, sparkline, value_text
from tokenaudit.replay.result import EXPIRED_IDS, TAKEN_IDS, TASKS, TRAIN_STEP, Result, RowData, intervals_text

SHOWN_ROWS = 40
"""Step rows that a terminal shows; longer runs are cut in the middle."""
_CHART_WIDTH = 60
_STEP, _TASK = "step", "task"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How to draw.

    Attributes:
        by_task: one row per step and task.
        width: columns of the terminal; None: not a terminal, nothing is left out.
        color: use colour.
        unicode: use characters beyond ASCII for lines and bars.
    """

    by_task: bool = False
    width: int | None = None
    color: bool = False
    unicode: bool = True


class _Line(NamedTuple):
    """One line of the table of steps, already text."""

    label: str
    task: str
    cells: dict[str, str]
    is_total: bool = False


def render_table(result: Result, options: TableOptions) -> str:
    """Draw a result; ends with a line feed."""
    return drawn(_parts(result, options), width=options.width, color=options.color, unicode=options.unicode)


def _parts(result: Result, options: TableOptions) -> Iterator[RenderableType]:
    yield Text(_wrapped(title(result), options), style="bold")
    if result.steps:
        yield Text()
        yield from _steps_table(result, options)
        yield from _charts(result, options)
        yield Text()
    yield _task_table(result, options)
    yield Text()
    yield _ledger_table(result, options)
    yield from _group_lines(result)
    if result.intervals:
        yield Text()
        yield Text(_wrapped(f"versions are spans: {intervals_text(result.intervals)}", options))
    yield Text()
    yield Text(_wrapped(verdict(result), options), style="bold")
    yield from (Text(_wrapped(line, options)) for line in simulation_lines(result))


def _wrapped(text: str, options: TableOptions) -> str:
    """Text broken between words where it is wider than the terminal."""
    return text if options.width is None else "\n".join(wrap(text, options.width, break_long_words=False))


def _task_table(result: Result, options: TableOptions) -> Table:
    header, rows = task_header(), task_rows(result)
    columns = {name: [row[position] for row in rows] for position, name in enumerate(header)}
    kept = _fitting(columns, TASK_PRIORITY, options.width)
    table = Table(box=_box(options), show_edge=False, pad_edge=False, header_style="bold")
    for name in (name for name in header if name in kept):
        table.add_column(_header(name), justify="left" if name == header[0] else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell for name, cell in zip(header, row, strict=True) if name in kept))
    return table


def _steps_table(result: Result, options: TableOptions) -> Iterator[RenderableType]:
    lines = list(_lines(result, options.by_task))
    body = [line for line in lines if not line.is_total]
    hidden = 0
    if options.width is not None and len(body) > SHOWN_ROWS:
        half = SHOWN_ROWS // 2
        hidden = len(body) - 2 * half
        lines = body[:half] + [_Line("…", "", {})] + body[-half:] + [line for line in lines if line.is_total]
    names = step_columns(result)
    columns = {name: [line.cells.get(name, "") for line in lines] for name in names}
    labels = {_STEP: [line.label for line in lines]} | (
        {_TASK: [line.task for line in lines]} if options.by_task else {}
    )
    loud = _loud_cells(result)
    urgent = [m.SHORTFALL_GROUPS.name] if loud[m.SHORTFALL_GROUPS.name] else []
    priority = list(dict.fromkeys((*labels, *urgent, *width_priority(result))))
    kept = _fitting(labels | columns, priority, options.width) - set(labels)
    shown = [name for name in names if name in kept]
    table = Table(box=_box(options), show_edge=False, pad_edge=False, header_style="bold")
    table.add_column(_STEP, justify="right", no_wrap=True)
    if options.by_task:
        table.add_column(_TASK, no_wrap=True)
    for name in shown:
        table.add_column(_header(name), justify="right", no_wrap=True)
    for line in lines:
        texts = [(name, line.cells.get(name, "")) for name in shown]
        cells = [Text(text, style="red" if text in loud.get(name, ()) else "") for name, text in texts]
        task = [Text(line.task)] if options.by_task else []
        table.add_row(Text(line.label), *task, *cells, style="bold" if line.is_total else None)
    yield table
    if hidden:
        selecting = "--steps" if result.simulation is None else "--show-steps"
        yield Text(
            f"{count_text(hidden, 'row')} not shown: {selecting} A..B selects some, a pipe shows all", style="dim"
        )
    if len(shown) < len(names):
        missing = count_text(len(names) - len(shown), "more column")
        yield Text(f"{missing} in a wider terminal, in a pipe, or with --format csv", style="dim")


def _lines(result: Result, by_task: bool) -> Iterator[_Line]:
    for row in result.steps:
        yield from _row_lines(str(row[TRAIN_STEP]), row, by_task)
    if not result.selection and any(_activity(result.tail)):
        yield from _row_lines("tail", result.tail, by_task)
    yield from _row_lines("whole run" if result.selection else "total", result.totals, by_task, is_total=True)


def _activity(row: RowData) -> Iterator[int | float]:
    return (row.get(metric.name) or 0 for metric in STEP_METRICS)


def _row_lines(label: str, row: RowData, by_task: bool, *, is_total: bool = False) -> Iterator[_Line]:
    if not by_task:
        yield _Line(label, "", _cells(row, row), is_total)
        return
    for task, part in row[TASKS].items():
        yield _Line(label, printable(task), _cells(part, row), is_total)


def _cells(part: RowData, row: RowData) -> dict[str, str]:
    dropped, produced = part.get(m.DROPPED_TOKENS.name) or 0, part.get(m.PRODUCED_TOKENS.name) or 0
    return step_values(part, row) | {DROPPED_SHARE: share_text(dropped, produced)}


def _header(name: str) -> str:
    return name.replace("_", "\n").replace(" ", "\n")


def _fitting(columns: Mapping[str, Sequence[str]], priority: Sequence[str], width: int | None) -> set[str]:
    """The columns that fit a terminal, those first in `priority` first; all of them where there is no terminal."""
    if width is None:
        return set(columns)
    kept: set[str] = set()
    # Columns are parted by three characters; the first has none before it.
    room = width + 3
    for name in priority:
        room -= 3 + max(cell_len(text) for text in (*_header(name).split("\n"), *columns[name]))
        if room < 0:
            break
        kept.add(name)
    return kept


def _loud_cells(result: Result) -> dict[str, set[str]]:
    """Cells that deserve colour, by column: the worst values of a loss, and every shortfall."""
    loud: dict[str, set[str]] = {}
    for metric in (m.EXPIRED_GROUPS, m.DROPPED_TOKENS):
        parts = (part for row in result.steps for part in (row, *row[TASKS].values()))
        worst = max((part.get(metric.name) or 0 for part in parts), default=0)
        tops = {max((row.get(metric.name) or 0 for row in result.steps), default=0), worst}
        loud[metric.name] = {value_text(metric, top) for top in tops if top}
    shortfalls = {row.get(m.SHORTFALL_GROUPS.name) or 0 for row in (*result.steps, result.totals)}
    loud[m.SHORTFALL_GROUPS.name] = {value_text(m.SHORTFALL_GROUPS, value) for value in shortfalls if value}
    return loud


def _charts(result: Result, options: TableOptions) -> Iterator[RenderableType]:
    """Expired groups and dropped share over the steps, where somebody looks."""
    if options.width is None or len(result.steps) < 2:
        return
    yield Text()
    width = min(_CHART_WIDTH, options.width - 50)
    for label, values, unit in (
        (m.EXPIRED_GROUPS.name, expired_by_step(result), ""),
        (DROPPED_SHARE, dropped_shares(result), " %"),
    ):
        if max(values) > 0 and width > 0:
            bars = sparkline(values, width, unicode=options.unicode)
            top = f"{max(values):,.1f}" if unit else f"{max(values):,.0f}"
            yield Text(f"{label:<15} {bars} up to {top}{unit} (step {peak_step(result, values)})")


def _ledger_table(result: Result, options: TableOptions) -> Table:
    table = Table(box=_box(options), show_edge=False, pad_edge=False, header_style="bold")
    heading = "where the tokens went" + (" (whole run)" if result.selection else "")
    table.add_column(heading, no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for name, tokens, share in ledger_lines(result):
        table.add_row(name, f"{tokens:,}", share)
    return table


def _group_lines(result: Result) -> Iterator[RenderableType]:
    for row in result.steps:
        for name in (TAKEN_IDS, EXPIRED_IDS):
            for task, ids in row.get(name, {}).items():
                if ids:
                    yield Text(f"{name} step {row[TRAIN_STEP]} {printable(task)}: {' '.join(map(str, ids))}")


def _box(options: TableOptions) -> box.Box:
    return box.SIMPLE_HEAD if options.unicode else box.ASCII
