"""Version runs: consecutive tokens of one version, with how many are trainable; made of token columns or recorded.

Everything behind this module works on runs, so its cost does not depend on the length of responses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenaudit.log.columns import ABSENT, INT32_MAX, Bools, Int64s, integers, interleaved, nulls

MISSING_VERSION = -1
"""Version of tokens that carry none and whose put has no `model_step`."""

_MANY_CHANGES = 1 / 32
"""Share of tokens at which a mask changes, above which adding it up is faster."""

Int32s = np.ndarray[Any, np.dtype[np.int32]]


class Runs(NamedTuple):
    """Version runs of R responses, one response after the other.

    Attributes:
        counts: runs per response, int64 of shape [R].
        model_step: version of each run, int32.
        tokens: length of each run, int32, at least 1.
        trainable: tokens of each run whose semantic mask is not 0, int32.
    """

    counts: Int64s
    model_step: Int32s
    tokens: Int32s
    trainable: Int32s

    def of(self, responses: Bools) -> Runs:
        """The runs of some responses, chosen by bools of shape [R]."""
        chosen = np.repeat(responses, self.counts)
        return Runs(self.counts[responses], self.model_step[chosen], self.tokens[chosen], self.trainable[chosen])


class RecordedRuns(NamedTuple):
    """The run column of a batch of rows, flattened: what a log may hold in place of a version and a mask per token.

    Attributes:
        model_step: version of each run, int64; `ABSENT` where null.
        tokens: length of each run, int64.
        trainable: tokens of each run whose semantic mask is not 0, int64.
        lengths: runs per row, int64 of shape [rows].
        has_runs: whether a row holds runs, of shape [rows]; an empty list counts.
        null_rows: rows with a null run, or a run without its tokens.
        sums: tokens per row, int64 of shape [rows]; -1 for rows without runs.
    """

    model_step: Int64s
    tokens: Int64s
    trainable: Int64s
    lengths: Int64s
    has_runs: Bools
    null_rows: Int64s
    sums: Int64s

    @property
    def is_versioned(self) -> Bools:
        """Which runs have a version."""
        return self.model_step != ABSENT

    @property
    def owner(self) -> Int64s:
        """The row of each run."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def runs(self, rows: Bools) -> Runs:
        """The runs of some faultless rows, as they are recorded, but `MISSING_VERSION` where one has no version."""
        chosen = np.repeat(rows, self.lengths)
        model_step = np.where(self.is_versioned, self.model_step, MISSING_VERSION)
        return Runs(
            self.lengths[rows],
            *(values[chosen].astype(np.int32) for values in (model_step, self.tokens, self.trainable)),
        )


def recorded_runs(array: pa.Array | None, rows: int) -> RecordedRuns | None:
    """The run column; None where no row holds runs."""
    if array is None or array.null_count == rows:
        return None
    listed: Any = array
    lengths = integers(listed.value_lengths(), rows, fill=0)
    runs = listed.flatten()
    count = len(runs)
    model_step = integers(runs.field("model_step"), count, fill=ABSENT)
    tokens, trainable = (integers(runs.field(name), count, fill=0) for name in ("tokens", "trainable"))
    is_null = nulls(runs) | nulls(runs.field("tokens")) | nulls(runs.field("trainable"))
    owner = np.repeat(np.arange(rows), lengths)
    sums = np.zeros(rows, dtype=np.int64)
    np.add.at(sums, owner, np.clip(tokens, 0, INT32_MAX))
    has_runs = ~nulls(array)
    null_rows = np.unique(owner[is_null])
    return RecordedRuns(model_step, tokens, trainable, lengths, has_runs, null_rows, np.where(has_runs, sums, -1))


def merged(runs: Runs) -> Runs:
    """The same runs, neighbours of one version made one: a log may split them."""
    heads = run_heads(runs.model_step, runs.counts)
    if len(heads) == len(runs.model_step):
        return runs
    owner = np.repeat(np.arange(len(runs.counts)), runs.counts)
    return Runs(
        np.bincount(owner[heads], minlength=len(runs.counts)).astype(np.int64),
        runs.model_step[heads],
        *(np.add.reduceat(values, heads).astype(np.int32) for values in (runs.tokens, runs.trainable)),
    )


def interleaved_runs(is_first: Bools, first: Runs, second: Runs) -> Runs:
    """The runs of all responses in order: those of the responses in `is_first`, shape [R], and those of the others."""
    counts = np.empty(len(is_first), dtype=np.int64)
    counts[is_first], counts[~is_first] = first.counts, second.counts
    return Runs(
        counts,
        *(interleaved(is_first, counts, ours, others) for ours, others in zip(first[1:], second[1:], strict=True)),
    )


