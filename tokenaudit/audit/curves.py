"""The curves that a user gives with a log: read, named, and compared with what the log gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenaudit.audit.case import Case
from tokenaudit.audit.curve_files import read_curves
from tokenaudit.audit.curve_names import CurveNames, KnownCurve
from tokenaudit.audit.curve_points import Curve
from tokenaudit.audit.curve_values import LogValues
from tokenaudit.audit.parity import Parity, compared_curve
from tokenaudit.contracts.errors import Problem, UsageError, shown

_MOST_LISTED = 20


class NamedCurves(NamedTuple):
    """The curves that are known, each with what it is, and names of those that aren't."""

    known: tuple[tuple[Curve, KnownCurve], ...]
    unknown: tuple[str, ...]


def named_curves(files: Sequence[Path], mapped: Mapping[str, str]) -> NamedCurves:
    """Read the curves that are known by a trainer's name, or that the user mapped to a series of the log.

    Raises:
        UsageError: there is no such file, series or curve, or no curve is known.
        SourceError: a file can't be read.
    """
    if mapped and not files:
        raise UsageError(Problem("--map is for curves", None, "give their file with --curves FILE"))
    names = CurveNames(mapped)
    if not files:
        return NamedCurves((), ())
    curves = read_curves(files, lambda name: names.known(name) is not None, names.step_column)
    problems = names.unused([curve.name for curve in curves.wanted], list(curves.others))
    if not curves.wanted and not problems:
        listed = ", ".join(shown(name) for name in curves.others[:_MOST_LISTED])
        hint = f"say what they are: --map THEIRS=OURS, as `tokenaudit help audit` shows; they are {listed or 'none'}"
        problems.append(Problem("no curve is known by its name", ", ".join(map(str, files)), hint))
    if problems:
        raise UsageError(problems)
    known = ((curve, names.known(curve.name)) for curve in curves.wanted)
    return NamedCurves(tuple((curve, one) for curve, one in known if one is not None), curves.others)


def compared_curves(curves: NamedCurves, case: Case) -> tuple[Parity, ...]:
    """Each of the known curves beside the log's own values."""
    values = LogValues(case)
    return tuple(compared_curve(curve, known, values) for curve, known in curves.known)
