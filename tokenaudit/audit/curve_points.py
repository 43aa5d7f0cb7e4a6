"""The points of curves, gathered row by row from a table that a tracker exported.

A table is wide, with a column per metric, or long, with a row per step, tag and value; one with a single column of
values is the curve that its file is named after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.contracts.errors import Problem, shown
from tokenaudit.log.columns import Int64s

MOST_POINTS = 5_000_000
"""Values that are kept of all curves together, and rows of a Parquet file; no run has that many steps."""
MOST_NAMES = 10_000
"""Names of curves that are remembered."""
_MOST_HEADERS = 100
"""Sets of columns that are remembered; lines of JSON have several."""
STEP = "train_step"
"""What `--map COLUMN=train_step` calls the column of steps."""
STEP_COLUMNS = (
    "train_step", "train/global_step", "training/global_step", "trainer/global_step", "global_step", "step",
    "global step", "_step", "iteration",
)  # fmt: skip
"""Columns of steps, the best first, in lower case; `rollout/step` and the like before them for curves below `rollout/`.
`_step` of Weights & Biases counts calls where the trainer logs a step of its own."""
SHOWN_PROBLEMS = 20
"""Faults that are reported one by one; the others are counted."""

_TAG_COLUMNS, _VALUE_COLUMNS = ("tag", "metric", "key", "name"), ("value", "metric_value")
_NO_CURVES = ("wall time", "wall_time", "_runtime", "_timestamp", "timestamp", "time")
_NO_CURVE_ENDS = ("__min", "__max", "_timestamp")
_LARGEST_STEP = 2**53

Float64s = np.ndarray[Any, np.dtype[np.float64]]


class Curve(NamedTuple):
    """What one trainer logged of one metric.

    Attributes:
        name: as the file calls it.
        file: name of the file, without folders.
        steps: the trainer's own steps, ascending, each once.
        values: of the same shape.
        repeated: steps that were logged more than once, as after a resume; the last value counts.
        gaps: rows without a finite value.
    """

    name: str
    file: str
    steps: Int64s
    values: Float64s
    repeated: int
    gaps: int


@dataclass(slots=True)
class _Points:
    values: dict[int, float] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)
    gaps: int = 0


@dataclass(frozen=True, slots=True)
class _Header:
    """What the columns of a table are.

    Attributes:
        long: those of tags and values of a table with a row per step and tag; None for a wide one.
        curves: of a wide table, the columns of curves that are read, and their names.
        steps: columns of steps by their name in lower case; the one that the user named by "".
    """

    long: tuple[str, str] | None
    curves: tuple[tuple[str, str], ...]
    steps: Mapping[str, str]
    _candidates: dict[str, list[str]] = field(default_factory=dict)

    def step_column(self, curve: str, row: Mapping[str, Any]) -> str | None:
        """The column of a row that holds the step of a curve."""
        candidates = self._candidates.get(curve)
        if candidates is None:
            own = f"{curve.partition('/')[0].lower()}/step"
            candidates = [self.steps[name] for name in ("", own, *STEP_COLUMNS) if name in self.steps]
            if len(self._candidates) < MOST_NAMES:
                self._candidates[curve] = candidates
        for column in candidates:
            if not _is_gap(row[column]):
                return column
        return None


class CurveReader:
    """Gathers the points of one file.

    Args:
        path: the file.
        is_wanted: whether a curve is to be read, by the name that the file gives it.
        step_column: the column of steps; None: one of `STEP_COLUMNS`.
        faults: what is wrong with the file is added here.
        most: points that may be kept.

    Attributes:
        points: points that were kept.
        others: names of curves that aren't wanted, the first few thousand.
    """

    def __init__(
        self, path: Path, is_wanted: Callable[[str], bool], step_column: str | None, faults: list[Problem], most: int
    ) -> None:
        self.path = path
        self.points = 0
        self.others: dict[str, None] = {}
        self._is_wanted = is_wanted
        self._step_column = step_column
        self._faults = faults
        self._most = most
        self._curves: dict[str, _Points] = {}
        self._kinds: dict[str, str] = {}
        self._headers: dict[tuple[str, ...], _Header] = {}
        self._rows = self._with_step = 0

    def columns(self, names: Iterable[str]) -> list[str]:
        """Those of the columns of a table that have to be read."""
        names = list(names)
        long = self._long(names)
        if long is not None:
            kept = set(long)
        else:
            kept = {name for name in names if self._kind(self._curve_name(name, names)) == "wanted"}
        return [name for name in names if name in kept or _is_step(name) or name == self._step_column]

    def add(self, where: str, row: Mapping[str, Any]) -> None:
        """Take the points of a row, whose place in the file is `where`.

        Raises:
            ValueError: there are too many points, or faults.
        """
        self._rows += 1
        names = tuple(row)
        header = self._headers.get(names)
        if header is None:
            header = self._header_of(names)
            if len(self._headers) < _MOST_HEADERS:
                self._headers[names] = header
        if header.long is not None:
            tag, value = header.long
            cells = {str(row[tag]): row[value]} if row[tag] is not None else {}
        else:
            cells = {curve: row[column] for column, curve in header.curves}
        steps: dict[str, int | None] = {}
        for name, cell in cells.items():
            if self._kind(name) != "wanted":
                continue
            column = header.step_column(name, row)
            if column is None:
                continue
            if column not in steps:
                steps[column] = self._whole(row[column], f"{where}, {column}")
            step = steps[column]
            if step is not None:
                self._point(name, step, cell, where)
        self._with_step += bool(steps) or header.step_column("", row) is not None

    def finish(self) -> None:
        """Note what is wrong with the file as a whole."""
        if self._rows and not self._with_step:
            listed = ", ".join(shown(name) for name in list({**self._curves, **self.others})[:20])
            hint = f"name it: --map COLUMN={STEP}; columns: {listed}"
            self._faults.append(Problem("no column of steps", str(self.path), hint))

    def curves(self) -> Iterator[Curve]:
        """The curves that were asked for."""
        for name, points in self._curves.items():
            steps = np.array(sorted(points.values), dtype=np.int64)
            values = np.array([points.values[step] for step in steps.tolist()], dtype=np.float64)
            yield Curve(name, self.path.name, steps, values, len(points.repeated), points.gaps)

    def _header_of(self, names: tuple[str, ...]) -> _Header:
        if self._step_column is not None:
            steps = {"": self._step_column} if self._step_column in names else {}
        else:
            steps = {name.lower(): name for name in names if _is_step(name)}
        long, curves = self._long(names), list[tuple[str, str]]()
        if long is None:
            curves = [(name, self._curve_name(name, names)) for name in names if not self._is_step(name)]
            curves = [one for one in curves if self._kind(one[1]) == "wanted"]
        return _Header(long, tuple(curves), steps)

    def _long(self, names: Iterable[str]) -> tuple[str, str] | None:
        """The columns of tags and values of a table with a row per step and tag; None where it is none."""
        lower = {name.lower(): name for name in names}
        tag = next((lower[name] for name in _TAG_COLUMNS if name in lower), None)
        value = next((lower[name] for name in _VALUE_COLUMNS if name in lower), None)
        return None if tag is None or value is None else (tag, value)

    def _curve_name(self, column: str, names: Iterable[str]) -> str:
        """The name of a wide column's curve: that of the file's only column of values is the file's."""
        if column.lower() not in _VALUE_COLUMNS:
            return column
        alone = all(self._is_step(name) or name.lower() in (*_NO_CURVES, column.lower()) for name in names)
        return self.path.stem.rpartition("-tag-")[2] if alone else column

    def _kind(self, name: str) -> str:
        """Whether a curve is "wanted", one of the "others" or "none", remembered."""
        kind = self._kinds.get(name)
        if kind is None:
            lower = name.lower()
            is_none = self._is_step(name) or lower in _NO_CURVES or lower.endswith(_NO_CURVE_ENDS)
            kind = "wanted" if self._is_wanted(name) else "none" if is_none else "others"
            if len(self._kinds) < MOST_NAMES:
                self._kinds[name] = kind
                if kind == "others":
                    self.others[name] = None
        return kind

    def _is_step(self, name: str) -> bool:
        return name == self._step_column if self._step_column is not None else _is_step(name)

    def _point(self, name: str, step: int, cell: Any, where: str) -> None:
        points = self._curves.get(name)
        if points is None:
            points = self._curves[name] = _Points()
        value = None if _is_gap(cell) else self._number(cell, f"{where}, {name}")
        if value is None or math.isinf(value):
            points.gaps += 1
            return
        self.points += 1
        if self.points > self._most:
            raise ValueError(f"more than {MOST_POINTS:,} values")
        if step in points.values:
            points.repeated.add(step)
        points.values[step] = value

    def _number(self, cell: Any, where: str) -> float | None:
        """A value; None where it is none, which is noted."""
        if isinstance(cell, str) and "_" not in cell and len(cell) < 100:
            with suppress(ValueError):
                return float(cell)
        elif isinstance(cell, int | float) and not isinstance(cell, bool):
            with suppress(OverflowError):
                return float(cell)
        self._fault(f"{shown(cell)} is no number", where)
        return None

    def _whole(self, cell: Any, where: str) -> int | None:
        value = self._number(cell, where)
        if value is None:
            return None
        if not (0 <= value <= _LARGEST_STEP and value.is_integer()):
            self._fault(f"{shown(cell)} is no step", where)
            return None
        return int(value)

    def _fault(self, what: str, where: str) -> None:
        self._faults.append(Problem(what, where, "export the curves again, or leave the column out"))
        if len(self._faults) > 10 * SHOWN_PROBLEMS:
            raise ValueError("too many faults to go on")


def _is_gap(cell: Any) -> bool:
    return cell is None or cell != cell or (isinstance(cell, str) and cell.strip().lower() in ("", "nan", "null"))


def _is_step(name: str) -> bool:
    return name.lower() in STEP_COLUMNS or name.lower().endswith("/step")
