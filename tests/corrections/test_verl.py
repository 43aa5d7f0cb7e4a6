"""verl: what no recorded case tells, by hand."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.corrections.batches import applied_by, response, stats_of
from tokenaudit.corrections.trainers.verl import Verl

applied = partial(applied_by, Verl)


def test_rejection_cuts_each_token_before_the_sum_and_the_weight_cuts_the_sum():
    batch = response(100.0, -99.5)
    option = {"rollout_is": "sequence", "rollout_is_threshold": 5.0, "rollout_rs_threshold": "0.7_1.4"}
    # the cut tokens sum to 0, which is in bounds; the sum of 0.5 is out of them
    found = applied(option | {"rollout_rs": "seq_sum_k1"}, batch)
    assert found.keep.all()
    assert found.weight.tolist() == pytest.approx([math.exp(0.5)] * 2)
    # each of two tokens is cut to 20, the weight to exp(20) as a whole
    assert applied({"rollout_rs": "seq_sum_k2", "rollout_rs_threshold": "400"}, response(30.0, -25.0)).keep.all()
    assert not applied({"rollout_rs": "seq_sum_k2", "rollout_rs_threshold": "399.9"}, response(30.0, -25.0)).keep.any()


def test_k3_of_a_token_is_that_of_its_cut_log_ratio():
    option = {"rollout_rs": "token_k3", "rollout_rs_threshold": "4.86e8"}
    assert applied(option, response(100.0, -100.0)).keep.all()


def test_bounds_of_k1_are_logarithms_in_float64():
    # bounds whose logarithm differs when it is taken in float32
    bounds = [1.0 + step / 100 for step in range(5, 100)]
    unequal = [bound for bound in bounds if np.float32(math.log(bound)) != np.log(np.float32(bound))]
    assert unequal
    for bound in unequal:
        option = {"rollout_rs": "token_k1", "rollout_rs_threshold": f"0.5_{bound!r}"}
        edge = np.float32(math.log(bound))
        above = np.nextafter(edge, np.float32(1))
        found = applied(option, response(-float(edge), -float(above)), dtype="float32")
        assert found.keep.tolist() == [True, False]


def test_k1_bounds_the_inverse_of_the_weight():
    option = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_5.0"}
    batch = response(*(math.log(ratio) for ratio in (0.19, 0.21, 1.9, 2.1)))
    assert applied(option, batch).keep.tolist() == [False, True, True, False]
    assert Verl.model_validate(option).notes()


def test_a_lower_bound_zeroes_weights_and_leaves_the_mask():
    found = applied({"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}, response(-3.0, 0.0, 3.0))
    assert found.weight.tolist() == [0.0, 1.0, 0.0]
    assert found.keep.tolist() == [False, True, False]
    assert found.mask.all()


def test_rejection_leaves_weights_alone_and_each_rule_looks_at_the_original_mask():
    option = {
        "rollout_is": "token",
        "rollout_rs": "token_k2,seq_max_k2",
        "rollout_rs_threshold": "0.5,2",
    }
    # were the second rule to look at what the first leaves, it would keep the response
    found = applied(option, response(3.0, 0.0), response(1.5, 0.0))
    assert found.mask.tolist() == [False, False, False, True]
    assert found.weight.tolist() == pytest.approx([2.0, 1.0, 2.0, 1.0])
    metrics = Verl.model_validate(option).metrics(stats_of(found))
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == 0.75
    assert metrics["rollout_corr/rollout_rs_token_k2_masked_fraction"] == 0.5
    assert metrics["rollout_corr/rollout_rs_seq_max_k2_masked_fraction"] == 0.5
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 1.0


def test_batch_normalization_comes_after_the_cap_and_counts_filled_responses():
    batch = (response(0.0), response(9.0, 9.0, 9.0), response(1.0, mask=(0,)))
    option = {"rollout_is": "sequence", "rollout_is_batch_normalize": True}
    assert applied(option, *batch).weight.tolist() == pytest.approx([2 / 3, 4 / 3, 4 / 3, 4 / 3, 0.0])
    token = option | {"rollout_is": "token"}
    assert applied(token, *batch).weight.tolist() == pytest.approx([4 / 7, 8 / 7, 8 / 7, 8 / 7, 0.0])
    assert Verl.model_validate(option).over_batch
    assert not Verl.model_validate({"rollout_is_batch_normalize": True}).over_batch


def test_bypass_mode_applies_weights_only_to_reinforce():
    option = {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0", "bypass_mode": True}
    found = applied(option, response(3.0, 0.0))
    assert found.weight is None
    assert found.keep.all()
    metrics = Verl.model_validate(option).metrics(stats_of(found))
    assert metrics["rollout_corr/rollout_is_mean"] == 0.5
    assert applied(option | {"loss_type": "reinforce"}, response(3.0, 0.0)).weight.tolist() == [0.0, 1.0]


def test_perplexity_of_nothing_is_1_and_weights_out_of_the_loss_are_0():
    option = {"rollout_is": "token"}
    found = applied(option, response(1.0, mask=(0,)), response(0.0))
    assert found.weight.tolist() == [0.0, 1.0]
    metrics = Verl.model_validate(option).metrics(stats_of(found))
    assert metrics["rollout_corr/training_ppl"] == 1.0
    assert metrics["rollout_corr/rollout_is_seq_mean"] == 0.5


def test_a_batch_with_nothing_in_the_loss_has_no_figures():
    assert Verl().metrics(stats_of(applied({}, response(1.0, mask=(0,))))) == {}
    assert Verl().metrics(stats_of(applied({}))) == {}


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"rollout_is": "token", "rollout_is_threshold": "5.0_0.5"}, "lower one first"),
        ({"rollout_is": "token", "rollout_is_threshold": 0}, "positive"),
        ({"rollout_is": "token", "rollout_is_threshold": "much"}, "'much'"),
        ({"rollout_is": "token", "rollout_is_threshold": True}, "not true or false"),
        ({"rollout_rs": "token_k1"}, "needs it"),
        ({"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 2}, "seq_max_k1"),
        ({"rollout_rs": " , ", "rollout_rs_threshold": 2}, "knows"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2"}, "one positive number"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": 0.55}, "at least 1"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": 0}, "at least 1"),
        ({"rollout_rs": "token_k1,token_k2,token_k3", "rollout_rs_threshold": "2,2"}, "each of the 3"),
        ({"rollout_veto": 1}, "Extra inputs"),
    ],
)
def test_what_the_trainer_refuses_is_refused(option: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        Verl.model_validate(option)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"rollout_is": "token", "rollout_is_threshold": 0.55}, "unquoted 0.5_5 as 0.55"),
        ({"rollout_is": "token", "rollout_is_threshold": None}, "switches rollout_is off"),
        ({"rollout_is": "token", "bypass_mode": True}, "doesn't apply"),
        ({"rollout_is_batch_normalize": True}, "does nothing"),
        ({"rollout_rs_threshold": 2.0}, "does nothing"),
        ({"loss_type": "reinforce"}, "does nothing"),
    ],
)
def test_what_the_trainer_ignores_is_noted(option: dict[str, Any], said: str):
    assert any(said in note for note in Verl.model_validate(option).notes())
    assert Verl().notes() == ()


def test_one_threshold_is_for_all_options_and_doubled_options_count_once():
    option = {"rollout_rs": "token_k1, seq_mean_k1,token_k1", "rollout_rs_threshold": "2.0"}
    assert applied(option, response(0.5, 0.0), response(0.75, 0.5)).keep.tolist() == [True, True, False, True]
