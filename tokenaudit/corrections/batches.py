"""The batches that steps train: log-probabilities and masks of their responses, gathered in one pass over a log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.contracts.schema import VERSION_RUNS
from tokenaudit.corrections.logprobs import BOTH, are_all_judged, is_judged, with_nan
from tokenaudit.corrections.result import NotJudged
from tokenaudit.log import columns as col
from tokenaudit.log.batches import map_batches
from tokenaudit.log.columns import Bools, Floats, Int64s, Lists
from tokenaudit.log.files import Log
from tokenaudit.log.pieces import LogBatch
from tokenaudit.masks.plan import MaskPlan
from tokenaudit.masks.semantic import semantic_masks

READ_COLUMNS = ("event_id", *BOTH, "response_mask", VERSION_RUNS, "advantage", "reward", "agentic")
"""Columns that are read."""
_AHEAD_BYTES = 64 << 20
_OWN_SHARE = 0.5
"""Share of a batch of rows that a piece has to have, to be kept as it was read rather than copied."""

Array = np.ndarray[Any, Any]


class Flat:
    """An array that comes in pieces, of which parts can be had without joining all of them.

    Args:
        pieces: the pieces, one after the other.
    """

    def __init__(self, pieces: Sequence[Array]) -> None:
        self._pieces = pieces
        self._starts = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces], dtype=np.int64)])

    def part(self, start: int, stop: int) -> Array:
        """Its elements from `start` to before `stop`."""
        first = min(int(np.searchsorted(self._starts, start, side="right")), len(self._pieces)) - 1
        last = max(int(np.searchsorted(self._starts, stop, side="left")), first + 1)
        begin = int(self._starts[first])
        chosen = self._pieces[first:last]
        joined = chosen[0] if len(chosen) == 1 else np.concatenate(chosen)
        return joined[start - begin : stop - begin]


class TakenBatch(NamedTuple):
    """The responses that a step takes: R that can be judged, with N tokens.

    Attributes:
        train_step: the step.
        entries: where each stands in the plan, shape [R], ascending.
        lengths: tokens of each, shape [R].
        rollout: log-probabilities of the engine, shape [N]; 0 where they can't be judged.
        trained: those of the trainer.
        mask: whether each token is in the loss and can be judged, bool of shape [N].
        unjudged: whether each token is in the loss and can't, bool of shape [N]; None: there is none.
        advantage: the column of each response, shape [R], NaN where it isn't known.
        rewards: the reward of every response of the step, those that can't be judged included; NaN where unscored.
        all_entries: where these stand in the plan.
        agentic: which of these are agentic.
        not_judged: tokens in the loss that can't be judged.
    """

    train_step: int
    entries: Int64s
    lengths: Int64s
    rollout: Flat
    trained: Flat
    mask: Flat
    unjudged: Flat | None
    advantage: Floats
    rewards: Floats
    all_entries: Int64s
    agentic: Bools
    not_judged: NotJudged


class _Piece(NamedTuple):
    """What a batch of rows holds of a step; see `TakenBatch`."""

    entries: Int64s
    lengths: Int64s
    rollout: Array
    trained: Array
    mask: Bools
    unjudged: Bools | None
    advantage: Floats
    rewards: Floats
    all_entries: Int64s
    agentic: Bools
    not_judged: NotJudged


class _Read(NamedTuple):
    """What is needed of a batch of rows."""

    rows: int
    last_row: int
    pieces: list[tuple[int, _Piece]]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(part.nbytes for _, piece in self.pieces for part in piece if isinstance(part, np.ndarray))


def taken_batches(log: Log, plan: MaskPlan, on_progress: Callable[[int], None] | None = None) -> Iterator[TakenBatch]:
    """The batch of every step of a plan, as soon as the log was read up to its last response.

    Held are the batches that aren't complete yet.

    Args:
        log: the log that the plan was made from.
        plan: the responses.
        on_progress: called with the number of rows of the log read so far.

    Raises:
        LogError: the log can't be read again, or doesn't say which tokens of a response are in the loss.
    """
    steps, index = np.unique(plan.train_step, return_inverse=True)
    last_row = np.zeros(len(steps), dtype=np.int64)
    np.maximum.at(last_row, index, plan.log_row)
    order = np.lexsort((steps, last_row))
    waiting: dict[int, list[_Piece]] = defaultdict(list)
    tokens, in_loss = plan.tokens(), _trainable(plan)
    complete = 0
    reads = map_batches(
        log,
        READ_COLUMNS,
        lambda batch: _read(plan, tokens, in_loss, batch),
        rows_of=lambda read: read.rows,
        weigh=lambda read: read.nbytes,
        limit=_AHEAD_BYTES,
        on_progress=on_progress,
    )
    for read in reads:
        for step, piece in read.pieces:
            waiting[step].append(piece)
        while complete < len(order) and last_row[order[complete]] < read.last_row:
            step = int(steps[order[complete]])
            yield _batch(step, waiting.pop(step))
            complete += 1


def _batch(step: int, pieces: list[_Piece]) -> TakenBatch:
    def joined(name: str) -> Array:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    unjudged = None
    if any(piece.unjudged is not None for piece in pieces):
        unjudged = Flat([np.zeros(len(p.mask), dtype=np.bool_) if p.unjudged is None else p.unjudged for p in pieces])
    return TakenBatch(
        step,
        joined("entries"),
        joined("lengths"),
        Flat([piece.rollout for piece in pieces]),
        Flat([piece.trained for piece in pieces]),
        Flat([piece.mask for piece in pieces]),
        unjudged,
        joined("advantage"),
        joined("rewards"),
        joined("all_entries"),
        joined("agentic"),
        added(piece.not_judged for piece in pieces),
    )


def added(parts: Iterable[NotJudged]) -> NotJudged:
    """The sums of what can't be judged."""
    return NotJudged(*(sum(column) for column in zip(*map(astuple, parts), strict=True)))


