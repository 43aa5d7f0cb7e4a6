"""Drawing with rich into a text, the same wherever it goes."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from rich.console import Console, RenderableType

from tokenaudit.render.table import TableOptions

_UNLIMITED = 100_000
_TO_ASCII = str.maketrans({"─": "-", "·": "|", "–": "-", "…": ".", "×": "x", "→": ">", "≥": ">", "≤": "<"})


def drawn(parts: Iterable[RenderableType], options: TableOptions) -> str:
    """The parts below each other; lines are never wrapped, and have no spaces at their ends."""
    buffer = StringIO()
    console = Console(
        file=buffer,
        width=_UNLIMITED,
        force_terminal=options.color,
        color_system="standard" if options.color else None,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for part in parts:
        console.print(part, overflow="ignore", no_wrap=True, crop=False)
    text = "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))
    return text if options.unicode else text.translate(_TO_ASCII)
