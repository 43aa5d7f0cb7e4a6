"""Draws blocks as Markdown, for pull requests and job summaries."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from tokenaudit.contracts.errors import printable
from tokenaudit.render.blocks import (
    Block,
    Cell,
    Command,
    Form,
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


def markdown_text(blocks: Iterable[Block]) -> str:
    """The blocks with blank lines between them, and a line feed at the end. Only tables load rich."""
    parts: list[str] = []
    before: Block | None = None
    for block in shown_in(Form.DOCUMENT, blocks):
        if isinstance(block, Lines) and isinstance(before, Lines):
            parts[-1] += _list(block)
        else:
            parts += _parts(block)
        before = block
    return "\n".join(parts).rstrip("\n") + "\n"


def _parts(block: Block) -> Iterable[str]:
    match block:
        case Heading():
            yield f"## {block.report}: {inline(block.subject)}\n" if block.subject else f"## {block.report}\n"
        case Paragraph():
            text = block.text if block.literal else inline(block.text)
            yield f"**{text}**\n" if block.tone is Tone.STRONG else f"{text}\n"
        case Lines():
            yield _list(block)
        case Listing():
            yield "".join(f"    {printable(_text(line))}".rstrip() + "\n" for line in block.lines)
        case Command():
            yield f"    {printable(block.text)}\n"
        case Pairs():
            columns = [TableColumn("name", "left"), TableColumn("value", "left")]
            yield _table(Table(columns, [TableRow(pair) for pair in block.pairs], free_text=True))
        case Table():
            if block.caption:
                yield f"{block.caption[0].upper()}{block.caption[1:]}:\n"
            yield _table(block)
        case _:
            pass


def _list(block: Lines) -> str:
    return "".join(f"- {inline(_text(line))}\n" for line in block.lines)


def _text(line: Line | Cell) -> str:
    if isinstance(line, tuple):
        return "".join(map(_text, line))
    return line if isinstance(line, str) else line.text if isinstance(line, Phrase) else ""


def _table(block: Table) -> str:
    from rich import box
    from rich import table as rich_table
    from rich.console import Console

    shown = [position for position, column in enumerate(block.columns) if column.form in (None, Form.DOCUMENT)]
    columns = [block.columns[position] for position in shown]
    labels = next((number for number, column in enumerate(columns) if column.align == "right"), len(columns))
    table = rich_table.Table(box=box.MARKDOWN)
    for number, column in enumerate(columns):
        # Texts come first in Markdown, and the first column always is one.
        justify = "left" if number < max(labels, 1) else "right"
        table.add_column(_escaped(column.document_name or column.name), justify=justify, no_wrap=True)
    writes = [inline if block.free_text or column.free_text else _escaped for column in columns]
    for row in shown_in(Form.DOCUMENT, block.rows):
        table.add_row(*(write(_text(row.cells[position])) for write, position in zip(writes, shown, strict=True)))
    buffer = StringIO()
    console = Console(file=buffer, width=100_000, markup=False, emoji=False, highlight=False, color_system=None)
    console.print(table)
    return "".join(f"{line}\n" for line in buffer.getvalue().split("\n") if line.strip())


def _escaped(text: str) -> str:
    """Text that doesn't break a table."""
    return printable(text).replace("\\", "\\\\").replace("|", "\\|")


def inline(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#&~" else char for char in printable(text))