def _read(plan: MaskPlan, tokens: Int64s, in_loss: Int64s, batch: LogBatch) -> _Read:
    """What the rows of a batch hold of every step, in the order of steps."""
    last_row = batch.first_row + batch.rows
    first, last = np.searchsorted(plan.log_row, [batch.first_row, last_row]).tolist()
    entries = np.arange(first, last)
    lists = [with_nan(col.lists(batch.columns.get(name), batch.rows), batch.columns.get(name)) for name in BOTH]
    numbers = {name: col.reals(batch.columns.get(name), batch.rows) for name in ("advantage", "reward")}
    agentic = col.flags(batch.columns.get("agentic"), batch.rows)
    pieces: list[tuple[int, _Piece]] = []
    steps = plan.train_step[first:last]
    for step in np.unique(steps).tolist():
        own = entries[steps == step]
        rows = plan.log_row[own] - batch.first_row
        is_judged, not_judged = _judged_responses(tokens[own], in_loss[own], rows, lists)
        chosen = own[is_judged]
        piece = _piece(plan.of(chosen), tokens[chosen], batch, lists)
        pieces.append(
            (
                step,
                _Piece(
                    chosen,
                    tokens[chosen],
                    *piece[:4],
                    _finite(numbers["advantage"])[rows[is_judged]],
                    _finite(numbers["reward"])[rows],
                    own,
                    agentic[rows],
                    added((not_judged, piece[4])),
                ),
            )
        )
    return _Read(batch.rows, last_row, pieces)


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


def _judged_responses(wanted: Int64s, in_loss: Int64s, rows: Int64s, lists: Sequence[Lists]) -> tuple[Bools, NotJudged]:
    """Which responses of `wanted` tokens have both log-probabilities of each, and what the others hold in the loss."""
    rollout, trained = lists
    is_empty = wanted == 0
    lacks = rollout.is_null[rows] & ~is_empty
    lacks_trained = trained.is_null[rows] & ~is_empty & ~lacks
    fits = (rollout.lengths[rows] == wanted) & (trained.lengths[rows] == wanted)
    other = ~fits & ~is_empty & ~lacks & ~lacks_trained
    is_judged = fits | is_empty
    sums = [int(in_loss[where].sum()) for where in (lacks, lacks_trained, other)]
    return is_judged, NotJudged(*sums, responses=int((~is_judged).sum()))


def _trainable(plan: MaskPlan) -> Int64s:
    """Tokens in the loss of each response."""
    before = np.concatenate([[0], np.cumsum(plan.run_trainable, dtype=np.int64)])
    return np.diff(before[plan.first_run])


def _piece(
    plan: MaskPlan, lengths: Int64s, batch: LogBatch, lists: Sequence[Lists]
) -> tuple[Array, Array, Bools, Bools | None, NotJudged]:
    """Both log-probabilities, the mask, which tokens in the loss can't be judged, and how many of these there are."""
    rows = plan.log_row - batch.first_row
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rollout, trained = (_elements(one, rows, lengths) for one in lists)
    mask = semantic_masks(plan, batch, batch.first_row, offsets)
    if mask is None:
        mask = np.ones(len(rollout), dtype=np.bool_)
    if not len(rollout) or are_all_judged(rollout, trained):
        return rollout, trained, mask, None, NotJudged()
    good = is_judged(rollout) & is_judged(trained)
    bad = np.flatnonzero(~good & mask)
    is_null = np.zeros(len(bad), dtype=np.bool_)
    for one, name in zip(lists, BOTH, strict=True):
        array = batch.columns[name]
        if len(one.null_element_rows):
            is_null |= _elements(one._replace(values=col.nulls(array.flatten())), rows, lengths)[bad]
    is_odd = ~np.isfinite(rollout[bad]) | ~np.isfinite(trained[bad])
    counts = NotJudged(
        null=int(is_null.sum()),
        not_finite=int((is_odd & ~is_null).sum()),
        sentinel=int((~is_odd & ~is_null).sum()),
    )
    unjudged = mask & ~good if len(bad) else None
    rollout, trained = (np.where(good, side, side.dtype.type(0)) for side in (rollout, trained))
    return rollout, trained, mask & good, unjudged, counts


def _elements(lists: Lists, rows: Int64s, lengths: Int64s) -> Array:
    """The elements of some rows, ascending, as many as `lengths` says; no copy where they are most of what there is."""
    filled = np.flatnonzero(lengths)
    starts = (np.cumsum(lists.lengths) - lists.lengths)[rows[filled]]
    ends = starts + lengths[filled]
    heads = np.flatnonzero(np.append(True, starts[1:] != ends[:-1])) if len(filled) else filled
    parts = [lists.values[starts[begin] : ends[end - 1]] for begin, end in pairwise([*heads.tolist(), len(filled)])]
    if len(parts) == 1 and len(parts[0]) >= _OWN_SHARE * len(lists.values):
        return parts[0]
    return np.concatenate(parts) if parts else lists.values[:0].copy()
