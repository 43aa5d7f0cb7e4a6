"""TRL: what no recorded case tells, by hand."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.corrections.batches import applied_by, response, stats_of
from tokenaudit.corrections.trainers.trl import Trl

applied = partial(applied_by, Trl)


def test_the_mask_of_responses_spares_an_advantage_of_0_and_a_mean_at_the_threshold():
    batch = [response(-0.5, -0.5, advantage=advantage) for advantage in (-1.0, 0.0, 1.0)]
    batch += [response(-0.25, -0.25, advantage=-1.0), response(-9.0, mask=(0,), advantage=-1.0)]
    found = applied({"off_policy_mask_threshold": 0.25}, *batch)
    assert found.keep.tolist() == [False, False, True, True, True, True, True, True, False]
    assert found.weight.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert found.mask.tolist() == [True] * 8 + [False]
    correction = Trl.model_validate({"off_policy_mask_threshold": 0.25})
    assert correction.needs_advantage
    assert not Trl().needs_advantage
    assert correction.metrics(stats_of(found)) == {}


def test_the_mask_of_responses_goes_with_importance_sampling_where_that_is_given():
    option = {"off_policy_mask_threshold": 0.25, "vllm_importance_sampling_mode": "token_truncate"}
    batch = (response(-0.5, advantage=-1.0), response(9.0, advantage=-1.0))
    assert applied(option, *batch).weight.tolist() == [0.0, 3.0]
    assert any("left out" in note for note in Trl.model_validate({"off_policy_mask_threshold": 0.25}).notes())
    assert not any("left out" in note for note in Trl.model_validate(option).notes())


def test_the_defaults_drop_nothing_for_a_small_ratio():
    found = applied({}, response(-30.0), response(1.0, 0.5), response(0.5, 0.5))
    assert found.weight.tolist() == pytest.approx([math.exp(-30), 0.0, 0.0, math.e, math.e])
    assert found.keep.tolist() == [True, False, False, True, True]
    assert found.mask.all()
    assert any("product" in note for note in Trl().notes())


def test_masks_keep_the_bounds_and_the_ratio():
    high = float(np.exp(0.5))
    option = {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_max": high}
    option |= {"vllm_importance_sampling_clip_min": 1.0}
    found = applied(option, response(0.5, 0.625, 0.0, -0.125))
    assert found.weight.tolist() == pytest.approx([high, 0.0, 1.0, 0.0])
    assert found.keep.tolist() == [True, False, True, False]


def test_tokens_out_of_the_loss_have_a_ratio_of_1():
    token = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 0.5}
    assert applied(token, response(9.0, -9.0, mask=(0, 1))).weight.tolist() == [0.5, pytest.approx(math.exp(-9))]
    found = applied({}, response(9.0, mask=(0,)))
    assert found.weight.tolist() == [1.0]
    metrics = Trl().metrics(stats_of(found))
    assert metrics["sampling/importance_sampling_ratio/mean"] == 1.0
    assert metrics["sampling/sampling_logp_difference/max"] == 0.0


def test_off_is_no_weight():
    found = applied({"vllm_importance_sampling_correction": False}, response(9.0))
    assert found.weight is None
    assert Trl(vllm_importance_sampling_correction=False).metrics(stats_of(found)) == {}
    option = {"vllm_importance_sampling_correction": False, "vllm_importance_sampling_clip_max": 2.0}
    assert Trl.model_validate(option).notes() == ("vllm_importance_sampling_clip_max does nothing here",)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"vllm_importance_sampling_clip_min": 3.0}, "less than"),
        (
            {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": None},
            "needs it or",
        ),
        ({"vllm_importance_sampling_mode": "truncate"}, "token_truncate"),
        ({"beta": 0.1}, "Extra inputs"),
    ],
)
def test_what_the_trainer_refuses_is_refused(option: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        Trl.model_validate(option)
