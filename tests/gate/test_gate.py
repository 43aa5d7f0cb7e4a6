"""Rules are judged exactly, all of them, and the worst comes first."""

import gzip
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compare.results import made_result, totals_of
from tests.conftest import SAMPLE
from tokenaudit import gate_result, replay_log
from tokenaudit.config.model import Config
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.definitions import metric_definitions
from tokenaudit.contracts.errors import ResultError, RuleError
from tokenaudit.contracts.metrics import METRICS, OUTCOMES, RATES, SIMULATED_RATES, Better
from tokenaudit.gate.baseline import check_baseline
from tokenaudit.gate.grammar import parse_rule
from tokenaudit.gate.judge import baseline_fault, judge, judge_for_baseline, rules_of_metrics
from tokenaudit.gate.report import COULD_NOT_JUDGE, FAIL, PASS, GateReport, LocatedRule, Origin, Outcome, Verdict
from tokenaudit.gate.rule_sources import MOST_RULES, collect_rules, rule_lines
from tokenaudit.gate.wording import details, statement, summary
from tokenaudit.render.gate import improvement_line
from tokenaudit.replay.result import Result
from tokenaudit.replay.saved_result import result_from_json

EMPTY = made_result([])
BEFORE = Path(__file__).parent / "sample_baseline_before.json.gz"
"""The baseline of the sample, saved when results had a fingerprint of all definitions and directions."""


def judged(result: Result, *rules: str, baseline: Result | None = None) -> GateReport:
    return judge(result, [LocatedRule(parse_rule(text, "test"), Origin("test")) for text in rules], baseline)


def verdict(result: Result, rule: str, baseline: Result | None = None) -> Verdict:
    (only,) = judged(result, rule, baseline=baseline).verdicts
    return only


def words(one: Verdict) -> str:
    return "; ".join((statement(one), *details(one)))


# ---- absolute rules


@pytest.mark.parametrize(
    ("rule", "value", "outcome"),
    [
        ("expired_groups <= 0", 0, "passed"),
        ("expired_groups <= 0", 1, "failed"),
        ("expired_groups < 1", 0, "passed"),
        ("expired_groups < 1", 1, "failed"),
        ("expired_groups >= 1", 1, "passed"),
        ("expired_groups >= 1", 0, "failed"),
        ("expired_groups > 0", 1, "passed"),
        ("expired_groups > 0", 0, "failed"),
        ("expired_groups == 2", 2, "passed"),
        ("expired_groups == 2", 1, "failed"),
        ("expired_groups == 2", 3, "failed"),
        ("expired_groups <= 2.5", 2, "passed"),
        ("expired_groups <= 2.5", 3, "failed"),
        ("expired_groups <= 1 or 3", 3, "passed"),
        ("expired_groups <= 1 or 3", 4, "failed"),
        ("expired_groups == 1 or 3", 3, "passed"),
        ("expired_groups == 1 or 3", 2, "failed"),
    ],
)
def test_absolute_rules(rule: str, value: int, outcome: str):
    assert verdict(totals_of(expired_groups=value), rule).outcome == outcome


@given(st.integers(0, 10**12), st.integers(1, 10**12), st.integers(0, 10**6))
def test_rates_are_judged_as_fractions(dropped: int, produced: int, millionths: int):
    result = totals_of(dropped_tokens=dropped, produced_tokens=produced)
    rule = f"dropped_token_rate <= {millionths / 10_000:.4f}%"
    one = verdict(result, rule)
    holds = Fraction(dropped, produced) <= Fraction(millionths, 1_000_000)
    assert (one.outcome is Outcome.PASSED) is holds
    assert one.counts == (dropped, produced)
    value, limit = statement(one).split(" (")[0], statement(one).rsplit("limit ", 1)[1]
    assert (value == limit) is (one.value == one.limit), statement(one)


def test_a_failure_that_two_decimals_hide_shows_enough_digits():
    result = totals_of(dropped_tokens=200_000_001, produced_tokens=10_000_000_000)
    assert statement(verdict(result, "dropped_token_rate <= 2%")) == (
        "2.00000001 % (200,000,001 of 10,000,000,000) is 0.00000001 pp above the limit 2.00000000 %"
    )


