"""Drawing with rich into a text, the same wherever it goes."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from rich.console import Console, RenderableType

_UNLIMITED = 100_000
_TO_ASCII = str.maketrans({"─": "-", "·": "|", "–": "-", "…": ".", "×": "x", "→": ">"})


def drawn(
    parts: Iterable[RenderableType], *, width: int | None = None, color: bool = False, unicode: bool = True
) -> str:
    """The parts below each other; lines are never wrapped, and have no spaces at their ends.

    Args:
        parts: what to draw.
        width: columns that rich may use; None: as many as it likes.
        color: use colour.
        unicode: use characters beyond ASCII for lines and bars.
    """
    buffer = StringIO()
    console = Console(
        file=buffer,
        width=width or _UNLIMITED,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for part in parts:
        console.print(part, overflow="ignore", no_wrap=True, crop=False)
    text = "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))
    return text if unicode else text.translate(_TO_ASCII)
