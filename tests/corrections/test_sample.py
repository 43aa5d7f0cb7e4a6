"""The sample log with log-probabilities is what its model gives."""

from __future__ import annotations

from pathlib import Path

from tests.builders import read_rows
from tests.corrections.sample_log import FILE, write


def test_the_sample_is_what_its_model_gives(tmp_path: Path):
    assert read_rows(FILE) == read_rows(write(tmp_path / "sample.parquet"))