@pytest.mark.parametrize(
    "rate", [rate for rate in RATES.values() if rate not in SIMULATED_RATES], ids=lambda rate: rate.name
)
def test_every_rate_can_be_judged(rate):
    parts = {metric.name: 100 for metric in rate.denominator} | {metric.name: 3 for metric in rate.numerator}
    share = Fraction(3 * len(rate.numerator), sum(parts[metric.name] for metric in rate.denominator))
    assert verdict(totals_of(**parts), f"{rate.name} <= 99%").value == share


# ---- rules relative to a baseline


@pytest.mark.parametrize(
    ("rule", "before", "after", "outcome"),
    [
        ("dropped_tokens <= +2%", 100, 102, "passed"),
        ("dropped_tokens <= +2%", 100, 103, "failed"),
        ("dropped_tokens <= +2%", 50, 51, "passed"),
        ("dropped_tokens <= +2%", 49, 50, "failed"),
        ("dropped_tokens < +2%", 100, 102, "failed"),
        ("dropped_tokens <= -5%", 100, 95, "passed"),
        ("dropped_tokens <= -5%", 100, 96, "failed"),
        ("produced_tokens >= -5%", 100, 95, "passed"),
        ("produced_tokens >= -5%", 100, 94, "failed"),
        ("dropped_tokens <= +3", 100, 103, "passed"),
        ("dropped_tokens <= +3", 100, 104, "failed"),
        ("dropped_tokens == +0", 100, 100, "passed"),
        ("dropped_tokens == +0", 100, 99, "failed"),
        ("dropped_tokens <= +2% or +500", 100, 600, "passed"),
        ("dropped_tokens <= +2% or +500", 100, 601, "failed"),
        ("dropped_tokens <= +2% or +500", 100_000, 102_000, "passed"),
        ("dropped_tokens <= +2% or +500", 100_000, 102_001, "failed"),
        ("produced_tokens >= -5% or -500", 100, 0, "passed"),
        ("produced_tokens >= -5% or -500", 100_000, 94_999, "failed"),
        ("dropped_tokens <= +2% or 500", 0, 500, "passed"),
        ("dropped_tokens <= +2% or 500", 0, 501, "failed"),
    ],
)
def test_relative_rules(rule: str, before: int, after: int, outcome: str):
    name = rule.split()[0]
    assert verdict(totals_of(**{name: after}), rule, totals_of(**{name: before})).outcome == outcome


@pytest.mark.parametrize("rule", ["dropped_tokens <= +2%", "dropped_tokens < +2%", "dropped_tokens >= -2%"])
def test_a_baseline_of_0_passes_on_0(rule: str):
    one = verdict(totals_of(), rule, totals_of())
    assert one.outcome is Outcome.PASSED


def test_growth_from_a_baseline_of_0_fails_in_words():
    one = verdict(totals_of(dropped_tokens=12), "dropped_tokens <= +2%", totals_of())
    assert one.outcome is Outcome.FAILED
    assert words(one) == (
        "12 is 12 above the limit 0; the baseline is 0 and it grew to 12: there is no ratio; "
        "worst step 1: 12 (baseline 0); worst task there math: 12 (baseline 0)"
    )


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        ("dropped_token_rate <= +10%", "passed"),
        ("dropped_token_rate <= +9.9%", "failed"),
        ("dropped_token_rate <= +1pp", "passed"),
        ("dropped_token_rate <= +0.9pp", "failed"),
    ],
)
def test_relative_rules_on_rates(rule: str, outcome: str):
    before = totals_of(dropped_tokens=10, produced_tokens=100)
    assert verdict(totals_of(dropped_tokens=11, produced_tokens=100), rule, before).outcome == outcome


def test_a_negative_baseline_is_loosened_upwards():
    before, after = totals_of(seq_staleness_max=-100), totals_of(seq_staleness_max=-98)
    assert verdict(after, "seq_staleness_max <= +2%", before).outcome is Outcome.PASSED
    assert verdict(after, "seq_staleness_max <= +1.9%", before).outcome is Outcome.FAILED


# ---- scopes


RUN = made_result(
    [
        {"math": {"dropped_tokens": 1}, "code": {"dropped_tokens": 9}},
        {"math": {"dropped_tokens": 5}, "code": {"dropped_tokens": 3}},
        {"math": {"dropped_tokens": 2}, "code": {"dropped_tokens": 0}},
    ],
    tail={"math": {"dropped_tokens": 100}},
)


