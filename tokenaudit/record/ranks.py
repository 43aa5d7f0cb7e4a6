"""Which rank of a distributed run a recorder writes for."""

from __future__ import annotations

from typing import Any, NamedTuple

from tokenaudit.contracts.errors import Problem, RecordError
from tokenaudit.contracts.schema import META_RANK, META_WORLD_SIZE
from tokenaudit.log.ranks import MAX_RANKS
from tokenaudit.record.event_rows import integer_problems


class Rank(NamedTuple):
    """The number of a rank, from 0, and how many ranks record into the folder."""

    number: int
    world_size: int

    @property
    def label(self) -> str:
        """The rank in names of files."""
        return f"rank{self.number:04}"

    @property
    def metadata(self) -> dict[str, str]:
        """What the rank's parts say of it."""
        return {META_RANK: str(self.number), META_WORLD_SIZE: str(self.world_size)}


def checked_rank(rank: Any, world_size: Any) -> Rank | None:
    """The rank that a recorder is made for; None where neither number is given.

    Raises:
        RecordError: only one of them is given, or they are no whole numbers with 0 <= rank < world_size <= `MAX_RANKS`;
            all at once.
    """
    if rank is None and world_size is None:
        return None
    given: dict[str, Any] = {"rank": rank, "world_size": world_size}
    both = "a recorder of a rank needs rank and world_size, any other recorder neither"
    problems = [Problem(f"{name} is missing", "the recorder", both) for name, value in given.items() if value is None]
    for name, value in given.items():
        if value is not None:
            problems.extend(integer_problems(name, value, "the recorder"))
    if not problems and int(given["rank"]) >= int(given["world_size"]):
        what = f"rank is {rank} of a world_size of {world_size}"
        problems.append(Problem(what, "the recorder", "ranks count from 0 to world_size - 1"))
    elif not problems and world_size > MAX_RANKS:
        what = f"world_size is {world_size}, and readers merge up to {MAX_RANKS} ranks"
        hint = "make recorders on the ranks that put, sample or take only, and number those"
        problems.append(Problem(what, "the recorder", hint))
    if problems:
        raise RecordError(problems)
    return Rank(int(given["rank"]), int(given["world_size"]))
