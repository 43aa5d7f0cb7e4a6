"""Semantic masks in logs of version runs: a run that all or none of is in the loss tells its part of the mask."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenaudit.log.columns import Bools
from tokenaudit.log.given_runs import GivenRuns
from tokenaudit.log.semantic_masks import SemanticMasks
from tokenaudit.log.version_runs import Runs


class ToldMasks(NamedTuple):
    """What the version runs of R rows tell of their masks.

    Attributes:
        masks: the masks; a row that gives no runs, or whose mask isn't known, is all ones.
        is_unknown: whether a run of the row holds tokens in the loss and others, of shape [R].
    """

    masks: SemanticMasks
    is_unknown: Bools


def told_masks(given: GivenRuns) -> ToldMasks:
    """The masks that version runs tell."""
    rows = len(given.lengths)
    owner = np.repeat(np.arange(rows), given.lengths)
    is_unknown = np.zeros(rows, dtype=np.bool_)
    is_unknown[owner[(given.trainable != 0) & (given.trainable != given.tokens)]] = True
    has_zero = np.zeros(rows, dtype=np.bool_)
    has_zero[owner[given.trainable == 0]] = True
    is_one = given.trainable != 0
    begins = np.ones(len(owner), dtype=np.bool_)
    begins[1:] = (owner[1:] != owner[:-1]) | (is_one[1:] != is_one[:-1])
    heads = np.flatnonzero(begins & (has_zero & ~is_unknown)[owner])
    before = np.cumsum(given.tokens) - given.tokens
    first_of_row = np.cumsum(given.lengths) - given.lengths
    starts = before[heads] - before[first_of_row[owner[heads]]]
    first = np.concatenate([[0], np.cumsum(np.bincount(owner[heads], minlength=rows))])
    return ToldMasks(SemanticMasks(first, starts, is_one[heads]), is_unknown)


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
