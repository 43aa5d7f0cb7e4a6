"""Fingerprints of token ids against their definition, whatever rows stand beside, and which rows share one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.oracles.slow_fingerprints import fingerprint
from tokenaudit.log import token_ids
from tokenaudit.log.token_ids import fingerprints, prefix_fingerprints


def flat(rows: list[list[int]], dtype: type = np.int64) -> tuple[np.ndarray, np.ndarray]:
    values = np.array([value for row in rows for value in row], dtype=dtype)
    return values, np.array([len(row) for row in rows], dtype=np.int64)


IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=12)


@settings(examples(0.25))
@given(rows=st.lists(IDS, max_size=6), data=st.data())
def test_a_fingerprint_is_the_sum_of_its_definition(rows: list[list[int]], data: st.DataObject):
    values, lengths = flat(rows)
    prefix = np.array([data.draw(st.integers(0, len(row))) for row in rows], dtype=np.int64)
    assert fingerprints(values, lengths).tolist() == [fingerprint(row) for row in rows]
    of_prefix, of_all = prefix_fingerprints(values, lengths, prefix)
    assert of_all.tolist() == [fingerprint(row) for row in rows]
    assert of_prefix.tolist() == [fingerprint(row[:end]) for row, end in zip(rows, prefix.tolist(), strict=True)]


@pytest.fixture(scope="module")
def long_rows() -> tuple[list[list[int]], list[int], list[int]]:
    """Rows longer than a tile and rows across two, their fingerprints, and those of their first two thirds."""
    rng = random.Random(1)
    tile = token_ids._TILE
    lengths = (tile - 3, 0, 7, 2 * tile + 1, tile, 1, 3 * tile)
    rows = [[rng.randrange(100) for _ in range(length)] for length in lengths]
    return rows, [fingerprint(row) for row in rows], [fingerprint(row[: len(row) * 2 // 3]) for row in rows]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint16, np.uint64])
def test_rows_longer_than_a_tile_and_rows_across_two(
    dtype: type, long_rows: tuple[list[list[int]], list[int], list[int]]
):
    rows, expected, expected_of_prefix = long_rows
    values, counts = flat(rows, dtype)
    assert fingerprints(values, counts).tolist() == expected
    of_prefix, of_all = prefix_fingerprints(values, counts, counts * 2 // 3)
    assert of_all.tolist() == expected
    assert of_prefix.tolist() == expected_of_prefix


def test_swapped_and_changed_ids_never_share_a_fingerprint():
    row = list(range(1, 4097))
    others = []
    for distance in (1, 2, 1024, 2048, 4095):
        other = list(row)
        other[0], other[distance] = other[distance], other[0]
        others.append(other)
    others += [[*row[:-1], 0], [*row[:-1], row[-1] + 2**32], [2**31, *row[1:]]]
    prints = fingerprints(*flat([row, *others]))
    assert len(set(prints.tolist())) == len(others) + 1
