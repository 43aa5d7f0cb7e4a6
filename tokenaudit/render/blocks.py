"""What a report is made of: blocks that builders return and printers draw, and how all of them write numbers.

Nothing here knows how a block is drawn. Blocks are neither frozen nor compared: such classes are declared in half the
time, which every command waits for.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from fractions import Fraction
from io import StringIO
from typing import TYPE_CHECKING, Literal, TypeVar

from tokenaudit.contracts.errors import NOTHING, printable, without_commands
from tokenaudit.contracts.metrics import Metric, Unit

if TYPE_CHECKING:
    from tokenaudit.contracts.errors import Notice

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that spreadsheets take for a formula, some of them after dropping the blanks."""

COLUMNS_HINT = "in a wider terminal, in a pipe, or with --format csv"
"""Where the columns are that a narrow terminal has no room for."""


class Form(StrEnum):
    """Where a report is read: the two differ in what comes first, and in what they have room for."""

    TERMINAL = "terminal"
    """Text that scrolls by, so that the verdict comes last; in a terminal or a pipe."""
    DOCUMENT = "document"
    """A page that is read from its top, such as Markdown."""


class Tone(Enum):
    """What a piece of text means, apart from its words; a printer without colours ignores it."""

    PLAIN = auto()
    STRONG = auto()
    FAINT = auto()
    GOOD = auto()
    WARNING = auto()
    BAD = auto()
    FAILED = auto()
    UNDECIDED = auto()


@dataclass(slots=True, eq=False)
class Phrase:
    """A piece of text with a tone."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(slots=True, eq=False)
class Bar:
    """A bar in a cell; `share` is its length as a part of the longest possible one."""

    share: float


Line = str | Phrase | tuple[str | Phrase, ...]
"""One line of text."""
Cell = str | Phrase | Bar


@dataclass(slots=True, eq=False, kw_only=True)
class Block:
    """A part of a report; with `form`, only printers of that form show it."""

    form: Form | None = None


@dataclass(slots=True, eq=False)
class Heading(Block):
    """The first block: which report this is, and about what. A terminal shows the subject alone."""

    report: str
    subject: str = ""


@dataclass(slots=True, eq=False)
class Paragraph(Block):
    """A sentence or a few.

    Attributes:
        text: its words.
        tone: what it means.
        literal: it holds our own words only, so that a document need not escape it.
    """

    text: str
    tone: Tone = Tone.PLAIN
    literal: bool = False


@dataclass(slots=True, eq=False)
class Lines(Block):
    """Lines below each other; a document makes a list of them. Lists without a gap between them are one list.

    Attributes:
        lines: the lines.
        tone: what all of them mean.
        indent: columns by which a terminal sets them in.
    """

    lines: Sequence[Line]
    tone: Tone = Tone.PLAIN
    indent: int = 0


@dataclass(slots=True, eq=False)
class Listing(Block):
    """Lines whose characters stand in columns, which a document keeps by a fixed-width font."""

    lines: Sequence[Line]


@dataclass(slots=True, eq=False)
class Command(Block):
    """A command to copy: a line of its own, which no terminal is too narrow for."""

    text: str


@dataclass(slots=True, eq=False)
class Pairs(Block):
    """Names and what is said of each; the names of further values of the same thing are empty."""

    pairs: Sequence[tuple[str, str]]


@dataclass(slots=True, eq=False)
class Gap(Block):
    """A blank line in a terminal; documents part their blocks themselves."""


@dataclass(slots=True, eq=False)
class TableColumn:
    """A column of a table.

    Attributes:
        name: its heading.
        align: where its texts begin.
        document_name: its heading in documents, where it is another one.
        is_label: it says what a row is, so that no terminal is too narrow for it.
        form: the only form that shows it; None: all.
        free_text: its cells hold text from files, of which a document shows every character.
    """

    name: str
    align: Literal["left", "right"] = "right"
    document_name: str = ""
    is_label: bool = False
    form: Form | None = None
    free_text: bool = False


@dataclass(slots=True, eq=False)
class TableRow:
    """A row of a table: one cell per column; `is_total` sets it apart and keeps it where a table is cut."""

    cells: Sequence[Cell]
    tone: Tone = Tone.PLAIN
    is_total: bool = False
    form: Form | None = None


@dataclass(slots=True, eq=False)
class Fit:
    """How a table is made to fit a terminal, with the words of its headings below each other.

    Attributes:
        priority: names of columns, those that a narrow terminal keeps longest first.
        most_rows: rows that a terminal shows; longer tables are cut in the middle. None: all.
        rows_hint: how to see the rows that are cut.
        columns_hint: how to see the columns that are left out; empty: nothing says that there are more.
    """

    priority: Sequence[str]
    most_rows: int | None = None
    rows_hint: str = ""
    columns_hint: str = ""


@dataclass(slots=True, eq=False)
class Table(Block):
    """Rows and columns.

    Attributes:
        columns: what the cells of a row are.
        rows: the rows.
        caption: what the table shows, in our own words.
        free_text: the cells of all columns do so.
        fit: how to fit it to a terminal; None: it is as wide as it is.
        legend: what its coloured cells are, in our own words; shown where there are colours.
    """

    columns: Sequence[TableColumn]
    rows: Sequence[TableRow]
    caption: str = ""
    free_text: bool = False
    fit: Fit | None = None
    legend: str = ""


@dataclass(slots=True, eq=False)
class Series:
    """Values of at least 0 over the steps, and a note on the largest."""

    name: str
    values: Sequence[float]
    note: str


@dataclass(slots=True, eq=False)
class Charts(Block):
    """Series as rows of bars, where somebody looks: pipes and documents have the numbers."""

    series: Sequence[Series]


def only(form: Form, *blocks: Block) -> Iterator[Block]:
    """The blocks, for one form."""
    return (replace(block, form=form) for block in blocks)


_Part = TypeVar("_Part", Block, TableRow, TableColumn)


def shown_in(form: Form, parts: Iterable[_Part]) -> list[_Part]:
    """The blocks, or the rows or columns of a table, that a form shows."""
    return [part for part in parts if part.form in (None, form)]


def value_text(metric: Metric, value: int | float | None) -> str:
    """A metric's value with thousands separated; rewards with three decimals."""
    if value is None:
        return NOTHING
    return f"{value:,.3f}" if metric.unit is Unit.REWARD else f"{value:,}"