@pytest.mark.parametrize(
    ("rule", "outcome", "value", "step"),
    [
        ("dropped_tokens <= 120", "passed", 120, 1),
        ("dropped_tokens <= 119", "failed", 120, 1),
        ("dropped_tokens{task=math} <= 108", "passed", 108, 2),
        ("dropped_tokens{task=math} <= 107", "failed", 108, 2),
        ("dropped_tokens{task=code} <= 11", "failed", 12, 1),
        ("dropped_tokens{step} <= 10", "passed", 10, 1),
        ("dropped_tokens{step} <= 9", "failed", 10, 1),
        ("dropped_tokens{step>=2} <= 8", "passed", 8, 2),
        ("dropped_tokens{step>=2} <= 7", "failed", 8, 2),
        ("dropped_tokens{step>1,step<3} <= 7", "failed", 8, 2),
        ("dropped_tokens{step==3} <= 2", "passed", 2, 3),
        ("dropped_tokens{task=math,step} <= 4", "failed", 5, 2),
        ("dropped_tokens{task=math,step<2} <= 1", "passed", 1, 1),
    ],
)
def test_scopes(rule: str, outcome: str, value: int, step: int):
    one = verdict(RUN, rule)
    assert (one.outcome, one.value) == (outcome, value)
    assert one.worst_step is not None
    assert one.worst_step.train_step == step


def test_a_failing_step_rule_counts_its_steps_and_names_the_worst_step_and_task():
    assert words(verdict(RUN, "dropped_tokens{step} <= 2")) == (
        "10 at step 1 is 8 above the limit 2; worst step 1: 10; worst task there code: 9; 2 of 3 steps beyond the limit"
    )


def test_relative_step_rules_compare_with_the_same_step():
    moved = made_result([{"math": {"dropped_tokens": 10}}, {"math": {"dropped_tokens": 8}}, {}])
    one = verdict(moved, "dropped_tokens{step} <= +0", made_result([{"math": {"dropped_tokens": 10}}, {}, {}]))
    assert one.outcome is Outcome.FAILED
    assert (one.value, one.baseline, one.failed, one.judged) == (8, 0, 1, 3)


def test_a_step_that_comes_twice_is_judged_twice():
    def twice(first: int, second: int) -> Result:
        made = made_result([{"math": {"dropped_tokens": first}}, {"math": {"dropped_tokens": second}}])
        return replace(made, steps=[row | {"train_step": 1} for row in made.steps])

    assert verdict(twice(9, 1), "dropped_tokens{step} <= 8").value == 9
    assert verdict(twice(1, 9), "dropped_tokens{step} <= 8").value == 9
    assert verdict(twice(9, 2), "dropped_tokens{step} <= +0", twice(9, 1)).failed == 1


def test_what_only_the_baseline_covers_is_told():
    report = judged(totals_of(), "expired_groups{step} <= +0", baseline=made_result([{}, {}]))
    assert [notice.code for notice in report.notices] == ["task-only-in-baseline", "steps-only-in-baseline"]


def test_a_total_rule_names_the_step_and_task_that_grew_most():
    before = made_result([{"code": {"dropped_tokens": 50}}, {"math": {"dropped_tokens": 1}}])
    after = made_result([{"code": {"dropped_tokens": 51}}, {"math": {"dropped_tokens": 9}}])
    assert words(verdict(after, "dropped_tokens <= +0", before)) == (
        "60 is 9 above the limit 51; baseline 51, change +9 (+17.6 %); "
        "worst step 2: 9 (baseline 1); worst task there math: 9 (baseline 1)"
    )


def test_of_a_maximum_the_worst_step_has_the_largest_value():
    before = made_result([{"math": {"seq_staleness_max": 0}}, {"math": {"seq_staleness_max": 3}}])
    after = made_result([{"math": {"seq_staleness_max": 2}}, {"math": {"seq_staleness_max": 4}}])
    one = verdict(after, "seq_staleness_max <= +0", before)
    assert one.worst_step is not None
    assert one.worst_step.train_step == 2


