"""slime and miles: what no recorded case tells, by hand."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.corrections.batches import applied_by, response, stats_of, tokens_of
from tokenaudit.corrections.trainers.slime import Miles, Slime, SlimeMis

PLAIN_MIS = {"function": "mis", "use_rs": False, "tis_batch_normalize": False}


applied = partial(applied_by, Slime)


def test_an_overflowing_ratio_gets_the_cap():
    found = applied({"function": "vanilla_tis", "tis_clip": 2.0}, response(-100.0, -100.0, 100.0), dtype="float32")
    assert found.weight.tolist()[2] == 2.0
    assert found.at_high.tolist() == [False, False, True]
    assert found.at_low is None


def test_icepop_keeps_a_ratio_at_its_bounds_and_leaves_the_mask_alone():
    low, high = math.exp(-0.5), math.exp(0.5)
    option = {"function": "icepop", "tis_clip": float(np.exp(0.5)), "tis_clip_low": float(np.exp(-0.5))}
    found = applied(option, response(-0.5, -0.625, 0.5, 0.625))
    assert found.keep.tolist() == [True, False, True, False]
    assert found.mask.tolist() == [True] * 4
    assert found.weight.tolist() == pytest.approx([low, 0.0, high, 0.0])


def test_icepop_drops_a_ratio_that_underflowed_without_counting_it():
    correction = Slime(function="icepop", tis_clip_low=0.5)
    found = correction.apply(tokens_of([response(-800.0, 0.0)]))
    assert found.keep.tolist() == [False, True]
    assert correction.metrics(stats_of(found))["tis_clipfrac"] == 0.0


def test_without_use_tis_nothing_is_weighed():
    for function in ("vanilla_tis", "icepop"):
        found = applied({"function": function, "use_tis": False}, response(-5.0, 5.0))
        assert found.weight is None
        assert found.keep.tolist() == [True, True]


def test_opsm_drops_only_beyond_its_delta_and_only_negative_advantages():
    at, beyond = response(-0.25, -0.25, advantage=-1.0), response(-0.25, -0.375, advantage=-1.0)
    correction = Slime(function="opsm", opsm_delta=0.25)
    assert correction.needs_advantage
    none, positive = response(-0.25, -0.375, advantage=0.0), response(-0.25, -0.375, advantage=1.0)
    found = correction.apply(tokens_of([at, beyond, none, positive]))
    assert found.keep.tolist() == [True, True, False, False, True, True, True, True]
    assert found.weight.tolist() == [1, 1, 0, 0, 1, 1, 1, 1]
    assert found.mask.all()


def test_opsm_counts_tokens_out_of_the_loss_as_dropped():
    correction = Slime(function="opsm")
    found = correction.apply(tokens_of([response(-1.0, -1.0, -1.0, -1.0, mask=(1, 0, 0, 0), advantage=-1.0)]))
    assert correction.metrics(stats_of(found)) == {"opsm_clipfrac": 4.0}


def test_rejection_acts_on_top_of_the_mask_of_weights():
    option = {
        "function": "mis",
        "tis_mode": "mask",
        "tis_lower_bound": 0.5,
        "tis_upper_bound": 2.0,
        "rs_lower_bound": 0.9,
        "rs_upper_bound": 10.0,
        "rs_veto_threshold": None,
        "tis_batch_normalize": False,
    }
    found = applied(option, response(1.0, -0.5, 0.0))  # above 2; below 0.9; in both
    assert found.keep.tolist() == found.mask.tolist() == [False, False, True]
    assert found.weight.tolist() == pytest.approx([math.e, math.exp(-0.5), 1.0])
    assert found.counted.tolist() == [True, True, True]


def test_bounds_of_rejection_come_from_those_of_weights_after_the_inverse_is_filled_in():
    option = {
        "function": "mis",
        "tis_lower_bound": None,
        "tis_upper_bound": 4.0,
        "rs_veto_threshold": None,
        "tis_batch_normalize": False,
    }
    inside, outside = math.log(0.2500001), math.log(0.2499999)
    found = applied(option, response(inside, outside, math.log(3.999), math.log(4.001)))
    assert found.keep.tolist() == [True, False, True, False]


def test_a_veto_compares_with_a_logarithm_in_float32():
    option = {"function": "mis", "rs_lower_bound": 1e-9, "rs_veto_threshold": 1e-4, "tis_batch_normalize": False}
    single = float(np.log(np.float32(1e-4)))
    double = math.log(1e-4)
    assert single < double
    between = (single + double) / 2
    assert applied(option, response(between, 0.0)).keep.all()  # below the logarithm in float64 only
    assert applied(option, response(single, 0.0)).keep.all()  # the bound itself
    assert not applied(option, response(np.nextafter(single, -10), 0.0)).keep.any()


def test_a_veto_looks_at_ratios_that_are_not_cut_and_at_tokens_in_the_loss_only():
    option = {
        "function": "mis",
        "rs_lower_bound": 1e-12,
        "rs_veto_threshold": 1e-10,
        "tis_batch_normalize": False,
    }
    vetoed, kept = response(-24.0, 0.0), response(-24.0, 0.0, mask=(0, 1))  # cut, -24 would be -20, which is allowed
    found = applied(option, vetoed, kept)
    assert found.keep.tolist() == [False, False, False, True]
    assert found.weight.tolist() == pytest.approx([math.exp(-20), 1.0, 0.0, 1.0])


def test_vetoes_need_use_rs():
    found = applied(PLAIN_MIS | {"rs_veto_threshold": 0.5}, response(-5.0, 0.0))
    assert found.keep.all()
    assert "rs_veto_threshold is not looked at without use_rs" in SlimeMis(use_rs=False, rs_veto_threshold=0.5).notes()


def test_without_use_tis_rejection_is_off_too():
    correction = SlimeMis(use_tis=False)
    found = correction.apply(tokens_of([response(-30.0, 5.0)]))
    assert found.keep.all()
    assert found.weight is None
    assert "use_tis: false switches rejection off too" in correction.notes()
    assert not correction.over_batch


def test_weights_of_responses_are_normalised_by_a_mean_over_all_of_them():
    option = {"function": "mis", "use_rs": False, "tis_level": "sequence", "tis_batch_normalize": True}
    found = applied(option, response(0.25, 0.25), response(0.0, 0.0), response(1.0, mask=(0,)))
    mean = (math.exp(0.5) + 1.0 + 0.0) / 3  # the masked response counts as 0
    assert found.weight.tolist() == pytest.approx([math.exp(0.5) / mean] * 2 + [1.0 / mean] * 2 + [0.0])


def test_weights_of_tokens_are_normalised_by_a_mean_over_the_original_mask():
    option = {"function": "mis", "tis_mode": "mask", "tis_upper_bound": 2.0, "rs_veto_threshold": None}
    found = applied(option, response(1.0, 0.0, mask=(1, 1)), response(0.5, 0.5, mask=(1, 0)))
    mean = (math.e + 1.0 + math.exp(0.5)) / 3  # the dropped token's weight is in it
    assert found.keep.tolist() == [False, True, True, False]
    assert found.weight.tolist() == pytest.approx([math.e / mean, 1.0 / mean, math.exp(0.5) / mean, 0.0])


def test_nothing_in_the_loss_is_no_error():
    for correction in (Slime(), Slime(function="icepop"), Slime(function="opsm"), SlimeMis(), SlimeMis(use_tis=False)):
        for responses in ((), (response(mask=()),), (response(1.0, 2.0, mask=(0, 0)),)):
            found = correction.apply(tokens_of(responses))
            assert not found.keep.any()
            assert all(math.isfinite(value) for value in correction.metrics(stats_of(found)).values())


def test_a_preset_of_the_helper_has_its_files_values():
    correction = SlimeMis()
    assert correction.function == "mis"
    assert correction.over_batch
    assert (correction.tis_level, correction.rs_level, correction.tis_mode) == ("token", "token", "truncate")
    assert (correction.tis_lower_bound, correction.tis_upper_bound) == (0.5, 2.0)
    assert (correction.rs_lower_bound, correction.rs_upper_bound, correction.rs_veto_threshold) == (None, None, 1e-4)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"function": "mis", "tis_level": "geometric"}, "the trainer refuses it where tis_level is geometric"),
        ({"function": "mis", "tis_mode": "clip", "tis_lower_bound": 2.0}, "which isn't below tis_upper_bound 2.0"),
        ({"function": "mis", "rs_lower_bound": 3.0}, "which isn't below rs_upper_bound 2.0"),
        ({"function": "mis", "tis_lower_bound": None, "tis_upper_bound": 0.0}, "the trainer divides by it"),
        ({"tis_clop": 2.0}, "Extra inputs are not permitted"),
        ({"function": "gspo"}, "Input should be 'vanilla_tis', 'icepop', 'opsm' or 'mis'"),
    ],
)
def test_what_the_trainer_stops_at_is_refused(option: dict[str, Any], said: str):
    for trainer in (Slime, Miles):
        with pytest.raises(ValidationError, match=said):
            trainer.model_validate(option)


def test_settings_that_a_function_does_not_look_at_are_named():
    assert Slime(function="vanilla_tis", opsm_delta=0.1, tis_clip=3.0).notes() == (
        "opsm_delta is not looked at by vanilla_tis",
    )
    assert "tis_clip is not looked at by mis" in Slime(function="mis", tis_clip=3.0).notes()
    assert "with a tis_clip_low of 0 no token is dropped for a small ratio" in Slime(function="icepop").notes()
    assert (
        "weights are not raised to tis_lower_bound where tis_mode is truncate" in SlimeMis(tis_lower_bound=0.5).notes()
    )
