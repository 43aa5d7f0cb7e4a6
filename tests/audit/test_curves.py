"""Curves of a run beside what its log gives: right values by a slow count, and what changed ones are told as."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.audit.audit_cases import audited, findings_of
from tests.audit.curve_logs import CONFIG, TOKEN_LIMIT, recorded_run, written_run
from tests.builders import Row, read_json, write_log
from tests.oracles.slow_curves import slow_curves
from tokenaudit.audit.curve_definitions import DEFINITIONS
from tokenaudit.audit.curve_names import KNOWN, KnownCurve
from tokenaudit.audit.curve_pairs import CurvePair
from tokenaudit.audit.curve_points import Curve
from tokenaudit.audit.curve_values import LogSeries
from tokenaudit.audit.parity import Parity, Verdict
from tokenaudit.audit.report import AuditReport
from tokenaudit.audit.rule import Fact, Severity
from tokenaudit.audit.session import audit_log
from tokenaudit.contracts.errors import UsageError
from tokenaudit.contracts.metrics import METRICS
from tokenaudit.replay.session import replay_log

ROOT = Path(__file__).parent.parent.parent
SAMPLE = ROOT / "sample_data" / "rollouts.parquet"
TRACKER = ROOT / "sample_data" / "tracker.jsonl"

Points = dict[int, Any]


def write_curves(folder: Path, curves: dict[str, Points], name: str = "curves.jsonl") -> Path:
    """One line per step, as trainers write it."""
    steps = sorted({step for points in curves.values() for step in points})
    lines = [{"step": step} | {key: points[step] for key, points in curves.items() if step in points} for step in steps]
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def compared(
    folder: Path, curves: dict[str, Points], rows: list[Row] | None = None, curve_map: dict[str, str] | None = None
) -> AuditReport:
    files = [write_curves(folder, curves)]
    log = written_run(folder, rows)
    return audit_log([log], overrides=CONFIG, isolated=True, rules=["C"], curves=files, curve_map=curve_map)


def only(report: AuditReport) -> Parity:
    assert report.parity is not None
    (parity,) = report.parity
    return parity


SLOW = slow_curves(recorded_run(), TOKEN_LIMIT)


def test_every_definition_of_what_was_taken_is_that_of_a_slow_count(tmp_path: Path):
    report = compared(tmp_path, SLOW)
    assert report.parity is not None
    found = {parity.ours: (parity.verdict, parity.steps) for parity in report.parity}
    assert found == dict.fromkeys(SLOW, (Verdict.EQUAL, 12))
    # and they vary, so that none is equal for want of anything to tell
    assert [name for name, points in SLOW.items() if len(set(points.values())) == 1] == [
        "oldest_staleness_min",
        "newest_staleness_min",
        "start_staleness_min",
        "version_span_min",
        "response_len_max",
        "reward_max",
        "reward_min",
        "token_staleness_min",
        "taken_groups",
        "taken_samples",
    ]
    assert report.exit_code() == 0


@pytest.mark.parametrize("seed", range(1, 6))
def test_random_logs_give_the_values_of_a_slow_count(seed: int, tmp_path: Path):
    rows = recorded_run(steps=5, groups=2, members=2, seed=seed)
    report = compared(tmp_path, slow_curves(rows, TOKEN_LIMIT), rows)
    assert report.parity is not None
    assert {parity.verdict for parity in report.parity} == {Verdict.EQUAL}


def test_what_the_replay_took_counts_where_takes_name_nothing(tmp_path: Path):
    rows = recorded_run()
    # no token rule, under which some would expire that the takes name
    slow = slow_curves(rows, None)
    nameless = [row for row in rows if row["event"] != "take"]
    takes = {row["event_id"]: row | {"rollout_id": None} for row in rows if row["event"] == "take"}
    log = written_run(tmp_path, sorted([*nameless, *takes.values()], key=lambda row: row["event_id"]))
    files = [write_curves(tmp_path, slow)]
    report = audit_log([log], overrides=CONFIG[:1], isolated=True, rules=["C"], curves=files)
    assert report.parity is not None
    assert {parity.ours: parity.verdict for parity in report.parity} == dict.fromkeys(slow, Verdict.EQUAL)


def test_all_metrics_of_the_ledger_are_there_by_their_names(tmp_path: Path):
    steps = replay_log([SAMPLE]).result.steps
    names = [name for name in steps[0] if name in METRICS]
    curves = {name: {row["train_step"]: row[name] for row in steps} for name in names}
    report = audit_log([SAMPLE], curves=[write_curves(tmp_path, curves)], rules=["C"])
    assert report.parity is not None
    assert {parity.ours: parity.verdict for parity in report.parity} == dict.fromkeys(names, Verdict.EQUAL)


# ---- the sample's curves: what upstream's own managers gave


def tracker_line(row: dict[str, Any]) -> dict[str, Any]:
    """A step as the tracker of the upstream trainer writes it."""
    return {
        "async/init_samples": row["leftover_init"],
        "async/completed_samples": row["leftover_completed"],
        "async/aborted_samples": row["leftover_aborted"],
        "async/expired_samples": row["leftover_expired"],
        "async/failed_samples": row["failed_samples"],
        "async/filtered_samples": row["filtered_samples"],
        "response/batch_size": 8 * sum(map(len, row["taken_groups"].values())),
        "response/raw_rewards/mean": row["raw_rewards_sum"] / row["raw_rewards_count"],
        "step": row["train_step"],
    }


def test_the_curves_of_the_sample_are_those_of_the_upstream_run():
    expected = read_json(ROOT / "tests" / "sample_expected.json")["expected"]
    assert [json.loads(line) for line in TRACKER.read_text().splitlines()] == list(map(tracker_line, expected))


def test_the_log_gives_the_curves_of_the_upstream_run():
    report = audit_log([SAMPLE], curves=[TRACKER])
    assert report.parity is not None
    assert [(parity.curve, parity.verdict, parity.steps) for parity in report.parity] == [
        (name, Verdict.EQUAL, 30) for name in tracker_line(TRACKER_ROW) if name not in ("async/init_samples", "step")
    ]
    assert {parity.trainer for parity in report.parity} == {"xtuner"}
    assert report.unknown_curves == ("async/init_samples",)
    assert report.exit_code() == 0


TRACKER_ROW = read_json(ROOT / "tests" / "sample_expected.json")["expected"][0]


def test_another_config_does_not_give_them():
    report = audit_log([SAMPLE], curves=[TRACKER], config=ROOT / "sample_data" / "worse.toml", rules=["C"])
    assert report.parity is not None
    verdicts = {parity.curve: parity.verdict for parity in report.parity}
    assert verdicts["async/failed_samples"] is Verdict.EQUAL
    assert verdicts["async/expired_samples"] is Verdict.DIFFERS
    assert report.exit_code() == 1


# ---- perturbed


def curve_of(name: str, change: Callable[[int, float], Any] = lambda step, value: value) -> Points:
    return {step: change(step, value) for step, value in SLOW[name].items()}


Change = Callable[[int, float], Any]
TOKENS, MEAN = "trained_tokens", "oldest_staleness_mean"


@pytest.mark.parametrize(("name", "change", "verdict", "detail"), [
    (TOKENS, lambda _, value: value, Verdict.EQUAL, ""),
    (MEAN, lambda _, value: float(np.float32(value)), Verdict.EQUAL, ""),
    (MEAN, lambda _, value: round(value, 3), Verdict.EQUAL, "to the 3 decimals that the file has"),
    (MEAN, lambda _, value: value + 1, Verdict.OFFSET, "the curve is the log's value plus 1 at every step"),
    (TOKENS, lambda _, value: value - 7, Verdict.OFFSET, "the curve is the log's value minus 7 at every step"),
    (TOKENS, lambda _, value: value / 8, Verdict.FACTOR, "the curve is 0.125 times the log's value at every step"),
    (TOKENS, lambda step, _: SLOW["taken_tokens"][step], Verdict.OTHER,
     "it is taken_tokens (tokens in the batch)"),
    (MEAN, lambda step, _: SLOW["newest_staleness_mean"][step], Verdict.OTHER,
     "it is newest_staleness_mean (mean staleness of the newest token of every response taken)"),
    (MEAN, lambda step, _: SLOW["token_staleness_mean"][step], Verdict.OTHER,
     "it is token_staleness_mean (mean staleness of every trained token)"),
    (MEAN, lambda step, _: SLOW["newest_staleness_mean"][step] + 1, Verdict.OTHER,
     "it is newest_staleness_mean (mean staleness of the newest token of every response taken), plus 1"),
])  # fmt: skip
def test_a_curve_is_told_by_what_it_is(name: str, change: Change, verdict: Verdict, detail: str, tmp_path: Path):
    report = compared(tmp_path, {name: curve_of(name, change)})
    parity = only(report)
    assert (parity.verdict, parity.detail) == (verdict, detail)
    assert (parity.steps, parity.equal_steps) == (12, 12)
    other = verdict is not Verdict.EQUAL
    assert len(findings_of(report, "curve-defined-otherwise")) == other
    assert findings_of(report, "curve-differs") == []


def test_a_running_total_is_another_definition(tmp_path: Path):
    totals = accumulate(SLOW[TOKENS].values())
    parity = only(compared(tmp_path, {TOKENS: dict(zip(SLOW[TOKENS], totals, strict=True))}))
    assert (parity.verdict, parity.detail) == (
        Verdict.OTHER,
        "it is the running total of trained_tokens (tokens of the batch that are in the loss)",
    )


def test_a_running_total_of_a_later_stretch_counts_what_came_before(tmp_path: Path):
    totals = dict(zip(SLOW[TOKENS], accumulate(SLOW[TOKENS].values(), initial=1000), strict=False))
    later = {step: totals[step + 1] for step in range(4, 12)}
    assert only(compared(tmp_path, {TOKENS: later})).verdict is Verdict.OTHER


@pytest.mark.parametrize("weight", [0.6, 0.9])
@pytest.mark.parametrize("corrected", [False, True])
def test_a_smoothed_curve_is_noticed(weight: float, corrected: bool, tmp_path: Path):
    values = [float(value) for value in SLOW[TOKENS].values()]
    smooth, last = [], 0.0 if corrected else values[0]
    for place, value in enumerate(values, 1):
        last = weight * last + (1 - weight) * value
        smooth.append(last / (1 - weight**place) if corrected else last)
    parity = only(compared(tmp_path, {TOKENS: dict(zip(SLOW[TOKENS], smooth, strict=True))}))
    assert parity.verdict is Verdict.OTHER
    assert parity.detail.startswith(f"it is smoothed, a moving average with weight {weight:g} of trained_tokens")


def test_steps_counted_from_0_are_noticed(tmp_path: Path):
    parity = only(compared(tmp_path, {TOKENS: {step - 1: value for step, value in SLOW[TOKENS].items()}}))
    assert (parity.verdict, parity.detail) == (Verdict.SHIFTED, "step 0 of the curve is step 1 of the log")


def test_a_trainer_that_counts_from_0_is_known_to(tmp_path: Path):
    curve = {step - 1: value for step, value in SLOW["trainable_len_mean"].items()}
    parity = only(compared(tmp_path, {"rollout/response_len/mean": curve}))
    assert (parity.verdict, parity.detail, parity.trainer) == (Verdict.EQUAL, "", "slime, miles")


def test_what_a_trainer_subtracts_is_known(tmp_path: Path):
    curve = {step: value - 1 for step, value in SLOW["version_span_mean"].items()}
    parity = only(compared(tmp_path, {"off_policy/in_flight/mean": curve}))
    assert (parity.verdict, parity.definition[-4:]) == (Verdict.EQUAL, ", -1")


@pytest.mark.parametrize(("change", "where"), [
    (lambda step, value: value + (step >= 5) * step, "from step 5 on"),
    (lambda step, value: value + (step in (4, 9)), "at 2 of 12 steps, first at step 4"),
    (lambda step, value: value + step * step % 7 + 0.5, "at every step, from the first on"),
])  # fmt: skip
def test_where_a_curve_begins_to_differ(change: Change, where: str, tmp_path: Path):
    curve = curve_of(TOKENS, change)
    report = compared(tmp_path, {TOKENS: curve})
    parity = only(report)
    wrong = [step for step in curve if curve[step] != SLOW[TOKENS][step]]
    assert parity.verdict is Verdict.DIFFERS
    assert parity.detail.startswith(f"differs {where}: logged ")
    assert (parity.first_step, parity.logged, parity.recomputed) == (
        wrong[0], curve[wrong[0]], SLOW[TOKENS][wrong[0]],
    )  # fmt: skip
    assert parity.equal_steps == 12 - len(wrong)
    (finding,) = findings_of(report, "curve-differs")
    assert finding.subject.train_step == wrong[0]
    assert parity.detail in finding.message
    assert report.exit_code() == 1


def test_a_curve_of_another_definition_that_differs_from_a_step_on(tmp_path: Path):
    curve = {step: value + (step > 8) for step, value in SLOW["taken_tokens"].items()}
    parity = only(compared(tmp_path, {TOKENS: curve}))
    assert parity.verdict is Verdict.DIFFERS
    assert parity.detail.startswith("it is taken_tokens (tokens in the batch) elsewhere, and differs from step 9 on")


def test_missing_steps_gaps_and_a_resume_are_said(tmp_path: Path):
    path = tmp_path / "curves.jsonl"
    points = [(step, SLOW[TOKENS][step]) for step in (2, 3, 5, 6)]
    # steps 5 and 6 were trained again after a resume
    lines = [(5, 1), (6, 2), *points, (7, "NaN"), (40, 9)]
    path.write_text("".join(json.dumps({"step": step, TOKENS: value}) + "\n" for step, value in lines))
    report = audit_log([written_run(tmp_path)], overrides=CONFIG, isolated=True, curves=[path])
    parity = only(report)
    assert (parity.verdict, parity.steps) == (Verdict.EQUAL, 4)
    assert parity.detail == (
        "2 steps logged more than once, the last value counts; 1 row without a finite value; "
        "1 step of the curve is not in the log"
    )


@pytest.mark.parametrize(("points", "why"), [
    ({900: 1, 901: 2}, "no step in common: the curve has 900 to 901, counted from 1, the log 1 to 12"),
    ({1: None}, "the curve has no finite value; 1 row without a finite value"),
])  # fmt: skip
def test_what_has_nothing_to_compare_is_no_pass(points: Points, why: str, tmp_path: Path):
    report = compared(tmp_path, {TOKENS: points})
    parity = only(report)
    assert (parity.verdict, parity.detail) == (Verdict.NOT_COMPARABLE, why)
    (run,) = [run for run in report.runs if run.rule.name == "curve-differs"]
    assert run.findings is not None
    assert (run.findings.checked, run.findings.total) == (0, 0)


def test_what_the_log_lacks_is_said(tmp_path: Path):
    rows = [{key: value for key, value in row.items() if key != "prompt_len"} for row in recorded_run()]
    parity = only(compared(tmp_path, {"response/prompt_len/mean": SLOW["prompt_len_mean"]}, rows))
    assert (parity.verdict, parity.detail) == (Verdict.NOT_COMPARABLE, "the log has no prompt_len there")


def test_without_a_config_only_what_takes_name_is_compared(tmp_path: Path):
    curves = {name: SLOW[name] for name in ("taken_tokens", TOKENS, MEAN)} | {"async/expired_samples": {1: 0}}
    report = audit_log([written_run(tmp_path)], isolated=True, curves=[write_curves(tmp_path, curves)])
    assert report.parity is not None
    found = {parity.ours: (parity.verdict, parity.detail) for parity in report.parity}
    no_config = "give one with -c FILE"
    assert found == {
        "taken_tokens": (Verdict.EQUAL, ""),
        TOKENS: (Verdict.NOT_COMPARABLE, f"what is trained needs a config: {no_config}"),
        MEAN: (Verdict.EQUAL, ""),
        "leftover_expired": (Verdict.NOT_COMPARABLE, f"no replay: no config is known: {no_config}"),
    }


def test_a_step_whose_take_names_an_unknown_rollout_is_not_compared(tmp_path: Path):
    rows = recorded_run()
    last = rows[-1]
    rows.append(last | {"rollout_id": 10**6})
    parity = only(compared(tmp_path, {"taken_tokens": SLOW["taken_tokens"]}, rows))
    assert (parity.verdict, parity.steps) == (Verdict.EQUAL, 11)


def test_what_a_trainer_rounds_off_by_its_own_way_is_no_error(tmp_path: Path):
    name = "ppo_actor/update/version_stats/sample_staleness_theta_avg"
    curve = {step - 1: value * 1.01 + step % 3 for step, value in SLOW["token_staleness_mean"].items()}
    report = compared(tmp_path, {name: curve})
    parity = only(report)
    assert parity.verdict is Verdict.NOT_COMPARABLE
    assert parity.detail.startswith("the trainer logs a mean over micro-batches and ranks, so values may differ")
    assert report.count(Severity.ERROR) == 0


def test_zeros_are_equal_to_zeros_only(tmp_path: Path):
    parity = only(compared(tmp_path, {TOKENS: dict.fromkeys(SLOW[TOKENS], 0)}))
    assert parity.verdict is Verdict.DIFFERS


def test_a_count_is_exact_and_single_precision_rounds_it():
    big = 2**24 + 1
    steps = np.arange(1, 4)
    series = LogSeries(DEFINITIONS[TOKENS], steps, np.array([big, big + 2, 5.0]))
    known = KnownCurve("", TOKENS, TOKENS)

    def close(values: list[float]) -> list[bool]:
        return CurvePair(Curve(TOKENS, "f", steps, np.array(values), 0, 0), known, series).close().tolist()

    assert close([big, big + 2, 5]) == [True, True, True]
    assert close([float(np.float32(big)), float(np.float32(big + 2)), 5]) == [True, True, True]
    assert close([big + 5, big - 3, 5.001]) == [False, False, False]


# ---- names


def test_every_known_curve_is_a_series_and_is_named_once():
    assert {known.ours for known in KNOWN} <= DEFINITIONS.keys()
    assert len({known.name for known in KNOWN}) == len(KNOWN)
    extra = {name for name in DEFINITIONS if name not in METRICS}
    assert not extra & METRICS.keys()


def test_a_curve_is_mapped_by_its_name(tmp_path: Path):
    report = compared(tmp_path, {"my=tokens": SLOW[TOKENS], "other": {1: 2}}, None, {"my=tokens": TOKENS})
    assert (only(report).ours, only(report).trainer, only(report).verdict) == (TOKENS, "", Verdict.EQUAL)
    assert report.unknown_curves == ("other",)


def test_all_that_is_wrong_with_names_is_said_at_once(tmp_path: Path):
    curves = write_curves(tmp_path, {"a": {1: 1}})
    log = written_run(tmp_path)
    with pytest.raises(UsageError) as raised:
        audit_log([log], curves=[curves], curve_map={"a": "trained_token", "b": "nothing"})
    assert [problem.what for problem in raised.value.problems] == [
        "'trained_token' is no series of a log", "'nothing' is no series of a log",
    ]  # fmt: skip
    assert raised.value.problems[0].hint == "did you mean 'trained_tokens'?"
    with pytest.raises(UsageError, match="the curves have no 'b'"):
        audit_log([log], curves=[curves], curve_map={"b": TOKENS})
    with pytest.raises(UsageError, match="no curve is known by its name"):
        audit_log([log], curves=[curves])
    with pytest.raises(UsageError, match="--map is for curves"):
        audit_log([log], curve_map={"a": TOKENS})


def test_without_curves_the_rules_are_not_run(tmp_path: Path):
    report = audited(tmp_path / "log.parquet", recorded_run(2), CONFIG)
    missing = {run.rule.code: run.missing for run in report.runs if run.rule.code.startswith("C")}
    assert missing == {"C001": (Fact.CURVES,), "C002": (Fact.CURVES,)}
    assert report.parity is None


def test_groups_that_the_replay_leaves_out_make_steps_incomparable(tmp_path: Path):
    rows = recorded_run(4)
    faulty = next(row for row in rows if row["event"] == "put" and row["train_step"] == 3)
    faulty["response_mask"] = [1] * 20
    log = write_log(tmp_path / "log.parquet", rows)
    slow = slow_curves(recorded_run(4), TOKEN_LIMIT)["taken_tokens"]
    files = [write_curves(tmp_path, {"taken_tokens": slow})]
    parity = only(audit_log([log], overrides=CONFIG, isolated=True, curves=files))
    assert (parity.verdict, parity.steps) == (Verdict.EQUAL, 3)
    assert math.isclose(sum(slow.values()) - slow[3], sum(slow[step] for step in (1, 2, 4)))


def test_two_constants_that_differ_are_said_so(tmp_path: Path):
    parity = only(compared(tmp_path, {"x": dict.fromkeys(range(1, 13), 7)}, curve_map={"x": "taken_groups"}))
    assert parity.verdict is Verdict.DIFFERS
    assert "at every step, from the first on: logged 7, the log gives 4" in parity.detail


@pytest.mark.parametrize("first", [4, 5, 10])
def test_a_curve_that_begins_equal_differs_from_a_step_on(first: int, tmp_path: Path):
    points = {step: value + 3 * (step >= first) for step, value in SLOW["response_len_mean"].items()}
    parity = only(compared(tmp_path, {"response_len_mean": points}))
    assert (parity.verdict, parity.first_step) == (Verdict.DIFFERS, first)
    assert f"differs from step {first} on" in parity.detail


@pytest.mark.parametrize("size", [2, 5, 12])
def test_a_curve_of_means_of_the_last_values_is_smoothed(size: int, tmp_path: Path):
    values = list(SLOW["response_len_mean"].values())
    points = {n: float(np.mean(values[max(0, n - size) : n])) for n in range(1, 13)}
    parity = only(compared(tmp_path, {"response_len_mean": points}))
    assert parity.verdict is Verdict.OTHER
    what = "the mean of all values so far" if size == 12 else f"the mean of the last {size} values"
    assert f"it is smoothed, {what} of response_len_mean" in parity.detail


@pytest.mark.parametrize("bits", [8, 11])
def test_values_of_half_precision_are_equal_and_others_differ(bits: int, tmp_path: Path):
    def rounded(value: float) -> float:
        mantissa, exponent = math.frexp(value)
        return math.ldexp(round(mantissa * 2**bits), exponent - bits)

    points = {step: rounded(value / 3) for step, value in SLOW["response_len_mean"].items()}
    thirds = {step: value / 3 for step, value in SLOW["response_len_mean"].items()}
    series = LogSeries(DEFINITIONS["response_len_mean"], np.arange(1, 13), np.array([*thirds.values()]), "")
    known = KnownCurve("", "x", "response_len_mean")

    def close(values: list[float]) -> list[bool]:
        curve = Curve("x", "f", np.arange(1, 13), np.array(values), 0, 0)
        return CurvePair(curve, known, series).close().tolist()

    assert close([*points.values()]) == [True] * 12
    assert close([value * 1.02 for value in thirds.values()]) == [False] * 12
    off = [*points.values()]
    off[3] = rounded(off[3] * (1 + 2.0 ** (2 - bits)))
    assert close(off) == [n != 3 for n in range(12)]