def test_of_a_level_the_worst_step_is_the_last():
    run = made_result([{"math": {"leftover_completed": 9}}, {"math": {"leftover_completed": 2}}])
    one = verdict(run, "leftover_completed <= 1")
    assert one.worst_step is not None
    assert (one.value, one.worst_step.train_step) == (2, 2)


# ---- what can't be judged


SHORT = made_result([{"math": {"dropped_tokens": 1}}])
NO_CODE = made_result([{"code": {"put_groups": 0}}] * 3)


@pytest.mark.parametrize(
    ("result", "rule", "baseline", "reason"),
    [
        (EMPTY, "expired_groups <= 0", None, "nothing was replayed"),
        (made_result([{"math": {"put_groups": 0}, "code": {"put_groups": 0}}]), "expired_groups <= 0", None, "nothing"),
        (totals_of(), "seq_staleness_max <= 3", None, "there is no value to judge"),
        (totals_of(), "dropped_token_rate <= 2%", None, "there is no value to judge"),
        (totals_of(), "seq_staleness_max <= +1", totals_of(), "there is no value to judge"),
        (totals_of(), "seq_staleness_max <= +1", totals_of(seq_staleness_max=1), "the baseline has one"),
        (totals_of(seq_staleness_max=1), "seq_staleness_max <= +1", totals_of(), "the baseline has no value here"),
        (RUN, "dropped_tokens{step>=9} <= 0", None, "no step is in {step>=9}; the run has steps 1 to 3"),
        (
            RUN,
            "dropped_tokens{step} <= +9",
            SHORT,
            "step 2: the baseline doesn't hold",
        ),
        (RUN, "dropped_tokens{task=code} <= +9", totals_of(), "the baseline doesn't hold dropped_tokens here"),
        (SHORT, "dropped_tokens <= +9", RUN, "the run lacks 2 of the baseline's 3 steps (from 2 to 3)"),
        (SHORT, "dropped_tokens{step} <= +9", RUN, "the run lacks 2 of the baseline's 3 steps (from 2 to 3)"),
        (SHORT, "dropped_tokens{step<=2} <= +9", RUN, "the run lacks 1 of the baseline's 3 steps (2)"),
        (SHORT, "dropped_tokens{step>2} <= +9", RUN, "the run lacks 1 of the baseline's 3 steps (3)"),
        (SHORT, "dropped_tokens <= +2% or 500", RUN, "the run lacks 2 of the baseline's 3 steps (from 2 to 3)"),
        (SHORT, "produced_tokens >= -5%", RUN, "--allow-fewer-steps accepts that"),
        (SHORT, "seq_staleness_max{step} <= 3", None, "there is no value to judge"),
        (NO_CODE, "dropped_tokens{task=code} <= 0", None, "the run has no data of task code; tasks: math"),
        (NO_CODE, "dropped_tokens{task=code} <= +5%", RUN, "the run has no data of task code; tasks: math"),
        (NO_CODE, "dropped_tokens{task=code,step} <= +5%", RUN, "the run has no data of task code; tasks: math"),
        (NO_CODE, "shortfall_groups{task=code} <= 0", None, "the run has no data of task code; tasks: math"),
        (NO_CODE, "dropped_token_rate{task=code} <= 2%", None, "the run has no data of task code; tasks: math"),
        (NO_CODE, "held_tokens{task=code} <= 0", None, "the run has no data of task code; tasks: math"),
        (totals_of(), "dropped_tokens{task=code} <= +5%", RUN, "the run has no data of task code; tasks: math"),
        (RUN, "dropped_tokens{task=code} <= +5%", NO_CODE, "the baseline has no data of task code"),
        (RUN, "dropped_tokens{task=code,absent=ok} <= +5%", NO_CODE, "the baseline has no data of task code"),
    ],
)
def test_what_cannot_be_judged_says_why_and_is_exit_code_2(
    result: Result, rule: str, baseline: Result | None, reason: str
):
    report = judged(result, rule, baseline=baseline)
    (one,) = report.verdicts
    assert one.outcome is Outcome.NOT_JUDGED
    assert reason in one.reason
    assert report.exit_code() == report.exit_code(exit_zero=True) == COULD_NOT_JUDGE


