"""NeMo-RL: what no recorded case tells, by hand."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
from pydantic import ValidationError

from tests.corrections.batches import applied_by, response, stats_of
from tokenaudit.corrections.trainers.nemo_rl import NemoRl


def option(kind: str | None, high: float | None = None, low: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        "use_importance_sampling_correction": True,
        "truncated_importance_sampling_type": kind,
        "truncated_importance_sampling_ratio": high,
        "truncated_importance_sampling_ratio_min": low,
        **more,
    }


applied = partial(applied_by, NemoRl)


def test_a_ratio_that_overflows_is_0_and_not_the_cap():
    assert applied(option("tis", 2.0), response(89.0, 1.0), dtype="float32").weight.tolist() == [0.0, 2.0]
    assert applied(option("tis", 2.0, 0.25), response(89.0), dtype="float32").weight.tolist() == [0.25]
    assert applied(option("tis", 2.0), response(89.0)).weight.tolist() == [2.0]
    assert applied(option("tis", 2.0), response(800.0)).weight.tolist() == [0.0]
    assert applied(option("tis", 2.0), response(89.0), dtype="float32").keep.all()


def test_seq_mask_tis_with_overflow():
    # the mean of the second response is in bounds: its token that overflows weighs 0, and stays
    found = applied(option("seq-mask-tis", 1.1, 0.9), response(89.0), response(100.0, -100.0), dtype="float32")
    assert found.weight.tolist() == [0.0, 0.0, pytest.approx(math.exp(-100), abs=1e-45)]
    assert found.keep.tolist() == [False, True, True]
    assert found.mask.all()
    metrics = NemoRl.model_validate(option("seq-mask-tis", 1.1, 0.9)).metrics(stats_of(found))
    assert metrics["is_oob_ratio"] == 0.5


def test_seq_mask_tis_does_not_cut_weights():
    found = applied(option("seq-mask-tis", 1.1, 0.9), response(3.0, -3.0), response(0.5, mask=(0,)))
    assert found.weight.tolist() == pytest.approx([math.exp(3), math.exp(-3), math.exp(0.5)])


def test_the_logged_ratio_of_responses_is_a_sum():
    options = option("tis", 2.0, sequence_level_importance_ratios=True, token_level_loss=False)
    found = applied(options, response(0.0, 0.0), response(9.0), response(5.0, mask=(0,)))
    assert found.weight.tolist() == [1.0, 1.0, 2.0, 1.0]
    metrics = NemoRl.model_validate(options).metrics(stats_of(found))
    assert metrics == {"sampling_importance_ratio": 4.0, "is_oob_ratio": pytest.approx(1 / 3)}


def test_off_is_ones():
    found = applied({}, response(3.0, -3.0))
    assert found.weight.tolist() == [1.0, 1.0]
    metrics = NemoRl().metrics(stats_of(found))
    assert metrics == {"sampling_importance_ratio": pytest.approx((math.exp(3) + math.exp(-3)) / 2)}


def test_bounds_of_icepop_are_inside_and_0_where_there_is_none():
    found = applied(option("icepop", 1.0), response(0.0, 0.125, -9.0, -800.0))
    assert found.weight.tolist() == [1.0, 0.0, pytest.approx(math.exp(-9)), 0.0]
    assert found.keep.tolist() == [True, False, True, True]
    assert "refuses icepop without" in NemoRl.model_validate(option("icepop", 1.0)).notes()[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (option(None, 2.0), "stops at the first step"),
        (option("tis"), "positive"),
        (option("tis", -1.0), "positive"),
        (option("tis", 2.0, 3.0), "at most"),
        (option("tis", 2.0) | {"use_importance_sampling_correction": False}, "without use_importance"),
        (option("seq-mask-tis", 2.0), "needs it"),
        (
            option("seq-mask-tis", 2.0, 0.5, sequence_level_importance_ratios=True, token_level_loss=False),
            "with seq-mask-tis",
        ),
        (option("tis", 2.0, sequence_level_importance_ratios=True), "token_level_loss false"),
        (option("clip", 2.0), "tis"),
    ],
)
def test_what_the_trainer_refuses_is_refused(options: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        NemoRl.model_validate(options)
