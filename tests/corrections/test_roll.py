"""ROLL: what no recorded case tells, by hand."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
from pydantic import ValidationError

from tests.corrections.batches import applied_by, response, stats_of
from tokenaudit.corrections.trainers.roll import Roll

RATIO = "actor/train_infer_ratio_{}_mean@sum"


applied = partial(applied_by, Roll)


def weight_of(kind: str, cap: float | None = None) -> dict[str, Any]:
    return {"is_weight": {"enabled": True, "weight_type": kind, "upper_bound": cap}}


def test_a_segment_is_a_run_in_the_loss_and_ends_with_its_response():
    batch = (response(1.0, 2.0, 5.0, 4.0, mask=(1, 1, 0, 1)), response(6.0, 0.0, mask=(1, 0)), response(2.0))
    found = applied(weight_of("segment"), *batch)
    assert [math.log(weight) for weight in found.weight.tolist()] == pytest.approx([1.5, 1.5, 0, 4, 6, 0, 2])


def test_weights_have_no_lower_bound_and_are_not_zeroed_out_of_the_loss():
    found = applied(weight_of("token", 1.2), response(-9.0, 3.0, mask=(1, 0)))
    assert found.weight.tolist() == [pytest.approx(math.exp(-9)), 1.2]
    assert applied({}, response(3.0)).weight.tolist() == [1.0]


def test_filters_look_at_the_original_mask_and_bounds_are_inside():
    token = {"enabled": True, "ratio_low": 1.0, "ratio_high": 1.0}
    mean = {"enabled": True, "agg_type": "geometric", "ratio_low": 0.5, "ratio_high": 1.2}
    batch = (response(0.0, 0.25), response(0.0, 3.0))
    # the mean of what the first filter leaves of the second response would be in bounds
    assert applied({"filters": [token, mean]}, *batch).keep.tolist() == [True, False, False, False]
    assert applied({"filters": [mean, token]}, *batch).keep.tolist() == [True, False, False, False]


def test_the_difference_of_probabilities_of_a_response_is_a_sum():
    low = {"enabled": True, "ratio_enabled": False, "diff_enabled": True, "diff_low": -1.0, "diff_high": 0.0}
    batch = response(-800.0, -800.0)  # a difference of -1 each
    assert applied({"filters": [low]}, batch).keep.all()
    assert not applied({"filters": [low | {"agg_type": "sequence"}]}, batch).keep.any()
    assert applied({"filters": [low | {"agg_type": "geometric"}]}, batch).keep.all()


def test_infinity_out_of_the_loss_makes_figures_nan_as_the_trainer_has_them():
    found = applied({}, response(100.0, 0.0, mask=(0, 1)), response(0.0), dtype="float32")
    metrics = Roll().metrics(stats_of(found))
    assert math.isnan(metrics[RATIO.format("token")])
    assert metrics[RATIO.format("segment")] == pytest.approx(1.0)
    inside = Roll().metrics(stats_of(applied({}, response(100.0, 0.0), dtype="float32")))
    assert inside[RATIO.format("token")] == math.inf
    # the padding of a shorter response is out of the loss, too
    padded = Roll().metrics(stats_of(applied({}, response(100.0), response(0.0, 0.0), dtype="float32")))
    assert padded[RATIO.format("token")] == math.inf
    assert math.isnan(padded[RATIO.format("sequence")])


def test_figures_are_means_over_responses_with_a_token_in_the_loss():
    found = applied({}, response(math.log(2.0)), response(0.0, 0.0), response(9.0, mask=(0,)))
    metrics = Roll().metrics(stats_of(found))
    assert metrics[RATIO.format("token")] == pytest.approx(1.5)
    assert metrics[RATIO.format("sequence")] == pytest.approx(1.5)


def test_what_does_nothing_is_noted():
    idle = Roll.model_validate({"is_weight": {"upper_bound": 3.0}, "filters": [{"agg_type": "token"}]}).notes()
    assert [note.split(" does")[0] for note in idle] == ["is_weight", "filters[0]"]
    empty = Roll.model_validate({"filters": [{"enabled": True, "ratio_low": 2.0}]}).notes()
    assert empty[0].startswith("filters[0] keeps nothing")
    assert "token-mean" in empty[1]
    for option in ({"filters": [{"agg": "token"}]}, {"is_weight": {"weight_type": "mean"}}):
        with pytest.raises(ValidationError):
            Roll.model_validate(option)
