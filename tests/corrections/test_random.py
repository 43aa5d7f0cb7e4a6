"""Corrections do to random tokens what their slow twins do: at bounds, in overflow, without tokens in the loss."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.conftest import examples
from tests.corrections.batches import DTYPES, GAPS, LOWER, NUMBERS, UPPER, compare, or_none, random_responses
from tests.oracles.slow_corrections import (
    Response,
    slow_areal,
    slow_mis,
    slow_openrlhf,
    slow_prime,
    slow_slime,
)
from tokenaudit.corrections.trainers import correction_class

SLIME = st.one_of(
    st.fixed_dictionaries(
        {
            "function": st.sampled_from(("vanilla_tis", "icepop")),
            "tis_clip": UPPER,
            "tis_clip_low": st.one_of(st.just(0.0), LOWER),
        }
    ),
    st.fixed_dictionaries({"function": st.just("opsm"), "opsm_delta": st.sampled_from((0.0, 0.125, 0.25, 1e-4))}),
)
LEVELS = st.sampled_from(("token", "sequence", "geometric"))
MIS = st.fixed_dictionaries(
    {
        "function": st.just("mis"),
        "use_tis": st.sampled_from((True, True, True, False)),
        "use_rs": st.booleans(),
        "tis_level": LEVELS,
        "rs_level": LEVELS,
        "tis_mode": st.sampled_from(("truncate", "clip", "mask")),
        "tis_lower_bound": or_none(LOWER),
        "tis_upper_bound": UPPER,
        "rs_lower_bound": or_none(LOWER),
        "rs_upper_bound": or_none(UPPER),
        "rs_veto_threshold": or_none(LOWER),
        "tis_batch_normalize": st.booleans(),
    }
)
PRIME = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("default"),
            "dppo_mask_low": st.sampled_from((0.0, 0.2, *GAPS)),
            "dppo_mask_high": st.sampled_from((0.0, 0.2, *GAPS)),
        }
    ),
    st.fixed_dictionaries({"type": st.just("ipo"), "ipo_threshold": st.sampled_from((0.0, 0.1, *GAPS))}),
    st.just({"type": "ref_kl"}),
)
SEQUENCES = {"level": st.sampled_from(("token", "sequence")), "agg": st.sampled_from(("mean", "sum", "max"))}
AREAL_RATIOS = st.fixed_dictionaries(
    {
        "metric": st.just("ratio"),
        "action": st.sampled_from(("mask", "clamp")),
        "upper": UPPER,
        "lower": or_none(LOWER),
        **SEQUENCES,
    }
)
AREAL_DIVERGENCES = st.fixed_dictionaries(
    {
        "metric": st.sampled_from(("kl_k1", "kl_k2", "kl_k3")),
        "action": st.just("mask"),
        "upper": st.sampled_from((0.125, 0.5, 1.0)),
        "lower": or_none(st.sampled_from((-0.5, 0.0, 0.125))),
        **SEQUENCES,
    }
)
M2PO = st.fixed_dictionaries(
    {
        "rejection_sampling": or_none(AREAL_RATIOS),
        "m2_threshold": st.sampled_from((0.0, 0.015625, 0.0625, 0.125, 0.25, 1.0)),
    }
)
OPENRLHF = st.fixed_dictionaries(
    {
        "is_correction_enable": st.just(True),
        "is_correction_type": st.sampled_from(("tis", "icepop", "seq-mask-tis")),
        "is_correction_threshold": st.tuples(LOWER, UPPER),
    }
)

METHODS = {  # by trainer, and what of it
    "slime": (SLIME, slow_slime),
    "miles": (MIS, slow_mis),
    "prime-rl": (PRIME, slow_prime),
    "areal ratios": (st.fixed_dictionaries({"rejection_sampling": or_none(AREAL_RATIOS)}), slow_areal),
    "areal divergences": (st.fixed_dictionaries({"rejection_sampling": AREAL_DIVERGENCES}), slow_areal),
    "areal m2po": (M2PO, slow_areal),
    "openrlhf": (OPENRLHF, slow_openrlhf),
}


@pytest.mark.parametrize("method", METHODS)
@examples(5)
@given(data=st.data(), responses=random_responses(), dtype=DTYPES)
def test_a_correction_is_its_slow_twin(method: str, data: st.DataObject, responses: list[Response], dtype: str):
    options, slow = METHODS[method]
    option = data.draw(options)
    if option.get("tis_level") == "geometric":
        assume(not option["tis_batch_normalize"] or not option["use_tis"])
    correction = correction_class(method.split()[0]).model_validate(option)
    compare(correction, responses, dtype, slow(option, responses, NUMBERS[dtype]))
