"""The result as Markdown, for pull requests and job summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table

from tokenaudit.render.summary import (
    ledger_lines,
    simulation_lines,
    step_metrics,
    step_values,
    task_header,
    task_rows,
    title,
    verdict,
)
from tokenaudit.render.text import printable
from tokenaudit.replay.result import TASKS, TRAIN_STEP, Result, RowData


def render_markdown(result: Result, *, by_task: bool = False) -> str:
    """Title, verdict, warnings, ledger and steps; every step is there."""
    return "\n".join(_blocks(result, by_task)).rstrip("\n") + "\n"


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1, cell: Callable[[str], str] | None = None
) -> str:
    """A Markdown table.

    Args:
        header: names of the columns.
        rows: their cells.
        texts: how many columns, from the left, are text; the others are numbers.
        cell: how to write the cells of `rows`, such as `inline`; None: only what would break the table is escaped.
    """
    table = Table(box=box.MARKDOWN)
    for position, name in enumerate(header):
        table.add_column(_cell(name), justify="left" if position < texts else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(cell or _cell, row))
    buffer = StringIO()
    console = Console(file=buffer, width=100_000, markup=False, emoji=False, highlight=False, color_system=None)
    console.print(table)
    return "\n".join(line for line in buffer.getvalue().split("\n") if line.strip())


def _cell(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace("|", "\\|")


def _blocks(result: Result, by_task: bool) -> Iterator[str]:
    yield f"## {result.kind.replace('.', ' ')}: {inline(title(result))}\n"
    yield f"**{verdict(result)}**\n"
    for line in simulation_lines(result):
        yield f"{inline(line)}\n"
    for notice in result.warnings:
        yield f"- warning: {inline(notice.message)}" + (f" ({inline(notice.cost)})" if notice.cost else "")
    if result.warnings:
        yield ""
    yield markdown_table(task_header(), task_rows(result)) + "\n"
    yield markdown_table(("where the tokens went", "tokens", "share"), [
        (name, f"{tokens:,}", share) for name, tokens, share in ledger_lines(result)
    ]) + "\n"  # fmt: skip
    header = ["step", *(["task"] if by_task else []), *(metric.name for metric in step_metrics(result))]
    yield markdown_table(header, list(_rows(result, by_task)))


def inline(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#&~" else char for char in printable(text))


def _rows(result: Result, by_task: bool) -> Iterator[list[str]]:
    labelled: list[tuple[str, RowData]] = [(str(row[TRAIN_STEP]), row) for row in result.steps]
    if not result.selection:
        labelled.append(("tail", result.tail))
    labelled.append(("whole run" if result.selection else "total", result.totals))
    for label, row in labelled:
        if by_task:
            for task, part in row[TASKS].items():
                yield [label, task, *_values(result, part, row)]
        else:
            yield [label, *_values(result, row, row)]


def _values(result: Result, part: RowData, row: RowData) -> list[str]:
    values = step_values(part, row)
    return [values.get(metric.name, "") for metric in step_metrics(result)]
