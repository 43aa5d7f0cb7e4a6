"""Read gate rules: `[warn:] METRIC[{scope}] OP LIMIT [or LIMIT ...]`.

A limit without a sign is absolute (`<= 0`, `<= 2%`), one with a sign is relative to a baseline (`<= +2%`, `>= -5%`,
`<= +1`, and `+0.5pp`, percentage points of a rate). With `or` the looser limit counts. A scope names a task, steps,
or both: `{task=math}`, `{step}` for every step, `{step>=5,step<=20}`. With `absent=ok` a rule about a task holds where
the run has no data of that task. Figures of off-policy corrections have a method, too: `{method=verl}`.
"""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal

from tokenaudit.compare.metric_values import CORRECTION_FIGURES, Figure, figure_named, has_steps, has_totals
from tokenaudit.config.toml import shown
from tokenaudit.contracts.errors import Problem, RuleError, nearest_hint
from tokenaudit.contracts.metrics import METRICS, RATES, Metric, Rate, Total
from tokenaudit.gate.rule import (
    BARE_NAME,
    WARN_PREFIX,
    Level,
    Limit,
    LimitUnit,
    Operator,
    Rule,
    Scope,
    Sign,
    StepCondition,
)

MOST_CHARACTERS = 500
"""Length of a rule that is still read."""

GRAMMAR_HINT = 'a rule is METRIC[{scope}] OP LIMIT, such as "expired_groups <= 0" or "dropped_tokens{task=math} <= +2%"'

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEP = re.compile(r"[0-9]{1,9}(?![0-9])")
_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,9})?(?![0-9.])")
_OPERATOR = re.compile(r"<=|>=|==|<|>")
_OR = re.compile(r"or(?![A-Za-z0-9_])")


def parse_rule(text: str, source: str) -> Rule:
    """Read a rule.

    Args:
        text: the rule.
        source: where it stands, for messages.

    Raises:
        RuleError: points at the character that is wrong; an unknown metric names the nearest one.
    """
    if len(text) > MOST_CHARACTERS:
        raise RuleError(Problem(f"a rule of {len(text)} characters", source, f"{MOST_CHARACTERS} are enough"))
    return _Parser(text, source).rule()


