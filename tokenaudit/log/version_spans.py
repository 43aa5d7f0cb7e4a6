"""Logs whose versions are known as spans: the same log with every token as new as its source allows.

A digest reads such tokens as old as they may be. Replaying both readings shows what depends on the difference.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokenaudit.log import columns as col
from tokenaudit.log.batches import read_batches
from tokenaudit.log.columns import INT32_MAX
from tokenaudit.log.digest import NO_VALUE, Digest
from tokenaudit.log.files import Log

NEWEST = "model_step_end"
"""The column with the newest version that the tokens of a response may have."""


def newest_reading(log: Log, digest: Digest) -> Digest | None:
    """The digest of the newest reading; None where the log gives every version.

    Args:
        log: an opened log with the column `NEWEST`.
        digest: its digest.

    Raises:
        LogError: the log changed while it was read.
    """
    parts = [
        col.integers(batch.columns.get(NEWEST), batch.rows, fill=NO_VALUE) for batch in read_batches(log, [NEWEST])
    ]
    values = np.concatenate(parts)[digest.log_row]
    # one out of range counts as none
    newest = np.where((values >= 0) & (values <= INT32_MAX), values, NO_VALUE)
    runs, responses, events = digest.runs, digest.responses, digest.events
    row = np.searchsorted(responses.first_run, np.arange(len(runs.model_step)), side="right") - 1
    raised = np.maximum(runs.model_step, newest[row]).astype(np.int32)
    if np.array_equal(raised, runs.model_step):
        return None
    puts = np.flatnonzero(np.diff(events.first_response) > 0)
    model_step = events.model_step.copy()
    of_put = np.maximum.reduceat(newest, events.first_response[puts])
    model_step[puts] = np.maximum(model_step[puts], of_put)
    return replace(digest, runs=runs._replace(model_step=raised), events=events._replace(model_step=model_step))


def uncertain_responses(oldest: Digest, newest: Digest) -> int:
    """Responses whose versions differ between the two readings."""
    differs = np.flatnonzero(oldest.runs.model_step != newest.runs.model_step)
    return len(np.unique(np.searchsorted(oldest.responses.first_run, differs, side="right")))
