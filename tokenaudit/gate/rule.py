"""What a gate rule is: a figure, where to look at it, and the limits it must keep to. `str` gives its text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from tokenaudit.compare.metric_values import Figure, Number
from tokenaudit.config.toml import quoted

WARN_PREFIX = "warn:"
"""Begins a rule that only warns."""
BARE_NAME = re.compile(r"[A-Za-z0-9_./-]+")
"""Names of tasks and methods that need no quotes."""


class Level(StrEnum):
    """What a rule that doesn't hold means."""

    ERROR = "error"
    """The gate fails."""
    WARNING = "warning"
    """It is reported; the gate passes."""


class Operator(StrEnum):
    """How a value must stand to a limit."""

    AT_MOST = "<="
    BELOW = "<"
    AT_LEAST = ">="
    ABOVE = ">"
    EQUAL = "=="

    def holds(self, value: Number, limit: Number) -> bool:
        """Whether the value stands like that to the limit."""
        match self:
            case Operator.AT_MOST:
                return value <= limit
            case Operator.BELOW:
                return value < limit
            case Operator.AT_LEAST:
                return value >= limit
            case Operator.ABOVE:
                return value > limit
        return value == limit

    def beyond(self, value: Number, limit: Fraction) -> Fraction:
        """How far the value is beyond the limit; negative where it is within."""
        if self is Operator.EQUAL:
            return abs(value - limit)
        return value - limit if self.is_upper else limit - value

    @property
    def is_upper(self) -> bool:
        """Whether larger values are worse."""
        return self in (Operator.AT_MOST, Operator.BELOW)


class Sign(StrEnum):
    """Whether and in which direction a limit is counted from the baseline."""

    NONE = ""
    PLUS = "+"
    MINUS = "-"


class LimitUnit(StrEnum):
    """What the number of a limit counts."""

    ONE = ""
    """The metric's own unit."""
    PERCENT = "%"
    """Without a sign hundredths, of a rate; with a sign a share of the baseline."""
    POINTS = "pp"
    """Percentage points of a rate, counted from the baseline."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One alternative of a rule's right side."""

    sign: Sign
    number: Decimal
    unit: LimitUnit

    @property
    def is_relative(self) -> bool:
        """Whether it is counted from a baseline."""
        return self.sign is not Sign.NONE

    @property
    def is_share(self) -> bool:
        """Whether it is a share of the baseline, and so means nothing where the baseline is 0."""
        return self.is_relative and self.unit is LimitUnit.PERCENT

    def value(self, baseline: Number | None) -> Fraction:
        """The limit as a number, exactly; `baseline` may be None where the limit is absolute."""
        amount = Fraction(self.number) / (1 if self.unit is LimitUnit.ONE else 100)
        if not self.is_relative:
            return amount
        if baseline is None:
            raise ValueError("a relative limit needs a baseline")
        if self.unit is LimitUnit.PERCENT:
            amount *= abs(baseline)
        return baseline - amount if self.sign is Sign.MINUS else baseline + amount

    def __str__(self) -> str:
        return f"{self.sign}{self.number:f}{self.unit}"


@dataclass(frozen=True, slots=True)
class StepCondition:
    """One comparison of a step with a number."""

    operator: Operator
    step: int

    def __str__(self) -> str:
        return f"step{self.operator}{self.step}"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a rule looks at.

    Attributes:
        task: one task; None: all together.
        steps: None: the run as a whole; else every step that meets all conditions, each by itself.
        absent_ok: whether the rule holds where the run has no data of the task.
        method: the off-policy correction whose figures are looked at; None: those of the run itself.
    """

    task: str | None = None
    steps: tuple[StepCondition, ...] | None = None
    absent_ok: bool = False
    method: str | None = None

    def has_step(self, train_step: int) -> bool:
        """Whether a step is looked at."""
        return self.steps is not None and all(part.operator.holds(train_step, part.step) for part in self.steps)

    def __str__(self) -> str:
        names = {"method": self.method, "task": self.task}
        parts = [
            f"{key}={name if BARE_NAME.fullmatch(name) else quoted(name)}"
            for key, name in names.items()
            if name is not None
        ]
        if self.steps is not None:
            parts += map(str, self.steps) if self.steps else ["step"]
        if self.absent_ok:
            parts.append("absent=ok")
        return f"{{{','.join(parts)}}}" if parts else ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit on a figure. Its text, in one spelling, is `str(rule)`."""

    figure: Figure
    scope: Scope
    operator: Operator
    limits: tuple[Limit, ...]
    level: Level = Level.ERROR

    @property
    def is_relative(self) -> bool:
        """Whether it needs a baseline."""
        return any(limit.is_relative for limit in self.limits)

    def __str__(self) -> str:
        level = f"{WARN_PREFIX} " if self.level is Level.WARNING else ""
        return f"{level}{self.figure.name}{self.scope} {self.operator} {' or '.join(map(str, self.limits))}"
