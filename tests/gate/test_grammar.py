"""Gate rules are read, printed and explained."""

import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenaudit.compare.metric_values import FIGURES, has_steps, has_totals
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import RuleError
from tokenaudit.contracts.metrics import Metric, Rate, Total
from tokenaudit.gate.grammar import MOST_CHARACTERS, parse_rule
from tokenaudit.gate.rule import Level, Limit, LimitUnit, Operator, Rule, Scope, Sign, StepCondition


@st.composite
def limits(draw: st.DrawFn, figure: Metric | Rate) -> Limit:
    sign = draw(st.sampled_from(Sign))
    if isinstance(figure, Rate) and figure.is_share:
        units = [LimitUnit.PERCENT] if sign is Sign.NONE else [LimitUnit.PERCENT, LimitUnit.POINTS]
    else:
        units = [LimitUnit.ONE] if sign is Sign.NONE else [LimitUnit.ONE, LimitUnit.PERCENT]
    digits = draw(st.from_regex(r"[0-9]{1,18}(\.[0-9]{1,9})?", fullmatch=True).filter(str.isascii))
    return Limit(sign, Decimal(digits), draw(st.sampled_from(units)))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    figure = draw(st.sampled_from(FIGURES))
    conditions = st.tuples(st.sampled_from(Operator), st.integers(0, 999_999_999)).map(
        lambda pair: StepCondition(*pair)
    )
    steps = draw(st.lists(conditions, max_size=3).map(tuple)) if has_steps(figure) else None
    if has_totals(figure) and draw(st.booleans()):
        steps = None
    is_state = isinstance(figure, Metric) and figure.total is Total.STATE
    task = None if is_state else draw(st.none() | st.text(min_size=1, max_size=12))
    alternatives = draw(st.lists(limits(figure), min_size=1, max_size=3).map(tuple))
    scope = Scope(task, steps, task is not None and draw(st.booleans()))
    return Rule(figure, scope, draw(st.sampled_from(Operator)), alternatives, draw(st.sampled_from(Level)))


@given(rules())
def test_a_rule_survives_printing_and_reading(rule: Rule):
    text = str(rule)
    if len(text) > MOST_CHARACTERS:
        return
    assert parse_rule(text, "test") == rule
    assert str(parse_rule(text, "test")) == text


@given(rules(), st.sampled_from([" ", "  ", "\t"]))
def test_spaces_between_parts_do_not_matter(rule: Rule, space: str):
    text = re.sub(r" (?=[^\"]*$)", lambda _: space, str(rule)) if rule.scope.task is None else str(rule)
    if len(text) <= MOST_CHARACTERS:
        assert parse_rule(f"{space}{text}{space}"[: MOST_CHARACTERS + 1], "test") == rule


@given(st.text(max_size=60))
def test_any_other_text_is_an_error_that_names_a_character(text: str):
    try:
        parse_rule(text, "test")
    except RuleError as error:
        (problem,) = error.problems
        assert problem.where is not None
        assert re.search(r"character [0-9]+$", problem.where)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("expired_groups<=0", "expired_groups <= 0"),
        ("dropped_token_rate <= 2 %", "dropped_token_rate <= 2%"),
        ("warn:dropped_tokens <= + 2% or +500", "warn: dropped_tokens <= +2% or +500"),
        ("produced_tokens >= -5%", "produced_tokens >= -5%"),
        ("seq_staleness_max <= +1", "seq_staleness_max <= +1"),
        ("trained_token_rate >= -0.5pp", "trained_token_rate >= -0.5pp"),
        ("expired_groups{task=math} <= 3", "expired_groups{task=math} <= 3"),
        ("expired_groups{ absent = ok, step, task=math} <= 3", "expired_groups{task=math,step,absent=ok} <= 3"),
        (
            'correction_dropped_token_rate{task=math, method="verl: rollout_is=token"} <= 3 %',
            'correction_dropped_token_rate{method="verl: rollout_is=token",task=math} <= 3%',
        ),
        ('expired_groups{task="a} b"} <= 3', 'expired_groups{task="a} b"} <= 3'),
        ('expired_groups{task="math"} <= 3', "expired_groups{task=math} <= 3"),
        ("dropped_tokens{step} <= 4000", "dropped_tokens{step} <= 4000"),
        ("dropped_tokens{ step >= 5 , step<9, task = math } <= 4", "dropped_tokens{task=math,step>=5,step<9} <= 4"),
        ("dropped_token_rate <= 0", "dropped_token_rate <= 0"),
        ("model_step{step} >= 0", "model_step{step} >= 0"),
        ("held_tokens{task=math} == 0", "held_tokens{task=math} == 0"),
    ],
)
def test_rules_have_one_spelling(text: str, printed: str):
    assert str(parse_rule(text, "test")) == printed