@pytest.mark.parametrize("baseline", [None, RUN, NO_CODE])
@pytest.mark.parametrize("run", [NO_CODE, totals_of()])
@pytest.mark.parametrize(
    "rule", ["dropped_tokens{task=code,absent=ok} <= 0", "dropped_tokens{task=kode,absent=ok} <= 0"]
)
def test_absence_of_a_task_passes_where_the_rule_says_so(rule: str, run: Result, baseline: Result | None):
    one = verdict(run, rule, baseline)
    assert (one.outcome, one.value) == (Outcome.PASSED, None)
    assert words(one) == f"the run has no data of task {one.rule.scope.task}, which the rule accepts"


def test_a_rule_that_accepts_absence_judges_a_task_that_is_there():
    assert verdict(RUN, "dropped_tokens{task=code,absent=ok} <= 11").outcome is Outcome.FAILED
    assert verdict(RUN, "dropped_tokens{task=code,absent=ok} <= 12").outcome is Outcome.PASSED


def test_a_task_of_the_config_alone_is_reported_as_lost():
    report = judged(NO_CODE, "expired_groups <= +0", baseline=RUN)
    assert [notice.message for notice in report.notices] == ["task code is in the baseline and not in this run"]


def test_a_figure_that_the_result_lacks_cannot_be_judged():
    result = totals_of()
    del result.totals["expired_groups"]
    assert verdict(result, "expired_groups <= 0").reason == "the result doesn't hold expired_groups"


def test_steps_without_a_value_are_passed_over():
    run = made_result([{}, {"math": {"seq_staleness_max": 2}}])
    one = verdict(run, "seq_staleness_max{step} <= 2")
    assert one.judged == 1
    assert details(one) == ["1 step without a value"]
    assert details(verdict(run, "seq_staleness_max{step} <= 1"))[-1] == "1 step without a value"
    assert verdict(run, "seq_staleness_max{step} <= +0", run).outcome is Outcome.PASSED


def test_steps_that_the_run_lacks_are_accepted_where_that_is_allowed():
    rules = [LocatedRule(parse_rule(text, "test"), Origin("test")) for text in ("dropped_tokens{step} <= +0",)]
    report = judge(SHORT, rules, RUN, allow_fewer_steps=True)
    assert report.exit_code() == PASS
    (notice,) = report.notices
    assert (notice.code, "--allow-fewer-steps" in notice.cost) == ("steps-only-in-baseline", True)
    assert judge(SHORT, [], RUN).exit_code() == COULD_NOT_JUDGE
    assert judge(SHORT, [], RUN, allow_fewer_steps=True).exit_code() == PASS


def test_a_step_that_the_run_has_fails_whatever_others_it_lacks():
    long = made_result([{"math": {"dropped_tokens": 0}}] * 2)
    report = judged(SHORT, "dropped_tokens{step} <= +0", baseline=long)
    assert (report.exit_code(), report.verdicts[0].failed) == (FAIL, 1)


def test_absolute_rules_and_steps_out_of_scope_are_judged_whatever_the_run_lacks():
    report = judged(SHORT, "dropped_tokens <= 1", "dropped_tokens{step<2} <= +0", baseline=RUN)
    assert [one.outcome for one in report.verdicts] == [Outcome.PASSED] * 2


def test_a_step_that_the_run_repeats_less_often_is_lacking():
    def repeated(times: int) -> Result:
        made = made_result([{}] * times)
        return replace(made, steps=[row | {"train_step": 1} for row in made.steps])

    assert "lacks 1 of the baseline's 2 steps (1)" in verdict(repeated(1), "dropped_tokens <= +0", repeated(2)).reason


# ---- the report


def test_all_rules_are_judged_and_the_worst_comes_first():
    before = totals_of(dropped_tokens=100, expired_groups=10, produced_tokens=50)
    after = totals_of(dropped_tokens=150, expired_groups=100, discarded_groups=1, produced_tokens=50)
    report = judged(
        after,
        "warn: expired_groups <= 0",
        "produced_tokens >= -5%",
        "dropped_tokens <= +2%",
        "seq_staleness_max <= 1",
        "discarded_groups <= 0",
        "expired_groups <= +0",
        "warn: seq_staleness_max <= 2",
        baseline=before,
    )
    assert [str(one.rule) for one in report.verdicts] == [
        "discarded_groups <= 0",
        "expired_groups <= +0",
        "dropped_tokens <= +2%",
        "seq_staleness_max <= 1",
        "warn: expired_groups <= 0",
        "warn: seq_staleness_max <= 2",
        "produced_tokens >= -5%",
    ]
    assert summary(report) == "7 rules over 1 step, 1 task: 3 failed, 2 not judged, 1 warned, 1 passed"


