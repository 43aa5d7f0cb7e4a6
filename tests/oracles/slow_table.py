"""A table with one response a row as rows of a log, value by value."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from tests.builders import Row


def id_of(value: str | int) -> int:
    """The id of a text or number: its own number where it is one that a log can hold."""
    text = str(value)
    if 0 <= int(text if text.lstrip("-").isascii() and text.lstrip("-").isdigit() else -1) < 2**63 - 1:
        number = int(text)
        if str(number) == text:
            return number
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") // 2**11


def table_rows(rows: list[Row]) -> list[dict[str, Any]]:
    """The put rows of a log in order, without `event_id`; absent and null values are None.

    The time of a put is that of its last response.
    """
    made: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        mask = row.get("response_mask")
        logprobs = row.get("logprobs")
        rollout = row.get("rollout_id")
        step, end = row.get("model_step"), row.get("model_step_end")
        is_span = step is not None and end is not None and step != end
        made.append(
            {
                "event": "put",
                "task_name": row.get("task_name") or "default",
                "group_id": id_of(row["group_id"]),
                "train_step": row["train_step"],
                "rollout_id": number if rollout is None else id_of(rollout),
                "status": row.get("status") or "completed",
                "response_len": row["response_len"],
                "model_step": step,
                "model_step_end": end,
                "version_precision": "none" if step is None else "span" if is_span else "exact",
                "response_mask": None if mask is None else [int(item != 0) for item in mask],
                "logprobs": None if logprobs is None else [None if math.isnan(item) else item for item in logprobs],
                "reward": row.get("reward"),
                "agentic": row.get("agentic"),
                "time_us": row.get("time_us"),
            }
        )
    first = 0
    for size in put_sizes(made):
        put = made[first : first + size]
        times = [row["time_us"] for row in put if row["time_us"] is not None]
        for row in put:
            row["time_us"] = max(times) if times else None
        first += size
    return made


def put_sizes(rows: list[Row]) -> list[int]:
    """Responses of each put among put rows of a log: those that follow each other with one task, group and step."""
    sizes: list[int] = []
    last: object = None
    for row in rows:
        key = (row["task_name"], row["group_id"], row["train_step"])
        if key == last:
            sizes[-1] += 1
        else:
            sizes.append(1)
        last = key
    return sizes
