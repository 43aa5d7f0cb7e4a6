"""Corrections hold a step at a time: their memory doesn't grow with the number of steps of a log."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from tests.benchmarks.make_log import LogShape, write_log
from tests.builders import small_batches
from tokenaudit.corrections import batches
from tokenaudit.corrections.arrays import NumpyArrays
from tokenaudit.corrections.methods import methods_of
from tokenaudit.corrections.session import corrections_of_log

SPECS = ("slime-mis", "trl", "prime-rl", "areal: m2_threshold=0.04")


def peak(folder: Path, steps: int) -> tuple[int, int]:
    """Tokens of a log of equal steps, and the bytes that its corrections take at most."""
    path = folder / f"{steps}.parquet"
    write_log(path, LogShape(steps * 40, mean_tokens=3000, steps=steps, logprobs=True), rows_per_group=64)
    tracemalloc.start()
    try:
        found = corrections_of_log([path], methods_of(SPECS), NumpyArrays(), overrides="policy.max_staleness=99")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return found.report.tokens, most


def test_memory_does_not_grow_with_the_steps_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # all of a log this small may be read at once, or wait to be looked at, otherwise
    small_batches(monkeypatch, rows=40)
    monkeypatch.setattr(batches, "_AHEAD_BYTES", 1 << 18)
    peak(tmp_path, 3)  # what is loaded and kept for every log
    tokens, most = peak(tmp_path, 10)
    more_tokens, more = peak(tmp_path, 40)
    # both log-probabilities and the mask of a token take 9 bytes
    assert more - most < (more_tokens - tokens) * 9 / 2
