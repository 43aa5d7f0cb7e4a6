"""Semantic masks as runs, from mask columns and from recorded version runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.log.columns import Bools, Int64s, Lists, marked
from tokenaudit.log.version_runs import RecordedRuns, Runs, run_heads


class SemanticMasks:
    """Masks of R responses as runs of equal values; a response without runs is all ones.

    Args:
        first: index of each response's first run, shape [R + 1].
        start: position in the response at which each run begins.
        is_one: whether the tokens of each run are in the loss.
    """

    def __init__(self, first: Int64s, start: Int64s, is_one: Bools) -> None:
        self._first = first
        self._start = start
        self._is_one = is_one
        lengths = np.diff(start, append=0)
        ones = np.cumsum(np.where(is_one, lengths, 0)) - np.where(is_one, lengths, 0)
        # The last run of a response has no length of its own; what it adds to later responses falls out here.
        base = np.repeat(ones[np.minimum(first[:-1], max(len(ones) - 1, 0))], np.diff(first)) if len(ones) else ones
        self._ones_before = ones - base
        # Plain memory hands out Python integers, which single look-ups need.
        self._first_at, self._start_at = first.data, start.data
        self._is_one_at, self._ones_before_at = is_one.data, self._ones_before.data

    def __len__(self) -> int:
        return len(self._first) - 1

    def trainable(self, row: int, tokens: int) -> int:
        """Tokens in the loss among the first `tokens` of a response; cost grows with the logarithm of its runs."""
        low, high = self._first_at[row], self._first_at[row + 1]
        if low == high or tokens == 0:
            return tokens
        run = bisect_right(self._start_at, tokens - 1, low, high) - 1
        return self._ones_before_at[run] + (tokens - self._start_at[run] if self._is_one_at[run] else 0)

    def take(self, rows: Int64s) -> SemanticMasks:
        """The masks of some responses, in the order of `rows`."""
        counts = (self._first[1:] - self._first[:-1])[rows]
        first = np.concatenate([[0], np.cumsum(counts)])
        index = np.repeat(self._first[rows] - first[:-1], counts) + np.arange(first[-1])
        return SemanticMasks(first, self._start[index], self._is_one[index])

    def prefixes(self, rows: Int64s, tokens: Int64s) -> np.ndarray[Any, np.dtype[np.int8]]:
        """The first tokens of the masks of some responses, one after the other, as 0 and 1.

        Args:
            rows: responses that have a mask.
            tokens: how many tokens of each, as many as it has at most.
        """
        picked = self.take(rows)
        counts = np.diff(picked._first)
        ends = np.append(picked._start[1:], 0)
        ends[picked._first[1:] - 1] = tokens
        limit = np.repeat(tokens, counts)
        lengths = np.minimum(ends, limit) - np.minimum(picked._start, limit)
        return np.repeat(picked._is_one.astype(np.int8), lengths)

    def without_all_ones(self) -> SemanticMasks:
        """The same masks, without runs where a mask is all ones."""
        first, counts = self._first[:-1], np.diff(self._first)
        # Neighbouring runs differ, so a mask of all ones is a single run.
        is_all_ones = counts == 1
        is_all_ones[is_all_ones] = self._is_one[first[is_all_ones]]
        chosen = np.repeat(~is_all_ones, counts)
        first = np.concatenate([[0], np.cumsum(np.where(is_all_ones, 0, counts))])
        return SemanticMasks(first, self._start[chosen], self._is_one[chosen])

    def arrays(self) -> tuple[Int64s, Int64s, Bools]:
        """What it was made of."""
        return self._first, self._start, self._is_one


def masks_of(lists: Lists) -> SemanticMasks:
    """Reduce a column of masks; null and empty lists are all ones."""
    lengths = lists.lengths
    flags = lists.values if lists.values.dtype == np.bool_ else lists.values != 0
    starts = np.cumsum(lengths) - lengths
    heads = run_heads(flags, lengths)
    owner = np.searchsorted(starts, heads, side="right") - 1
    # Of responses that begin at the same position only the last one has tokens.
    first = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(lengths)))])
    return SemanticMasks(first, heads - starts[owner], flags[heads])


def joined(parts: Sequence[SemanticMasks]) -> SemanticMasks:
    """Masks of several batches, one after the other."""
    counts = [np.diff(part.arrays()[0]) for part in parts]
    return SemanticMasks(
        np.concatenate([[0], np.cumsum(np.concatenate(counts))]),
        np.concatenate([part.arrays()[1] for part in parts]),
        np.concatenate([part.arrays()[2] for part in parts]),
    )


class RunMasks(NamedTuple):
    """The masks that follow from the recorded version runs of R rows.

    Attributes:
        masks: the masks; a row without runs, or whose mask isn't known, is all ones.
        is_unknown: whether a run of the row holds tokens in the loss and others, of shape [R].
    """

    masks: SemanticMasks
    is_unknown: Bools


def masks_of_runs(recorded: RecordedRuns) -> RunMasks:
    """The masks of recorded version runs: a run that all or none of is in the loss is a part of the mask."""
    rows, owner = len(recorded.lengths), recorded.owner
    is_one = recorded.trainable != 0
    is_unknown = marked(rows, owner[is_one & (recorded.trainable != recorded.tokens)])
    heads = run_heads(is_one, recorded.lengths)
    heads = heads[(marked(rows, owner[~is_one]) & ~is_unknown)[owner[heads]]]
    before = np.cumsum(recorded.tokens) - recorded.tokens
    first_of_row = np.cumsum(recorded.lengths) - recorded.lengths
    starts = before[heads] - before[first_of_row[owner[heads]]]
    first = np.concatenate([[0], np.cumsum(np.bincount(owner[heads], minlength=rows))])
    return RunMasks(SemanticMasks(first, starts, is_one[heads]), is_unknown)


def split_at_masks(runs: Runs, masks: SemanticMasks) -> Runs:
    """Cut version runs where a mask changes, so that all or none of the tokens of each are in the loss.

    Args:
        runs: the runs of R responses.
        masks: their masks, as long as they are.
    """
    responses = len(runs.counts)
    mask_first, mask_start, is_one = masks.arrays()
    ends = np.cumsum(runs.tokens, dtype=np.int64)
    run_heads = ends - runs.tokens
    total = int(ends[-1]) if len(ends) else 0
    first = np.cumsum(runs.counts) - runs.counts
    base = np.append(run_heads, total)[first]
    mask_heads = mask_start + np.repeat(base, np.diff(mask_first))
    heads = np.union1d(run_heads, mask_heads)
    run = np.searchsorted(run_heads, heads, side="right") - 1
    owner = np.repeat(np.arange(responses), runs.counts)[run]
    tokens = np.diff(heads, append=total).astype(np.int32)
    trainable = tokens.copy()
    if len(mask_heads):
        is_masked = (np.diff(mask_first) > 0)[owner]
        trainable[is_masked & ~is_one[np.searchsorted(mask_heads, heads, side="right") - 1]] = 0
    counts = np.bincount(owner, minlength=responses).astype(np.int64)
    return Runs(counts, runs.model_step[run], tokens, trainable)
