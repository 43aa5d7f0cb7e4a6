"""Responses for corrections, made by hand and at random, and how outcomes are compared with a slow twin's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.oracles.slow_corrections import Outcome, Response
from tokenaudit.corrections.arrays import Arrays, NumpyArrays
from tokenaudit.corrections.correction import Applied, Correction
from tokenaudit.corrections.tokens import Tokens

NUMPY = NumpyArrays()
NUMBERS = {"float32": np.float32, "float64": np.float64}

LOGPROBS = (0.0, -0.125, -0.25, -0.5, -1.0, -2.0, -4.5, -25.0, -110.0, -800.0)
"""Multiples of 1/8, so that sums of them and of their differences are exact in any order."""

BOUNDS = tuple(float(np.exp(number(value))) for number in NUMBERS.values() for value in (-0.5, -0.125, 0.125, 0.5))
"""Ratios that tokens, and means of responses, may have exactly."""
DTYPES = st.sampled_from(sorted(NUMBERS))
LOWER = st.sampled_from([bound for bound in BOUNDS if bound < 1] + [1.0, 0.5])
UPPER = st.sampled_from([bound for bound in BOUNDS if bound > 1] + [2.0])


def response(*log_ratios: float, mask: tuple[int, ...] | None = None, advantage: float = 1.0) -> Response:
    """Tokens that the engine gave a log-probability of 0."""
    there = tuple(bool(value) for value in mask or (1,) * len(log_ratios))
    return Response((0.0,) * len(log_ratios), log_ratios, there, advantage)


GAPS = tuple(abs(float(number(np.exp(number(-0.5)) - np.exp(number(-1.0))))) for number in NUMBERS.values())
"""Differences of probabilities that tokens may have exactly."""


def or_none(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


@st.composite
def random_responses(draw: st.DrawFn) -> list[Response]:
    """Up to 8 responses of up to 6 tokens, some without tokens, some with none in the loss."""
    found = []
    for length in draw(st.lists(st.sampled_from((0, 1, 1, 2, 2, 3, 6)), max_size=8)):
        near = st.sampled_from(LOGPROBS[:6])
        logprobs = st.lists(st.one_of(near, near, st.sampled_from(LOGPROBS)), min_size=length, max_size=length)
        mask = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        if draw(st.booleans()):
            mask = [draw(st.booleans())] * length
        found.append(
            Response(tuple(draw(logprobs)), tuple(draw(logprobs)), tuple(mask), draw(st.sampled_from((-1.0, 0.0, 0.5))))
        )
    return found


def tokens_of(responses: Sequence[Response], dtype: str = "float64", xp: Arrays = NUMPY) -> Tokens:
    """Responses as corrections take them."""
    rollout, trained, mask = (
        np.array([value for response in responses for value in getattr(response, name)], dtype=kind)
        for name, kind in (("rollout", dtype), ("trained", dtype), ("mask", bool))
    )
    lengths = np.array([len(response.mask) for response in responses], dtype=np.int64)
    advantage = np.array([response.advantage for response in responses], dtype=np.float64)
    return Tokens(xp, dtype, lengths, rollout, trained, mask, advantage)


def applied_by(
    kind: type[Correction], options: Mapping[str, Any], *responses: Response, dtype: str = "float64"
) -> Applied:
    """What a correction with some options does to responses."""
    return kind.model_validate(options).apply(tokens_of(responses, dtype))


def flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [value for row in rows for value in row]


def stats_of(applied: Applied) -> dict[str, np.ndarray]:
    return {name: NUMPY.host(values) for name, values in applied.stats.items()}


def compare(correction: Correction, responses: Sequence[Response], dtype: str, slow: Outcome) -> None:
    """Assert that a correction does what its slow twin did, also when it gets the responses in two parts."""
    applied = correction.apply(tokens_of(responses, dtype))
    assert applied.keep.tolist() == flat(slow.keep)
    assert applied.mask.tolist() == flat(slow.mask)
    if slow.weight is None:
        assert applied.weight is None
    else:
        assert applied.weight is not None
        wanted = np.array(flat(slow.weight), dtype=np.float64)
        np.testing.assert_allclose(applied.weight, wanted, rtol=1e-5 if dtype == "float32" else 1e-12)
    stats = stats_of(applied)
    compare_figures(correction, stats, slow.metrics, dtype)
    if not correction.over_batch and len(responses) > 1:
        parts = [correction.apply(tokens_of(part, dtype)) for part in (responses[:1], responses[1:])]
        assert np.concatenate([part.keep for part in parts]).tolist() == flat(slow.keep)
        both = [stats_of(part) for part in parts]
        merged = {name: np.concatenate([part[name] for part in both]) for name in stats}
        compare_figures(correction, merged, slow.metrics, dtype)


def compare_figures(correction: Correction, stats: dict[str, np.ndarray], wanted: dict[str, Any], dtype: str) -> None:
    """Assert that figures are those of the slow twin."""
    found: dict[str, Any] = {**correction.metrics(stats), **correction.per_response(stats)}
    bound = 1e-5 if dtype == "float32" else 1e-12
    for name, value in wanted.items():
        if name not in found:  # no response has a token in the loss: nothing is logged
            assert not stats["count"].any()
        elif isinstance(value, list):
            np.testing.assert_allclose(found[name], value, rtol=bound, atol=bound)
        else:
            assert math.isnan(value) == math.isnan(found[name]), name
            assert math.isnan(value) or math.isclose(found[name], value, rel_tol=bound, abs_tol=bound), name
