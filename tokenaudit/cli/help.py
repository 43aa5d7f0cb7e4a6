"""`tokenaudit help`."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from typing import Annotated

import typer

from tokenaudit.cli import completion, streams
from tokenaudit.cli.options import QuietOption, VerboseOption

_NO_SUCH_COMMAND = 127
"""What a shell exits with."""
_STYLES = {
    "markdown.code": "bold",
    "markdown.code_block": "none",
    "markdown.h2": "bold",
    "markdown.h3": "italic bold",
    "markdown.item.number": "bold",
    "markdown.list": "none",
    "markdown.link": "underline",
    "markdown.link_url": "underline",
    "markdown.table.border": "dim",
    "markdown.table.header": "bold",
}
"""Weights instead of colours, some of which can't be read on white and some not on black."""

_NO_BREAK = "\ue000"
"""Stands for the spaces of commands while lines are broken; no topic has it."""
_INDENT = 8
"""Columns that lists may take from a line."""


def help_(
    topic: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC", help="A topic, such as columns or import slime.", autocompletion=completion.topics
        ),
    ] = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit help`."""
    del quiet, verbose
    from tokenaudit.help.topics import find_topic

    if not topic:
        from tokenaudit.render.blocks import Lines

        streams.write_blocks(Lines(_listing()))
        return
    text = find_topic(topic).text
    if sys.stdout.isatty():
        _show(_laid_out(text))
    else:
        streams.write_data(text)


def _listing() -> list[str]:
    from tokenaudit.help.topics import TRAINERS, topics

    found = topics()
    width = max(len(topic.name) for topic in found)
    lines = ["Topics of `tokenaudit help TOPIC` (`tokenaudit COMMAND --help` lists a command's options):", ""]
    lines += [f"  {topic.name:{width}}  {topic.line}" for topic in found]
    return [*lines, "", f"`tokenaudit help import TRAINER` shows one trainer: {', '.join(TRAINERS)}"]


def _laid_out(markdown: str) -> str:
    """Markdown as the terminal shows it."""
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import CodeBlock, Markdown, TableElement
    from rich.table import Table
    from rich.text import Text
    from rich.theme import Theme

    class WholeLines(CodeBlock):
        """Code whose lines are as long as they are: a command pasted by halves does something else."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for line in str(self.text).rstrip().split("\n"):
                yield Text(f" {line}".rstrip(), no_wrap=True, overflow="ignore")

    class WholeNames(TableElement):
        """A table whose columns of single words keep their width, so that names can be copied; nothing is cut off."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for table in super().__rich_console__(console, options):
                assert isinstance(table, Table)
                for column in table.columns:
                    column.overflow = "fold"
                    cells = [str(cell) for cell in column.cells]
                    if cells and not any(" " in cell.rstrip(" *") for cell in cells):  # a star points at a note
                        column.width = max(map(len, [*cells, *str(column.header).split()]))
                yield table

    class Topic(Markdown):
        elements = Markdown.elements | {"table_open": WholeNames, "fence": WholeLines}

    terminal = streams.terminal()
    console = Console(
        file=io.StringIO(),
        width=terminal.width,
        force_terminal=terminal.color,
        no_color=not terminal.color,
        color_system="standard" if terminal.color else None,
        legacy_windows=False,
        theme=Theme(_STYLES),
    )
    topic, is_table = Topic(markdown), False
    for token in topic.parsed:
        is_table = token.type == "table_open" or (is_table and token.type != "table_close")
        for child in () if is_table else token.children or ():
            if child.type == "code_inline" and len(child.content) < (terminal.width or 0) - _INDENT:
                child.content = child.content.replace(" ", _NO_BREAK)
    with console.capture() as captured:
        console.print(topic, crop=False)
    return captured.get().replace(_NO_BREAK, " ")


def _show(text: str) -> None:
    """Write text to the terminal, through a pager where it is longer than the screen.

    The pager is the command in PAGER, else `less`; an empty one or `cat` means none, as in git.
    """
    command = os.environ.get("PAGER", "less").strip()
    fits = text.count("\n") < shutil.get_terminal_size().lines
    if fits or command in ("", "cat") or not sys.stdin.isatty() or not _paged(text, command):
        streams.write_result(text)


def _paged(text: str, command: str) -> bool:
    """Whether the pager was there; it ran if so."""
    # what less is given as git does: -F ends where all fits, -R lets colours through, -X leaves the text on the screen
    pager = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, env={"LESS": "FRX"} | os.environ)
    content = text.encode(sys.stdout.encoding or "utf-8", errors="backslashreplace")
    while True:
        try:
            pager.communicate(content)
        except KeyboardInterrupt:
            content = None  # Ctrl-C is for the pager, which goes on
        else:
            return pager.returncode != _NO_SUCH_COMMAND