class _Parser:
    """Reads one rule from left to right."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._at = 0

    def rule(self) -> Rule:
        self._skip_spaces()
        level = Level.WARNING if self._accept(WARN_PREFIX) else Level.ERROR
        start = self._skip_spaces()
        name = self._match(_NAME)
        if name is None:
            raise self._error("expected the name of a metric", hint=GRAMMAR_HINT)
        figure = figure_named(name) or CORRECTION_FIGURES.get(name)
        if figure is None:
            hint = nearest_hint(name, (*METRICS, *RATES, *CORRECTION_FIGURES), "metrics")
            raise self._error(f"unknown metric {name!r}", start, hint)
        scope_at = self._skip_spaces()
        scope = self._scope() if self._accept("{") else Scope()
        self._check_scope(figure, scope, start, scope_at)
        operator = self._operator()
        limits = [self._limit(figure)]
        while self._skip_spaces() < len(self._text):
            if self._match(_OR) is None:
                raise self._error("expected 'or' or the end of the rule", hint=GRAMMAR_HINT)
            limits.append(self._limit(figure))
        return Rule(figure, scope, operator, tuple(limits), level)

    def _scope(self) -> Scope:
        names: dict[str, str] = {}
        steps: list[StepCondition] | None = None
        absent_at: int | None = None
        while True:
            start = self._skip_spaces()
            word = self._match(_NAME)
            if word in _NAMED and word not in names:
                names[word] = self._named(word)
            elif word == "step":
                steps = steps or []
                steps += self._step_condition()
            elif word == "absent":
                absent_at = start
                self._absent_ok()
            elif word in _NAMED:
                raise self._error(f"a second {word}", start, f"write one rule per {word}")
            else:
                what = "expected task=NAME, method=NAME or step, or absent=ok"
                raise self._error(what, start, nearest_hint(word or "", _SCOPES, "scopes"))
            self._skip_spaces()
            if self._accept("}"):
                task = names.get("task")
                if absent_at is not None and task is None:
                    raise self._error("absent=ok belongs to a task", absent_at, "write {task=math,absent=ok}")
                steps_asked = None if steps is None else tuple(steps)
                return Scope(task, steps_asked, absent_at is not None, names.get("method"))
            if not self._accept(","):
                raise self._error("expected ',' or '}'")

    def _named(self, word: str) -> str:
        """The name behind `task=` or `method=`."""
        self._skip_spaces()
        if not self._accept("="):
            raise self._error(f"expected '=' and the name of a {word}", hint=f"write {{{word}={_NAMED[word]}}}")
        start = self._skip_spaces()
        literal = self._match(_QUOTED)
        if literal is not None:
            try:
                return tomllib.loads(f"name = {literal}")["name"]
            except ValueError as error:
                raise self._error("the quoted name isn't a TOML string", start) from error
        name = self._match(BARE_NAME)
        if name is None:
            raise self._error(f"expected the name of a {word}", hint='names with other characters are quoted: "a b"')
        return name

    def _absent_ok(self) -> None:
        self._skip_spaces()
        if self._accept("="):
            self._skip_spaces()
            if self._match(_NAME) == "ok":
                return
        raise self._error("expected =ok", hint="absent=ok: the rule holds where the run has no data of the task")

    def _step_condition(self) -> list[StepCondition]:
        self._skip_spaces()
        text = self._match(_OPERATOR)
        if text is None:
            if self._text.startswith("=", self._at):
                raise self._error("expected an operator", hint="write step==5 for one step")
            return []
        self._skip_spaces()
        step = self._match(_STEP)
        if step is None:
            raise self._error("expected the number of a step")
        return [StepCondition(Operator(text), int(step))]

    def _operator(self) -> Operator:
        self._skip_spaces()
        text = self._match(_OPERATOR)
        if text is None:
            raise self._error("expected an operator", hint=f"operators: {' '.join(Operator)}")
        return Operator(text)

    def _limit(self, figure: Figure) -> Limit:
        start = self._skip_spaces()
        sign = Sign.PLUS if self._accept("+") else Sign.MINUS if self._accept("-") else Sign.NONE
        self._skip_spaces()
        number = self._match(_NUMBER)
        if number is None:
            raise self._error("expected a number", hint="such as 0, 2.5%, +2%, -5% or +500")
        self._skip_spaces()
        unit = next((unit for unit in (LimitUnit.PERCENT, LimitUnit.POINTS) if self._accept(unit)), LimitUnit.ONE)
        limit = Limit(sign, Decimal(number), unit)
        fault = _limit_fault(figure, limit)
        if fault is not None:
            raise self._error(fault[0], start, fault[1])
        return limit

    def _check_scope(self, figure: Figure, scope: Scope, name_at: int, scope_at: int) -> None:
        if scope.steps is None and not has_totals(figure):
            raise self._error(f"{figure.name} belongs to a step", name_at, f"write {figure.name}{{step}}")
        if scope.steps is not None and not has_steps(figure):
            raise self._error(f"{figure.name} is known at the end of a run only", scope_at, "leave out the steps")
        if scope.task is not None and isinstance(figure, Metric) and figure.total is Total.STATE:
            raise self._error(f"{figure.name} belongs to all tasks together", scope_at, "leave out the task")
        is_corrected = figure.name in CORRECTION_FIGURES
        if is_corrected and scope.method is None:
            raise self._error(f"{figure.name} belongs to a method", name_at, f"write {figure.name}{{method=verl}}")
        if scope.method is not None and not is_corrected:
            hint = f"metrics of methods: {', '.join(CORRECTION_FIGURES)}"
            raise self._error(f"{figure.name} belongs to no method", scope_at, hint)
        if is_corrected and scope.task is not None and scope.steps is not None:
            raise self._error(f"{figure.name} of a step is that of all tasks", scope_at, "leave out task or step")

    def _skip_spaces(self) -> int:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._at

    def _accept(self, word: str) -> bool:
        if not self._text.startswith(word, self._at):
            return False
        self._at += len(word)
        return True

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found.group()

    def _error(self, what: str, at: int | None = None, hint: str | None = None) -> RuleError:
        at = self._at if at is None else at
        rest = shown(self._text[at:]) if at < len(self._text) else "the end of the rule"
        where = f"{self._source}: {shown(self._text)}, character {at + 1}"
        return RuleError(Problem(f"{what}, at {rest}", where, hint))


_NAMED = {"task": "math", "method": "verl"}
"""Scopes that name something, with an example."""
_SCOPES = (*_NAMED, "step", "absent")


def _limit_fault(figure: Figure, limit: Limit) -> tuple[str, str] | None:
    """Why a limit doesn't suit a figure, and what would."""
    number = f"{limit.number:f}"
    if isinstance(figure, Rate) and figure.is_share:
        if limit.unit is LimitUnit.ONE and (limit.is_relative or limit.number):
            return f"{figure.name} is a rate, so its limits are in percent", f"write {_readings(limit)}"
        if limit.unit is LimitUnit.POINTS and not limit.is_relative:
            return "percentage points are counted from a baseline", f"write {number}%, or +{number}pp"
    elif limit.unit is LimitUnit.POINTS:
        return f"{figure.name} is no rate, so it has no percentage points", f"write {limit.sign or '+'}{number}%"
    elif limit.unit is LimitUnit.PERCENT and not limit.is_relative:
        rates = [rate.name for rate in RATES.values() if figure in rate.numerator]
        other = f", or a rule on {rates[0]}" if rates else ""
        return f"{figure.name} is no rate, so {number}% of what?", f"write +{number}%, of the baseline{other}"
    return None


def _readings(limit: Limit) -> str:
    """What a limit of a rate that has no unit may mean: a number up to 1 is a share as likely as percent."""
    numbers = [limit.number * 100, limit.number] if limit.number <= 1 else [limit.number]
    units = (LimitUnit.PERCENT, LimitUnit.POINTS) if limit.is_relative else (LimitUnit.PERCENT,)
    spellings = [f"{limit.sign}{number.normalize():f}{unit}" for unit in units for number in numbers]
    return f"{', '.join(spellings[:-1])} or {spellings[-1]}" if len(spellings) > 1 else spellings[0]
