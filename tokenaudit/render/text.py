"""Numbers and names as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from tokenaudit.contracts.metrics import Metric, Unit

if TYPE_CHECKING:
    from tokenaudit.contracts.errors import Notice

NOTHING = "–"
"""Shown where there is no value."""


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


def count_text(count: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Text from a file, safe to show: control and other unprintable characters as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def notice_lines(notices: Iterable[Notice]) -> list[str]:
    """What to know before trusting a report, with what it costs."""
    return [f"warning: {notice.message}" + (f" ({notice.cost})" if notice.cost else "") for notice in notices]


_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = "_.:-=+*#"


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
