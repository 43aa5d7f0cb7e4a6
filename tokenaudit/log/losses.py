"""What a log lacks of its run: events that its recorder didn't write, ranks without a part, parts that are gone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import META_DROPPED

PART_NAME = re.compile(r"part-(?:rank(?P<rank>\d{4,})-)?(?P<number>\d{6,})\.parquet")
"""Name of a part of a recording; the parts of a folder, or of a rank there, are numbered from 1 without gaps."""

_LONGEST_NAMES = 500
_MOST_GAPS = 20
_RANGE = re.compile(r"\b(\d{1,18})(?:\.parquet)?(?: to (?:[\w-]*-)?(\d{1,18})\b)?")
_OTHERS = re.compile(r" and (\d{1,18}) others?")


class Loss(NamedTuple):
    """Something that a log lacks.

    Attributes:
        kind: what is lost; losses of one kind can be compared.
        size: how much of it.
        text: a sentence that says so.
    """

    kind: str
    size: int
    text: str


def loss_text(key: str, events: int) -> str:
    """That a recorder lost events, which the metadata counts under `META_DROPPED` or `META_REJECTED`."""
    counted = f"{events} event{'s' * (events != 1)}"
    if key == META_DROPPED:
        return f"the recorder dropped {counted} because its queue was full"
    return f"the recorder refused {counted} that couldn't be recorded"


def lost_ranks(ranks: str) -> Loss:
    """That ranks, as `missing_ranks` names them, wrote no part."""
    return Loss("ranks", _size(ranks.split(" of ")[0]), f"there is no part of ranks {ranks[:_LONGEST_NAMES]}")


def lost_parts(parts: str) -> Loss:
    """That parts, as `missing_parts` names them, are gone."""
    return Loss("parts", _size(parts), f"parts of the recording are missing: {parts[:_LONGEST_NAMES]}")


def missing_parts(found: Iterable[tuple[Path, Sequence[Path]]]) -> str:
    """The parts that are gone before or between others, for people; nothing where none is.

    Args:
        found: paths that were given, each with the files behind it. In a folder or a pattern the first part has to be
            there; where files are named one by one, only what is between them.
    """
    numbers: defaultdict[tuple[Path, str], set[int]] = defaultdict(set)
    for path, files in found:
        for file in files:
            if name := PART_NAME.fullmatch(file.name):
                before = file.name[: name.start("number")]
                # one folder may be named in several ways
                numbers[file.parent.resolve(), before] |= (
                    {int(name["number"])} if file == path else {0, int(name["number"])}
                )
    gaps = [
        (before, low + 1, high - 1)
        for (_, before), present in numbers.items()
        for low, high in pairwise(sorted(present))
        if high - low > 1
    ]
    texts = [
        f"{before}{low:06}.parquet" if low == high else f"{before}{low:06}.parquet to {before}{high:06}.parquet"
        for before, low, high in gaps[:_MOST_GAPS]
    ]
    left = sum(high - low + 1 for _, low, high in gaps[_MOST_GAPS:])
    return ", ".join(texts) + (f" and {plural(left, 'other')}" if left else "")


def _size(names: str) -> int:
    """How many numbered things a text names: `1, 4 to 6 and 3 others` are 7."""
    others = sum(int(match[1]) for match in _OTHERS.finditer(names))
    pairs = (match.groups() for match in _RANGE.finditer(_OTHERS.sub("", names)))
    return others + sum(max(1, int(last or first) - int(first) + 1) for first, last in pairs)