@pytest.mark.parametrize(
    ("text", "character", "what", "hint"),
    [
        ("", 1, "expected the name of a metric", "a rule is METRIC"),
        ("expird_groups <= 0", 1, "unknown metric 'expird_groups'", "did you mean 'expired_groups'?"),
        ("warn: droped_tokens <= 0", 7, "unknown metric 'droped_tokens'", "did you mean 'dropped_tokens'?"),
        ("dropped_tokens = 3", 16, "expected an operator", "operators: <= < >= > =="),
        ("dropped_tokens <= many", 19, "expected a number", "+2%"),
        ("dropped_tokens <= 1.", 19, "expected a number", "2.5%"),
        ("dropped_tokens <= 1e3", 20, "expected 'or' or the end of the rule", "a rule is"),
        ("dropped_tokens <= +2% and +5", 23, "expected 'or' or the end of the rule", "a rule is"),
        ("dropped_tokens <= +2% or", 25, "expected a number", "such as"),
        ("dropped_tokens{tsk=math} <= 1", 16, "expected task=NAME, method=NAME or step", "did you mean 'task'?"),
        ("dropped_tokens{task} <= 1", 20, "expected '=' and the name of a task", "{task=math}"),
        ("dropped_tokens{task=} <= 1", 21, "expected the name of a task", "quoted"),
        ('dropped_tokens{task="\\q"} <= 1', 21, "isn't a TOML string", None),
        ("dropped_tokens{task=a,task=b} <= 1", 23, "a second task", "one rule per task"),
        ("dropped_tokens{absent=ok} <= 1", 16, "absent=ok belongs to a task", "{task=math,absent=ok}"),
        (
            "dropped_tokens{task=a,absnt=ok} <= 1",
            23,
            "expected task=NAME, method=NAME or step, or absent=ok",
            "did you mean 'absent'?",
        ),
        ("dropped_tokens{task=a,absent} <= 1", 29, "expected =ok", "no data of the task"),
        ("dropped_tokens{task=a,absent=no} <= 1", 32, "expected =ok", "no data of the task"),
        ("dropped_tokens{step=5} <= 1", 20, "expected an operator", "step==5"),
        ("dropped_tokens{step>=x} <= 1", 22, "expected the number of a step", None),
        ("dropped_tokens{step <= 1", 25, "expected ',' or '}'", None),
        ("dropped_tokens <= 2%", 19, "2% of what?", "dropped_token_rate"),
        ("dropped_tokens <= +2pp", 19, "no percentage points", "+2%"),
        ("dropped_tokens <= -2pp", 19, "no percentage points", "-2%"),
        ("dropped_tokens <= 2pp", 19, "no percentage points", "+2%"),
        ("dropped_tokens <= 3 or 2pp", 24, "no percentage points", "+2%"),
        ("seq_staleness_max{step} >= 0pp", 28, "no percentage points", "+0%"),
        ("raw_rewards_sum == 2pp", 20, "no percentage points", "+2%"),
        ("tokens_per_trained_token <= 2pp", 29, "no percentage points", "+2%"),
        ("tokens_per_trained_token <= +2pp", 29, "no percentage points", "+2%"),
        ("dropped_token_rate <= 2", 23, "in percent", "write 2%"),
        ("dropped_token_rate <= +2", 23, "in percent", "write +2% or +2pp"),
        ("dropped_token_rate <= 0.2", 23, "in percent", "write 20% or 0.2%"),
        ("dropped_token_rate <= 0.999", 23, "in percent", "write 99.9% or 0.999%"),
        ("dropped_token_rate <= 1", 23, "in percent", "write 100% or 1%"),
        ("dropped_token_rate <= 1.50", 23, "in percent", "write 1.5%"),
        ("dropped_token_rate <= -0.020", 23, "in percent", "write -2%, -0.02%, -2pp or -0.02pp"),
        ("dropped_token_rate <= 2pp", 23, "counted from a baseline", "+2pp"),
        ("model_step <= 3", 1, "belongs to a step", "model_step{step}"),
        ("model_step{step,task=math} <= 3", 11, "belongs to all tasks", "leave out the task"),
        ("held_tokens{step} <= 3", 12, "at the end of a run only", "leave out the steps"),
        ("correction_dropped_tokens <= 3", 1, "belongs to a method", "{method=verl}"),
        ("dropped_tokens{method=verl} <= 3", 15, "belongs to no method", "correction_dropped_token_rate"),
        ("correction_dropped_tokens{method=a,method=b} <= 3", 36, "a second method", "one rule per method"),
        ("correction_dropped_tokens{method} <= 3", 33, "expected '=' and the name of a method", "{method=verl}"),
        ("correction_dropped_tokens{method=a,task=b,step} <= 3", 26, "that of all tasks", "task or step"),
    ],
)
def test_a_malformed_rule_points_at_the_character(text: str, character: int, what: str, hint: str | None):
    with pytest.raises(RuleError) as raised:
        parse_rule(text, "gate.toml, line 3")
    (problem,) = raised.value.problems
    assert problem.where is not None
    assert problem.where.startswith("gate.toml, line 3: ")
    assert problem.where.endswith(f"character {character}")
    assert what in problem.what
    assert (problem.hint is None) if hint is None else (hint in (problem.hint or ""))


def test_a_rule_has_a_greatest_length():
    with pytest.raises(RuleError, match="501 characters"):
        parse_rule("expired_groups <= 0".ljust(MOST_CHARACTERS + 1), "test")


@pytest.mark.parametrize(
    ("text", "baseline", "limit"),
    [
        ("dropped_tokens <= 7", None, 7),
        ("dropped_token_rate <= 2.5%", None, Fraction(1, 40)),
        ("dropped_tokens <= +2%", 50, 51),
        ("dropped_tokens <= +2%", 0, 0),
        ("produced_tokens >= -5%", 100, 95),
        ("seq_staleness_max <= +2%", -50, -49),
        ("seq_staleness_max <= +1", 3, 4),
        ("dropped_token_rate <= +10%", Fraction(1, 10), Fraction(11, 100)),
        ("dropped_token_rate <= +10pp", Fraction(1, 10), Fraction(2, 10)),
        ("dropped_tokens <= +0.1%", 333, Fraction(333333, 1000)),
    ],
)
def test_limits_are_exact(text: str, baseline: int | None, limit: Fraction):
    (only,) = parse_rule(text, "test").limits
    assert only.value(baseline) == limit
    assert only.is_relative is (baseline is not None)


def test_every_rate_is_a_quotient_of_metrics_that_rows_hold():
    for rate in m.RATES.values():
        assert set(rate.numerator) | set(rate.denominator) <= {*m.ROW_METRICS, *m.SIMULATED_METRICS}
        assert rate.name not in m.METRICS