@pytest.mark.parametrize(
    ("rules", "code", "with_exit_zero"),
    [
        (["expired_groups <= 1"], PASS, PASS),
        (["expired_groups <= 0"], FAIL, PASS),
        (["warn: expired_groups <= 0"], PASS, PASS),
        (["expired_groups <= 1", "seq_staleness_max <= 1"], COULD_NOT_JUDGE, COULD_NOT_JUDGE),
        (["expired_groups <= 0", "seq_staleness_max <= 1"], FAIL, COULD_NOT_JUDGE),
        (["expired_groups <= 1", "warn: seq_staleness_max <= 1"], PASS, PASS),
        (["warn: seq_staleness_max <= 1"], COULD_NOT_JUDGE, COULD_NOT_JUDGE),
    ],
)
def test_exit_codes(rules: list[str], code: int, with_exit_zero: int):
    report = judged(totals_of(expired_groups=1), *rules)
    assert (report.exit_code(), report.exit_code(exit_zero=True)) == (code, with_exit_zero)


@pytest.mark.parametrize("figure", OUTCOMES, ids=lambda figure: figure.name)
@pytest.mark.parametrize("direction", [-1, 1])
def test_without_rules_no_outcome_may_be_worse(figure, direction: int):
    before = totals_of(**{name: 1000 for name in METRICS if name in totals_of().totals})
    names = [figure.name] if figure.name in METRICS else [metric.name for metric in figure.numerator]
    after = totals_of(**{name: 1000 + direction * (name in names) for name in METRICS if name in totals_of().totals})
    failed = {str(one.rule.figure.name) for one in judged(after, baseline=before).verdicts if one.failed}
    is_worse = (direction > 0) == (figure.better is Better.LOWER)
    assert (figure.name in failed) is is_worse


OUTCOME_COUNTS = {
    "dropped_tokens",
    "produced_tokens",
    "trained_tokens",
    "masked_stale_tokens",
    "expired_groups",
    "put_groups",
    "shortfall_groups",
}


@pytest.mark.parametrize("name", sorted(set(totals_of().totals) & set(METRICS) - OUTCOME_COUNTS))
def test_without_rules_nothing_but_outcomes_is_judged(name: str):
    before = totals_of(**dict.fromkeys(OUTCOME_COUNTS, 1000), **{name: 1000})
    for value in (1, 5000):
        report = judged(totals_of(**dict.fromkeys(OUTCOME_COUNTS, 1000), **{name: value}), baseline=before)
        assert (report.exit_code(), len(report.verdicts)) == (PASS, len(OUTCOMES))


def test_without_rules_equal_runs_pass_and_outcomes_without_a_value_are_left_out():
    report = judged(RUN, baseline=RUN)
    assert report.exit_code() == PASS
    assert {one.rule.figure.name for one in report.verdicts} == {"expired_group_rate", "shortfall_groups"}


def test_of_the_sample_a_dropped_share_of_4_instead_of_18_percent_passes_against_a_baseline_saved_before():
    baseline = result_from_json(gzip.decompress(BEFORE.read_bytes()).decode(), BEFORE.name)
    config = SAMPLE.parent / "config.toml"
    better = gate_result(
        replay_log(SAMPLE, config=config, overrides=["tasks.code.max_token_staleness=2"]), baseline=baseline
    )
    assert (better.exit_code(), better.count(Outcome.PASSED)) == (PASS, len(OUTCOMES))
    (dropped,) = (one for one in better.verdicts if one.rule.figure.name == "dropped_token_rate")
    assert (dropped.baseline, dropped.value) == (Fraction(1_215_648, 6_596_441), Fraction(261_454, 6_297_024))
    worse = gate_result(replay_log(SAMPLE, config=SAMPLE.parent / "worse.toml"), baseline=baseline)
    assert (worse.exit_code(), worse.count(Outcome.FAILED)) == (FAIL, len(OUTCOMES) - 1)


