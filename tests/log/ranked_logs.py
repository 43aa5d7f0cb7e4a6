"""Logs of several ranks, as their recorders write them."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.builders import Row, write_log
from tests.oracles.slow_ranks import RankRows

RANK, WORLD_SIZE, ORIGIN = "tokenaudit.rank", "tokenaudit.world_size", "tokenaudit.clock_origin_us"


def rank_metadata(rank: int, world_size: int, origin: int = 0) -> dict[str, str]:
    return {RANK: str(rank), WORLD_SIZE: str(world_size), ORIGIN: str(origin)}


def write_ranks(
    folder: Path, parts: Sequence[RankRows], *, world_size: int | None = None, files: int = 1, **options: Any
) -> Path:
    """Write every rank's rows to files of its own; `options` as for `write_log`."""
    folder.mkdir(exist_ok=True)
    size = world_size or max(part.rank for part in parts) + 1
    for rank, origin, rows in parts:
        metadata = rank_metadata(rank, size, origin)
        step = -(-len(rows) // files) or 1
        for number, first in enumerate(range(0, max(len(rows), 1), step), 1):
            path = folder / f"part-rank{rank:04}-{number:06}.parquet"
            write_log(path, rows[first : first + step], metadata=metadata, **options)
    return folder


@st.composite
def split_in_ranks(draw: Any, rows: list[Row], *, ranks: int = 4) -> list[RankRows]:
    """The events of a log recorded by several ranks with clocks that agree, some refreshes and syncs by several ranks.

    Rank numbers may have gaps. Merged again, they are the rows.
    """
    numbers = sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=ranks)))
    origins = {rank: draw(st.integers(0, 50)) for rank in numbers}
    recorded: dict[int, list[tuple[int, list[Row]]]] = {rank: [] for rank in numbers}
    owner: dict[tuple[Any, ...], int] = {}
    time = 60
    for event_id, group in groupby(rows, key=lambda row: row["event_id"]):
        event = list(group)
        kind = event[0].get("event")
        own: tuple[Any, ...] = (kind, event[0].get("train_step"))
        shared = kind in ("refresh", "sync")
        key = own if shared else ("take",) if kind == "take" else ("one", event_id)
        is_new = key not in owner
        rank = owner.setdefault(key, draw(st.sampled_from(numbers)))
        time += draw(st.integers(1, 3))
        recorded[rank].append((time, event))
        if shared and is_new:
            for other in draw(st.sets(st.sampled_from(numbers))) - {rank}:
                later = time + draw(st.integers(1 if other < rank else 0, 9))
                recorded[other].append((later, [row | {"model_step": None} for row in event[:1]]))
    parts = []
    for rank in numbers:
        told = sorted(recorded[rank], key=lambda event: event[0])
        number, own_rows = draw(st.integers(0, 5)), []
        for at, event in told:
            number += draw(st.integers(1, 3))
            own_rows += [row | {"event_id": number, "time_us": at - origins[rank]} for row in event]
        parts.append(RankRows(rank, origins[rank], own_rows))
    return parts
