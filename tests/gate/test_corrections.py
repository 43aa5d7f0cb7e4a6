"""Rules about off-policy corrections: judged by what the result holds of the method, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import SAMPLE
from tokenaudit import gate_result, replay_log
from tokenaudit.contracts.errors import ResultError
from tokenaudit.gate.report import Outcome
from tokenaudit.replay.result import Corrected, Result
from tokenaudit.replay.saved_result import result_from_json, result_to_json


def counts(loss: int, dropped: int, responses: int = 10, whole: int = 1) -> dict[str, int]:
    return {
        "correction_loss_tokens": loss,
        "correction_dropped_tokens": dropped,
        "correction_responses": responses,
        "correction_dropped_responses": whole,
    }


@pytest.fixture(scope="module")
def result() -> Result:
    tasks = {"math": counts(80, 1), "code": counts(20, 2)}
    steps = [counts(60, 0) | {"train_step": 1, "tasks": {}}, counts(40, 3) | {"train_step": 2, "tasks": {}}]
    corrected = Corrected(counts(100, 3) | {"tasks": tasks}, steps)
    return replace(replay_log(SAMPLE).result, corrections={"verl": corrected, "my method": corrected})


def outcome(result: Result, rule: str, baseline: Result | None = None) -> Outcome:
    (verdict,) = gate_result(result, [rule], baseline=baseline).verdicts
    return verdict.outcome


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("correction_dropped_token_rate{method=verl} <= 3%", Outcome.PASSED),
        ("correction_dropped_token_rate{method=verl} < 3%", Outcome.FAILED),
        ('correction_dropped_tokens{method="my method"} <= 3', Outcome.PASSED),
        ("correction_dropped_response_rate{method=verl} <= 9%", Outcome.FAILED),
        ("correction_dropped_token_rate{method=verl,task=code} <= 9%", Outcome.FAILED),
        ("correction_dropped_token_rate{method=verl,task=math} <= 9%", Outcome.PASSED),
        ("correction_dropped_token_rate{method=verl,step<=1} <= 0%", Outcome.PASSED),
        ("correction_dropped_token_rate{method=verl,step} <= 7%", Outcome.FAILED),
        ("correction_dropped_token_rate{method=areal} <= 3%", Outcome.NOT_JUDGED),
    ],
)
def test_a_rule_judges_its_method(result: Result, rule: str, expected: Outcome):
    assert outcome(result, rule) is expected


def test_a_baseline_holds_its_methods(result: Result):
    rule = "correction_dropped_tokens{method=verl} <= +0"
    assert outcome(result, rule, result) is Outcome.PASSED
    better = Corrected(counts(100, 2) | {"tasks": {}}, [])
    assert outcome(result, rule, replace(result, corrections={"verl": better})) is Outcome.FAILED
    assert outcome(result, rule, replace(result, corrections={})) is Outcome.NOT_JUDGED


def test_a_saved_result_keeps_its_methods(result: Result):
    assert result_from_json(result_to_json(result), "saved").corrections == result.corrections
    text = result_to_json(replace(result, corrections={"verl": Corrected(counts(2, 3) | {"tasks": {}}, [])}))
    with pytest.raises(ResultError, match="more is dropped than there is"):
        result_from_json(text, "saved")
