"""prime-rl: what no recorded case tells, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.corrections.batches import stats_of, tokens_of
from tests.oracles.slow_corrections import Response
from tokenaudit.corrections.trainers.prime import PrimeRl

RISEN = (math.log(0.1), math.log(0.6))
FALLEN = (math.log(0.6), math.log(0.1))


def response(*tokens: tuple[float, float], advantage: float = 1.0) -> Response:
    rollout, trained = zip(*tokens, strict=True)
    return Response(rollout, trained, (True,) * len(tokens), advantage)


@pytest.mark.parametrize(
    ("advantage", "kept"),
    [(1.0, [False, True]), (-1.0, [True, False]), (0.0, [True, False]), (-0.0, [True, False])],
)
def test_an_advantage_of_0_is_treated_as_a_negative_one(advantage: float, kept: list[bool]):
    correction = PrimeRl()
    found = correction.apply(tokens_of([response(RISEN, FALLEN, advantage=advantage)]))
    assert correction.needs_advantage
    assert found.keep.tolist() == kept
    assert found.mask.tolist() == [True, True]
    assert found.weight.tolist() == pytest.approx([6.0, 1 / 6])


def test_an_advantage_of_0_is_in_neither_count_of_a_sign():
    correction = PrimeRl()
    found = correction.apply(tokens_of([response(RISEN, FALLEN, advantage=0.0)]))
    figures = correction.per_response(stats_of(found))
    assert figures["is_masked"].tolist() == [0.5]
    assert figures["is_masked_low"].tolist() == figures["is_masked_high"].tolist() == [0.0]
    assert figures["masked_advantage_negative"].tolist() == [0.0]


def test_bounds_are_strict():
    bound = float(np.exp(-0.5) - np.exp(-1.0))
    risen, fallen = response((-1.0, -0.5)), response((-0.5, -1.0), advantage=-1.0)
    for correction in (
        PrimeRl(dppo_mask_high=bound, dppo_mask_low=bound),
        PrimeRl(type="ipo", ipo_threshold=bound),
    ):
        assert correction.apply(tokens_of([risen, fallen])).keep.all()
    under = float(np.nextafter(bound, 0))
    for correction in (
        PrimeRl(dppo_mask_high=under, dppo_mask_low=under),
        PrimeRl(type="ipo", ipo_threshold=under),
    ):
        assert not correction.apply(tokens_of([risen, fallen])).keep.any()


def test_ref_kl_drops_what_fell_and_asks_for_no_advantage():
    correction = PrimeRl(type="ref_kl")
    assert not correction.needs_advantage
    found = correction.apply(tokens_of([response(RISEN, FALLEN, advantage=math.nan)]))
    assert found.keep.tolist() == [True, False]


def test_a_rare_token_is_kept_whatever_its_weight():
    correction = PrimeRl()
    found = correction.apply(tokens_of([response((math.log(1e-9), math.log(0.1)))]))
    assert found.keep.tolist() == [True]
    assert found.weight.tolist() == pytest.approx([1e8])
    assert any("rare token" in note for note in correction.notes())


def test_figures_are_one_per_response_and_their_means():
    correction = PrimeRl(type="ipo")
    tokens = tokens_of([response(RISEN, FALLEN), response((-1.0, -1.0)), Response((0.0,), (-5.0,), (False,))])
    stats = stats_of(correction.apply(tokens))
    assert correction.per_response(stats)["is_masked"].tolist() == [1.0, 0.0, 0.0]
    divergence = ((6 - math.log(6) - 1) + (1 / 6 + math.log(6) - 1)) / 2
    assert correction.per_response(stats)["masked_mismatch_kl"].tolist() == pytest.approx([divergence, 0.0, 0.0])
    assert correction.metrics(stats)["is_masked"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"ipo_threshold": 0.1}, "ipo_threshold: the trainer's loss of type default has no such setting"),
        ({"type": "ipo", "dppo_mask_low": 0.1}, "dppo_mask_low: the trainer's loss of type ipo has no such setting"),
        ({"type": "ref_kl", "kl_tau": 0.1}, "kl_tau: the trainer's loss of type ref_kl has no such setting"),
        ({"dppo_mask_low": -0.1}, "greater than or equal to 0"),
        ({"type": "custom"}, "'default', 'ipo' or 'ref_kl'"),
    ],
)
def test_what_the_trainer_refuses_is_refused(option: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        PrimeRl.model_validate(option)
