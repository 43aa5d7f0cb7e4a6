"""Token columns become version runs, whatever their masks look like."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenaudit.log.version_runs import version_runs


@st.composite
def stretches(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Stretches of tokens of one version and one mask value: some logs have long ones, some change all the time."""
    length = draw(st.sampled_from([1, 3, 200]))
    entry = st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, length))
    return draw(st.lists(entry, max_size=12))


@given(st.lists(stretches(), max_size=5), st.sampled_from([np.bool_, np.int8, np.int64]), st.integers(1, 3))
def test_runs_count_the_tokens_in_the_loss(responses: list[list[tuple[int, int, int]]], dtype: type, one: int):
    versions = [[version for version, _, count in made for _ in range(count)] for made in responses]
    masks = [[flag for _, flag, count in made for _ in range(count)] for made in responses]
    lengths = np.array([len(mask) for mask in masks], dtype=np.int64)
    flat = np.array([version for made in versions for version in made], dtype=np.int32)
    mask = np.array([flag * one for made in masks for flag in made]).astype(dtype)
    runs = version_runs(lengths, flat, lengths, np.zeros(len(responses), dtype=np.int64), mask, lengths)
    expected = [
        (version, len(pairs), sum(flag for _, flag in pairs))
        for versions_of, mask_of in zip(versions, masks, strict=True)
        for version, group in groupby(zip(versions_of, mask_of, strict=True), key=lambda pair: pair[0])
        for pairs in [list(group)]
    ]
    assert list(zip(runs.model_step.tolist(), runs.tokens.tolist(), runs.trainable.tolist(), strict=True)) == expected
    assert runs.counts.tolist() == [len(list(groupby(made))) for made in versions]
