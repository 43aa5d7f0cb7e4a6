"""Recorded puts as a config sees them: versions stamped and synced, fitted to what replay holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.lifecycle.members import GroupMembers, MadeMembers
from tokenaudit.lifecycle.staleness import live_version
from tokenaudit.lifecycle.types import Response, Status, VersionRun
from tokenaudit.log.columns import Int64s
from tokenaudit.log.digest import PRIOR_UNKNOWN, STATUS_CODE, Digest
from tokenaudit.log.token_ids import SAME, UNKNOWN
from tokenaudit.log.version_runs import MISSING_VERSION, Int32s, is_prefix
from tokenaudit.replay.recorded_groups import RecordedGroups

_FAILED = STATUS_CODE[Status.FAILED]

Held = Mapping[tuple[int, int], int]
"""Tokens held of each response, by rollout and segment."""


class FittedPut(NamedTuple):
    """The members of a put and what fitting them to the held tokens cost; see `replay.events.PutReconciled`.

    Attributes:
        restarted_by_log: the part of `restarted_tokens` that belongs to responses that failed.
    """

    members: GroupMembers
    carried_in_tokens: int
    restarted_tokens: int
    restarted_by_log: int
    regenerated_tokens: int


class RecordedPuts:
    """The puts of a digest under one weight-sync timeline.

    Args:
        digest: the log.
        sync_weights_interval: K, in train steps.
        resync: map every version to the one that would have been live had weights been synced every K steps.

    Tokens without a version get the version of a sync every K steps, whatever `resync` says.
    """

    def __init__(self, digest: Digest, sync_weights_interval: int, *, resync: bool) -> None:
        self._digest = digest
        self._interval = sync_weights_interval
        self._resync = resync
        self._stamped = _stamped(digest, sync_weights_interval)
        self._groups = RecordedGroups(digest, self.live(self._stamped))
        self._first_response: list[int] = digest.events.first_response.tolist()
        self._is_plain, self._prior_tokens = _plain_puts(digest)

    def live(self, model_step: Any) -> Any:
        """A recorded version, or an array of them, under this timeline."""
        return live_version(model_step, self._interval) if self._resync else model_step

    def in_order(self, puts: Int64s) -> Iterator[GroupMembers]:
        """The members of each of these put events as recorded, given by index."""
        return self._groups.in_order(puts)

    def fit(self, event: int, recorded: GroupMembers, held: Held) -> FittedPut:
        """The members of a put, given those recorded and the tokens held of them.

        A response of which less is held than the log continued from is regenerated whole, with the version of
        this put.
        """
        if not held and self._is_plain[event]:
            return FittedPut(recorded, self._prior_tokens[event], 0, 0, 0)
        first, last = self._span(event)
        columns = self._digest.responses
        rows = zip(
            columns.rollout_id[first:last].tolist(),
            columns.segment[first:last].tolist(),
            columns.prior_len[first:last].tolist(),
            columns.is_first_put[first:last].tolist(),
            columns.status[first:last].tolist(),
            strict=True,
        )
        left = dict(held)
        fitted: list[Response] = []
        carried_in = restarted = restarted_by_log = regenerated = 0
        for member, (rollout_id, segment, recorded_prior_len, is_first, status) in enumerate(rows):
            tokens_held = left.pop((rollout_id, segment), 0)
            prior_len = max(recorded_prior_len, 0)
            if recorded_prior_len == PRIOR_UNKNOWN:
                prior_len = self._derived_prior_len(first + member, tokens_held)
            if is_first or tokens_held >= prior_len:
                # A simulated timeline goes by step: where steps fall in the log, a later put may have come before.
                lost = tokens_held if is_first else tokens_held - prior_len
                carried_in += prior_len if is_first else 0
                restarted += lost
                restarted_by_log += lost if status == _FAILED else 0
                if prior_len != max(recorded_prior_len, 0):
                    fitted = fitted or list(recorded)
                    fitted[member] = fitted[member].changed(prior_len=prior_len)
            else:
                restarted += tokens_held
                regenerated += prior_len
                fitted = fitted or list(recorded)
                fitted[member] = fitted[member].changed(prior_len=0, runs=self._regenerated(event, fitted[member].runs))
        members = MadeMembers(tuple(fitted)) if fitted else recorded
        return FittedPut(members, carried_in, restarted + sum(left.values()), restarted_by_log, regenerated)

    def prior_len_from_log(self, row: int) -> int:
        """Leading tokens of a response that earlier puts produced, as far as the log alone says."""
        previous = int(self._digest.responses.previous[row])
        return self._prior_len(row, int(self._digest.responses.tokens[previous]) if previous >= 0 else 0)

    def new_tokens(self, event: int, held: Held) -> int:
        """New tokens of a put as recorded, given the tokens held of its responses."""
        responses = self._digest.responses
        first, last = self._span(event)
        total = int(responses.tokens[first:last].sum())
        for row in range(first, last):
            key = (int(responses.rollout_id[row]), int(responses.segment[row]))
            total -= self._prior_len(row, held.get(key, 0))
        return total

    def _span(self, event: int) -> tuple[int, int]:
        return self._first_response[event], self._first_response[event + 1]

    def _prior_len(self, row: int, tokens_held: int) -> int:
        """Leading tokens that earlier puts produced: recorded, or derived from the response's put before."""
        recorded = int(self._digest.responses.prior_len[row])
        return self._derived_prior_len(row, tokens_held) if recorded == PRIOR_UNKNOWN else max(recorded, 0)

    def _derived_prior_len(self, row: int, tokens_held: int) -> int:
        """A response rolled again by the same version looks like one put again unchanged; what is held decides."""
        responses = self._digest.responses
        previous = int(responses.previous[row])
        if previous < 0 or not self._continues(previous, row):
            return 0
        return min(int(responses.tokens[previous]), tokens_held)

    def _continues(self, previous: int, row: int) -> bool:
        verdict = int(self._digest.responses.continues_ids[row])
        if verdict != UNKNOWN:
            return verdict == SAME
        return is_prefix(self._stamped_runs(previous), self._stamped_runs(row))

    def _stamped_runs(self, row: int) -> list[tuple[int, int]]:
        """(version, tokens) of a response's runs before any resync."""
        first, last = self._digest.responses.first_run[row : row + 2].tolist()
        tokens = self._digest.runs.tokens[first:last].tolist()
        return list(zip(self._stamped[first:last].tolist(), tokens, strict=True))

    def _regenerated(self, event: int, runs: tuple[VersionRun, ...]) -> tuple[VersionRun, ...]:
        """All tokens of a response, made by the put's version: the one it names, else the largest in it."""
        model_step = int(self._digest.events.model_step[event])
        if model_step < 0:
            first, last = self._span(event)
            low, high = self._digest.responses.first_run[[first, last]].tolist()
            model_step = int(self._stamped[low:high].max(initial=0))
        tokens = sum(tokens for _, tokens, _ in runs)
        return ((self.live(model_step), tokens, sum(trainable for _, _, trainable in runs)),) if tokens else ()


