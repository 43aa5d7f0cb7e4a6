"""How the curves that a trainer logged compare with the log's own values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.curve_names import KnownCurve
from tokenaudit.audit.curve_pairs import FEWEST_STEPS, RELATIVE, TELLING_VALUES, CurvePair, varies
from tokenaudit.audit.curve_points import Curve
from tokenaudit.audit.curve_values import LogSeries, LogValues
from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.metrics import Unit

_SMOOTH = 1e-4
"""How far a smoothed curve may be off, relative to the largest value."""
_WEIGHTS = (*(n / 100 for n in range(5, 100)), 0.995, 0.999)
"""Weights of the value before, as trackers smooth with."""

_LARGEST_WINDOW = 200
"""Values over which a mean is tried."""


class Verdict(StrEnum):
    """How a curve compares."""

    EQUAL = "equal"
    SHIFTED = "equal, steps shifted"
    OFFSET = "constant offset"
    FACTOR = "constant factor"
    OTHER = "other definition"
    DIFFERS = "differs"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Parity:
    """A curve beside the log's series that it is.

    Attributes:
        curve: its name in the file.
        file: name of the file, without folders.
        trainer: who logs it so; empty for one that the user mapped, or that has the series' own name.
        ours: name of the series.
        unit: what the series' values are in.
        definition: what the series counts.
        verdict: how they compare.
        detail: what there is to say about it; empty where they are equal and nothing else is to be known.
        steps: steps that both have.
        equal_steps: those at which both are equal under the definition that fits best.
        first_step: step of the log at which they first differ; None where they don't.
        logged: the curve's value there.
        recomputed: the log's value there.
    """

    curve: str
    file: str
    trainer: str
    ours: str
    unit: str
    definition: str
    verdict: Verdict
    detail: str
    steps: int = 0
    equal_steps: int = 0
    first_step: int | None = None
    logged: float | None = None
    recomputed: float | None = None


def compared_curve(curve: Curve, known: KnownCurve, values: LogValues) -> Parity:
    """Compare a curve with the series that it is known to be, and see what else it is where it isn't equal."""
    series = values.series(known.ours)
    notes = list(_notes(curve))
    pair = CurvePair(curve, known, series)
    definition = series.definition
    why = series.why_none or _why_no_pair(curve, series, pair)
    if why:
        found = _Found(Verdict.NOT_COMPARABLE, why)
    else:
        found = _found(pair, values)
        missing = len(curve.steps) - len(pair.steps)
        if missing and found.verdict is not Verdict.SHIFTED:
            notes.append(f"{plural(missing, 'step')} of the curve {'is' if missing == 1 else 'are'} not in the log")
        if known.inexact and found.verdict is Verdict.DIFFERS:
            off = float(np.abs(pair.logged - pair.recomputed).max())
            why = f"{known.inexact}, so values may differ; they do by up to {_number(off)}"
            found = _Found(Verdict.NOT_COMPARABLE, why)
    return Parity(
        curve=curve.name,
        file=curve.file,
        trainer=known.trainer,
        ours=definition.name,
        unit=definition.unit,
        definition=definition.text + (f", {known.plus:+d}" if known.plus else ""),
        verdict=found.verdict,
        detail="; ".join([*([found.detail] if found.detail else []), *notes]),
        steps=len(pair.steps),
        equal_steps=found.equal_steps,
        first_step=found.first_step,
        logged=found.logged,
        recomputed=found.recomputed,
    )


class _Found(NamedTuple):
    """What a comparison found; see `Parity`."""

    verdict: Verdict
    detail: str = ""
    equal_steps: int = 0
    first_step: int | None = None
    logged: float | None = None
    recomputed: float | None = None


def _notes(curve: Curve) -> Iterator[str]:
    if curve.repeated:
        yield f"{plural(curve.repeated, 'step')} logged more than once, the last value counts"
    if curve.gaps:
        yield f"{plural(curve.gaps, 'row')} without a finite value"


def _why_no_pair(curve: Curve, series: LogSeries, pair: CurvePair) -> str:
    if not len(curve.steps):
        return "the curve has no finite value"
    if len(pair.steps) or series.why_none:
        return ""
    ours = series.steps[np.isfinite(series.values)]
    return (
        f"no step in common: the curve has {curve.steps[0]} to {curve.steps[-1]}, counted from"
        f" {pair.known.first_step}, the log {ours[0]} to {ours[-1]}"
    )


