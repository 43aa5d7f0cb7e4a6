"""Draws blocks as text for people: in a terminal of some width, or, as wide as it needs, in a pipe or file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from typing import TYPE_CHECKING

from tokenaudit.contracts.errors import plural, printable
from tokenaudit.render.blocks import (
    Bar,
    Block,
    Cell,
    Charts,
    Command,
    Fit,
    Form,
    Gap,
    Heading,
    Line,
    Lines,
    Listing,
    Pairs,
    Paragraph,
    Phrase,
    Table,
    TableColumn,
    TableRow,
    Tone,
    shown_in,
)

if TYPE_CHECKING:
    from rich.text import Text

_UNLIMITED = 100_000
_TO_ASCII = str.maketrans({"─": "-", "·": "|", "–": "-", "…": ".", "×": "x", "→": ">", "█": "#", "▒": "s"})
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = "_.:-=+*#"
_BAR_WIDTH = 24
_CHART_WIDTH = 60
_BESIDE_CHART = 50
"""Columns that the name and the note of a chart need."""
GREEN, ORANGE, RED = 28, 130, 160
"""Of the 256 colours of terminals, whose shades no theme changes, those that can be read on white and on black."""
_STYLES = {
    Tone.PLAIN: "",
    Tone.STRONG: "bold",
    Tone.FAINT: "dim",
    Tone.GOOD: f"color({GREEN})",
    Tone.WARNING: f"color({ORANGE})",
    Tone.BAD: f"color({RED})",
    Tone.FAILED: f"bold color({RED})",
    Tone.UNDECIDED: f"bold color({ORANGE})",
}
_SGR = {"bold": "1", "dim": "2"} | {f"color({color})": f"38;5;{color}" for color in (GREEN, ORANGE, RED)}
"""Parameters of the terminal's escape sequences."""
_WORD = re.compile(r"\S*`[^`]+`\S*|tokenaudit [a-z]+\S*|\S+")
"""What is never broken: a word; and what is copied, such as a command, which pasted by halves does something else."""
_COLUMN = re.compile(r"\S+(?: \S+)*")
_FIRST_COLUMN = re.compile(r" *\S+(?: \S+)* {2,}")
_DEEPEST_HANG = 24
"""The widest first column below whose side the further lines of a text stand."""


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
    """The blocks below each other, with a line feed at the end; outside of listings no line has spaces at its end.

    Only tables load rich, so that a report without any begins at once.
    """
    lines = [
        line if isinstance(block, Listing | Pairs) else line.rstrip()
        for block in shown_in(Form.TERMINAL, blocks)
        for part in _parts(block, terminal)
        for line in part.split("\n")
    ]
    text = "".join(f"{line}\n" for line in lines)
    return text if terminal.unicode else text.translate(_TO_ASCII)


def _parts(block: Block, terminal: Terminal) -> Iterator[str]:
    match block:
        case Heading() if block.subject:
            yield _line(block.subject, Tone.STRONG, terminal)
        case Paragraph():
            yield _line(block.text, block.tone, terminal)
        case Lines():
            yield from (_line(line, block.tone, terminal, block.indent) for line in block.lines)
        case Listing():
            yield from (_line(line, Tone.PLAIN, terminal, in_columns=True) for line in block.lines)
        case Command():
            yield f"  {printable(block.text)}"
        case Pairs():
            width = max((len(name) for name, _ in block.pairs), default=0)
            for name, value in block.pairs:
                yield _line(f"{name:<{width}}  {printable(value)}", Tone.PLAIN, terminal)
        case Gap():
            yield ""
        case Table():
            yield from _table_parts(block, terminal)
        case Charts():
            yield from _chart_lines(block, terminal)
        case _:
            pass


def wrapped(text: str, width: int | None) -> str:
    """A line, or the lines that a terminal of some width needs for it, broken between words; see `_pieces`."""
    return "\n".join(" " * hang + text[start:end] for start, end, hang in _pieces(text, width))