def test_only_metrics_that_a_rule_names_have_to_mean_the_same():
    other = metric_definitions() | {"dropped_tokens": "samples sum"}
    del other["expired_groups"]
    baseline = replace(totals_of(produced_tokens=9), metric_definitions=other | {"a_metric_to_come": "tokens sum"})
    rules = ["produced_tokens >= +0", "dropped_tokens <= +0", "dropped_tokens <= 5", "expired_groups <= +0"]
    report = judged(
        totals_of(produced_tokens=9),
        *rules,
        "dropped_token_rate <= +0pp",
        "trained_token_rate >= +0pp",
        baseline=baseline,
    )
    assert {str(one.rule): one.reason for one in report.verdicts if one.outcome is Outcome.NOT_JUDGED} == {
        f"{rule}": f"the baseline has no {rule.split()[0]} as this release defines it; make it again with this release"
        for rule in (rules[1], rules[3], "dropped_token_rate <= +0pp")
    }
    assert (report.exit_code(), report.count(Outcome.PASSED)) == (COULD_NOT_JUDGE, 3)


def test_of_a_baseline_without_definitions_nothing_is_judged():
    report = judged(RUN, "dropped_tokens <= 200", "dropped_tokens <= +0", baseline=replace(RUN, metric_definitions={}))
    assert [one.outcome for one in report.verdicts] == [Outcome.NOT_JUDGED, Outcome.PASSED]


def test_improvements_never_fail_and_are_reported():
    report = judged(totals_of(dropped_tokens=5), "dropped_tokens <= +2%", baseline=totals_of(dropped_tokens=9))
    assert report.exit_code() == PASS
    assert improvement_line(report) == "better than the baseline, which can be tightened: dropped_tokens 9 → 5"


def test_neither_rules_nor_a_baseline_is_nothing_to_judge():
    with pytest.raises(RuleError, match="nothing to judge"):
        judged(RUN)


def test_relative_rules_without_a_baseline_and_unknown_tasks_are_errors_all_at_once():
    with pytest.raises(RuleError) as raised:
        judged(RUN, "dropped_tokens <= +2%", "expired_groups >= -1")
    assert [problem.what for problem in raised.value.problems] == [
        "dropped_tokens <= +2% needs a baseline",
        "expired_groups >= -1 needs a baseline",
    ]
    with pytest.raises(RuleError) as raised:
        judged(RUN, "dropped_tokens{task=maths} <= 2", "dropped_tokens{task=cod} <= 2")
    assert [problem.hint for problem in raised.value.problems] == ["did you mean 'math'?", "did you mean 'code'?"]


# ---- baselines


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "tokenaudit.simulate"}, "the baseline is a tokenaudit.simulate"),
        ({"timeline": "simulated"}, "follows a simulated timeline"),
        ({"selection": "1..2"}, "holds steps 1..2 only"),
        ({"inputs": ()}, "another log"),
    ],
)
def test_a_baseline_that_does_not_suit_is_refused(change: dict, message: str):
    with pytest.raises(ResultError, match=message):
        check_baseline(RUN, replace(RUN, **change), "base.json", allow_different_log=False)


def test_a_baseline_of_another_log_can_be_allowed():
    other = made_result([{}], content_hash="sha256:1")
    check_baseline(RUN, other, "base.json", allow_different_log=True)
    with pytest.raises(ResultError, match="another log"):
        check_baseline(RUN, other, "base.json", allow_different_log=False)


@pytest.mark.parametrize(
    ("result", "rules", "fault"),
    [
        (RUN, [], None),
        (RUN, ["dropped_tokens <= 200", "dropped_tokens <= +0"], None),
        (RUN, ["warn: dropped_tokens <= 0"], None),
        (RUN, ["dropped_tokens <= 0"], "dropped_tokens <= 0 failed"),
        (RUN, ["seq_staleness_max <= 0"], "seq_staleness_max <= 0 could not be judged"),
        (EMPTY, [], "nothing was replayed"),
    ],
)
def test_what_may_become_a_baseline(result: Result, rules: list[str], fault: str | None):
    located = [LocatedRule(parse_rule(text, "test"), Origin("test")) for text in rules]
    assert baseline_fault(judge_for_baseline(result, located)) == fault


# ---- where rules come from


