"""The result as a table for people: steps, a small chart, where the tokens went, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tokenaudit import metrics as m
from tokenaudit.metrics import Better, Metric
from tokenaudit.render.summary import (
    STEP_METRICS,
    WIDTH_PRIORITY,
    dropped_shares,
    expired_by_step,
    ledger_lines,
    peak_step,
    step_values,
    title,
    verdict,
)
from tokenaudit.render.text import count_text, printable, share_text, sparkline
from tokenaudit.result import EXPIRED_IDS, TAKEN_IDS, TASKS, TRAIN_STEP, Result, RowData

SHOWN_ROWS = 40
"""Step rows that a terminal shows; longer runs are cut in the middle."""
_UNLIMITED = 100_000
_DROPPED_SHARE = "dropped share"
_CHART_WIDTH = 60


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
    buffer = StringIO()
    console = Console(
        file=buffer,
        width=options.width or _UNLIMITED,
        force_terminal=options.color,
        color_system="standard" if options.color else None,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for part in _parts(result, options):
        console.print(part, overflow="ignore", no_wrap=True, crop=False)
    text = "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))
    return text if options.unicode else text.translate(_TO_ASCII)


_TO_ASCII = str.maketrans({"─": "-", "·": "|", "–": "-", "…": ".", "×": "x"})


def _parts(result: Result, options: TableOptions) -> Iterator[RenderableType]:
    yield Text(title(result), style="bold")
    if result.steps:
        yield Text()
        yield from _steps_table(result, options)
        yield from _charts(result, options)
        yield Text()
    yield _ledger_table(result, options)
    yield from _group_lines(result)
    yield Text()
    yield Text(verdict(result), style="bold")


def _steps_table(result: Result, options: TableOptions) -> Iterator[RenderableType]:
    lines = list(_lines(result, options.by_task))
    body = [line for line in lines if not line.is_total]
    hidden = 0
    if options.width is not None and len(body) > SHOWN_ROWS:
        half = SHOWN_ROWS // 2
        hidden = len(body) - 2 * half
        lines = body[:half] + [_Line("…", "", {})] + body[-half:] + [line for line in lines if line.is_total]
    names = [*(metric.name for metric in STEP_METRICS), _DROPPED_SHARE]
    kept = _fitting(lines, names, options)
    table = Table(box=_box(options), show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("step", justify="right", no_wrap=True)
    if options.by_task:
        table.add_column("task", no_wrap=True)
    for name in _in_order(kept):
        table.add_column(_header(name), justify="right", no_wrap=True)
    for line in lines:
        cells = [_styled(name, line.cells.get(name, "")) for name in _in_order(kept)]
        task = [Text(line.task)] if options.by_task else []
        table.add_row(Text(line.label), *task, *cells, style="bold" if line.is_total else None)
    yield table
    if hidden:
        yield Text(f"{count_text(hidden, 'row')} not shown: --steps A..B selects some, a pipe shows all", style="dim")
    if len(kept) < len(names):
        missing = count_text(len(names) - len(kept), "column")
        yield Text(f"{missing} did not fit: widen the terminal, or use a pipe or --format csv", style="dim")


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
    return step_values(part, row) | {_DROPPED_SHARE: share_text(dropped, produced)}


def _header(name: str) -> str:
    return name.replace("_", "\n").replace(" ", "\n")


def _in_order(kept: set[str]) -> list[str]:
    """Kept columns as they stand in the table: the share right behind the dropped tokens."""
    names: list[str] = []
    for metric in STEP_METRICS:
        names.append(metric.name)
        if metric is m.DROPPED_TOKENS:
            names.append(_DROPPED_SHARE)
    return [name for name in names if name in kept]


def _fitting(lines: Sequence[_Line], names: Sequence[str], options: TableOptions) -> set[str]:
    """The columns that fit the width, the most telling first."""
    if options.width is None:
        return set(names)
    room = options.width - max([4, *(len(line.label) for line in lines)])
    if options.by_task:
        room -= 3 + max([4, *(len(line.task) for line in lines)])
    wanted = [WIDTH_PRIORITY[0].name, _DROPPED_SHARE, *(metric.name for metric in WIDTH_PRIORITY[1:])]
    kept: set[str] = set()
    for name in wanted:
        cells = (line.cells.get(name, "") for line in lines)
        room -= 3 + max(len(part) for part in (*_header(name).split("\n"), *cells))
        if room < 0:
            break
        kept.add(name)
    return kept


def _styled(name: str, cell: str) -> Text:
    """Bad news in colour; the number says the same without it."""
    metric = m.METRICS.get(name)
    is_loss = metric is not None and metric.better is Better.LOWER and metric in _HIGHLIGHTED
    return Text(cell, style="red" if is_loss and cell not in ("0", "–", "") else "")


_HIGHLIGHTED: frozenset[Metric] = frozenset({m.EXPIRED_GROUPS, m.DROPPED_TOKENS, m.SHORTFALL_GROUPS})


def _charts(result: Result, options: TableOptions) -> Iterator[RenderableType]:
    """Expired groups and dropped share over the steps, where somebody looks."""
    if options.width is None or len(result.steps) < 2:
        return
    yield Text()
    width = min(_CHART_WIDTH, options.width - 50)
    for label, values, unit in (
        (m.EXPIRED_GROUPS.name, expired_by_step(result), ""),
        (_DROPPED_SHARE, dropped_shares(result), " %"),
    ):
        if max(values) > 0 and width > 0:
            bars = sparkline(values, width, unicode=options.unicode)
            top = f"{max(values):,.1f}" if unit else f"{max(values):,.0f}"
            yield Text(f"{label:<15} {bars} up to {top}{unit} (step {peak_step(result, values)})")


def _ledger_table(result: Result, options: TableOptions) -> Table:
    table = Table(box=_box(options), show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("where the tokens went", no_wrap=True)
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