def _pieces(text: str, width: int | None, *, in_columns: bool = False) -> list[tuple[int, int, int]]:
    """Start and end of the pieces that a line is broken into, and the columns by which each of them is set in.

    Further pieces begin below the second column of the text, where it has one (a name, spaces, what is said of it),
    else a little right of the first. What stands in backquotes is one word, and a word that is wider than the
    terminal, such as a path, stays whole. With `in_columns` the line is broken between columns, whose blanks count, so
    that lines of equal columns are broken alike.
    """
    if width is None or _columns(text) <= width:
        return [(0, len(text), 0)]
    column = _FIRST_COLUMN.match(text)
    hang = len(text) - len(text.lstrip()) + 2
    if column and column.end() <= _DEEPEST_HANG:
        hang = column.end()
    hang = min(hang, width // 2)
    pieces: list[tuple[int, int, int]] = []
    start = end = 0
    for first, last, room in _units(text, width - hang, in_columns=in_columns):
        indent = hang if pieces else 0
        if end and indent + _columns(text[start:room]) > width:
            pieces.append((start, end, indent))
            start = first
        end = last
    return [*pieces, (start, end, hang if pieces else 0)]


def _units(text: str, width: int, *, in_columns: bool) -> Iterator[tuple[int, int, int]]:
    """Start and end of what stays together, and where the room that it takes ends: words, or columns that fit."""
    columns = list(_COLUMN.finditer(text)) if in_columns else []
    ends = [after.start() - 2 for after in columns[1:]] + [len(text)] if columns else []
    for column, end in zip(columns, ends, strict=True):
        if _columns(text[column.start() : end]) <= width:
            yield column.start(), column.end(), end
        else:
            words = _WORD.finditer(text, column.start(), column.end())
            yield from ((word.start(), word.end(), word.end()) for word in words)
    if not columns:
        yield from ((word.start(), word.end(), word.end()) for word in _WORD.finditer(text))


def _columns(text: str) -> int:
    """How wide a text is drawn."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _styled(text: str, tone: Tone, terminal: Terminal) -> str:
    if not (terminal.color and _STYLES[tone] and text):
        return text
    codes = ";".join(_SGR[word] for word in _STYLES[tone].split())
    return f"\x1b[{codes}m{text}\x1b[0m"


def _line(line: Line, tone: Tone, terminal: Terminal, indent: int = 0, *, in_columns: bool = False) -> str:
    """A line with its styles, broken where the terminal is too narrow for it; line feeds in it stay."""
    parts = line if isinstance(line, tuple) else (line,)
    phrases = [Phrase(" " * indent), *(Phrase(part, tone) if isinstance(part, str) else part for part in parts)]
    text = "".join(phrase.text for phrase in phrases)
    drawn: list[str] = []
    for start, end, hang in _pieces(text, terminal.width, in_columns=in_columns):
        first = 0
        styled: list[str] = []
        for phrase in phrases:
            piece = phrase.text[max(0, start - first) : max(0, end - first)]
            styled.append(_styled(piece, phrase.tone, terminal))
            first += len(phrase.text)
        drawn.append(" " * hang + "".join(styled))
    return "\n".join(drawn)


def _table_parts(table: Table, terminal: Terminal) -> Iterator[str]:
    if table.caption:
        yield _line(table.caption, Tone.STRONG, terminal)
    fit = table.fit or Fit(())
    rows, hidden = _cut(shown_in(Form.TERMINAL, table.rows), len(table.columns), fit, terminal)
    own = [position for position, column in enumerate(table.columns) if column.form in (None, Form.TERMINAL)]
    kept = own if table.fit is None else _fitting(table.columns, rows, own, fit, terminal.width)
    yield _grid(table, rows, kept, terminal)
    if table.legend and terminal.color:
        yield _line(table.legend, Tone.FAINT, terminal)
    if hidden:
        yield _line(f"{plural(hidden, 'row')} not shown: {fit.rows_hint}", Tone.FAINT, terminal)
    if fit.columns_hint and len(kept) < len(own):
        missing = plural(len(own) - len(kept), "more column")
        yield _line(f"{missing} {fit.columns_hint}", Tone.FAINT, terminal)


def _grid(table: Table, rows: Sequence[TableRow], kept: Sequence[int], terminal: Terminal) -> str:
    """The rows below the headings of the columns that are kept."""
    from rich import box
    from rich import table as rich_table
    from rich.console import Console

    lines = box.SIMPLE_HEAD if terminal.unicode else box.ASCII
    drawn = rich_table.Table(box=lines, show_edge=False, pad_edge=False, header_style=_STYLES[Tone.STRONG])
    columns = [table.columns[position] for position in kept]
    width = terminal.width if table.fit else _room_for_numbers(table, terminal)
    for column in columns:
        name = column.name if table.fit is None else _stacked(column.name)
        drawn.add_column(name, justify=column.align, no_wrap=bool(table.fit) or column.align == "right")
    for row in rows:
        style = _STYLES[Tone.STRONG if row.is_total else row.tone]
        drawn.add_row(*(_cell(row.cells[position], terminal) for position in kept), style=style)
    console = Console(
        file=StringIO(),
        width=width or _UNLIMITED,
        force_terminal=terminal.color,
        color_system="256" if terminal.color else None,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    with console.capture() as captured:
        console.print(drawn, overflow="ignore", no_wrap=True, crop=False)
    return captured.get().removesuffix("\n")


def _room_for_numbers(table: Table, terminal: Terminal) -> int | None:
    """The terminal's width, where columns of text can be broken so that all numbers stay whole; else None."""
    if terminal.width is None:
        return None
    needed = 0
    for position, column in enumerate(table.columns):
        texts = (column.name, *(_text(row.cells[position]) for row in table.rows))
        whole = texts if column.align == "right" else " ".join(texts).split()
        needed += 3 + max(map(_columns, whole))
    return terminal.width if needed - 3 <= terminal.width else None


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
        room -= 3 + max(map(_columns, (*_stacked(name).split("\n"), *texts)))
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
    from rich.text import Text

    if isinstance(cell, Bar):
        return Text(("█" if terminal.unicode else "#") * round(_BAR_WIDTH * cell.share))
    return Text(cell) if isinstance(cell, str) else Text(cell.text, style=_STYLES[cell.tone])


def _chart_lines(charts: Charts, terminal: Terminal) -> Iterator[str]:
    if terminal.width is None:
        return
    yield ""
    width = min(_CHART_WIDTH, terminal.width - _BESIDE_CHART)
    if width > 0:
        for series in charts.series:
            bars = sparkline(series.values, width, unicode=terminal.unicode)
            yield f"{series.name:<15} {bars} {series.note}"


def sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """A row of bars from 0 to the largest value; more values than `width` are shown by the largest of each group.

    Args:
        values: numbers of at least 0, in order.
        width: the most characters to use.
        unicode: use block characters, else ASCII ones.
    """
    count = min(width, len(values))
    bounds = [index * len(values) // count for index in range(count + 1)] if count else []
    bars = [max(values[low:high]) for low, high in pairwise(bounds)]
    top = max(bars, default=0)
    levels = _LEVELS if unicode else _ASCII_LEVELS
    return "".join(levels[min(len(levels) - 1, int(bar / top * len(levels)))] if top else levels[0] for bar in bars)
