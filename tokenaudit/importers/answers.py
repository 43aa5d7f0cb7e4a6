"""What was imported, and what can be answered with it: by what was seen in the files, and by what an importer declares.

One count serves all: the summary, the table of a trial, and the test that shapes declare what comes through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import DEFAULT_TASK, EventKind
from tokenaudit.importers.base import Importer, Lack, Precision
from tokenaudit.importers.shapes import COLUMN_OF, Gives
from tokenaudit.log.writer import Row

_GIVEN_BY = {
    Precision.EXACT: Gives.EXACT,
    Precision.SEGMENT: Gives.SEGMENT,
    Precision.SPAN: Gives.SPAN,
    Precision.START: Gives.START,
}
_ASSUMED = "-s timeline.stamp_missing=true assumes some"


@dataclass(slots=True)
class Imports:
    """What was imported.

    Attributes:
        events: how many of each kind.
        responses: all of them.
        tokens: of all of them.
        precisions: responses by version precision.
        train_steps: the first and the last one.
        filled: responses by what they have beside versions.
        limits: what is missing.
    """

    events: Counter[str] = field(default_factory=Counter)
    responses: int = 0
    tokens: int = 0
    precisions: Counter[str] = field(default_factory=Counter)
    train_steps: tuple[int, int] | None = None
    filled: Counter[Gives] = field(default_factory=Counter)
    limits: tuple[str, ...] = ()

    def count(self, rows: Sequence[Row]) -> None:
        """Count the rows of one event."""
        first = rows[0]
        self.events[first["event"]] += 1
        step = first.get("train_step")
        if step is not None:
            low, high = self.train_steps or (step, step)
            self.train_steps = (min(low, step), max(high, step))
        if first["event"] == EventKind.PUT:
            self.responses += len(rows)
            self.tokens += sum(row["response_len"] for row in rows)
            self.precisions.update(str(row.get("version_precision", "exact")) for row in rows)
            self.filled.update(what for row in rows for what, name in COLUMN_OF.items() if _is_filled(row, name))

    def gives(self) -> set[Gives]:
        """What came through."""
        versions = {_GIVEN_BY[Precision(name)] for name in self.precisions if name != Precision.NONE}
        return {*versions, *self.filled} | ({Gives.TAKES} if self.events[EventKind.TAKE] else set())


def _is_filled(row: Row, name: str) -> bool:
    """Whether a response has something in a column; a length of 0 and the default task are nothing."""
    value = row.get(name)
    if value is None or (name == "task_name" and value == DEFAULT_TASK):
        return False
    return name != "response_len" or value > 0


class Answer(NamedTuple):
    """Whether a question can be answered, in a word or two, and why."""

    question: str
    answer: str
    why: str


def answers(importer: Importer, imports: Imports, limits: Container[str]) -> Iterator[Answer]:
    """What can be answered with what was read.

    Args:
        importer: the format, which declares what it reads.
        imports: what was read.
        limits: what is left out.
    """
    yield Answer("replay", *_replay(imports))
    yield Answer("token counts", *_known(Gives.LENGTHS, importer, imports))
    masks = _known(Gives.MASKS, importer, imports, "tokens without one count as trainable")
    if Lack.TRAINED_MASK in limits and imports.filled[Gives.MASKS]:
        masks = masks[0], "those of the training: what was masked for its age isn't told apart"
    yield Answer("masks", *masks)
    yield Answer("rewards", *_known(Gives.REWARDS, importer, imports))
    count = imports.events[EventKind.TAKE]
    taken = ("recorded", plural(count, "take")) if count else ("simulated", "the source records none")
    yield Answer("takes", *taken)
    yield Answer("dropped groups", *_dropped(limits))
    for what in (Gives.TRAINED_MASKS, Gives.TOKEN_IDS, Gives.LOGPROBS, Gives.TRAIN_LOGPROBS):
        if imports.filled[what]:
            yield Answer(what, *_known(what, importer, imports))


def _replay(imports: Imports) -> tuple[str, str]:
    """How replay reads the versions."""
    known = [name for name in imports.precisions if name != Precision.NONE]
    words = " or ".join(_GIVEN_BY[precision] for precision in Precision if precision in known)
    none = imports.precisions[Precision.NONE]
    if none:
        which = "no response has" if none == imports.responses else f"{_part(none, imports.responses)} lack"
        return "not at all", f"{which} a version; {_ASSUMED}"
    if {Precision.SPAN, Precision.START}.intersection(known):
        return "as intervals", words
    return "exact", words


def _known(what: Gives, importer: Importer, imports: Imports, rest: str = "") -> tuple[str, str]:
    """Whether responses have something: all, some or none."""
    count = imports.filled[what]
    if count == imports.responses:
        return "yes", "all responses"
    if count:
        return "in part", _part(count, imports.responses) + (f"; {rest}" if rest else "")
    none = "none in these files" if COLUMN_OF[what] in importer.reads else "the source records none"
    return "no", none + (f"; {rest}" if rest else "")


def _part(count: int, all_: int) -> str:
    return f"{count:,} of {plural(all_, 'response')}"


def _dropped(limits: Container[str]) -> tuple[str, str]:
    if Lack.DROPPED in limits:
        return "no", "trained batches only"
    if Lack.SNAPSHOT in limits:
        return "no", "one buffer at one moment"
    if Lack.CANCELLED in limits:
        return "in part", "generation that was cancelled leaves no record"
    return "yes", "as replay drops them"
