"""Logs whose takes name what they took, for tests of curves."""

from __future__ import annotations

import random
from pathlib import Path

from tests.builders import Row, put, refresh, take, write_log

TOKEN_LIMIT = 3
CONFIG = ("policy.max_staleness=20", f"policy.max_token_staleness={TOKEN_LIMIT - 1}")


def recorded_run(steps: int = 12, groups: int = 4, members: int = 3, seed: int = 0) -> list[Row]:
    """Every group is put before the take that names its rollouts; lengths, versions, masks and rewards are drawn."""
    draw = random.Random(seed)
    rows: list[Row] = []
    event = 0
    for step in range(1, steps + 1):
        event += 1
        rows.append(refresh(event, step))
        batch: list[int] = []
        for group in range(step * groups, (step + 1) * groups):
            event += 1
            for rollout in range(group * members, (group + 1) * members):
                batch.append(rollout)
                # a rollout may be several training rows
                rows += [_row(draw, event, group, rollout, step) for _ in range(draw.choice((1, 1, 1, 2)))]
        event += 1
        rows += [take(event, step, groups, rollout_id=rollout) for rollout in batch]
    return rows


def _row(draw: random.Random, event: int, group: int, rollout: int, step: int) -> Row:
    size = draw.randint(1, 9)
    first = max(0, step - 1 - draw.choice((0, 0, 1, 2, 5)))
    cut = draw.randint(0, size)
    versions = [first] * cut + [draw.randint(first, step - 1)] * (size - cut)
    mask = [draw.choice((1, 1, 1, 0)) for _ in range(size)]
    return put(
        event, group, rollout, train_step=step, tokens=size, model_step=versions[-1], response_model_steps=versions,
        response_mask=mask, reward=draw.choice((0.0, 1.0, 0.25, -0.5)), prompt_len=draw.randint(1, 40),
    )  # fmt: skip


def written_run(folder: Path, rows: list[Row] | None = None) -> Path:
    return write_log(folder / "log.parquet", recorded_run() if rows is None else rows)
