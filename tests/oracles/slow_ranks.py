"""The merge of ranks' logs, event by event: sort lists, drop what another rank said before, number anew."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from tests.builders import Row


class RankRows(NamedTuple):
    """The rows of one rank in its order, and microseconds of the epoch at which its time is 0."""

    rank: int
    origin: int
    rows: list[Row]


def merged_rows(parts: list[RankRows]) -> list[Row]:
    """The rows of one recorder that saw the events of all ranks, numbered from 1."""
    events: list[tuple[int, int, list[Row]]] = []
    for part in parts:
        latest = part.origin
        shift = part.origin - min(other.origin for other in parts)
        for _, group in groupby(part.rows, key=lambda row: row["event_id"]):
            rows = list(group)
            times = [row["time_us"] for row in rows if row.get("time_us") is not None]
            latest = max([latest, *(part.origin + time for time in times)])
            # of one clock, that of the rank that began first
            rows = [row | ({} if row.get("time_us") is None else {"time_us": row["time_us"] + shift}) for row in rows]
            events.append((latest, part.rank, rows))
    events.sort(key=lambda event: event[:2])
    first: dict[tuple[str, int], int] = {}
    merged: list[Row] = []
    number = 0
    for _, rank, rows in events:
        kind = rows[0].get("event")
        if kind in ("refresh", "sync") and first.setdefault((kind, rows[0]["train_step"]), rank) != rank:
            continue
        number += 1
        merged += [row | {"event_id": number} for row in rows]
    return merged