def _found(pair: CurvePair, values: LogValues) -> _Found:
    """The first of what a curve can be that it is."""
    if pair.close().all():
        rounded = "" if pair.is_whole or not pair.half_unit else f"to the {_decimals(pair)} decimals that the file has"
        if pair.relative > RELATIVE and not pair.half_unit:
            rounded = "as the half precision of the file rounds them"
        exactly = pair.logged == pair.recomputed
        return _Found(Verdict.EQUAL, "" if exactly.all() else rounded, len(pair.steps))
    others = values.alternatives(pair.known.ours) if len(pair.steps) >= FEWEST_STEPS else []
    for hypothesis in (_as_shifted, _as_offset, _as_other, _as_factor, _as_total, _as_other_offset, _as_smoothed):
        found = hypothesis(pair, others) if len(pair.steps) >= FEWEST_STEPS else None
        if found is not None:
            return found._replace(equal_steps=len(pair.steps))
    return _difference(pair, others)


def _as_shifted(pair: CurvePair, _: Sequence[LogSeries]) -> _Found | None:
    for shift in (1, -1):
        other = pair.shifted(shift)
        # At most one step falls out at an end.
        if len(other.steps) >= len(pair.steps) - 1 and other.tells and varies(other.recomputed) and other.fits():
            return _Found(Verdict.SHIFTED, _numbering(other))
    return None


def _as_offset(pair: CurvePair, _: Sequence[LogSeries]) -> _Found | None:
    offset = _offset(pair)
    is_convention = pair.series.definition.unit in (Unit.STEPS, Unit.VERSION, "versions", "syncs")
    if not (varies(pair.recomputed) or is_convention) or not pair.fits(pair.recomputed + offset):
        return None
    return _Found(Verdict.OFFSET, f"the curve is the log's value {_signed(offset)} at every step")


def _as_other(pair: CurvePair, others: Sequence[LogSeries]) -> _Found | None:
    for shift in (0, 1, -1):
        for series in others:
            other = pair.of(series, shift)
            if len(other.steps) >= len(pair.steps) - 1 and other.tells and other.fits():
                numbered = f", {_numbering(other)}" if shift else ""
                return _Found(Verdict.OTHER, f"it is {_named(series)}{numbered}")
    return None


def _as_factor(pair: CurvePair, _: Sequence[LogSeries]) -> _Found | None:
    there = pair.recomputed != 0
    if not varies(pair.recomputed) or not there.any():
        return None
    factor = float(np.median(pair.logged[there] / pair.recomputed[there]))
    off = np.abs(pair.logged - factor * pair.recomputed)
    if factor == 0 or (off > RELATIVE * np.abs(pair.logged) + pair.half_unit).any():
        return None
    return _Found(Verdict.FACTOR, f"the curve is {_number(factor)} times the log's value at every step")


def _as_total(pair: CurvePair, others: Sequence[LogSeries]) -> _Found | None:
    """A running total of what was counted, from wherever it began."""
    for own in (pair, *map(pair.of, others)):
        if len(own.steps) < len(pair.steps) or not own.is_whole or not own.recomputed.any():
            continue
        # What came before the first common step, and in steps that the curve leaves out, isn't in it.
        totals = np.cumsum(np.where(np.isfinite(own.series.values), own.series.values, 0.0))
        total = totals[np.searchsorted(own.series.steps, own.steps)]
        if own.fits(total + (own.logged[0] - total[0])):
            return _Found(Verdict.OTHER, f"it is the running total of {_named(own.series)}")
    return None


def _as_other_offset(pair: CurvePair, others: Sequence[LogSeries]) -> _Found | None:
    for series in others:
        other = pair.of(series)
        offset = _offset(other)
        whole = abs(offset) <= FEWEST_STEPS and offset == round(offset)
        is_like = whole and len(other.steps) == len(pair.steps) and varies(other.recomputed)
        if is_like and other.fits(other.recomputed + offset):
            return _Found(Verdict.OTHER, f"it is {_named(series)}, {_signed(offset)}")
    return None


def _as_smoothed(pair: CurvePair, _: Sequence[LogSeries]) -> _Found | None:
    """A mean over some of the last steps or all before, or an exponential moving average of the log's values.

    The latter with or without the correction of its beginning.
    """
    allowed = _SMOOTH * np.abs(pair.recomputed).max(initial=0)
    if not varies(pair.recomputed) or len(pair.steps) < TELLING_VALUES:
        return None
    how = _window(pair, allowed) or _exponential(pair, allowed)
    if how is None:
        return None
    return _Found(Verdict.OTHER, f"it is smoothed, {how} of {_named(pair.series)}: export the raw values")


