"""Compare two results: settings, totals, steps, where they part, and which groups changed fate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from tokenaudit.compare.divergence import Divergence, explain
from tokenaudit.compare.group_events import GroupEvents
from tokenaudit.compare.group_outcomes import GroupChanges, compare_outcomes, outcomes_of_ids, outcomes_of_run
from tokenaudit.compare.metric_values import (
    FIGURES,
    Figure,
    FigureValue,
    Missing,
    Number,
    has_steps,
    has_totals,
    keyed_rows,
    row_value,
    total_value,
)
from tokenaudit.config.model import Config, dotted_items, parse_config
from tokenaudit.config.toml import shown
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import NOTHING, printable
from tokenaudit.contracts.metrics import Better
from tokenaudit.replay.result import Result, RowData

DIFF_SCHEMA_VERSION = 1
"""Version of the JSON that `diff` writes."""
KIND_DIFF = "tokenaudit.diff"

SAVED = "saved result"
"""Origin of settings that come with a saved result."""

_RANKING = (m.DROPPED_TOKENS, m.TRAINED_TOKENS, m.EXPIRED_GROUPS, m.PRODUCED_TOKENS)
"""Figures by which steps are ranked, the first that changes."""


class Effect(StrEnum):
    """What a change means."""

    NONE = ""
    """No change, or one that is neither good nor bad."""
    BETTER = "better"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs.

    Attributes:
        label: what people call it, such as the name of its config.
        result: the run.
        origins: where each setting comes from, by dotted key; empty for a saved result.
        tape: its events; None for a saved result.
    """

    label: str
    result: Result
    origins: Mapping[str, str] = field(default_factory=dict)
    tape: GroupEvents | None = None

    def __repr__(self) -> str:
        return f"Side({self.label}: {self.result!r})"


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that differs; a value is None where the key isn't set."""

    key: str
    a: object
    b: object
    a_origin: str
    b_origin: str


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A figure on both sides."""

    figure: Figure
    a: FigureValue
    b: FigureValue

    @property
    def differs(self) -> bool:
        """Whether the sides differ; two absent values, or two nulls, don't."""
        return self.a != self.b

    @property
    def change(self) -> Number | None:
        """B minus A; None unless both have a value."""
        if self.a is None or self.b is None or isinstance(self.a, Missing) or isinstance(self.b, Missing):
            return None
        return self.b - self.a

    @property
    def relative(self) -> Fraction | None:
        """The change as a share of A; None where A is 0 or a side has no value."""
        if self.change is None or not self.a or isinstance(self.a, Missing):
            return None
        return Fraction(self.change) / abs(self.a)

    @property
    def effect(self) -> Effect:
        """Whether the change is in the figure's better direction."""
        if not self.change or self.figure.better is Better.NEUTRAL:
            return Effect.NONE
        return Effect.BETTER if (self.change < 0) == (self.figure.better is Better.LOWER) else Effect.WORSE


