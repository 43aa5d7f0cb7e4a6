"""What trainers log of a batch, counted response by response in the words of their definitions."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from tests.builders import Row


def taken_rows(rows: list[Row]) -> dict[int, list[Row]]:
    """The last put of every rollout that take rows name, by the step of the take."""
    last: dict[int, list[Row]] = {}
    events: dict[int, int] = {}
    taken: dict[int, list[Row]] = {}
    for row in rows:
        if row["event"] == "put":
            rollout = row["rollout_id"]
            if events.get(rollout) != row["event_id"]:
                last[rollout] = []
            events[rollout] = row["event_id"]
            last[rollout].append(row)
        elif row["event"] == "take" and row.get("rollout_id") is not None:
            taken.setdefault(row["train_step"], []).extend(last[row["rollout_id"]])
    return taken


def slow_curves(rows: list[Row], token_limit: int | None) -> dict[str, dict[int, Any]]:
    """Series by name and step. Every put row needs its versions, one per token; `token_limit` is in train steps."""
    series: dict[str, dict[int, Any]] = {}
    for step, batch in taken_rows(rows).items():
        for name, value in slow_step(batch, step, token_limit).items():
            series.setdefault(name, {})[step] = value
    return series


def slow_step(batch: list[Row], step: int, token_limit: int | None) -> dict[str, Any]:
    values: dict[str, Any] = {}

    def add(name: str, measured: list[float]) -> None:
        if measured:
            values[f"{name}_mean"] = fmean(measured)
            values[f"{name}_max"] = max(measured)
            values[f"{name}_min"] = min(measured)

    spans = [(min(versions), max(versions), versions[0]) for versions in versions_of(batch)]
    ages = [[step - version - 1 for version in versions] for versions in versions_of(batch)]
    add("oldest_staleness", [step - oldest - 1 for oldest, _, _ in spans])
    add("newest_staleness", [step - newest - 1 for _, newest, _ in spans])
    add("start_staleness", [step - first - 1 for _, _, first in spans])
    add("version_span", [newest - oldest + 1 for oldest, newest, _ in spans])
    add("oldest_version", [oldest for oldest, _, _ in spans])
    add("newest_version", [newest for _, newest, _ in spans])
    groups: dict[int, list[Row]] = {}
    for row in batch:
        groups.setdefault(row["group_id"], []).append(row)
    oldest_of = [min(version for versions in versions_of(group) for version in versions) for group in groups.values()]
    first_of = [min(versions[0] for versions in versions_of(group)) for group in groups.values()]
    add("group_staleness", [step - version - 1 for version in oldest_of])
    add("group_start_staleness", [step - version - 1 for version in first_of])
    add("response_len", [row["response_len"] for row in batch])
    add("trainable_len", [sum(row["response_mask"]) for row in batch])
    add("prompt_len", [row["prompt_len"] for row in batch])
    firsts = {row["rollout_id"]: row for row in reversed(batch)}
    add("reward", [row["reward"] for row in firsts.values()])
    trained = [
        age
        for row, own in zip(batch, ages, strict=True)
        for age, mask in zip(own, row["response_mask"], strict=True)
        if mask and (token_limit is None or age < token_limit)
    ]
    add("token_staleness", trained)
    trainable = sum(sum(row["response_mask"]) for row in batch)
    tokens = sum(row["response_len"] for row in batch)
    return values | {
        "taken_groups": len(groups),
        "taken_samples": len(firsts),
        "taken_rows": len(batch),
        "taken_tokens": tokens,
        "taken_trainable_tokens": trainable,
        "trained_tokens": len(trained),
        "masked_stale_tokens": trainable - len(trained),
        "masked_semantic_tokens": tokens - trainable,
        "taken_all_tokens": tokens + sum(row["prompt_len"] for row in batch),
        "mixed_version_share": fmean(newest > oldest for oldest, newest, _ in spans),
        "stale_group_share": fmean(step - version - 1 > 0 for version in first_of),
        "seq_staleness_max": max(step - oldest - 1 for oldest, _, _ in spans),
        "seq_staleness_sum": sum(step - oldest - 1 for oldest, _, _ in spans),
    }


def versions_of(rows: list[Row]) -> list[list[int]]:
    return [row["response_model_steps"] for row in rows]
