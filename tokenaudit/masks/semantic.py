"""The semantic masks of planned responses, token by token, from the rows of a log."""

from __future__ import annotations

import numpy as np

from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.schema import VERSION_RUNS
from tokenaudit.log.columns import Bools, Int64s, Lists, interleaved, lists, marked
from tokenaudit.log.pieces import LogBatch
from tokenaudit.log.semantic_masks import masks_of_runs
from tokenaudit.log.version_runs import recorded_runs
from tokenaudit.masks.plan import MaskPlan


def semantic_masks(plan: MaskPlan, batch: LogBatch, first_row: int, offsets: Int64s) -> Bools | None:
    """Whether each token of the responses of a plan is in the loss; None where all are.

    Args:
        plan: the responses, whose rows are in `batch`.
        batch: rows with their masks or version runs.
        first_row: row of the log that `batch` begins with.
        offsets: first token of each response, and the end of the last, shape [M + 1].

    Raises:
        LogError: a run says how many of its tokens are in the loss, and nothing says which.
    """
    rows = plan.log_row - first_row
    column = _recorded_masks(batch, rows)
    lengths = np.diff(offsets)
    has_mask = ~column.is_null[rows] & (lengths > 0)
    has_entries = np.repeat(has_mask, np.diff(plan.first_run))
    run_trainable = plan.run_trainable
    if (~has_entries & (run_trainable != 0) & (run_trainable != plan.run_tokens)).any():
        hint = "let version runs end where the mask changes, or use the log they were made from"
        raise LogError(
            Problem("nothing says which tokens of a response are in the loss", batch.places.text(batch.rows), hint)
        )
    if not has_mask.any() and run_trainable.all():
        return None
    starts = np.cumsum(column.lengths) - column.lengths
    own_starts = starts[rows]
    if has_mask.all() and (np.diff(own_starts) == lengths[:-1]).all():
        return column.values[own_starts[0] : own_starts[0] + offsets[-1] - offsets[0]] != 0
    semantic = np.repeat(has_entries | (run_trainable != 0), plan.run_tokens)
    shift = np.repeat((own_starts - offsets[:-1])[has_mask], lengths[has_mask])
    targets = np.flatnonzero(np.repeat(has_mask, lengths))
    semantic[targets] = column.values[targets + shift] != 0
    return semantic


def _recorded_masks(batch: LogBatch, rows: Int64s) -> Lists:
    """The masks of some rows, from their mask column or, where their version runs determine them, from those."""
    masks = lists(batch.columns.get("response_mask"), batch.rows)
    recorded = recorded_runs(batch.columns.get(VERSION_RUNS), batch.rows)
    if recorded is None:
        return masks
    by_runs = marked(batch.rows, rows) & recorded.has_runs & ~masks_of_runs(recorded).is_unknown
    of_runs = np.repeat(by_runs, recorded.lengths)
    counts = np.where(by_runs, recorded.sums, masks.lengths)
    values = np.repeat(recorded.trainable[of_runs] != 0, recorded.tokens[of_runs])
    values = interleaved(by_runs, counts, values, masks.values != 0)
    return Lists(values, counts, masks.is_null & ~by_runs, masks.null_element_rows)
