"""Version runs that a log stores in place of token columns, as the numbers and lists that those would give."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenaudit.log.columns import Bools, Int64s, Lists
from tokenaudit.log.faults import BatchFaults, FaultKind
from tokenaudit.log.given_runs import GivenRuns, check_runs

RUN_FAULTS = (FaultKind.NULL_ELEMENT, FaultKind.BAD_RUN, FaultKind.RUNS_BESIDE_TOKENS, FaultKind.RUNS_LENGTH)
"""What can be wrong with the runs of a row; a row's code is the position in this list, from 1."""

Arrays = dict[str, np.ndarray[Any, Any]]


def overlay_runs(
    arrays: Arrays, given: GivenRuns, versions: Lists, mask: Lists, is_put: Bools, faults: BatchFaults
) -> None:
    """Put what runs tell in the place of what rows without versions and masks tell.

    Args:
        arrays: numbers per row, as `scan_batch` makes them from token columns; changed here. New are `runs_fault`
            (0: none, else see `RUN_FAULTS`), `runs_sum` (tokens of all runs) and `runs_unversioned` (tokens of runs
            without a version).
        given: the runs.
        versions: the versions per token.
        mask: the semantic masks.
        is_put: put rows, of shape [rows].
        faults: an empty collection for the same batch.
    """
    rows, tokens = len(is_put), arrays["tokens"]
    check_runs(given, versions, mask, tokens, is_put, faults, allow_missing_versions=True)
    code = np.zeros(rows, dtype=np.int64)
    for number, kind in enumerate(RUN_FAULTS, 1):
        code[faults.where(kind) & (code == 0)] = number
    good = given.has_runs & (code == 0)
    owner = np.repeat(np.arange(rows), given.lengths)
    has_version = given.is_versioned
    arrays["runs_fault"], arrays["runs_sum"] = code, given.sums
    arrays["runs_unversioned"] = np.where(good, _sums(owner, np.where(has_version, 0, given.tokens), rows), 0)
    # Of a damaged row nothing is known; one finding is enough.
    arrays["versions_len"] = np.where(good, given.sums, np.where(code > 0, tokens, arrays["versions_len"]))
    used = good[owner] & has_version
    for name, first_of in (("oldest", np.minimum), ("newest", np.maximum)):
        values = np.full(rows, np.iinfo(np.int64).max if name == "oldest" else np.iinfo(np.int64).min)
        first_of.at(values, owner[used], given.model_step[used])
        arrays[name][good] = np.where(np.bincount(owner[used], minlength=rows) > 0, values, arrays[name])[good]
    falls = (given.model_step[1:] < given.model_step[:-1]) & used[1:] & used[:-1] & (owner[1:] == owner[:-1])
    arrays["version_falls"][good] = np.bincount(owner[1:][falls], minlength=rows)[good]
    arrays["mask_len"][good] = given.sums[good]
    arrays["mask_ones"][good] = _sums(owner, given.trainable, rows)[good]
    prior = np.clip(arrays["prior_len"], 0, None) if "prior_len" in arrays else np.zeros(rows, dtype=np.int64)
    starts = np.cumsum(given.tokens) - given.tokens
    first_run = np.cumsum(given.lengths) - given.lengths
    position = starts - np.append(starts, 0)[first_run][owner]
    # Where prior_len cuts a run that holds both kinds of tokens, as many as possible count as trainable.
    ones = np.minimum(np.clip(prior[owner] - position, 0, given.tokens), given.trainable)
    arrays["prior_ones"][good] = _sums(owner, ones, rows)[good]


def _sums(owner: Int64s, values: Int64s, rows: int) -> Int64s:
    sums = np.zeros(rows, dtype=np.int64)
    np.add.at(sums, owner, values)
    return sums


def unfolded(given: GivenRuns, versions: Lists, mask: Lists, lengths: Int64s) -> tuple[Lists, Lists, Bools]:
    """Versions and masks per token, those of rows with runs unfolded from them.

    Args:
        given: the runs.
        versions: the versions per token of the rows without runs.
        mask: their semantic masks.
        lengths: tokens per row; rows whose runs don't add up to that stay as they are.

    Returns:
        Versions, masks, and which rows tell them. Tokens of runs that hold both kinds count as not trainable: which
        ones are can't be told.
    """
    rows = len(lengths)
    owner = np.repeat(np.arange(rows), given.lengths)
    is_bad = (given.tokens < 1) | ~given.is_versioned
    own = given.has_runs & (given.sums == lengths) & (np.bincount(owner[is_bad], minlength=rows) == 0)
    used = own[owner]
    tokens = given.tokens[used]
    own_versions = np.repeat(given.model_step[used], tokens)
    own_mask = np.repeat(given.trainable[used] == tokens, tokens)
    nothing = np.zeros(0, dtype=np.int64)
    unfolded_lists = (
        Lists(
            _woven(own, lengths, values, lists),
            np.where(own, lengths, lists.lengths),
            lists.is_null & ~own,
            nothing,
        )
        for values, lists in ((own_versions, versions), (own_mask, mask))
    )
    return (*unfolded_lists, own | ~given.has_runs)  # type: ignore[return-value]


def _woven(own: Bools, lengths: Int64s, values: np.ndarray[Any, Any], others: Lists) -> np.ndarray[Any, Any]:
    """The elements of all rows in order: `values` of the rows in `own`, those of `others` elsewhere."""
    from_own = np.repeat(own, np.where(own, lengths, others.lengths))
    woven = np.zeros(len(from_own), dtype=np.int64)
    woven[from_own] = values
    woven[~from_own] = others.values[np.repeat(~own, others.lengths)]
    return woven
