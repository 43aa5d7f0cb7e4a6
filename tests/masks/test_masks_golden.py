"""Every effective mask of the golden cases, token by token."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tokenaudit.masks.backends import NumpyBackend, choose_backend
from tokenaudit.masks.session import mask_log

CASES = sorted(path.parent for path in (Path(__file__).parent.parent / "golden").glob("*/expected.json"))


def masks_by_step(path: Path) -> dict[int, dict[str, str]]:
    """Masks as the cases spell them; the segments of a rollout follow each other."""
    steps: dict[int, dict[str, str]] = {}
    for row in pq.read_table(path).to_pylist():
        masks = steps.setdefault(row["train_step"], {})
        key = f"{row['task_name']}/{row['rollout_id']}"
        mask = row["effective_mask"]
        counts = row["trained_tokens"], row["masked_stale_tokens"] + row["masked_semantic_tokens"]
        assert counts == (mask.count(1), mask.count(0))
        masks[key] = masks.get(key, "") + "".join(map(str, mask))
    return steps


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_golden_mask(case: Path, backend: str, tmp_path: Path):
    output = tmp_path / "masks.parquet"
    chosen = NumpyBackend() if backend == "numpy" else choose_backend("cpu")
    mask_log([case / "log.parquet"], output, chosen, config_path=case / "config.toml")
    expected = json.loads((case / "expected.json").read_text())["expected"]
    got = masks_by_step(output)
    for row in expected:
        assert got.pop(row["train_step"], {}) == row["effective_masks"], row["train_step"]
    assert got == {}