def test_rules_of_all_sources_count_once_each(tmp_path):
    (tmp_path / "rules.toml").write_text('[gate]\nrules = ["dropped_tokens <= 1", "expired_groups<=0"]\n')
    saved = made_result([{}], config={"gate": {"rules": ["failed_tokens <= 0"]}})
    located = collect_rules(["expired_groups <= 0"], tmp_path / "rules.toml", None, saved, tmp_path)
    assert [(str(one.rule), one.origin.place) for one in located] == [
        ("expired_groups <= 0", "--rule"),
        ("dropped_tokens <= 1", "rules.toml, line 2"),
        ("failed_tokens <= 0", "the saved config"),
    ]


def test_all_rules_that_cannot_be_read_are_told_at_once(tmp_path):
    with pytest.raises(RuleError) as raised:
        collect_rules(["x <= 0", "dropped_tokens = 3"], None, None, None, tmp_path)
    assert len(raised.value.problems) == 2


def test_there_is_a_greatest_number_of_rules(tmp_path):
    with pytest.raises(RuleError, match="1001 rules"):
        collect_rules(["expired_groups <= 0"] * (MOST_RULES + 1), None, None, None, tmp_path)


def test_lines_of_rules_in_a_file():
    text = (
        '# "dropped_tokens <= 1" is not it\n[policy]\nmax_staleness = 1\n[gate]\nrules = [\n'
        "  'dropped_tokens <= 1', # a comment\n"
        '  "expired_groups{task=\\"a b\\"} <= 0",\n  "expired\\u005fgroups <= 0",\n  "failed_tokens <= 0"]\n'
    )
    rules = ["dropped_tokens <= 1", 'expired_groups{task="a b"} <= 0', "expired_groups <= 0", "failed_tokens <= 0"]
    assert rule_lines(text, rules) == [6, 7, 5, 9]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029"])
def test_only_line_feeds_count_as_ends_of_lines_of_rules(mark: str, ending: str, tmp_path: Path):
    lines = ["[gate]", f"# one{mark}line", "rules = [", '  "failed_tokens <= 0",', "]"]
    (tmp_path / "rules.toml").write_bytes("".join(line + ending for line in lines).encode())
    (located,) = collect_rules([], Path("rules.toml"), None, None, tmp_path)
    assert (located.origin.line, located.origin.lines) == (4, tuple(lines[2:]))


def test_the_default_config_has_no_rules():
    assert Config().gate.rules == ()


def test_rewards_are_judged_as_the_decimals_that_people_read():
    run = totals_of(raw_rewards_sum=3418.53)
    assert [judged(run, rule).exit_code() for rule in ("raw_rewards_sum <= 3418.53", "raw_rewards_sum == 3418.53")] == [
        PASS,
        PASS,
    ]
    assert judged(run, "raw_rewards_sum <= 3418.529").exit_code() == FAIL


def test_values_that_differ_never_read_alike():
    before = totals_of(dropped_tokens=50_000, produced_tokens=10_000_000)
    better, worse = (totals_of(dropped_tokens=dropped, produced_tokens=10_000_000) for dropped in (49_999, 50_001))
    report = judged(better, "dropped_token_rate <= +0pp", baseline=before)
    assert improvement_line(report).endswith(": dropped_token_rate 0.50000 % → 0.49999 %")
    assert words(verdict(worse, "dropped_token_rate <= +0pp", before)) == (
        "0.50001 % (50,001 of 10,000,000) is 0.00001 pp above the limit 0.50000 %; "
        "baseline 0.50000 %, change +0.00001 pp (+<0.1 %); worst step 1: 0.50001 % (baseline 0.50000 %); "
        "worst task there math: 0.50001 % (baseline 0.50000 %)"
    )


def test_a_rule_that_no_line_of_a_file_shows_stands_at_its_beginning():
    assert rule_lines('[gate]\n"rules" = ["produced\\u005ftokens <= 3"]\n', ["produced_tokens <= 3"]) == [1]


def test_metrics_may_not_get_worse_in_the_unit_they_are_shown_in():
    figures = [m.DROPPED_TOKEN_RATE, m.DROPPED_TOKENS, m.TRAINED_TOKENS]
    rules = [str(located.rule) for located in rules_of_metrics(figures, Origin("--metrics"))]
    assert rules == ["dropped_token_rate <= +0pp", "dropped_tokens <= +0", "trained_tokens >= +0"]