def share_text(part: int, whole: int) -> str:
    """A share in percent with one decimal; never 0 % or 100 % of something that isn't."""
    if whole == 0:
        return NOTHING
    share = Fraction(100 * part, whole)
    if 0 < share < Fraction(1, 10):
        return "<0.1 %"
    if Fraction(999, 10) < share < 100:
        return ">99.9 %"
    return f"{float(share):.1f} %"


def csv_cell(text: str) -> str:
    """Text from a file for a cell of CSV: nothing that a terminal obeys, nor that a spreadsheet would run."""
    plain = without_commands(printable(text))
    return f"'{plain}" if text.startswith(_FORMULA_STARTS) else plain


def csv_lines(columns: Sequence[str], records: Iterable[Mapping[str, object]]) -> str:
    """CSV with a header: one line a record, whose fields outside of `columns` are left out; see `csv_cell`."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        cells = map(record.get, columns)
        writer.writerow([csv_cell(cell) if isinstance(cell, str) else cell for cell in cells])
    return out.getvalue()


def json_lines(records: Iterable[Mapping[str, object]]) -> str:
    """JSON Lines: one object a record; texts are what the log holds, as nothing here is a formula or a command."""
    return "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)


def notice_lines(notices: Iterable[Notice]) -> list[str]:
    """What to know before trusting a report, with what it costs."""
    return [f"{notice.level}: {notice.message}" + (f" ({notice.cost})" if notice.cost else "") for notice in notices]
