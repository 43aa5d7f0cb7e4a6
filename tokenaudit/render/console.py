"""Draws blocks as text for people: in a terminal of some width, or, as wide as it needs, in a pipe or file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from textwrap import wrap

from rich import box
from rich import table as rich_table
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from tokenaudit.render.blocks import (
    Bar,
    Block,
    Cell,
    Charts,
    Fit,
    Form,
    Gap,
    Heading,
    Line,
    Lines,
    Paragraph,
    Phrase,
    Table,
    TableColumn,
    TableRow,
    Tone,
    shown_in,
)
from tokenaudit.render.text import count_text, sparkline

_UNLIMITED = 100_000
_TO_ASCII = str.maketrans({"─": "-", "·": "|", "–": "-", "…": ".", "×": "x", "→": ">"})
_BAR_WIDTH = 24
_CHART_WIDTH = 60
_BESIDE_CHART = 50
"""Columns that the name and the note of a chart need."""
_STYLES = {
    Tone.PLAIN: "",
    Tone.STRONG: "bold",
    Tone.FAINT: "dim",
    Tone.GOOD: "green",
    Tone.WARNING: "yellow",
    Tone.BAD: "red",
    Tone.FAILED: "bold red",
    Tone.UNDECIDED: "bold yellow",
}


@dataclass(frozen=True, slots=True)
class Terminal:
    """What text is drawn for.

    Attributes:
        width: columns; None: no terminal, nothing is left out.
        color: use colour.
        unicode: use characters beyond ASCII for lines and bars.
    """

    width: int | None = None
    color: bool = False
    unicode: bool = True


NO_TERMINAL = Terminal()
"""A pipe or a file."""


def console_text(blocks: Iterable[Block], terminal: Terminal = NO_TERMINAL) -> str:
    """The blocks below each other, with a line feed at the end; no line has spaces at its end."""
    buffer = StringIO()
    console = Console(
        file=buffer,
        width=terminal.width or _UNLIMITED,
        force_terminal=terminal.color,
        color_system="standard" if terminal.color else None,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for block in shown_in(Form.TERMINAL, blocks):
        for part in _parts(block, terminal):
            console.print(part, overflow="ignore", no_wrap=True, crop=False)
    text = "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))
    return text if terminal.unicode else text.translate(_TO_ASCII)


def _parts(block: Block, terminal: Terminal) -> Iterator[RenderableType]:
    match block:
        case Heading() if block.subject:
            yield Text(_wrapped(block.subject, block.wraps, terminal), style=_STYLES[Tone.STRONG])
        case Paragraph():
            yield Text(_wrapped(block.text, block.wraps, terminal), style=_STYLES[block.tone])
        case Lines():
            yield from (_line(line, block) for line in block.lines)
        case Gap():
            yield Text()
        case Table():
            yield from _table_parts(block, terminal)
        case Charts():
            yield from _chart_lines(block, terminal)
        case _:
            pass


def _wrapped(text: str, wraps: bool, terminal: Terminal) -> str:
    """Text broken between words where it is wider than the terminal."""
    if not wraps or terminal.width is None:
        return text
    return "\n".join(wrap(text, terminal.width, break_long_words=False))


def _line(line: Line, block: Lines) -> Text:
    parts = line if isinstance(line, tuple) else (line,)
    spans = ((part, "") if isinstance(part, str) else (part.text, _STYLES[part.tone]) for part in parts)
    return Text.assemble(" " * block.indent, *spans, style=_STYLES[block.tone])


def _table_parts(table: Table, terminal: Terminal) -> Iterator[RenderableType]:
    if table.caption:
        yield Text(table.caption, style=_STYLES[Tone.STRONG])
    fit = table.fit or Fit(())
    rows, hidden = _cut(shown_in(Form.TERMINAL, table.rows), len(table.columns), fit, terminal)
    own = [position for position, column in enumerate(table.columns) if column.form in (None, Form.TERMINAL)]
    kept = own if table.fit is None else _fitting(table.columns, rows, own, fit, terminal.width)
    lines = box.SIMPLE_HEAD if terminal.unicode else box.ASCII
    drawn = rich_table.Table(box=lines, show_edge=False, pad_edge=False, header_style=_STYLES[Tone.STRONG])
    for column in (table.columns[position] for position in kept):
        name = column.name if table.fit is None else _stacked(column.name)
        drawn.add_column(name, justify=column.align, no_wrap=True)
    for row in rows:
        style = _STYLES[Tone.STRONG if row.is_total else row.tone]
        drawn.add_row(*(_cell(row.cells[position], terminal) for position in kept), style=style)
    yield drawn
    if hidden:
        yield Text(f"{count_text(hidden, 'row')} not shown: {fit.rows_hint}", style=_STYLES[Tone.FAINT])
    if fit.columns_hint and len(kept) < len(own):
        missing = count_text(len(own) - len(kept), "more column")
        yield Text(f"{missing} {fit.columns_hint}", style=_STYLES[Tone.FAINT])


def _cut(rows: Sequence[TableRow], columns: int, fit: Fit, terminal: Terminal) -> tuple[Sequence[TableRow], int]:
    """The rows that are shown, and how many of those in the middle are not; totals always are."""
    body = [row for row in rows if not row.is_total]
    if terminal.width is None or fit.most_rows is None or len(body) <= fit.most_rows:
        return rows, 0
    half = fit.most_rows // 2
    totals = [row for row in rows if row.is_total]
    ellipsis = TableRow(("…", *[""] * (columns - 1)))
    return [*body[:half], ellipsis, *body[-half:], *totals], len(body) - 2 * half


def _fitting(
    columns: Sequence[TableColumn], rows: Sequence[TableRow], own: Sequence[int], fit: Fit, width: int | None
) -> Sequence[int]:
    """Positions of the columns that fit the terminal, labels and those first in the priority first."""
    if width is None:
        return own
    kept = {position for position in own if columns[position].is_label}
    by_name = {columns[position].name: position for position in own}
    # Columns are parted by three characters; the first has none before it.
    room = width + 3
    for name in fit.priority:
        position = by_name[name]
        texts = (_text(row.cells[position]) for row in rows)
        room -= 3 + max(cell_len(text) for text in (*_stacked(name).split("\n"), *texts))
        if room < 0:
            break
        kept.add(position)
    return sorted(kept)


def _stacked(name: str) -> str:
    """The words of a heading below each other."""
    return name.replace("_", "\n").replace(" ", "\n")


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text if isinstance(cell, Phrase) else " " * _BAR_WIDTH


def _cell(cell: Cell, terminal: Terminal) -> Text:
    if isinstance(cell, Bar):
        return Text(("█" if terminal.unicode else "#") * round(_BAR_WIDTH * cell.share))
    return Text(cell) if isinstance(cell, str) else Text(cell.text, style=_STYLES[cell.tone])


def _chart_lines(charts: Charts, terminal: Terminal) -> Iterator[Text]:
    if terminal.width is None:
        return
    yield Text()
    width = min(_CHART_WIDTH, terminal.width - _BESIDE_CHART)
    if width > 0:
        for series in charts.series:
            bars = sparkline(series.values, width, unicode=terminal.unicode)
            yield Text(f"{series.name:<15} {bars} {series.note}")
