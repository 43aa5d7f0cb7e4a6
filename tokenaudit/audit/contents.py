"""What responses hold, as a few numbers per row: fingerprints of ids and log-probabilities, and how they end.

Rows that hold the same have the same fingerprints (`tokenaudit.log.token_ids`), so no token is kept to compare them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenaudit.log.columns import Bools, Int64s, Lists, bounded_spans
from tokenaudit.log.token_ids import prefix_fingerprints, short_fingerprints

_CHUNK = 32_768
"""Log-probabilities that are summed together, few enough for the caches of a core."""
PAD_RUN = 3
"""Equal token ids at the end of a response that look like padding, and zero log-probabilities like fill values."""

Arrays = dict[str, np.ndarray[Any, Any]]


def id_numbers(
    ids: Lists, mask: Lists, logprobs: Lists, prior_len: Int64s | None, is_put: Bools, has_reason: Bools
) -> Arrays:
    """Numbers per row of the token ids.

    - `ids_len`: how many; -1 for a null list.
    - `ids_whole`: whether there are some and none of them is null; without, what follows means nothing.
    - `ids_print`, `ids_prior_print`: fingerprints of all of them, and of the first `prior_len`.
    - `ids_last`, `ids_last_before`: the last one, and whether it also stands before the run of it at the end; the
      latter only of rows of `has_reason`, as ends are judged where a reason is recorded.
    - `tail_run`, `tail_id`, `tail_trained`, `tail_sampled`: the run of one id at the end, if it has `PAD_RUN` or more:
      its length, its id, how many of its tokens are trainable, and how many have a log-probability other than 0.
    """
    rows, values = len(ids.lengths), ids.values
    prior = np.zeros(rows, dtype=np.int64) if prior_len is None else np.clip(prior_len, 0, ids.lengths)
    of_prior, of_all = prefix_fingerprints(values, ids.lengths, prior)
    arrays: Arrays = {
        "ids_len": np.where(ids.is_null, -1, ids.lengths),
        "ids_whole": (ids.lengths > 0) & ~ids.has_null_element,
        "ids_print": of_all.view(np.int64),
        "ids_prior_print": of_prior.view(np.int64),
        "ids_last": np.zeros(rows, dtype=np.int64),
        **{f"tail_{what}": np.zeros(rows, dtype=np.int64) for what in ("run", "id", "trained", "sampled")},
    }
    ends = np.cumsum(ids.lengths)
    filled = np.flatnonzero(ids.lengths)
    arrays["ids_last"][filled] = values[ends[filled] - 1].astype(np.int64)
    arrays["ids_last_before"] = _stands_before(values, ids.lengths) if has_reason.any() else has_reason
    candidates = np.flatnonzero(is_put & (ids.lengths >= PAD_RUN))
    last = ends[candidates] - 1
    same = np.ones(len(candidates), dtype=np.bool_)
    for back in range(1, PAD_RUN):
        same &= values[last] == values[last - back]
    mask_ends, logprob_ends = np.cumsum(mask.lengths), np.cumsum(logprobs.lengths)
    has_mask = ~mask.is_null & (mask.lengths == ids.lengths)
    has_logprobs = ~logprobs.is_null & (logprobs.lengths == ids.lengths)
    for row in candidates[same].tolist():
        own = values[ends[row] - ids.lengths[row] : ends[row]]
        others = np.flatnonzero(own != own[-1])
        run = len(own) - (int(others[-1]) + 1 if len(others) else 0)
        arrays["tail_run"][row], arrays["tail_id"][row] = run, int(own[-1])
        tail = mask.values[mask_ends[row] - run : mask_ends[row]]
        arrays["tail_trained"][row] = np.count_nonzero(tail) if has_mask[row] else run
        tail = logprobs.values[logprob_ends[row] - run : logprob_ends[row]]
        arrays["tail_sampled"][row] = np.count_nonzero(np.nan_to_num(tail)) if has_logprobs[row] else 0
    return arrays


def _stands_before(values: np.ndarray[Any, Any], lengths: Int64s) -> Bools:
    """Whether the last value of each row also stands before the run of it at the end."""
    rows = np.flatnonzero(lengths)
    result = np.zeros(len(lengths), dtype=np.bool_)
    ends = np.cumsum(lengths)[rows]
    same = np.flatnonzero(values == np.repeat(values[ends - 1], lengths[rows]))
    # Of the places with the last value, those of a run at the end count down from it.
    owner = np.searchsorted(ends, same, side="right")
    behind = np.cumsum(np.bincount(owner, minlength=len(rows)))[owner] - np.arange(len(same)) - 1
    result[rows[owner[same + behind + 1 < ends[owner]]]] = True
    return result


def logprob_numbers(logprobs: Lists) -> Arrays:
    """Numbers per row of the log-probabilities at rollout.

    - `logprobs_print`: the short fingerprint of their bits as float32; with the sum, as good as a long one.
    - `logprobs_sum`: that of the whole response; NaN where a value is null or NaN, 0 without values.
    - `logprobs_alike`: whether all of them are about the same, as fill values are.
    """
    sums, first = np.zeros(len(logprobs.lengths)), np.zeros(len(logprobs.lengths))
    filled = np.flatnonzero(logprobs.lengths)
    with np.errstate(over="ignore", invalid="ignore"):
        if len(filled):
            lengths = logprobs.lengths[filled]
            starts = np.cumsum(lengths) - lengths
            own = np.empty(len(filled))
            for low, high in bounded_spans(lengths, len(filled), _CHUNK):
                at = starts[low:high]
                chunk = logprobs.values[at[0] : at[-1] + lengths[high - 1]].astype(np.float64)
                np.add.reduceat(chunk, at - at[0], out=own[low:high])
            sums[filled], first[filled] = own, logprobs.values[starts]
        bits = logprobs.values.astype(np.float32, copy=False).view(np.uint32)
        # No other values have their first one as their mean, but by a rare chance.
        is_alike = np.isclose(sums, first * logprobs.lengths, rtol=1e-6)
    sums[logprobs.null_element_rows] = np.nan
    prints = short_fingerprints(bits, logprobs.lengths).view(np.int64)
    return {"logprobs_print": prints, "logprobs_sum": sums, "logprobs_alike": is_alike}