def _window(pair: CurvePair, allowed: float) -> str | None:
    """The mean of the last values that the curve is, in words; at the begin, of those that there are."""
    totals, place = np.cumsum(np.append(0.0, pair.recomputed)), np.arange(1, len(pair.steps) + 1)
    steps = len(pair.steps)
    for size in (*range(2, min(_LARGEST_WINDOW, steps - 1) + 1), steps):
        first = np.maximum(place - size, 0)
        if (np.abs((totals[place] - totals[first]) / (place - first) - pair.logged) <= allowed).all():
            return "the mean of all values so far" if size == steps else f"the mean of the last {size} values"
    return None


def _exponential(pair: CurvePair, allowed: float) -> str | None:
    """The exponential moving average that the curve is, in words."""
    weights = np.array(_WEIGHTS)
    from_first = np.full(len(weights), pair.recomputed[0])
    corrected, power = np.zeros(len(weights)), np.ones(len(weights))
    fits_first, fits_corrected = np.ones((2, len(weights)), dtype=np.bool_)
    for value, logged in zip(pair.recomputed.tolist(), pair.logged.tolist(), strict=True):
        from_first = weights * from_first + (1 - weights) * value
        corrected, power = weights * corrected + (1 - weights) * value, power * weights
        fits_first &= np.abs(from_first - logged) <= allowed
        fits_corrected &= np.abs(corrected / (1 - power) - logged) <= allowed
    fitting = np.flatnonzero(fits_first | fits_corrected)
    return f"a moving average with weight {weights[fitting[0]]:g}" if len(fitting) else None


def _difference(pair: CurvePair, others: Sequence[LogSeries]) -> _Found:
    """Where a curve that is nothing else begins to differ from what it is like for longest."""
    offset = _offset(pair)
    readings = [("", pair, pair.recomputed), (f"the log's value {_signed(offset)}", pair, pair.recomputed + offset)]
    readings += [(_named(own.series), own, own.recomputed) for own in map(pair.of, others) if own.tells]
    scored = [(int(own.close(value).sum()), text, own, value) for text, own, value in readings]
    equal, text, own, recomputed = scored[0]
    # What fits everywhere was ruled out before, as for two constants.
    best = max((entry for entry in scored if entry[0] < len(entry[2].steps)), key=lambda entry: entry[0])
    begins_equal = len(pair.steps) > FEWEST_STEPS and bool(pair.close()[:FEWEST_STEPS].all())
    if not begins_equal and best[0] > equal and best[0] >= max(FEWEST_STEPS, len(pair.steps) / 2):
        equal, text, own, recomputed = best
    differs = ~own.close(recomputed)
    first, count, size = int(np.argmax(differs)), int(differs.sum()), len(own.steps)
    step, logged, ours = int(own.steps[first]), float(own.logged[first]), float(recomputed[first])
    if count == size - first:
        where = f"from step {step} on" if first else "at every step, from the first on"
    else:
        where = f"at {count:,} of {plural(size, 'step')}, first at step {step}"
    until = f"it is {text} elsewhere, and differs " if text else "differs "
    largest = float(np.abs(own.logged - recomputed)[differs].max())
    detail = f"{until}{where}: logged {_number(logged)}, the log gives {_number(ours)}"
    if count > 1:
        detail += f"; off by up to {_number(largest)}"
    return _Found(Verdict.DIFFERS, detail, equal, step, logged, ours)


def _offset(pair: CurvePair) -> float:
    """The difference that most steps have; the median where no two have one."""
    differences = np.round(pair.logged - pair.recomputed, 9)
    found, counts = np.unique(differences, return_counts=True)
    return float(found[np.argmax(counts)]) if counts.max() > 1 else float(np.median(differences))


def _decimals(pair: CurvePair) -> int:
    return round(-np.log10(2 * pair.half_unit))


def _numbering(pair: CurvePair) -> str:
    return f"step {int(pair.steps[0]) - pair.later} of the curve is step {int(pair.steps[0])} of the log"


def _named(series: LogSeries) -> str:
    return f"{series.definition.name} ({series.definition.text})"


def _signed(value: float) -> str:
    return f"{'plus' if value >= 0 else 'minus'} {_number(abs(value))}"


def _number(value: float) -> str:
    return f"{int(value):,}" if value.is_integer() and abs(value) < 2**53 else f"{value:.6g}"
