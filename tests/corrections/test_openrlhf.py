"""OpenRLHF and tinker-cookbook: what no recorded case tells, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.corrections.batches import response, stats_of, tokens_of
from tests.oracles.slow_corrections import Response
from tokenaudit.corrections.correction import Applied
from tokenaudit.corrections.trainers.openrlhf import OpenRlhf
from tokenaudit.corrections.trainers.tinker import Tinker


def applied(kind: str, *responses: Response, dtype: str = "float64", **option: Any) -> Applied:
    correction = OpenRlhf.model_validate({"is_correction_enable": True, "is_correction_type": kind, **option})
    return correction.apply(tokens_of(responses, dtype))


def test_tis_cuts_at_both_bounds():
    found = applied("tis", response(-100.0, 100.0, 0.0), dtype="float32")
    assert found.weight.tolist() == [0.5, 5.0, 1.0]
    assert found.at_low.tolist() == [True, False, False]
    assert found.keep.all()


def test_an_overflowing_ratio_times_0_is_nan():
    icepop = applied("icepop", response(100.0, -100.0, 0.0), dtype="float32")
    assert np.isnan(icepop.weight).tolist() == [True, False, False]
    assert icepop.keep.tolist() == [False, False, True]
    whole = applied("seq-mask-tis", response(100.0, 0.0), response(100.0, -100.0), dtype="float32")
    assert [str(value) for value in whole.weight.tolist()] == [
        "nan",
        "0.0",
        "inf",
        str(float(np.exp(np.float32(-100)))),
    ]
    assert whole.keep.tolist() == [False, False, True, True]
    assert OpenRlhf(is_correction_enable=True, is_correction_type="icepop").notes()


def test_bounds_are_inside():
    low, high = float(np.exp(-0.5)), float(np.exp(0.5))
    for kind in ("icepop", "seq-mask-tis"):
        batch = (response(-0.5), response(0.5), response(-0.625), response(0.625))
        assert applied(kind, *batch, is_correction_threshold=(low, high)).keep.tolist() == [True, True, False, False]


def test_a_response_with_nothing_in_the_loss_has_no_mean_and_weighs_0():
    found = applied("seq-mask-tis", response(0.25, mask=(0,)), response(0.25))
    assert found.weight.tolist() == [0.0, pytest.approx(math.exp(0.25))]


def test_seq_mask_tis_does_not_cut_weights():
    found = applied("seq-mask-tis", response(3.0, -3.0))
    assert found.weight.tolist() == pytest.approx([math.exp(3), math.exp(-3)])


def test_it_is_off_until_enabled():
    correction = OpenRlhf(is_correction_type="icepop")
    found = correction.apply(tokens_of([response(9.0)]))
    assert found.weight is None
    assert found.keep.all()
    assert correction.metrics(stats_of(found)) == {}
    assert correction.notes() == ("is_correction_type is not looked at without is_correction_enable",)


def test_unknown_options_are_refused():
    with pytest.raises(ValidationError, match="'tis', 'icepop' or 'seq-mask-tis'"):
        OpenRlhf.model_validate({"is_correction_type": "mask"})
    with pytest.raises(ValidationError, match="Extra inputs"):
        OpenRlhf.model_validate({"is_correction_cap": 5})


def test_tinker_gives_figures_and_changes_nothing():
    correction = Tinker()
    tokens = tokens_of([Response((-1.0, -2.0, -9.0), (-1.5, -1.0, 0.0), (True, True, False)), response(mask=())])
    found = correction.apply(tokens)
    assert found.weight is None
    assert found.keep.tolist() == [True, True, False]
    assert correction.metrics(stats_of(found)) == pytest.approx(
        {
            "optim/kl_sample_train_v1": (0.5 - 1.0) / 2,
            "optim/kl_sample_train_v2": (0.25 + 1.0) / 4,
            "optim/entropy": 1.5,
        }
    )
    assert correction.notes()