@dataclass(frozen=True, slots=True)
class StepChange:
    """The figures that differ at one step."""

    train_step: int
    changes: tuple[FigureChange, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, compared.

    Attributes:
        a: run A.
        b: run B.
        settings: settings that differ, those of [gate] aside.
        totals: the compared figures over the whole runs.
        tasks: the same by task, of tasks on either side.
        steps: steps on both sides where a figure differs, in order.
        only_a: steps that only A has, of those that a selection of B covers.
        only_b: steps that only B has, of those that a selection of A covers.
        ranked_by: the figure by which steps are ranked; None where no step differs.
        largest: steps with the largest change of that figure, the largest first.
        divergence: where the runs part for the first time; None where no step differs.
        groups: groups that changed fate; None where that isn't known.
        groups_missing: why it isn't known.
    """

    a: Side
    b: Side
    settings: tuple[SettingChange, ...]
    totals: tuple[FigureChange, ...]
    tasks: dict[str, tuple[FigureChange, ...]]
    steps: tuple[StepChange, ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    ranked_by: Figure | None
    largest: tuple[StepChange, ...]
    divergence: Divergence | None
    groups: GroupChanges | None
    groups_missing: str

    def __repr__(self) -> str:
        changed = [change for change in self.totals if change.differs]
        headline = [change for change in changed if change.figure in _RANKING]
        shown = ", ".join(f"{change.figure.name} {change.a} to {change.b}" for change in headline)
        return (
            f"Comparison({self.a.label} to {self.b.label}: {len(self.settings)} settings, {len(changed)} of"
            f" {len(self.totals)} figures and {len(self.steps)} steps differ{'; ' if shown else ''}{shown})"
        )

    @property
    def differs(self) -> bool:
        """Whether anything does: a setting, a figure, a step, or the fate of a group."""
        figures = (change for changes in (self.totals, *self.tasks.values()) for change in changes)
        return bool(
            self.settings
            or self.steps
            or self.only_a
            or self.only_b
            or self.divergence
            or any(change.differs for change in figures)
            or (self.groups and self.groups.changed)
        )


def compare(
    a: Side, b: Side, *, figures: Sequence[Figure] | None = None, top: int = 5, with_ids: bool = False
) -> Comparison:
    """Compare run B with run A.

    Args:
        a: the run to compare with.
        b: the run that is compared.
        figures: what to compare; None: everything that either side has.
        top: how many of the steps with the largest change to name.
        with_ids: list the groups that changed fate.

    Raises:
        ConfigError: the config of a saved result can't be read.
    """
    configs = tuple(parse_config(side.result.config, side.label) for side in (a, b))
    chosen = tuple(FIGURES if figures is None else figures)
    tasks = dict.fromkeys((*a.result.tasks, *b.result.tasks))
    steps_a, steps_b = keyed_rows(a.result), keyed_rows(b.result)
    steps = tuple(_step_changes(steps_a, steps_b, chosen))
    only_a = tuple(key[0] for key in steps_a if key not in steps_b and b.result.covers(key[0]))
    only_b = tuple(key[0] for key in steps_b if key not in steps_a and a.result.covers(key[0]))
    ranked_by = _ranked_by(steps, figures)
    groups, groups_missing = _groups(a, b, configs, with_ids)
    return Comparison(
        a=a,
        b=b,
        settings=setting_changes(a, b),
        totals=_total_changes(a.result, b.result, chosen, None),
        tasks={task: _total_changes(a.result, b.result, chosen, task) for task in tasks},
        steps=steps,
        only_a=only_a,
        only_b=only_b,
        ranked_by=ranked_by,
        largest=_largest(steps, ranked_by, top),
        divergence=_divergence(a, b, configs, steps, only_a, only_b, chosen),
        groups=groups,
        groups_missing=groups_missing,
    )


def setting_changes(a: Side, b: Side) -> tuple[SettingChange, ...]:
    """Settings that differ between two runs, those of [gate] aside.

    Raises:
        ConfigError: the config of a saved result can't be read.
    """
    values_a, values_b = (dotted_items(parse_config(side.result.config, side.label)) for side in (a, b))
    changes: list[SettingChange] = []
    for key in dict.fromkeys((*values_a, *values_b)):
        left, right = values_a.get(key), values_b.get(key)
        if left != right and not key.startswith("gate."):
            origins = (side.origins.get(key, "") if side.origins else SAVED for side in (a, b))
            changes.append(SettingChange(key, left, right, *origins))
    return tuple(changes)


def setting_cells(change: SettingChange) -> tuple[str, str, str, str]:
    """Key, both values, and where they come from."""
    a, b = (NOTHING if value is None else printable(shown(value)) for value in (change.a, change.b))
    origins = dict.fromkeys(printable(origin or NOTHING) for origin in (change.a_origin, change.b_origin))
    return printable(change.key), a, b, " → ".join(origins)


def _total_changes(a: Result, b: Result, figures: Sequence[Figure], task: str | None) -> tuple[FigureChange, ...]:
    changes = (
        FigureChange(figure, total_value(a, figure, task), total_value(b, figure, task))
        for figure in figures
        if has_totals(figure)
    )
    return tuple(change for change in changes if not (change.a is change.b is Missing.ABSENT))


def _step_changes(
    a: Mapping[tuple[int, int], RowData], b: Mapping[tuple[int, int], RowData], figures: Sequence[Figure]
) -> Iterator[StepChange]:
    for key, row in a.items():
        changes = _row_changes(row, b[key], figures) if key in b else ()
        if changes:
            yield StepChange(key[0], changes)


def _row_changes(a: RowData, b: RowData, figures: Sequence[Figure]) -> tuple[FigureChange, ...]:
    """The figures that differ between two rows."""
    changes = (
        FigureChange(figure, row_value(a, figure), row_value(b, figure)) for figure in figures if has_steps(figure)
    )
    return tuple(change for change in changes if change.differs)


def _ranked_by(steps: Sequence[StepChange], figures: Sequence[Figure] | None) -> Figure | None:
    """The figure to rank steps by: the first of those asked for, or of those that matter most, that moves at a step."""
    moving = {change.figure for step in steps for change in step.changes if change.change}
    order = (*_RANKING, *FIGURES) if figures is None else figures
    return next((figure for figure in order if figure in moving), None)


def _largest(steps: Sequence[StepChange], ranked_by: Figure | None, top: int) -> tuple[StepChange, ...]:
    def size(step: StepChange) -> Number:
        return next((abs(one.change or 0) for one in step.changes if one.figure is ranked_by), 0)

    return tuple(step for step in sorted(steps, key=size, reverse=True)[:top] if size(step))


def _divergence(
    a: Side,
    b: Side,
    configs: tuple[Config, ...],
    steps: Sequence[StepChange],
    only_a: Sequence[int],
    only_b: Sequence[int],
    figures: Sequence[Figure],
) -> Divergence | None:
    """The first step whose rows differ, or that one side lacks; then what comes after the last step."""
    first = min((*(step.train_step for step in steps), *only_a, *only_b), default=None)
    if first in only_a or first in only_b:
        return Divergence(first, (), (f"only {'A' if first in only_a else 'B'} has this step",))
    if first is None:
        differing = tuple(change.figure for change in _row_changes(a.result.tail, b.result.tail, figures))
        if not differing or a.result.selection or b.result.selection:
            return None
    else:
        found = next(step for step in steps if step.train_step == first)
        differing = tuple(change.figure for change in found.changes)
    why: tuple[str, ...] = ()
    if a.tape is not None and b.tape is not None:
        why = explain(first, (a.tape, b.tape), (configs[0], configs[1]))
    return Divergence(first, differing, why)


def _groups(a: Side, b: Side, configs: tuple[Config, ...], with_ids: bool) -> tuple[GroupChanges | None, str]:
    """Groups that changed fate, or why that isn't known."""
    if a.tape is not None and b.tape is not None:
        return compare_outcomes(outcomes_of_run(a.tape), outcomes_of_run(b.tape), from_ids=False, with_ids=with_ids), ""
    fates_a, fates_b = (outcomes_of_ids(side.result, config) for side, config in zip((a, b), configs, strict=True))
    if fates_a is not None and fates_b is not None:
        return compare_outcomes(fates_a, fates_b, from_ids=True, with_ids=with_ids), ""
    lacking = [name for name, fates in (("A", fates_a), ("B", fates_b)) if fates is None]
    has = "has" if len(lacking) == 1 else "have"
    return None, f"{' and '.join(lacking)} {has} no group ids: save with --groups, or compare configs with --log"
