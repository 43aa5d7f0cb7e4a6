"""Versions of a sample of slime or miles: one stamp per generation call, or spans of tokens with a version each.

slime stamps a call when it ends, and a streamed call that an abort cuts off never (`generate_streaming` in
slime/rollout/sglang_streaming_rollout.py of THUDM/slime 624b824a). miles did the same; since 65ce548b (read at 688cf82b
of radixark/miles, `WeightVersionSpan` in miles/utils/types.py) a call has spans instead, whose places count from the
begin of the prompt. Later still they stand beside the spans of the prompt, as `spans` of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.contracts.schema import Precision
from tokenaudit.log.writer import Row
from tokenaudit.record.limits import Lack
from tokenaudit.record.response_columns import span_columns, spread

STREAMED = "sglang_generate_stream"
GENERATE = ("sglang_generate", STREAMED)
"""Names of the spans of a sample's trace that are generation calls."""
_CUT_OFF = (
    "streamed calls that were cut off have no version: their tokens are as old as the rollout they began in, or "
    "unknown, and at most as new as the next call"
)
_UNSPANNED = "some trained tokens lie in no span of a version: their versions are known as spans of the run only"
_UNKNOWN: Row = {"version_precision": Precision.NONE}


class VersionSpan(NamedTuple):
    """Tokens with one version: its stamp, and where they begin and end, counted from the begin of the prompt."""

    stamp: str
    start: int
    end: int


class Calls(NamedTuple):
    """The generation calls of a sample.

    Attributes:
        versions: the stamp of each call, or its spans.
        lengths: their tokens, as far as the trace has them; None for one that was cut off.
    """

    versions: Sequence[str | Sequence[VersionSpan]]
    lengths: Sequence[int | None]


class Sampled(NamedTuple):
    """A response.

    Attributes:
        mask: its loss mask, shape [tokens]; None means ones.
        tokens: its length.
        prompt: length of its prompt, if that is known.
        train_step: the step in which it was trained.
        oldest: the oldest weights that tokens without a version may be from.
    """

    mask: np.ndarray[Any, Any] | None
    tokens: int
    prompt: int | None
    train_step: int
    oldest: int


def is_version(stamp: str) -> bool:
    """Whether a stamp is a number of a weight push."""
    return stamp.isascii() and stamp.isdigit() and len(stamp) < 19


def oldest_weights(start_rollout_id: int | None, sync_interval: int) -> int:
    """The oldest weights that tokens without a version may be from.

    A sample that was aborted names the rollout in which its first tokens came. Weights are pushed before it, and one
    push later at most where it runs beside the training before (train_async.py).
    """
    return 0 if start_rollout_id is None else max(0, start_rollout_id - sync_interval)


def version_columns(
    calls: Calls, sampled: Sampled, model_step: Callable[[int], int], note: Callable[[str], None]
) -> Row:
    """The version columns of a response.

    Args:
        calls: its generation calls.
        sampled: the rest of it.
        model_step: the train steps in the weights of a push.
        note: called with what isn't known.

    Raises:
        ValueError: spans that make no sense.
    """
    if any(not isinstance(call, str) for call in calls.versions):
        return _of_spans(calls, sampled, model_step, note)
    stamps = [call for call in calls.versions if isinstance(call, str)]
    if not stamps or not all(map(is_version, stamps)):
        return _UNKNOWN
    note(Lack.RESUME)
    versions = [model_step(int(stamp)) for stamp in stamps]
    lengths = calls.lengths
    if None in lengths and sum(size or 0 for size in lengths) != sampled.tokens:
        note(_CUT_OFF)
        newest = max(versions) if lengths[-1] is not None else max(*versions, sampled.train_step - 1)
        return span_columns(min(sampled.oldest, *versions), newest)
    if len(set(versions)) > 1:
        placed = _placed(versions, [size for size in lengths if size is not None], sampled)
        if placed is not None:
            return {"response_model_steps": placed, "version_precision": Precision.SEGMENT}
    return span_columns(min(versions), max(versions), uniform=Precision.SEGMENT)


def _placed(versions: Sequence[int], lengths: Sequence[int], sampled: Sampled) -> np.ndarray[Any, Any] | None:
    """The version of every token, if the calls add up to the response, or to its trained part."""
    mask, generated = sampled.mask, sum(lengths)
    is_whole = generated == sampled.tokens
    if len(lengths) != len(versions) or not (is_whole or (mask is not None and generated == int(mask.sum()) > 0)):
        return None
    by_token = np.repeat(np.array(versions, dtype=np.int32), np.array(lengths, dtype=np.int64))
    # what tools wrote belongs to the call before it
    return by_token if is_whole or mask is None else spread(by_token, mask)


def _of_spans(calls: Calls, sampled: Sampled, model_step: Callable[[int], int], note: Callable[[str], None]) -> Row:
    """Versions by token, from spans; what tools wrote, which lies in none, belongs to the call before it."""
    mask, prompt = sampled.mask, sampled.prompt
    versions = np.full(sampled.tokens, -1, dtype=np.int32)
    precision = Precision.SEGMENT
    found: set[int] = set()
    end = 0
    for call in calls.versions:
        if isinstance(call, str):
            raise ValueError("versions of calls beside spans of versions")
        if len(call) > 1:
            # a call of one span may be one of an engine that knows the version of its end only
            precision = Precision.EXACT
        for span in call:
            if not is_version(span.stamp):
                return _UNKNOWN
            before, end = end, span.end
            if not before <= span.start <= end:
                raise ValueError(f"a span of versions from {span.start} to {end}, behind one up to {before}")
            found.add(model_step(int(span.stamp)))
            if prompt is not None:
                versions[max(span.start - prompt, 0) : max(end - prompt, 0)] = model_step(int(span.stamp))
    if not found:
        return _UNKNOWN
    if precision is Precision.SEGMENT:
        note(Lack.RESUME)
    has_version = versions >= 0
    if not has_version.any() or not (has_version if mask is None else has_version | (mask == 0)).all():
        note(_UNSPANNED)
        return span_columns(min(sampled.oldest, *found), max(found))
    if len(found) == 1:
        (version,) = found
        return span_columns(version, version, uniform=precision)
    last = np.maximum.accumulate(np.where(has_version, np.arange(sampled.tokens), np.argmax(has_version)))
    return {"response_model_steps": versions[last], "version_precision": precision}
