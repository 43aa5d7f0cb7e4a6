"""Exact numbers as text, with as many digits as it takes to see what is meant, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tokenaudit.compare.metric_values import Figure, FigureValue, Number, is_percentage
from tokenaudit.contracts.errors import NOTHING

_MOST_DECIMALS = 40
_PERCENT_DECIMALS = 2


def number_text(value: FigureValue, figure: Figure) -> str:
    """A figure's value with thousands separated; rates in percent with two decimals."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return str(value)
    return distinct_texts([value], figure)[0]


def change_text(a: Number, b: Number, figure: Figure) -> str:
    """The change from `a` to `b` with its sign; of rates in percentage points."""
    change = b - a
    if change == 0:
        return "0"
    sign = "+" if change > 0 else "-"
    return f"{sign}{distance_text(abs(change), figure)}"


def distance_text(distance: Number, figure: Figure) -> str:
    """A distance between two values of a figure; never rounded to 0 where it isn't."""
    text = _scaled_text(distance, figure, _decimals([distance, 0], figure))
    return f"{text} pp" if is_percentage(figure) else text


def relative_text(a: Number, b: Number) -> str:
    """The change from `a` to `b` in percent of `a`, with one decimal; in words where there is no ratio."""
    if a == b:
        return "0.0 %"
    if a == 0:
        return "from 0"
    share = 100 * Fraction(b - a) / abs(a)
    if abs(share) < Fraction(1, 10):
        return f"{'+' if share > 0 else '-'}<0.1 %"
    return f"{'+' if share > 0 else '-'}{_decimal_text(abs(share), 1)} %"


def distinct_texts(values: Sequence[Number], figure: Figure) -> list[str]:
    """Values of one figure, with as many digits as it takes to keep different ones apart."""
    decimals = _decimals(values, figure)
    return [_scaled_text(value, figure, decimals) + (" %" if is_percentage(figure) else "") for value in values]


def _decimals(values: Sequence[Number], figure: Figure) -> int:
    is_whole = all(value == int(value) for value in values)
    least = _PERCENT_DECIMALS if is_percentage(figure) else 0 if is_whole else 2
    for decimals in range(least, _MOST_DECIMALS):
        if len({_scaled_text(value, figure, decimals) for value in values}) == len(set(values)):
            return decimals
    return _MOST_DECIMALS


def _scaled_text(value: Number, figure: Figure, decimals: int) -> str:
    if is_percentage(figure):
        return _decimal_text(100 * value, decimals)
    return _decimal_text(value, 0 if value == int(value) else decimals)


def _decimal_text(value: Number, decimals: int) -> str:
    """A number rounded half to even; "-0" never."""
    scaled = round(value * 10**decimals)
    whole, part = divmod(abs(scaled), 10**decimals)
    sign = "-" if scaled < 0 else ""
    return f"{sign}{whole:,}" + (f".{part:0{decimals}d}" if decimals else "")


def plain_number(value: Number | None) -> int | float | str | None:
    """A number as JSON holds it: whole ones exactly, others as the nearest float, as text where there is none."""
    if value is None or value == int(value):
        return None if value is None else int(value)
    try:
        return float(value)
    except OverflowError:
        return str(value)
