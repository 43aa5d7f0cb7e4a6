"""AReaL: what no recorded case tells, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.corrections.batches import NUMPY, response, stats_of, tokens_of
from tests.oracles.slow_corrections import Response
from tokenaudit.corrections.arrays import Arrays
from tokenaudit.corrections.torch_arrays import TorchArrays
from tokenaudit.corrections.trainers.areal import Areal

BACKENDS = pytest.mark.parametrize("xp", [NUMPY, TorchArrays(torch.device("cpu"))], ids=["numpy", "torch"])


def kept(option: dict[str, Any], *responses: Response, xp: Arrays = NUMPY) -> list[bool]:
    return Areal.model_validate(option).apply(tokens_of(responses, xp=xp)).keep.tolist()


@BACKENDS
def test_m2po_keeps_what_has_a_mean_below_its_threshold_and_not_at_it(xp: Arrays):
    batch = (response(0.0, -1.0), response(-0.5))  # squares 0, 1, 0.25: means 0, 0.125, 0.41...
    assert kept({"m2_threshold": 0.125}, *batch, xp=xp) == [True, False, False]
    assert kept({"m2_threshold": 0.1250001}, *batch, xp=xp) == [True, False, True]
    assert kept({"m2_threshold": 0.5}, *batch, xp=xp) == [True, True, True]


@BACKENDS
def test_m2po_keeps_one_token_at_least_and_of_equal_ones_the_last(xp: Arrays):
    assert kept({"m2_threshold": 0.0}, response(-1.0, -0.5), response(0.5, -0.5, -2.0), xp=xp) == [
        False,
        False,
        False,
        True,
        False,
    ]
    two_of_three = response(-0.5, 0.0, 0.5, -0.5)  # squares 0.25, 0, 0.25, 0.25: means 0, 0.125, 0.1666..., 0.1875
    assert kept({"m2_threshold": 0.17}, two_of_three, xp=xp) == [False, True, True, True]


@BACKENDS
def test_m2po_looks_at_tokens_in_the_loss_only(xp: Arrays):
    assert kept({"m2_threshold": 0.04}, response(0.0, -0.125, mask=(0, 0)), xp=xp) == [False, False]
    assert kept({"m2_threshold": 0.04}, xp=xp) == []
    assert kept({"m2_threshold": 0.04}, response(0.0, -0.25, 0.0, mask=(0, 1, 1)), xp=xp) == [False, True, True]


def test_rejection_follows_m2po_whose_tokens_the_loss_divides_by():
    correction = Areal.model_validate(
        {"m2_threshold": 0.3, "rejection_sampling": {"level": "sequence", "upper": 1.2, "agg": "mean"}}
    )
    assert correction.over_batch
    found = correction.apply(tokens_of([response(0.5, -3.0), response(0.0, 0.0)]))
    # M2PO leaves 0.5, so that the first response has a mean ratio of exp(0.5), and goes
    assert found.keep.tolist() == [False, False, True, True]
    assert found.counted.tolist() == [True, False, True, True]
    assert found.weight.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert correction.metrics(stats_of(found)) == {"filtered_fraction": pytest.approx(1 / 3)}


def test_without_rejection_sampling_there_is_no_weight():
    correction = Areal()
    found = correction.apply(tokens_of([response(5.0, -5.0)]))
    assert found.weight is None
    assert found.keep.all()
    assert not correction.over_batch
    assert correction.notes()


def test_numbers_are_float32_whatever_comes_in():
    just_above = float(np.nextafter(0.5, 1))  # 0.5 in float32
    assert kept({"rejection_sampling": {"metric": "kl_k1", "upper": 0.5}}, response(just_above)) == [True]
    found = Areal.model_validate({"rejection_sampling": {}}).apply(tokens_of([response(0.3)]))
    assert found.weight.dtype == np.float32


def test_signs_and_sides_of_divergences():
    higher, lower = response(math.log(4)), response(-math.log(4))
    assert kept({"rejection_sampling": {"metric": "kl_k1", "upper": 0.5}}, higher, lower) == [False, True]
    # 1/4 - 1 + log 4 = 0.64; 4 - 1 - log 4 = 1.61
    assert kept({"rejection_sampling": {"metric": "kl_k3", "upper": 1.0}}, higher, lower) == [True, False]


def test_a_clamp_cuts_the_mean_of_a_response_that_is_out_of_bounds_by_its_sum():
    option = {"level": "sequence", "action": "clamp", "agg": "sum", "upper": 2.0}
    correction = Areal.model_validate({"rejection_sampling": option})
    found = correction.apply(tokens_of([response(0.5, 0.5), response(2.0), response(0.1, 0.1, mask=(1, 0))]))
    # exp(1) is above 2, but the weight exp(0.5) isn't: nothing to cut
    assert found.weight.tolist() == pytest.approx([math.exp(0.5)] * 2 + [2.0, math.exp(0.1), 0.0])
    assert found.at_high.tolist() == [False, False, True, False, False]
    assert correction.metrics(stats_of(found)) == {"filtered_fraction": 0.25}
    assert any("geometric means" in note for note in correction.notes())


def test_a_response_without_tokens_in_the_loss_has_a_maximum_of_0():
    option = {"level": "sequence", "metric": "kl_k1", "agg": "max", "lower": 0.125, "upper": 1.0}
    assert kept({"rejection_sampling": option}, response(0.5, mask=(0,)), response(0.5)) == [False, True]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"lower": 6.0}, r"the trainer refuses lower 6.0 above upper 5.0"),
        ({"upper": 1.0}, "an upper bound of ratios that isn't above 1: 1.0"),
        ({"lower": 0.0}, "a lower bound of ratios that isn't above 0: 0.0"),
        ({"metric": "kl_k2", "upper": 0.0}, "an upper bound of kl_k2 that isn't above 0: 0.0"),
        ({"metric": "kl_k1", "action": "clamp"}, "the trainer clamps ratios only, not kl_k1"),
        ({"metric": "binary_kl"}, "Input should be 'ratio', 'kl_k1', 'kl_k2' or 'kl_k3'"),
        ({"cap": 5.0}, "Extra inputs are not permitted"),
    ],
)
def test_what_the_trainer_refuses_is_refused(rule: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        Areal.model_validate({"rejection_sampling": rule})


def test_a_negative_upper_bound_of_k1_is_allowed():
    assert kept({"rejection_sampling": {"metric": "kl_k1", "upper": -0.25}}, response(-0.25, 0.0)) == [True, False]


def test_bounds_are_inside():
    for level in ("token", "sequence"):
        rule = {"level": level, "metric": "kl_k1", "lower": -0.5, "upper": 0.25}
        batch = (response(-0.5), response(-0.5001), response(0.25), response(0.2501))
        assert kept({"rejection_sampling": rule}, *batch) == [True, False, True, False]
