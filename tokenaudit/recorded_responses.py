"""Responses as a log records them, made many at a time: one numpy call for a single put costs more than the put."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tokenaudit.columns import Int64s
from tokenaudit.digest import STATUSES, Digest
from tokenaudit.lifecycle.types import Response, VersionRun
from tokenaudit.runs import Int32s

_MOST_ROWS = 256
"""Responses made at a time where puts are asked for in the order of the log."""


class RecordedResponses:
    """The responses of a digest.

    Args:
        digest: the log.
        model_step: version of every run under some timeline, int32, in the order of the digest's runs.

    A prior length that isn't recorded counts as 0 here.
    """

    def __init__(self, digest: Digest, model_step: Int32s) -> None:
        self._digest = digest
        self._model_step = model_step
        self._oldest, self._newest_trainable, self._trainable_tokens = _measures(digest, model_step)
        self._first = self._last = 0
        self._made: list[Response] = []

    def rows(self, first: int, last: int) -> list[Response]:
        """The responses `first` to `last - 1`."""
        if first < self._first or last > self._last:
            goes_on = first == self._last
            count = min(max(2 * len(self._made), last - first), _MOST_ROWS) if goes_on else 0
            self._first = first
            self._last = min(max(first + count, last), len(self._oldest))
            self._made = self._make(self._first, self._last)
        return self._made[first - self._first : last - self._first]

    def _make(self, first: int, last: int) -> list[Response]:
        columns, all_runs = self._digest.responses, self._digest.runs
        offsets = columns.first_run[first : last + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        runs: tuple[VersionRun, ...] = tuple(
            zip(
                self._model_step[begin:end].tolist(),
                all_runs.tokens[begin:end].tolist(),
                all_runs.trainable[begin:end].tolist(),
                strict=True,
            )
        )
        bounds = (offsets - begin).tolist()
        measures = zip(
            columns.tokens[first:last].tolist(),
            self._trainable_tokens[first:last].tolist(),
            _or_none(self._oldest[first:last]),
            _or_none(self._newest_trainable[first:last]),
            strict=True,
        )
        rewards = columns.reward[first:last].tolist()
        return list(
            map(
                Response,
                columns.rollout_id[first:last].tolist(),
                map(STATUSES.__getitem__, columns.status[first:last].tolist()),
                [runs[low:high] for low, high in pairwise(bounds)],
                np.maximum(columns.prior_len[first:last], 0).tolist(),
                columns.segment[first:last].tolist(),
                columns.agentic[first:last].tolist(),
                [None if reward != reward else reward for reward in rewards],
                range(first, last),
                measures,
            )
        )


def _measures(digest: Digest, model_step: Int32s) -> tuple[Int64s, Int64s, Int64s]:
    """Oldest version (-1: no token), newest trainable version (-1: none) and trainable tokens of every response."""
    first_run = digest.responses.first_run
    has_runs = first_run[1:] > first_run[:-1]
    starts = first_run[:-1][has_runs]
    trainable = digest.runs.trainable
    oldest, newest_trainable = (np.full(len(has_runs), -1, dtype=np.int64) for _ in range(2))
    trainable_tokens = np.zeros(len(has_runs), dtype=np.int64)
    if len(starts):
        oldest[has_runs] = np.minimum.reduceat(model_step, starts)
        newest_trainable[has_runs] = np.maximum.reduceat(np.where(trainable > 0, model_step, -1), starts)
        trainable_tokens[has_runs] = np.add.reduceat(trainable, starts, dtype=np.int64)
    return oldest, newest_trainable, trainable_tokens


def _or_none(versions: Int64s) -> list[int | None]:
    return [None if version < 0 else version for version in versions.tolist()]
