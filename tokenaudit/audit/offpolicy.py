"""How off-policy each age really is: log-probabilities at rollout and under the trained weights, by staleness.

Token columns are streamed; what stays in memory is a few sums and one histogram per age. Sums are made in torch,
or in numpy where torch isn't installed, in double precision on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.audit.report import AgeEvidence
from tokenaudit.audit.scan import SENTINEL_LOGPROB
from tokenaudit.contracts.schema import VERSION_RUNS
from tokenaudit.lifecycle.staleness import staleness
from tokenaudit.log import columns as col
from tokenaudit.log.batches import read_batches
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.files import Log
from tokenaudit.log.pieces import LogBatch
from tokenaudit.log.version_runs import RecordedRuns, recorded_runs

_COLUMNS = ("logprobs", "train_logprobs", "response_model_steps", "response_mask", VERSION_RUNS, "model_step")
OLDEST_AGE = 127
"""Older tokens count with this age, so that the number of ages is bounded."""
_RESOLUTION = 1_000
_BINS = 8_192
_MOST_DELTA = 80.0
"""Differences are cut here, where a ratio squared still fits double precision."""

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Sums(NamedTuple):
    """Sums by age, from -1 (a version from the future) to `OLDEST_AGE`; every array has the shape [ages]."""

    tokens: Floats
    abs_delta: Floats
    ratio: Floats
    squared_ratio: Floats
    outside: Floats
    kl: Floats
    histogram: Floats
    """Tokens by age and |difference| in thousandths, of shape [ages x bins]."""


_AGES = OLDEST_AGE + 2


def age_evidence(log: Log, train_step: Int64s, epsilon: float) -> tuple[AgeEvidence, ...]:
    """The figures of every age that has tokens.

    Args:
        log: a log with `logprobs` and `train_logprobs`.
        train_step: for every row, the step that its tokens were trained at, or would be; negative: leave it out.
        epsilon: half the width of the range that ratios should be in.

    Raises:
        LogError: a file is damaged behind its footer.
    """
    sums_of = _backend()
    total = [np.zeros(_AGES) for _ in Sums._fields[:-1]] + [np.zeros(_AGES * _BINS)]
    first = 0
    for batch in read_batches(log, _COLUMNS):
        delta, age = _differences(batch, train_step[first : first + batch.rows])
        first += batch.rows
        if len(delta):
            for whole, part in zip(total, sums_of(delta, age, epsilon), strict=True):
                whole += part
    return tuple(_evidence(Sums(*total), index) for index in np.flatnonzero(total[0]).tolist())


def _evidence(sums: Sums, index: int) -> AgeEvidence:
    tokens = float(sums.tokens[index])
    histogram = np.cumsum(sums.histogram[index * _BINS : (index + 1) * _BINS])
    rank = int(np.searchsorted(histogram, np.ceil(0.95 * tokens)))
    return AgeEvidence(
        staleness=index - 1,
        tokens=int(tokens),
        mean_abs=float(sums.abs_delta[index] / tokens),
        p95_abs=rank / _RESOLUTION,
        mean_ratio=float(sums.ratio[index] / tokens),
        effective_share=float(sums.ratio[index] ** 2 / (tokens * sums.squared_ratio[index])),
        outside_share=float(sums.outside[index] / tokens),
        kl=float(sums.kl[index] / tokens),
    )


def _differences(batch: LogBatch, train_step: Int64s) -> tuple[Floats, Int64s]:
    """Log-probability trained minus rollout, and index of the age, of every trainable token that has both."""
    rows = batch.rows
    rollout, trained = (_reals(batch, name) for name in ("logprobs", "train_logprobs"))
    versions = col.lists(batch.columns.get("response_model_steps"), rows)
    stamp = col.integers(batch.columns.get("model_step"), rows, fill=-1)
    mask = col.lists(batch.columns.get("response_mask"), rows)
    tokens = rollout.lengths
    is_known = np.ones(rows, dtype=np.bool_)
    recorded = recorded_runs(batch.columns.get(VERSION_RUNS), rows)
    if recorded is not None:
        versions, mask, is_known = _unfolded(recorded, versions, mask, tokens)
    usable = (tokens > 0) & (tokens == trained.lengths) & (versions.lengths <= tokens) & (train_step >= 0) & is_known
    usable &= (mask.lengths == tokens) | mask.is_null
    usable &= (versions.lengths == tokens) | (stamp >= 0)
    lengths = np.where(usable, tokens, 0)
    version = np.repeat(stamp, lengths)
    position = np.arange(len(version)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    version[position < np.repeat(versions.lengths, lengths)] = _of_rows(versions.values, versions.lengths, usable)
    trainable = np.ones(len(version), dtype=np.bool_)
    trainable[np.repeat(~mask.is_null, lengths)] = _of_rows(mask.values, mask.lengths, usable) != 0
    old, new = (_of_rows(side.values, side.lengths, usable).astype(np.float64) for side in (rollout, trained))
    for logprob in (old, new):
        trainable &= np.isfinite(logprob) & (logprob > SENTINEL_LOGPROB)
    age = np.clip(staleness(version, np.repeat(train_step, lengths)), -1, OLDEST_AGE) + 1
    delta = np.clip(new[trainable] - old[trainable], -_MOST_DELTA, _MOST_DELTA)
    return delta, age[trainable].astype(np.int64)


def _unfolded(
    recorded: RecordedRuns, versions: col.Lists, mask: col.Lists, lengths: Int64s
) -> tuple[col.Lists, col.Lists, Bools]:
    """Versions and semantic masks per token, those of rows with runs unfolded from them; and which rows have them.

    Rows whose runs don't add up to their tokens, `lengths`, stay as they are. Tokens of runs that hold both kinds count
    as not trainable: which ones are isn't recorded.
    """
    rows = len(lengths)
    owner = recorded.owner
    is_bad = (recorded.tokens < 1) | ~recorded.is_versioned
    own = recorded.has_runs & (recorded.sums == lengths) & (np.bincount(owner[is_bad], minlength=rows) == 0)
    used = own[owner]
    tokens = recorded.tokens[used]
    own_versions = np.repeat(recorded.model_step[used], tokens)
    own_mask = np.repeat(recorded.trainable[used] == tokens, tokens)

    def overlaid(lists: col.Lists, own_values: np.ndarray[Any, Any]) -> col.Lists:
        counts = np.where(own, lengths, lists.lengths)
        values = col.interleaved(own, counts, own_values, lists.values[np.repeat(~own, lists.lengths)])
        return col.Lists(values, counts, lists.is_null & ~own, np.zeros(0, dtype=np.int64))

    return overlaid(versions, own_versions), overlaid(mask, own_mask), own | ~recorded.has_runs


def _reals(batch: LogBatch, name: str) -> col.Lists:
    """A list column of log-probabilities; null elements become NaN, which drops the token."""
    array = batch.columns.get(name)
    lists = col.lists(array, batch.rows)
    if array is None or len(lists.null_element_rows) == 0:
        return lists
    flat = array.flatten()
    return lists._replace(values=np.where(col.nulls(flat), np.nan, lists.values))


def _of_rows(values: np.ndarray[Any, Any], lengths: Int64s, where: Bools) -> np.ndarray[Any, Any]:
    return values if where.all() else values[np.repeat(where, lengths)]


def _backend() -> Callable[[Floats, Int64s, float], Sums]:
    try:
        import torch  # noqa: F401 - only whether it is there
    except ImportError:
        return numpy_sums
    return torch_sums


def numpy_sums(delta: Floats, age: Int64s, epsilon: float) -> Sums:
    """The sums of some tokens, made in numpy."""
    ratio = np.exp(delta)
    bins = np.minimum((np.abs(delta) * _RESOLUTION).astype(np.int64), _BINS - 1)

    def by_age(weights: Floats) -> Floats:
        return np.bincount(age, weights, minlength=_AGES).astype(np.float64)

    return Sums(
        by_age(np.ones(len(delta))),
        by_age(np.abs(delta)),
        by_age(ratio),
        by_age(ratio * ratio),
        by_age((np.abs(ratio - 1) > epsilon).astype(np.float64)),
        by_age(ratio - 1 - delta),
        np.bincount(age * _BINS + bins, minlength=_AGES * _BINS).astype(np.float64),
    )


def torch_sums(delta: Floats, age: Int64s, epsilon: float) -> Sums:
    """The sums of some tokens, made in torch."""
    import torch

    differences, ages = torch.from_numpy(delta), torch.from_numpy(age)
    ratio = differences.exp()
    bins = (differences.abs() * _RESOLUTION).long().clamp(max=_BINS - 1)

    def by_age(weights: torch.Tensor) -> Floats:
        return torch.bincount(ages, weights, minlength=_AGES).numpy()

    return Sums(
        by_age(torch.ones_like(differences)),
        by_age(differences.abs()),
        by_age(ratio),
        by_age(ratio * ratio),
        by_age(((ratio - 1).abs() > epsilon).double()),
        by_age(ratio - 1 - differences),
        torch.bincount(ages * _BINS + bins, minlength=_AGES * _BINS).double().numpy(),
    )
