"""SkyRL: what no recorded case tells, by hand."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from pydantic import ValidationError

from tests.corrections.batches import applied_by, response, stats_of
from tokenaudit.corrections.trainers.skyrl import Skyrl

applied = partial(applied_by, Skyrl)


def test_bounds_of_outliers_are_inside_and_look_only_at_the_mask():
    bound = float(np.exp(np.float32(0.5)))
    option = {"outlier_token_is_threshold_high": bound}
    batch = (response(0.5, 0.0), response(0.625, 0.0), response(9.0, 0.0, mask=(0, 1)))
    assert applied(option, *batch, dtype="float32").keep.tolist() == [True, True, False, False, False, True]
    low = {"outlier_token_is_threshold_low": 1.0}
    assert applied(low, response(0.0), response(-0.125)).keep.tolist() == [True, False]


def test_the_mask_of_responses_counts_what_is_left():
    option = {
        "token_mask_is_threshold_low": 0.5,
        "token_mask_is_threshold_high": 2.0,
        "sequence_mask_metric": "geometric",
        "geo_mask_low": 0.9,
        "geo_mask_high": 1.2,
    }
    # over two tokens the mean ratio is exp(0.25), over all three it would be exp(1/6)
    assert not applied(option, response(0.25, 0.25, 3.0)).keep.any()
    assert applied(option | {"geo_mask_high": 1.3}, response(0.25, 0.25, 3.0)).keep.tolist() == [True, True, False]
    # all are dropped before: the ratio of nothing is 1
    assert not Skyrl.model_validate(option).metrics(stats_of(applied(option, response(3.0))))[
        "geo_sequence_mask_masked_ratio"
    ]


def test_a_response_dropped_before_weighs_1():
    option = {"outlier_token_is_threshold_high": 2.0, "tis_ratio_type": "sequence"}
    assert applied(option, response(1.0, 0.5), response(0.5, 0.5)).weight.tolist() == pytest.approx(
        [1.0, 1.0, math.e, math.e], rel=1e-6
    )


def test_the_bounds_of_responses_are_inside():
    option = {"sequence_mask_metric": "product", "product_mask_low": 1.0, "product_mask_high": 1.0}
    assert applied(option, response(1.0, -1.0), response(0.125)).keep.tolist() == [True, True, False]


def test_weights_are_not_zeroed_out_of_the_loss_and_have_no_lower_bound():
    found = applied({"tis_ratio_type": "token"}, response(-100.0, 9.0, mask=(1, 0)))
    assert found.weight.tolist() == pytest.approx([float(np.exp(np.float32(-20))), 2.0], rel=1e-6)
    assert found.counted.tolist() == [True, False]


def test_dropped_tokens_still_count():
    found = applied({"outlier_token_is_threshold_high": 1.5}, response(1.0, 0.0))
    assert not found.mask.any()
    assert found.counted.all()


def test_ratios_are_made_in_float32():
    found = applied({"tis_ratio_type": "token"}, response(0.1))
    assert found.weight.dtype == np.float64
    assert found.weight[0] == np.float32(found.weight[0])


def test_one_bound_alone_masks_no_token():
    option = {"token_mask_is_threshold_high": 1.5}
    found = applied(option, response(3.0))
    assert found.keep.all()
    assert Skyrl.model_validate(option).metrics(stats_of(found)) == {}
    assert "masks no token" in Skyrl.model_validate(option).notes()[0]


def test_the_deviation_is_over_the_padded_matrix():
    option = {"tis_ratio_type": "token"}
    metrics = Skyrl.model_validate(option).metrics(stats_of(applied(option, response(0.0, 0.0), response(0.0))))
    assert metrics["is_ratio_mean"] == 1.0
    assert metrics["is_ratio_min"] == 0.0
    assert metrics["is_ratio_std"] == pytest.approx(np.std([1, 1, 1, 0], ddof=1))


def test_what_does_nothing_is_noted_and_what_is_unknown_refused():
    notes = Skyrl.model_validate({"tis_ratio_type": "token", "sequence_tis_ratio_clip_high": 3.0}).notes()
    assert notes == ("sequence_tis_ratio_clip_high does nothing here",)
    assert Skyrl().notes() == ()
    for option in ({"tis_ratio_type": "tokens"}, {"sequence_mask_metric": "sum"}, {"use_tis": True}):
        with pytest.raises(ValidationError):
            Skyrl.model_validate(option)
