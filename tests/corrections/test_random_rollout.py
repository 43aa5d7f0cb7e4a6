"""verl, SkyRL, NeMo-RL, ROLL, TRL and open-instruct do to random tokens what their slow twins do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corrections.batches import DTYPES, LOWER, NUMBERS, UPPER, compare, or_none, random_responses
from tests.oracles.slow_corrections import Response
from tests.oracles.slow_rollout_corrections import (
    slow_nemo,
    slow_open_instruct,
    slow_roll,
    slow_skyrl,
    slow_trl,
    slow_verl,
)
from tokenaudit.corrections.trainers import correction_class
from tokenaudit.corrections.trainers.verl import REJECTIONS

LEVELS = st.sampled_from(("token", "segment", "geometric", "sequence"))
Drawn = tuple[dict[str, Any], dict[str, Any]]
"""Options as the trainer has them, and as the twin does."""


@st.composite
def verl(draw: st.DrawFn) -> Drawn:
    lower, upper = draw(or_none(LOWER)), draw(UPPER)
    names = draw(
        st.lists(
            st.sampled_from(REJECTIONS),
            unique=True,
            max_size=3,
        )
    )
    rules: dict[str, tuple[float, float]] = {}
    for name in names:
        kl = st.sampled_from((0.0078125, 0.125, 0.5, 2.0, 200.0))  # squares of multiples of 1/8, halved
        rules[name] = (draw(LOWER), draw(UPPER)) if name.endswith("k1") else (0.0, draw(kl))
    texts = [f"{low!r}_{high!r}" if name.endswith("k1") else f"{high!r}" for name, (low, high) in rules.items()]
    options = {
        "rollout_is": draw(st.sampled_from((None, "token", "sequence"))),
        "rollout_is_threshold": upper if lower is None else f"{lower!r}_{upper!r}",
        "rollout_is_batch_normalize": draw(st.booleans()),
    }
    rejection = {"rollout_rs": ",".join(rules), "rollout_rs_threshold": ",".join(texts)} if rules else {}
    return options | rejection, options | {"bounds": (lower, upper), "rules": rules}


@st.composite
def skyrl(draw: st.DrawFn) -> Drawn:
    options = {
        "tis_ratio_type": draw(st.sampled_from((None, "token", "sequence"))),
        "token_tis_ratio_clip_high": draw(UPPER),
        "sequence_tis_ratio_clip_high": draw(UPPER),
        "sequence_mask_metric": draw(st.sampled_from((None, "geometric", "product"))),
        "outlier_token_is_threshold_low": draw(or_none(LOWER)),
        "outlier_token_is_threshold_high": draw(or_none(UPPER)),
        "token_mask_is_threshold_low": draw(or_none(LOWER)),
        "token_mask_is_threshold_high": draw(or_none(UPPER)),
    }
    for name in ("geo", "product"):
        options |= {f"{name}_mask_low": draw(LOWER), f"{name}_mask_high": draw(UPPER)}
    return options, options


@st.composite
def nemo(draw: st.DrawFn) -> Drawn:
    kind = draw(st.sampled_from((None, "tis", "icepop", "seq-mask-tis")))
    sequence = kind != "seq-mask-tis" and draw(st.booleans())
    high, low = draw(UPPER), draw(LOWER) if kind == "seq-mask-tis" else draw(or_none(LOWER))
    options = {
        "use_importance_sampling_correction": True,
        "truncated_importance_sampling_type": kind,
        "truncated_importance_sampling_ratio": None if kind is None else high,
        "truncated_importance_sampling_ratio_min": low,
        "sequence_level_importance_ratios": sequence,
        "token_level_loss": not sequence,
    }
    return options, {"type": kind, "low": low, "high": high, "sequence": sequence}


@st.composite
def roll(draw: st.DrawFn) -> Drawn:
    weight = {"enabled": draw(st.booleans()), "weight_type": draw(LEVELS), "upper_bound": draw(or_none(UPPER))}
    filters = [
        {
            "enabled": True,
            "agg_type": draw(LEVELS),
            "ratio_enabled": draw(st.booleans()),
            "ratio_low": draw(LOWER),
            "ratio_high": draw(UPPER),
            "diff_enabled": draw(st.booleans()),
            "diff_low": draw(st.sampled_from((-0.5, -0.1, 0.0))),
            "diff_high": draw(st.sampled_from((0.0, 0.1, 0.5))),
        }
        for _ in range(draw(st.integers(0, 2)))
    ]
    options = {"is_weight": weight, "filters": filters}
    return options, options


@st.composite
def trl(draw: st.DrawFn) -> Drawn:
    mode = draw(st.sampled_from(("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")))
    low, high = draw(or_none(LOWER)), draw(or_none(UPPER))
    if low is None and high is None and mode.endswith("truncate"):
        high = 2.0
    threshold = draw(or_none(st.sampled_from((0.0, 0.125, 0.25, 0.5))))
    options = {
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_min": low,
        "vllm_importance_sampling_clip_max": high,
        "off_policy_mask_threshold": threshold,
    }
    return options, {"mode": mode, "low": low, "high": high, "threshold": threshold}


@st.composite
def open_instruct(draw: st.DrawFn) -> Drawn:
    below = st.one_of(st.just(0.0), LOWER.filter(lambda bound: bound < 1))
    above = st.one_of(st.just(0.0), UPPER)
    options = {
        "rho_clamp_lower_bound": draw(below),
        "rho_clamp_upper_bound": draw(above),
        "rho_mask_lower_bound": draw(below),
        "rho_mask_upper_bound": draw(above),
        "rho_mask_sequence_level": draw(st.booleans()),
        "rho_mask_tv_divergence": draw(st.booleans()),
    }
    return options, options | {"clamp": (options["rho_clamp_lower_bound"], options["rho_clamp_upper_bound"])}


METHODS = {
    "verl": (verl(), slow_verl),
    "skyrl": (skyrl(), slow_skyrl),
    "nemo-rl": (nemo(), slow_nemo),
    "roll": (roll(), slow_roll),
    "trl": (trl(), slow_trl),
    "open-instruct": (open_instruct(), slow_open_instruct),
}


@pytest.mark.parametrize("trainer", METHODS)
@given(data=st.data(), responses=random_responses(), dtype=DTYPES)
def test_a_correction_is_its_slow_twin(trainer: str, data: st.DataObject, responses: list[Response], dtype: str):
    drawn, slow = METHODS[trainer]
    options, plain = data.draw(drawn)
    correction = correction_class(trainer).model_validate(options)
    compare(correction, responses, dtype, slow(plain, responses, NUMBERS[dtype]))
