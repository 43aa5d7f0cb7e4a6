"""open-instruct: what no recorded case tells, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.corrections.batches import response, stats_of, tokens_of
from tests.oracles.slow_corrections import Response
from tokenaudit.corrections.correction import Applied
from tokenaudit.corrections.trainers.open_instruct import OpenInstruct


def applied(option: dict[str, Any], *responses: Response, rows: list[int] | None = None) -> Applied:
    tokens = tokens_of(responses)
    tokens.rows = None if rows is None else np.array(rows, dtype=np.int64)
    return OpenInstruct.model_validate(option).apply(tokens)


def test_log_ratios_are_cut_at_10():
    option = {"rho_clamp_upper_bound": 0.0}
    assert applied(option, response(100.0, -100.0)).weight.tolist() == pytest.approx([math.exp(10), math.exp(-10)])


def test_responses_of_a_row_share_one_mean_and_it_is_the_weight():
    option = {"rho_mask_sequence_level": True, "rho_mask_lower_bound": 0.5}
    batch = (response(0.0, 0.0, 0.0), response(9.0), response(-1.0))
    alone = applied(option, *batch)
    assert alone.weight.tolist() == [1.0, 1.0, 1.0, 2.0, 0.0]
    packed = applied(option, *batch, rows=[1, 0, 1])
    assert packed.weight.tolist() == pytest.approx([math.exp(-0.25)] * 3 + [2.0, math.exp(-0.25)])
    assert packed.keep.all()


def test_divergence_drops_only_tokens_that_drive_policies_apart():
    option = {"rho_mask_tv_divergence": True, "rho_mask_upper_bound": 1.5}
    log_ratios = (2.0, -2.0, 0.0)
    found = applied(option, *(response(*log_ratios, advantage=advantage) for advantage in (1.0, -1.0, 0.0)))
    assert found.keep.tolist() == [False, True, True, True, False, True, True, True, True]
    assert found.weight.tolist() == pytest.approx([0, math.exp(-2), 1, 2, 0, 1, 2, math.exp(-2), 1])
    # the mean of |ratio - 1| of these tokens is below the bound, though a ratio is above it
    assert applied(option, response(1.0, 0.0)).keep.all()
    assert OpenInstruct.model_validate(option).needs_advantage
    assert not OpenInstruct.model_validate({"rho_mask_tv_divergence": True}).needs_advantage


def test_bounds_are_inside_and_0_is_none():
    bound = float(np.exp(0.5))
    found = applied({"rho_mask_upper_bound": bound}, response(0.5, 0.625, -9.0))
    assert found.keep.tolist() == [True, False, True]
    assert found.weight.tolist() == pytest.approx([bound, 0.0, math.exp(-9)])
    metrics = OpenInstruct(rho_mask_upper_bound=bound).metrics(stats_of(found))
    assert metrics["val/rho_drop_high_frac"] == metrics["val/rho_drop_frac"] == pytest.approx(1 / 3)
    assert metrics["val/rho_clipfrac"] == 0.0


def test_the_share_of_clipped_tokens_counts_dropped_ones():
    option = {"rho_mask_upper_bound": 3.0}
    metrics = OpenInstruct.model_validate(option).metrics(stats_of(applied(option, response(2.0, 1.0, 0.0, 0.0))))
    assert metrics["val/rho_clipfrac"] == 0.5
    assert metrics["val/rho_drop_frac"] == 0.25


def test_weights_are_0_out_of_the_loss_and_1_everywhere_when_off():
    assert applied({}, response(0.0, 0.0, mask=(1, 0))).weight.tolist() == [1.0, 0.0]
    found = applied({"use_rho_correction": False}, response(3.0, 3.0, mask=(1, 0)))
    assert found.weight.tolist() == [1.0, 1.0]
    metrics = OpenInstruct(use_rho_correction=False).metrics(stats_of(found))
    assert metrics["debug/vllm_local_reverse_kl"] == -3.0
    assert not any(name.startswith("val/") for name in metrics)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"rho_mask_upper_bound": 0.2}, "more than 1"),
        ({"rho_clamp_upper_bound": 1.0}, "more than 1"),
        ({"rho_mask_lower_bound": 1.0}, "less than 1"),
        ({"rho_clamp_lower_bound": 1.5}, "less than 1"),
        ({"truncated_importance_sampling_ratio_cap": 2.0}, "Extra inputs"),
    ],
)
def test_what_the_trainer_refuses_is_refused(option: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        OpenInstruct.model_validate(option)
    known = {name: value for name, value in option.items() if name.startswith("rho")}
    ignored = OpenInstruct.model_validate(known | {"use_rho_correction": False}).notes()
    assert [note.split()[0] for note in ignored] == list(known)


def test_what_does_nothing_or_surprises_is_noted():
    assert OpenInstruct().notes() == ()
    assert "does nothing" in OpenInstruct(rho_mask_tv_divergence=True).notes()[0]
    assert any("row" in note for note in OpenInstruct(rho_mask_sequence_level=True).notes())
