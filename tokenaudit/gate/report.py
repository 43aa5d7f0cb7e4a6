"""What judging by rules comes to: rules with their places, verdicts, and the report of a gate."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from tokenaudit.compare.compare import SettingChange
from tokenaudit.compare.metric_values import Number
from tokenaudit.contracts.errors import Notice
from tokenaudit.gate.rule import Level, Operator, Rule
from tokenaudit.replay.result import InputInfo

GATE_SCHEMA_VERSION = 1
"""Version of the JSON that `gate` writes."""
KIND_GATE = "tokenaudit.gate"

PASS, FAIL, COULD_NOT_JUDGE = 0, 1, 2
"""Exit codes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a rule stands.

    Attributes:
        name: what messages call it: a file without folders, "--rule", or another source.
        path: the file as the user named it; None where the rule is in no file.
        line: its line in that file, from 1.
        lines: the text of that line, after that of the line before it, if there is one, and before that of the next.
    """

    name: str
    path: str | None = None
    line: int | None = None
    lines: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """File and line, or what else the rule came from."""
        return self.name if self.line is None else f"{self.name}, line {self.line}"


BY_DEFAULT = Origin("no rules given")
"""Origin of the rules that hold when there are no others."""


@dataclass(frozen=True, slots=True)
class LocatedRule:
    """A rule and where it stands."""

    rule: Rule
    origin: Origin


class Outcome(StrEnum):
    """What became of a rule."""

    FAILED = "failed"
    """The figure is beyond the limit."""
    NOT_JUDGED = "not judged"
    """There was nothing to hold against the limit."""
    PASSED = "passed"
    """The figure is within the limit."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A figure as it was at one step, or of one task there.

    Attributes:
        train_step: the step; None: the whole run.
        task: the task; None: all together.
        value: the figure.
        baseline: the baseline's figure; None without one.
    """

    train_step: int | None
    task: str | None
    value: Number
    baseline: Number | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule, judged.

    Attributes:
        located: the rule.
        outcome: what became of it.
        reason: why it could not be judged; empty where it was.
        value: the figure that came nearest to the limit, or went furthest beyond it.
        counts: numerator and denominator, where that figure is a rate.
        baseline: the baseline's figure; None for absolute rules.
        limit: the loosest limit of the rule.
        worst_step: where the figure is worst.
        worst_task: the task with the worst figure there.
        judged: how many values were held against the limit.
        failed: how many of them are beyond it.
        without_value: steps in the rule's scope where the figure has no value, such as the staleness of an empty batch.
    """

    located: LocatedRule
    outcome: Outcome
    reason: str = ""
    value: Number | None = None
    counts: tuple[Number, Number] | None = None
    baseline: Number | None = None
    limit: Fraction | None = None
    worst_step: Observation | None = None
    worst_task: Observation | None = None
    judged: int = 0
    failed: int = 0
    without_value: int = 0

    @property
    def rule(self) -> Rule:
        """The rule itself."""
        return self.located.rule

    @property
    def beyond_limit(self) -> Fraction | None:
        """How far the value is beyond the limit; negative where it is within."""
        if self.value is None or self.limit is None:
            return None
        return self.rule.operator.beyond(self.value, self.limit)

    @property
    def has_improved(self) -> bool:
        """Whether the figure is strictly better than the baseline's."""
        if self.outcome is not Outcome.PASSED or self.value is None or self.baseline is None:
            return False
        if self.rule.operator is Operator.EQUAL or self.rule.scope.steps is not None:
            return False
        return self.value < self.baseline if self.rule.operator.is_upper else self.value > self.baseline


@dataclass(frozen=True, slots=True)
class GateReport:
    """All rules, judged.

    Attributes:
        inputs: the logs behind the result.
        baseline: the logs behind the baseline; None without one.
        steps: steps of the run.
        tasks: its tasks.
        verdicts: the worst first.
        notices: what to know before trusting the figures.
        settings: settings that differ from the baseline's, which is side A.
    """

    inputs: tuple[InputInfo, ...]
    baseline: tuple[InputInfo, ...] | None
    steps: int
    tasks: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    notices: tuple[Notice, ...]
    settings: tuple[SettingChange, ...] = ()

    def __repr__(self) -> str:
        names = ", ".join(entry.name for entry in self.inputs)
        counts = ", ".join(f"{self.count(outcome)} {outcome}" for outcome in Outcome)
        worst = f"; worst: {self.verdicts[0].rule}" if self.verdicts else ""
        return f"GateReport({names}: {counts}{worst}; exit code {self.exit_code()})"

    def __str__(self) -> str:
        """What didn't pass and why, for a terminal or the message of a failing test."""
        from tokenaudit.gate.wording import report_text

        return report_text(self)

    @property
    def passed(self) -> bool:
        """Whether all rules were judged and none failed; warnings don't count."""
        return self.exit_code() == PASS

    def count(self, outcome: Outcome, level: Level | None = None) -> int:
        """Rules with that outcome, of that level."""
        return sum(verdict.outcome is outcome and level in (None, verdict.rule.level) for verdict in self.verdicts)

    def exit_code(self, *, exit_zero: bool = False) -> int:
        """0 judged and fine, 1 judged and failed, 2 could not judge. `exit_zero` turns 1 into 0 and keeps 2."""
        could_judge = any(verdict.outcome is not Outcome.NOT_JUDGED for verdict in self.verdicts)
        all_judged = could_judge and not self.count(Outcome.NOT_JUDGED, Level.ERROR)
        if self.count(Outcome.FAILED, Level.ERROR) and not exit_zero:
            return FAIL
        return PASS if all_judged else COULD_NOT_JUDGE
