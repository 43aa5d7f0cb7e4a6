"""The digest of a log: its events, their responses, and each response's version runs.

A log is read once, in bounded batches. What stays in memory grows with responses and version changes, not with
tokens. Replays of any config work on the digest alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.version_runs import MISSING_VERSION, Int32s

KINDS: tuple[EventKind, ...] = tuple(EventKind)
"""Event kinds by code."""
STATUSES: tuple[Status, ...] = tuple(Status)
"""Statuses by code."""
NO_VALUE = -1
"""Code of null in columns of versions, tasks, statuses and sizes."""
PRIOR_UNKNOWN = -1
"""`prior_len` that must be derived from the response's previous put."""
PRIOR_ASSUMED = -2
"""`prior_len` that counts as 0 because neither it nor any version of the response is recorded."""

KIND_CODE: dict[EventKind, int] = {kind: code for code, kind in enumerate(KINDS)}
STATUS_CODE: dict[Status, int] = {status: code for code, status in enumerate(STATUSES)}
UNKNOWN_CODE = -2
"""Code of an event or status that no log knows."""


def kind_code(text: str | None) -> int:
    """Index into `KINDS` of an event as a log spells it; null is a put."""
    try:
        return KIND_CODE[EventKind.PUT if text is None else EventKind(text)]
    except ValueError:
        return UNKNOWN_CODE


def status_code(text: str | None) -> int:
    """Index into `STATUSES` of a status as a log spells it; `NO_VALUE` for null."""
    try:
        return NO_VALUE if text is None else STATUS_CODE[Status(text)]
    except ValueError:
        return UNKNOWN_CODE


class Events(NamedTuple):
    """E events in log order; every array has the shape [E] unless it says otherwise.

    Attributes:
        kind: index into `KINDS`.
        train_step: the step the buffer compares with; 0 on samples.
        model_step: largest version named by a put, or the version of a sync; `NO_VALUE` for null.
        task: index into the digest's task names; `NO_VALUE` on refresh and sync.
        group_id: group of puts and samples; 0 elsewhere.
        batch_size: groups asked for, on takes; 0 elsewhere.
        first_response: index of the event's first response, shape [E + 1].
    """

    kind: Int64s
    train_step: Int64s
    model_step: Int64s
    task: Int64s
    group_id: Int64s
    batch_size: Int64s
    first_response: Int64s


class Responses(NamedTuple):
    """R responses of all puts, in log order; every array has the shape [R] unless it says otherwise.

    Attributes:
        rollout_id: identity inside the task.
        segment: position among the rows of its rollout in its put.
        status: index into `STATUSES`.
        tokens: length.
        prior_len: leading tokens that earlier puts produced; or `PRIOR_UNKNOWN` or
            `PRIOR_ASSUMED`.
        reward: NaN where unscored.
        agentic: whether it exempts its group from the token rule.
        is_first_put: whether it belongs to its rollout's first put in the log.
        previous: index of the same response in the rollout's put before; -1 where there is none.
        continues_ids: verdict of the token ids against that put, as in `tokenaudit.log.token_ids`.
        first_run: index of its first version run, shape [R + 1].
    """

    rollout_id: Int64s
    segment: Int64s
    status: Int64s
    tokens: Int64s
    prior_len: Int64s
    reward: np.ndarray[Any, np.dtype[np.float64]]
    agentic: Bools
    is_first_put: Bools
    previous: Int64s
    continues_ids: np.ndarray[Any, np.dtype[np.int8]]
    first_run: Int64s


class VersionRuns(NamedTuple):
    """Runs of all responses; every array has the shape [runs] and the type int32.

    Attributes:
        model_step: version; `runs.MISSING_VERSION` where the log has none.
        tokens: length, at least 1.
        trainable: tokens whose semantic mask is not 0.
    """

    model_step: Int32s
    tokens: Int32s
    trainable: Int32s