def _plain_puts(digest: Digest) -> tuple[list[bool], list[int]]:
    """Whether an event is the first put of all its responses, their prior lengths recorded; and the sum of these."""
    columns, first_response = digest.responses, digest.events.first_response
    is_plain = columns.is_first_put & (columns.prior_len != PRIOR_UNKNOWN)
    others_before = np.concatenate([[0], np.cumsum(~is_plain)])
    prior_before = np.concatenate([[0], np.cumsum(np.maximum(columns.prior_len, 0))])
    others, prior = (before[first_response] for before in (others_before, prior_before))
    return (np.diff(others) == 0).tolist(), np.diff(prior).tolist()


def _stamped(digest: Digest, sync_weights_interval: int) -> Int32s:
    """Versions of all runs; where the log has none, the version live at the put under a sync every interval."""
    recorded = digest.runs.model_step
    missing = np.flatnonzero(recorded == MISSING_VERSION)
    if len(missing) == 0:
        return recorded
    row = np.searchsorted(digest.responses.first_run, missing, side="right") - 1
    event = np.searchsorted(digest.events.first_response, row, side="right") - 1
    trained = np.maximum(digest.events.train_step[event] - 1, 0)
    stamped = recorded.copy()
    stamped[missing] = live_version(trained, sync_weights_interval)
    return stamped
