"""The order in which groups began, one group at a time, as `help simulate` words it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
MOST = 2**53
"""The longest time that counts as one, microseconds."""


def groups_by_start(rows: Sequence[Row]) -> dict[str, list[int]] | None:
    """Group ids of every task by start, tasks by first put; None where a group doesn't say when it began."""
    starts: dict[str, list[tuple[int, int]]] = {}
    for task, group_id in dict.fromkeys((row["task_name"], row["group_id"]) for row in rows):
        own = [row for row in rows if (row["task_name"], row["group_id"]) == (task, group_id)]
        first = [row for row in own if row["event_id"] == own[0]["event_id"]]
        put_at = [row["time_us"] for row in first if is_time(row["time_us"])]
        lengths = [row["generate_time_us"] for row in first if is_time(row["generate_time_us"])]
        if not put_at or not lengths:
            return None
        starts.setdefault(task, []).append((max(put_at) - max(lengths), group_id))
    return {task: [group_id for _, group_id in sorted(of_task)] for task, of_task in starts.items()}


def groups_by_first_put(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Group ids of every task in the order of their first rows."""
    groups: dict[str, list[int]] = {}
    for task, group_id in dict.fromkeys((row["task_name"], row["group_id"]) for row in rows):
        groups.setdefault(task, []).append(group_id)
    return groups


def is_time(value: int | None) -> bool:
    return value is not None and 0 <= value <= MOST