@dataclass(frozen=True, slots=True)
class Digest:
    """A log, reduced to what replay needs.

    Attributes:
        name: name of the log, without folders.
        rows: rows read.
        tasks: task names in order of first appearance.
        events: its events.
        responses: the responses of its puts.
        runs: their version runs.
        faults: structural faults by wording, in rows; empty unless they were quarantined.
        quarantined_groups: groups dropped because a row of theirs is faulty.
        quarantined_tokens: new tokens in the puts of those groups, as far as their rows say.
        unscored_rewards: rewards that are not finite and count as unscored.
        log_row: row of the log, all files together, that each response came from, shape [R]; empty if unknown.
    """

    name: str
    rows: int
    tasks: tuple[str, ...]
    events: Events
    responses: Responses
    runs: VersionRuns
    faults: dict[str, int]
    quarantined_groups: int
    quarantined_tokens: int
    unscored_rewards: int
    log_row: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def summary(self) -> str:
        """What it holds, in one line."""
        tokens = int(self.responses.tokens.sum())
        return (
            f"{self.name}: {plural(self.rows, 'row')}, {plural(len(self.events.kind), 'event')},"
            f" {plural(len(self.responses.tokens), 'response')}, {plural(tokens, 'token')}, tasks: {len(self.tasks)}"
        )

    def __repr__(self) -> str:
        return f"Digest({self.summary()})"

    def content_hash(self) -> str:
        """SHA-256 of what replay reads, whatever files, batches or column types it was stored in."""
        digest = hashlib.sha256()
        for name in self.tasks:
            encoded = name.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        # An assumed prior length is replayed as 0, so a log that says 0 is the same log.
        prior_len = np.where(self.responses.prior_len == PRIOR_ASSUMED, 0, self.responses.prior_len)
        for table in (self.events, self.responses._replace(prior_len=prior_len), self.runs):
            for array in table:
                little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
                digest.update(len(little).to_bytes(8, "little"))
                digest.update(little.data)
        return f"sha256:{digest.hexdigest()}"

    @property
    def unversioned_tokens(self) -> int:
        """Tokens that the log gives no version."""
        return int(self.runs.tokens[self.runs.model_step == MISSING_VERSION].sum(dtype=np.int64))

    @property
    def group_sizes(self) -> Int64s:
        """Rollouts in each event, of which only puts have any; its shape is [events]."""
        before = np.concatenate([[0], np.cumsum(self.responses.segment == 0)])
        return np.diff(before[self.events.first_response])

    @property
    def has_timeline(self) -> bool:
        """Whether the log records more than puts."""
        return bool((self.events.kind != KIND_CODE[EventKind.PUT]).any())


def sorted_rows(*keys: Int64s) -> tuple[Int64s, Bools]:
    """Rows sorted by keys of shape [R], the last one first, and which of them are the first with their values."""
    order = np.lexsort(keys)
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = np.logical_or.reduce([key[order[1:]] != key[order[:-1]] for key in keys])
    return order, is_first


def _first_position(starts: Bools) -> Int64s:
    """The position of the last start at or before each."""
    return np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))


def previous_put(task: Int64s, rollout_id: Int64s, segment: Int64s) -> Int64s:
    """Index of the row before each with the same task, rollout and segment; -1 for the first. Shape [R]."""
    order, starts = sorted_rows(segment, rollout_id, task)
    previous = np.full(len(order), -1, dtype=np.int64)
    positions = np.flatnonzero(~starts)
    previous[order[positions]] = order[positions - 1]
    return previous


def is_first_put(task: Int64s, rollout_id: Int64s, event_id: Int64s) -> Bools:
    """Whether a row belongs to the first event of its task and rollout. Shape [R]; event ids never fall."""
    order, starts = sorted_rows(rollout_id, task)
    is_first = np.zeros(len(order), dtype=np.bool_)
    is_first[order] = event_id[order] == event_id[order[_first_position(starts)]]
    return is_first


def segments(event: Int64s, rollout_id: Int64s) -> Int64s:
    """Position of each row among the rows of its rollout in its event. Shape [R]."""
    order, starts = sorted_rows(rollout_id, event)
    segment = np.zeros(len(order), dtype=np.int64)
    segment[order] = np.arange(len(order)) - _first_position(starts)
    return segment
