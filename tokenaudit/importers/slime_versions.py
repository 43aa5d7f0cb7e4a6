"""Versions of a sample of slime or miles: one stamp per generation call, or spans of tokens with a version each.

slime stamps a call when it ends, and a streamed call that an abort cuts off never (`generate_streaming` in
slime/rollout/sglang_streaming_rollout.py of THUDM/slime 624b824a). miles did the same; since 65ce548b (read at 688cf82b
of radixark/miles, `WeightVersionSpan` in miles/utils/types.py) a call has spans instead, whose places count from the
begin of the prompt. Later still they stand beside the spans of the prompt, as `spans` of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenaudit.importers.base import Context, FieldFault, Lack, Precision
from tokenaudit.importers.dumps import fields_of, items_of, plain, scalar
from tokenaudit.importers.fields import integer, length, mapping, pieces, version_columns
from tokenaudit.importers.pickles.values import LazyList
from tokenaudit.log.writer import Row

_STREAMED = "sglang_generate_stream"
_GENERATE = ("sglang_generate", _STREAMED)
_CUT_OFF = (
    "streamed calls that were cut off have no version: their tokens are as old as the rollout they began in, or "
    "unknown, and at most as new as the next call"
)
_UNSPANNED = "some trained tokens lie in no span of a version: their versions are known as spans of the run only"

Mask = np.ndarray[Any, Any] | None
"""The loss mask of a response; None means ones."""


def versions_of(
    sample: dict[str, Any], mask: Mask, tokens: int, prompt: int | None, train_step: int, context: Context
) -> Row:
    """The version columns of a response.

    Args:
        sample: its fields.
        mask: its loss mask, shape [tokens].
        tokens: its length.
        prompt: length of its prompt, if that is known.
        train_step: the step in which it was trained.
        context: where it is noted what isn't known.

    Raises like `version_columns`, and a `FieldFault` for spans that make no sense.
    """
    calls = items_of(sample.get("weight_versions"), "weight_versions")
    if any(isinstance(call, LazyList | dict) for call in calls):
        return _of_spans(sample, calls, mask, tokens, prompt, context)
    stamps = [str(plain(stamp)) for stamp in calls]
    if not stamps or not all(map(_is_number, stamps)):
        return version_columns(None, None, context)
    context.limit(Lack.RESUME)
    versions = [context.versions.model_step(int(stamp)) for stamp in stamps]
    lengths = _calls(sample)
    if None in lengths and sum(size or 0 for size in lengths) != tokens:
        context.limit(_CUT_OFF)
        newest = max(versions) if lengths[-1] is not None else max(*versions, train_step - 1)
        return version_columns(min(_oldest(sample, context), *versions), newest, context)
    if len(set(versions)) > 1:
        placed = _placed(versions, [size for size in lengths if size is not None], mask, tokens)
        if placed is not None:
            return {"response_model_steps": placed, "version_precision": Precision.SEGMENT}
    return version_columns(min(versions), max(versions), context, uniform=Precision.SEGMENT)


def _is_number(stamp: str) -> bool:
    return stamp.isascii() and stamp.isdigit() and len(stamp) < 19


def _oldest(sample: dict[str, Any], context: Context) -> int:
    """The oldest weights that tokens without a version may be from.

    A sample that was aborted names the rollout in which its first tokens came. Weights are pushed before it, and one
    push later at most where it runs beside the training before (train_async.py).
    """
    metadata = sample.get("metadata")
    fields = fields_of(metadata, "metadata") if metadata is not None else {}
    if fields.get("start_rollout_id") is None:
        return 0
    return max(0, integer(scalar(fields, "start_rollout_id"), "start_rollout_id") - context.versions.train_steps)


def _calls(sample: dict[str, Any]) -> list[int | None]:
    """Tokens of the generation calls, from the ends of their spans in the trace; None where one was cut off."""
    lengths: list[int | None] = []
    trace = sample.get("trace")
    for value in items_of(fields_of(trace, "trace").get("events") if trace is not None else None, "events"):
        event = fields_of(value, "an event")
        attributes = mapping(event.get("attrs"), "attrs")
        name = plain(event.get("name"))
        if name in _GENERATE and "completion_tokens" in attributes:
            lengths.append(length(attributes, "completion_tokens"))
        elif name == _STREAMED and plain(event.get("type")) == "span_end":
            lengths.append(None)
    return lengths


def _placed(versions: list[int], calls: list[int], mask: Mask, tokens: int) -> np.ndarray[Any, Any] | None:
    """The version of every token, if the calls add up to the response, or to its trained part."""
    if len(calls) != len(versions):
        return None
    generated = pieces(list(zip(versions, calls, strict=True)))
    if len(generated) == tokens:
        return generated
    if mask is None or len(generated) != int(mask.sum()) or len(generated) == 0:
        return None
    # what tools wrote belongs to the call before it
    return generated[np.maximum(np.cumsum(mask, dtype=np.int64) - 1, 0)]


def _of_spans(
    sample: dict[str, Any], calls: Sequence[Any], mask: Mask, tokens: int, prompt: int | None, context: Context
) -> Row:
    """Versions by token, from spans; what tools wrote, which lies in none, belongs to the call before it."""
    versions = np.full(tokens, -1, dtype=np.int32)
    precision = Precision.SEGMENT
    found: set[int] = set()
    end = 0
    for call in calls:
        spans = _spans(call)
        if len(spans) > 1:
            # a call of one span may be one of an engine that knows the version of its end only
            precision = Precision.EXACT
        for value in spans:
            span = fields_of(value, "a span of versions")
            stamp = str(plain(span.get("version")))
            if not _is_number(stamp):
                return version_columns(None, None, context)
            start, before = integer(scalar(span, "abs_start"), "abs_start"), end
            end = integer(scalar(span, "abs_end"), "abs_end")
            if not before <= start <= end:
                raise FieldFault(f"a span of versions from {start} to {end}, behind one up to {before}")
            found.add(context.versions.model_step(int(stamp)))
            if prompt is not None:
                versions[max(start - prompt, 0) : max(end - prompt, 0)] = context.versions.model_step(int(stamp))
    if not found:
        return version_columns(None, None, context)
    if precision is Precision.SEGMENT:
        context.limit(Lack.RESUME)
    has_version = versions >= 0
    if not has_version.any() or not (has_version if mask is None else has_version | (mask == 0)).all():
        context.limit(_UNSPANNED)
        return version_columns(min(_oldest(sample, context), *found), max(found), context)
    if len(found) == 1:
        (version,) = found
        return version_columns(version, version, context, uniform=precision)
    last = np.maximum.accumulate(np.where(has_version, np.arange(tokens), np.argmax(has_version)))
    return {"response_model_steps": versions[last], "version_precision": precision}


def _spans(call: object) -> Sequence[Any]:
    """The spans of one call, which are listed as they are, or beside those of its prompt."""
    return items_of(call.get("spans") if isinstance(call, dict) else call, "the spans of a call")
