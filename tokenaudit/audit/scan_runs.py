"""Version runs that a log stores in place of token columns, as the numbers and lists that those would give."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenaudit.log.batch_columns import BatchColumns, RowNumbers
from tokenaudit.log.columns import Bools, Int64s, Lists, interleaved
from tokenaudit.log.faults import BatchFaults, FaultKind
from tokenaudit.log.structural_checks import check_runs
from tokenaudit.log.version_runs import RecordedRuns

RUN_FAULTS = (FaultKind.NULL_ELEMENT, FaultKind.BAD_RUN, FaultKind.RUNS_BESIDE_TOKENS, FaultKind.RUNS_LENGTH)
"""What can be wrong with the runs of a row; a row's code is the position in this list, from 1."""

Arrays = dict[str, np.ndarray[Any, Any]]


def overlay_runs(arrays: Arrays, recorded: RecordedRuns, columns: BatchColumns) -> None:
    """Put what recorded runs say in the place of what rows without versions and masks say.

    Args:
        arrays: numbers per row, as `scan_batch` makes them from token columns; changed here. New are `runs_fault`
            (0: none, else see `RUN_FAULTS`), `runs_sum` (tokens of all runs) and `runs_unversioned` (tokens of runs
            without a version).
        recorded: the runs.
        columns: the batch they are part of.
    """
    rows, tokens, batch = columns.rows, arrays["tokens"], columns.batch
    faults = BatchFaults(batch.path, batch.first_row, rows)
    is_beside = ~(columns.versions.is_null & columns.mask.is_null)
    check_runs(recorded, RowNumbers(arrays, {}), is_beside, faults, allow_missing_versions=True)
    code = np.zeros(rows, dtype=np.int64)
    for number, kind in enumerate(RUN_FAULTS, 1):
        code[faults.where(kind) & (code == 0)] = number
    good = recorded.has_runs & (code == 0)
    owner = recorded.owner
    has_version = recorded.is_versioned
    arrays["runs_fault"], arrays["runs_sum"] = code, recorded.sums
    arrays["runs_unversioned"] = np.where(good, _sums(owner, np.where(has_version, 0, recorded.tokens), rows), 0)
    # Of a damaged row nothing is known; one finding is enough.
    arrays["versions_len"] = np.where(good, recorded.sums, np.where(code > 0, tokens, arrays["versions_len"]))
    used = good[owner] & has_version
    for name, first_of in (("oldest", np.minimum), ("newest", np.maximum)):
        values = np.full(rows, np.iinfo(np.int64).max if name == "oldest" else np.iinfo(np.int64).min)
        first_of.at(values, owner[used], recorded.model_step[used])
        arrays[name][good] = np.where(np.bincount(owner[used], minlength=rows) > 0, values, arrays[name])[good]
    falls = (recorded.model_step[1:] < recorded.model_step[:-1]) & used[1:] & used[:-1] & (owner[1:] == owner[:-1])
    arrays["version_falls"][good] = np.bincount(owner[1:][falls], minlength=rows)[good]
    arrays["mask_len"][good] = recorded.sums[good]
    arrays["mask_ones"][good] = _sums(owner, recorded.trainable, rows)[good]
    prior = np.clip(arrays["prior_len"], 0, None) if "prior_len" in arrays else np.zeros(rows, dtype=np.int64)
    starts = np.cumsum(recorded.tokens) - recorded.tokens
    first_run = np.cumsum(recorded.lengths) - recorded.lengths
    position = starts - np.append(starts, 0)[first_run][owner]
    # Where prior_len cuts a run that holds both kinds of tokens, as many as possible count as trainable.
    ones = np.minimum(np.clip(prior[owner] - position, 0, recorded.tokens), recorded.trainable)
    arrays["prior_ones"][good] = _sums(owner, ones, rows)[good]


def _sums(owner: Int64s, values: Int64s, rows: int) -> Int64s:
    sums = np.zeros(rows, dtype=np.int64)
    np.add.at(sums, owner, values)
    return sums


def unfolded(recorded: RecordedRuns, versions: Lists, mask: Lists, lengths: Int64s) -> tuple[Lists, Lists, Bools]:
    """Versions and masks per token, those of rows with runs unfolded from them.

    Args:
        recorded: the runs.
        versions: the versions per token of the rows without runs.
        mask: their semantic masks.
        lengths: tokens per row; rows whose runs don't add up to that stay as they are.

    Returns:
        Versions, masks, and which rows have them. Tokens of runs that hold both kinds count as not trainable: which
        ones are isn't recorded.
    """
    rows = len(lengths)
    owner = recorded.owner
    is_bad = (recorded.tokens < 1) | ~recorded.is_versioned
    own = recorded.has_runs & (recorded.sums == lengths) & (np.bincount(owner[is_bad], minlength=rows) == 0)
    used = own[owner]
    tokens = recorded.tokens[used]
    own_versions = np.repeat(recorded.model_step[used], tokens)
    own_mask = np.repeat(recorded.trainable[used] == tokens, tokens)
    nothing = np.zeros(0, dtype=np.int64)
    unfolded_lists = (
        Lists(
            interleaved(own, counts, values, lists.values[np.repeat(~own, lists.lengths)]),
            counts,
            lists.is_null & ~own,
            nothing,
        )
        for values, lists in ((own_versions, versions), (own_mask, mask))
        for counts in (np.where(own, lengths, lists.lengths),)
    )
    return (*unfolded_lists, own | ~recorded.has_runs)  # type: ignore[return-value]
