"""Which rank of a run wrote each file of a log, and whether the files fit together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from tokenaudit.contracts.errors import Problem, plural, shown
from tokenaudit.contracts.schema import META_CLOCK_ORIGIN, META_RANK, META_WORLD_SIZE

RANK_METADATA = (META_RANK, META_WORLD_SIZE, META_CLOCK_ORIGIN)
MAX_RANKS = 512
"""Ranks whose files are merged: a file of each is open at a time."""
LATEST_US = 2**62
"""Times are below it, so that a clock's origin plus a time fits 64 bits."""

_MOST_NAMED = 20
_RECORD_AGAIN = "every rank records with its own rank, the same world_size, and a clock_origin_us"
_ONE_RUN = "keep the parts of one run in a folder; a rank that resumes goes on with append"


class FileRank(NamedTuple):
    """What a part says of the rank that wrote it.

    Attributes:
        rank: its number, from 0.
        world_size: ranks that record.
        clock_origin_us: microseconds of the Unix epoch at which its `time_us` is 0.
    """

    rank: int
    world_size: int
    clock_origin_us: int


def file_rank(path: Path, metadata: Mapping[str, str], problems: list[Problem]) -> FileRank | None:
    """The rank in the metadata of a file; None without one, or where what is wrong was added to `problems`."""
    if META_RANK not in metadata and META_WORLD_SIZE not in metadata:
        # without a rank the origin says when the run began, which orders nothing
        return None
    before = len(problems)
    numbers = [_number(name, path, metadata, problems) for name in RANK_METADATA]
    if len(problems) > before:
        return None
    found = FileRank(*numbers)
    if found.rank >= found.world_size:
        what = f"rank {found.rank} of a world size of {found.world_size}"
        problems.append(Problem(what, str(path), "ranks count from 0 to world_size - 1"))
        return None
    return found


def _number(name: str, path: Path, metadata: Mapping[str, str], problems: list[Problem]) -> int:
    text = metadata.get(name)
    if text is None:
        problems.append(Problem(f"the part of a rank lacks {name} in its metadata", str(path), _RECORD_AGAIN))
        return 0
    return whole_number(name, text, path, problems)


def whole_number(name: str, text: str, path: Path, problems: list[Problem]) -> int:
    """A number in the metadata of a file; what is none is added to the problems."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(LATEST_US)) else LATEST_US
    if number >= LATEST_US:
        problems.append(Problem(f"{name} is {shown(text)} in its metadata", str(path), "it is a whole number from 0"))
    return number


def rank_problems(files: Sequence[tuple[Path, FileRank | None]]) -> Iterator[Problem]:
    """Why files don't make one log of all their ranks."""
    ranked = [(path, rank) for path, rank in files if rank is not None]
    if not ranked:
        return
    first_path, first = ranked[0]
    without = next((path for path, rank in files if rank is None), None)
    if without is not None:
        what = f"parts with and without a rank: {first_path.name} is of rank {first.rank}, {without.name} of none"
        yield Problem(what, str(without), "keep recordings with ranks and without in folders of their own")
    origins: dict[int, tuple[Path, FileRank]] = {}
    for path, rank in ranked:
        own_path, own = origins.setdefault(rank.rank, (path, rank))
        if own.clock_origin_us != rank.clock_origin_us:
            what = (
                f"two runs of rank {rank.rank}: {META_CLOCK_ORIGIN} is {own.clock_origin_us} in {own_path.name}"
                f" and {rank.clock_origin_us} in {path.name}"
            )
            yield Problem(what, str(path), _ONE_RUN)
    for path, rank in {rank.world_size: (path, rank) for path, rank in reversed(ranked)}.values():
        if rank.world_size != first.world_size:
            what = (
                f"parts of two runs: {META_WORLD_SIZE} is {first.world_size} in {first_path.name} (rank {first.rank})"
                f" and {rank.world_size} in {path.name} (rank {rank.rank})"
            )
            yield Problem(what, str(path), _ONE_RUN)
    if len(origins) > MAX_RANKS:
        yield Problem(f"parts of {len(origins)} ranks", str(first_path), f"up to {MAX_RANKS} ranks are merged")


def two_runs(rank: int, before: int, event_id: int, where: str) -> Problem:
    """That the event ids of a rank begin anew."""
    return Problem(f"two runs of rank {rank}: event_id {event_id} comes after {before}", where, _ONE_RUN)


def present_ranks(ranks: Iterable[FileRank]) -> list[int]:
    """Their numbers, each once, ascending."""
    return sorted({rank.rank for rank in ranks})


def missing_ranks(ranks: Sequence[FileRank]) -> str:
    """The ranks of a world that wrote no part, for people: `1, 4 to 7 of 8`; nothing where all did."""
    if not ranks:
        return ""
    world_size = ranks[0].world_size
    ends = [-1, *present_ranks(ranks), world_size]
    gaps = [(low + 1, high - 1) for low, high in pairwise(ends) if high - low > 1]
    return f"{_ranges_text(gaps)} of {world_size}" if gaps else ""


def last_step_notes(last_steps: Mapping[int, int]) -> Iterator[str]:
    """The last train step of each rank, and which ranks ended early, in sentences.

    Args:
        last_steps: the last train step by rank, ascending. One step behind the others isn't early: ranks need not be in
            lockstep when a run ends.
    """
    if not last_steps:
        return
    of_step: defaultdict[int, list[int]] = defaultdict(list)
    for rank, step in last_steps.items():
        of_step[step].append(rank)
    latest = max(of_step)
    steps = sorted(of_step, reverse=True)[:_MOST_NAMED]
    more = len(of_step) - len(steps)
    texts = [f"{step} (rank{'s' * (len(of_step[step]) > 1)} {ranks_text(of_step[step])})" for step in steps]
    yield f"last train step: {', '.join(texts)}" + (f" and {plural(more, 'other')}" if more else "")
    early = [rank for rank, step in last_steps.items() if step < latest - 1]
    if early:
        ended = f"rank{'s' * (len(early) > 1)} {ranks_text(early)} ended early"
        yield f"{ended}: others recorded up to train step {latest}"


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks, ascending, for people: `0 to 3, 5`."""
    ranges: list[tuple[int, int]] = []
    for rank in ranks:
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1] = (ranges[-1][0], rank)
        else:
            ranges.append((rank, rank))
    return _ranges_text(ranges)


def _ranges_text(ranges: Sequence[tuple[int, int]]) -> str:
    texts = [str(low) if low == high else f"{low} to {high}" for low, high in islice(ranges, _MOST_NAMED)]
    left = sum(high - low + 1 for low, high in ranges[_MOST_NAMED:])
    return ", ".join(texts) + (f" and {plural(left, 'other')}" if left else "")