def version_runs(
    lengths: Int64s,
    versions: np.ndarray[Any, Any],
    version_counts: Int64s,
    model_step: Int64s,
    mask: np.ndarray[Any, Any],
    mask_counts: Int64s,
    heads: Int64s | None = None,
    ones: Ones | None = None,
) -> Runs:
    """Reduce R responses to version runs.

    Args:
        lengths: tokens per response, shape [R].
        versions: recorded versions of all responses, one after the other; a response may have fewer than tokens.
        version_counts: recorded versions per response, shape [R], at most `lengths`.
        model_step: version of the tokens behind the recorded ones, shape [R].
        mask: semantic masks of all responses that have one, one after the other.
        mask_counts: entries of the mask per response, shape [R]: `lengths`, or 0 where there is no mask.
        heads: `run_heads` of the versions, if they are known.
        ones: those of the mask, if they are known.
    """
    responses = len(lengths)
    if heads is None:
        heads = run_heads(versions, version_counts)
    starts = np.cumsum(version_counts) - version_counts
    owner = np.searchsorted(starts, heads, side="right") - 1
    recorded_version = versions[heads].astype(np.int32)
    recorded_tokens = np.diff(heads, append=len(versions))
    recorded_counts = np.bincount(owner, minlength=responses).astype(np.int64)

    tail = lengths - version_counts
    last_run = np.cumsum(recorded_counts) - 1
    continues = np.zeros(responses, dtype=np.bool_)
    with_versions = recorded_counts > 0
    continues[with_versions] = recorded_version[last_run[with_versions]] == model_step[with_versions]
    continues &= tail > 0
    new_run = (tail > 0) & ~continues
    recorded_tokens[last_run[continues]] += tail[continues]

    counts = recorded_counts + new_run
    first = np.cumsum(counts) - counts
    recorded_first = np.cumsum(recorded_counts) - recorded_counts
    target = np.arange(len(heads)) + np.repeat(first - recorded_first, recorded_counts)
    tail_target = (first + counts - 1)[new_run]
    run_version = np.empty(int(counts.sum()), dtype=np.int32)
    run_tokens = np.empty(len(run_version), dtype=np.int64)
    run_version[target] = recorded_version
    run_tokens[target] = recorded_tokens
    run_version[tail_target] = model_step[new_run]
    run_tokens[tail_target] = tail[new_run]

    trainable = run_tokens.astype(np.int32)
    masked = np.repeat((mask_counts > 0) & (lengths > 0), counts)
    if masked.any():
        masked_tokens = run_tokens[masked]
        mask_starts = np.cumsum(masked_tokens) - masked_tokens
        trainable[masked] = (ones or Ones(mask)).between(mask_starts)
    return Runs(counts, run_version, run_tokens.astype(np.int32), trainable)


def run_heads(versions: np.ndarray[Any, Any], version_counts: Int64s) -> Int64s:
    """Positions at which a run begins: where the version changes, and where a response begins.

    Args:
        versions: recorded versions of all responses, one after the other.
        version_counts: recorded versions per response, shape [R].
    """
    if len(versions) == 0:
        return np.zeros(0, dtype=np.int64)
    is_head = np.empty(len(versions), dtype=np.bool_)
    np.not_equal(versions[1:], versions[:-1], out=is_head[1:])
    starts = np.cumsum(version_counts) - version_counts
    is_head[starts[version_counts > 0]] = True
    return np.flatnonzero(is_head)


class Ones:
    """The ones of a flattened mask, counted between any positions.

    Real masks change seldom, and looking at changes alone takes half the time.

    Args:
        mask: entries of every accepted type; what isn't 0 counts as 1.
    """

    def __init__(self, mask: np.ndarray[Any, Any]) -> None:
        self._flags = flags = _as_bytes(mask)
        self._bounds: Int64s | None = None
        is_change = flags[1:] != flags[:-1]
        if len(flags) and np.count_nonzero(is_change) <= len(flags) * _MANY_CHANGES:
            self._bounds = bounds = np.concatenate([[0], np.flatnonzero(is_change) + 1])
            self._values = values = flags[bounds].astype(np.int64)
            self._ones_before = np.concatenate([[0], np.cumsum(np.diff(bounds, append=len(flags)) * values)])

    def between(self, starts: Int64s) -> np.ndarray[Any, Any]:
        """Ones from each start to the next, and from the last to the end.

        Args:
            starts: rising positions in the mask, the first of them 0; at least one.
        """
        if self._bounds is None:
            return np.add.reduceat(self._flags, starts, dtype=np.int32)
        inside = np.searchsorted(self._bounds, starts, side="right") - 1
        before = self._ones_before[inside] + (starts - self._bounds[inside]) * self._values[inside]
        return np.diff(before, append=self._ones_before[-1])


def _as_bytes(mask: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The mask as 0 and 1 in one byte each, without a copy where it is that already."""
    if mask.dtype in (np.int8, np.uint8) and mask.view(np.uint8).max(initial=0) <= 1:
        return mask.view(np.uint8)
    flags = mask if mask.dtype == np.bool_ else mask != 0
    return flags.view(np.uint8)


def is_prefix(earlier: list[tuple[int, int]], later: list[tuple[int, int]]) -> bool:
    """Whether the versions of one response begin with those of another; runs may split one version."""
    position = left = 0
    version = None
    for wanted, tokens in earlier:
        while tokens:
            if left == 0:
                if position == len(later):
                    return False
                version, left = later[position]
                position += 1
                continue
            if version != wanted:
                return False
            step = min(left, tokens)
            tokens -= step
            left -= step
    return True
