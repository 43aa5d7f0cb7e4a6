"""Where the columns of a log stand in a table of someone else: by name, in other letters, or inside of objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tokenaudit.contracts.errors import Problem, printable
from tokenaudit.contracts.schema import COLUMN_BY_NAME, VERSION_RUNS
from tokenaudit.log.absent_columns import column_called

COLUMNS = tuple(name for name in COLUMN_BY_NAME if name != VERSION_RUNS)
"""Columns that a table may have; a log with version runs needs no import."""
NEEDED = ("group_id", "train_step")
"""Columns that every response needs."""

_MOST_SHAPES = 1000
"""Sets of names that are remembered; JSON lines could have one each."""
_SHOWN_NAMES = 20

Place = tuple[str, ...]
"""A column of a table, then the names that lead to a field of the objects in it."""


class ColumnPlaces:
    """Finds the columns of a log in tables.

    A column is called as `renamed` says, else as in a log. Where none is called exactly so, the one that is but for
    capitals and spaces around it counts, if it is the only one; then, for a name with dots, a field of an object.

    Args:
        renamed: their names by ours.
    """

    def __init__(self, renamed: Mapping[str, str]) -> None:
        self._renamed = renamed
        self._known: dict[Place, dict[str, Place]] = {}

    def of(self, names: Iterable[str]) -> dict[str, Place]:
        """The places of the columns that a table with these names has."""
        key = tuple(names)
        found = self._known.get(key)
        if found is None:
            if len(self._known) == _MOST_SHAPES:
                self._known.clear()
            found = self._known[key] = self._found(key)
        return found

    def has_needed(self, names: Iterable[str]) -> bool:
        """Whether a table with these names may hold events: it has a column that every response or event needs."""
        return not self._found(tuple(names)).keys().isdisjoint({*NEEDED, "event"})

    def _found(self, names: Place) -> dict[str, Place]:
        exact = {*names}
        in_small_letters: dict[str, list[str]] = {}
        for name in names:
            in_small_letters.setdefault(name.strip().casefold(), []).append(name)
        taken = {*self._renamed.values()}
        found: dict[str, Place] = {}
        for ours in COLUMNS:
            theirs = self._renamed.get(ours, ours)
            similar = in_small_letters.get(theirs.strip().casefold(), [])
            if theirs in exact:
                found[ours] = (theirs,)
            elif len(similar) == 1 and (ours in self._renamed or similar[0] not in taken):
                found[ours] = (similar[0],)
            elif ours in self._renamed:
                parts = theirs.split(".")
                heads = (end for end in range(len(parts) - 1, 0, -1) if ".".join(parts[:end]) in exact)
                end = next(heads, 0)
                if end:
                    found[ours] = (".".join(parts[:end]), *parts[end:])
        return found


def value_at(data: Mapping[str, Any], place: Place) -> Any:
    """The value of a row at a place; None where the objects in it have no such field."""
    value = data[place[0]]
    for name in place[1:]:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def no_columns(names: Collection[str], places: Mapping[str, Place], where: str) -> Problem:
    """The fault of a table that lacks columns that every response needs, with those it has."""
    missing = [name for name in NEEDED if name not in places]
    used = {place[0] for place in places.values()}
    free = [name for name in names if name not in used]
    likely = {column_called(name): name for name in reversed(free)}
    pairs = [f"--map {printable(likely[ours])}={ours}" if ours in likely else f"--map …={ours}" for ours in missing]
    listed = ", ".join(map(printable, [*names][:_SHOWN_NAMES])) + (", …" if len(names) > _SHOWN_NAMES else "")
    what = f"no row has {' and '.join(missing)}, which every response needs"
    return Problem(what, where, f"say which columns they are, as in {' '.join(pairs)}; there are: {listed}")
