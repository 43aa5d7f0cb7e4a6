"""Every recorded case of every trainer, on numpy and on torch: the same tokens kept, weights and figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tokenaudit.corrections.arrays import Arrays, NumpyArrays
from tokenaudit.corrections.tokens import Tokens
from tokenaudit.corrections.torch_arrays import TorchArrays
from tokenaudit.corrections.trainers import ALIASES, TRAINERS, correction_class

FOLDER = Path(__file__).parent / "cases"
CASES = [json.loads(line) for path in sorted(FOLDER.glob("*.jsonl")) for line in path.read_text().splitlines()]
KNOWN = [case for case in CASES if ALIASES.get(case["framework"], case["framework"]) in TRAINERS and "rows" not in case]
WEIGHT_BOUND = {"float32": 2e-6, "float64": 1e-12}
METRIC_BOUND = {"float32": 1e-4, "float64": 1e-7}
IN_FLOAT32 = ("skyrl",)
"""Trainers whose ratios are made in float32 and handed on in the type of the tokens."""
BACKENDS = {"numpy": NumpyArrays(), "torch": TorchArrays(torch.device("cpu"))}

UNSPECIFIED: dict[str, tuple[str, ...]] = {
    "areal": ("^n_", "masked_token_ratio", "pg_loss"),
    "miles": ("mis_is_ratio_m.._final",),
    "openrlhf": ("actor_loss", "clip_ratio", "ppo_kl"),
    "prime-rl": ("^loss$", "^ref_kl$"),
    "slime": ("mis_is_ratio_m.._final",),
    "verl": ("rollout_is_seq_fraction", r"rollout_rs_.*_(mean|max|min|std|fraction_high|fraction_low|max_deviation)$"),
    "nemo-rl": ("loss", "probs_ratio", "kl_", "_error", "num_valid", "approx_entropy"),
    "xtuner": ("valid", "rollout_is_m[ai][xn]", "catastrophic", "ratio_fraction", "_std", "eff_sample", "_seq_"),
}
"""Beginnings or parts of figures that a trainer logs and that are not compared, as regular expressions."""


def numbers(values: list[Any]) -> np.ndarray:
    """Numbers, and the texts of those that aren't finite."""
    return np.array([float(value) for value in values], dtype=np.float64)


def flat(lists: list[list[Any]]) -> np.ndarray:
    return np.concatenate([numbers(values) for values in lists]) if lists else np.zeros(0)


def tokens_of(case: dict[str, Any], xp: Arrays) -> Tokens:
    responses, dtype = case["responses"], case["dtype"]
    rollout, trained = (
        flat([response[name] for response in responses]).astype(dtype)
        for name in ("rollout_logprobs", "train_logprobs")
    )
    mask = flat([response["mask"] for response in responses]) != 0
    lengths = np.array([len(response["mask"]) for response in responses], dtype=np.int64)
    return Tokens(xp, dtype, lengths, rollout, trained, mask, numbers([r["advantage"] for r in responses]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", KNOWN, ids=[case["case"] for case in KNOWN])
def test_a_correction_does_what_its_trainer_did(case: dict[str, Any], backend: str):
    xp = BACKENDS[backend]
    correction = correction_class(case["framework"]).model_validate(case["option"])
    tokens = tokens_of(case, xp)
    applied = correction.apply(tokens)
    expected = case["expected"]
    keep = flat(expected["keep"]) != 0
    starts = np.concatenate([[0], np.cumsum(tokens.lengths)])
    lenient = np.zeros(len(keep), dtype=bool)
    for response, token in case.get("ulp_sensitive", ()):
        lenient[starts[response] + token] = True
    found = xp.host(applied.keep)
    assert np.flatnonzero((found != keep) & ~lenient).tolist() == []
    mask = keep if expected["returned_mask"] == "same as keep" else flat(expected["returned_mask"]) != 0
    assert np.flatnonzero((xp.host(applied.mask) != mask) & ~lenient).tolist() == []
    if expected["weight"] is None:
        assert applied.weight is None
    else:
        made = "float32" if correction.TRAINER in IN_FLOAT32 else expected["weight_dtype"]
        bound = WEIGHT_BOUND[made if made in WEIGHT_BOUND else case["dtype"]]
        weight = xp.host(applied.weight).astype(np.float64)
        wanted = flat(expected["weight"])
        np.testing.assert_allclose(weight[~lenient], wanted[~lenient], rtol=bound, atol=bound)
    stats = {name: xp.host(values) for name, values in applied.stats.items()}
    metrics = correction.metrics(stats) | {name: list(found) for name, found in correction.per_response(stats).items()}
    skipped = UNSPECIFIED.get(correction.TRAINER, ())
    wanted_metrics = {
        name: [float(part) for part in value] if isinstance(value, list) else float(value)
        for name, value in expected["metrics"].items()
        if not any(re.search(part, name) for part in skipped)
    }
    assert wanted_metrics.keys() - metrics.keys() == set()
    bound = METRIC_BOUND[case["dtype"]]
    for name, value in wanted_metrics.items():
        assert metrics[name] == pytest.approx(value, rel=bound, abs=bound, nan_ok=True), name
