"""What a source holds more than once: steps of a run that was resumed, groups of checkpoints that overlap.

An importer says of each event what it belongs to and where that writing of it begins, as a `Writing`;
`trained_batches` and `trained_responses` do so for train steps. The rest happens in `write.py`: one writing is kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from enum import StrEnum
from typing import NamedTuple

from tokenaudit.contracts.errors import plural

_SHOWN_SPANS = 5


class Keep(StrEnum):
    """Which writing is kept of what a source holds more than once."""

    LAST = "last"
    FIRST = "first"
    BOTH = "both"


class Writing(NamedTuple):
    """One writing of something that a source should hold once.

    Events of one kind with equal `of` and equal `place` are one writing, in any order; another place is another
    writing. Puts and takes of one step are told apart, so they may name places of their own.

    Attributes:
        of: what is written, such as a train step, or task and group of a buffer.
        place: where this writing begins: a file, or a file and a line.
    """

    of: Hashable
    place: str


class LeftOut(NamedTuple):
    """What isn't kept: the writings, as `Repeats` knows them, their train steps in order, and their responses."""

    writings: frozenset[int]
    train_steps: list[int]
    responses: int

    def message(self, keep: Keep) -> str:
        """What happened to them."""
        steps = spans_text(self.train_steps)
        what = f"{steps} written more than once, as by a resumed run or by checkpoints that overlap"
        if keep is Keep.BOTH:
            return f"{what}: all of it is kept, so {plural(self.responses, 'response')} may count twice"
        others = "earlier" if keep is Keep.LAST else "later"
        return (
            f"{what}: the {keep} writing is kept, and {plural(self.responses, 'response')} of {others} ones left out "
            "(--keep last, first or both)"
        )


class Repeats:
    """Notices what is written more than once, while events go by.

    Of consecutive events of one writing 32 bytes are held.
    """

    def __init__(self) -> None:
        self._entries = array("q")
        self._last: int | None = None

    def see(self, kind: str, writing: Writing, train_step: int, responses: int) -> int:
        """Note the next event; the number of its writing."""
        number = hash((kind, writing))
        if number == self._last and self._entries[-2] == train_step:
            self._entries[-1] += responses
        else:
            self._entries.extend((hash((kind, writing.of)), number, train_step, responses))
            self._last = number
        return number

    def left_out(self, keep: Keep) -> LeftOut | None:
        """What isn't kept; with both, what stands there once more. None if nothing is written more than once."""
        # the command line names what is kept before it needs numpy
        import numpy as np

        units, numbers, steps, responses = np.frombuffer(self._entries, dtype=np.int64).reshape(-1, 4).T
        _, first, writing_of = np.unique(numbers, return_index=True, return_inverse=True)
        order = np.lexsort((first, units[first]))
        is_again = np.diff(units[first][order]) == 0
        if not is_again.any():
            return None
        # of neighbours that are writings of one thing, the earlier one goes, or the later one
        left = order[1:][is_again] if keep is Keep.FIRST else order[:-1][is_again]
        entries = np.isin(writing_of, left)
        writings = frozenset(numbers[first[left]].tolist())
        return LeftOut(writings, np.unique(steps[entries]).tolist(), int(responses[entries].sum()))


def spans_text(train_steps: Iterable[int]) -> str:
    """Train steps in order, in words: `train step 4 is`, `train steps 4 to 6, 8 are`; the first spans of them."""
    spans: list[list[int]] = []
    for step in train_steps:
        if spans and step == spans[-1][1] + 1:
            spans[-1][1] = step
        else:
            spans.append([step, step])
    parts = [str(low) if low == high else f"{low} to {high}" for low, high in spans]
    more = [f"{len(parts) - _SHOWN_SPANS} more spans"] if len(parts) > _SHOWN_SPANS else []
    is_one = len(spans) == 1 and spans[0][0] == spans[0][1]
    return f"train step{'' if is_one else 's'} {', '.join(parts[:_SHOWN_SPANS] + more)} {'is' if is_one else 'are'}"
