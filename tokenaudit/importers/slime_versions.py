"""Versions of a sample of slime or miles in a file; `record/slime_versions.py` has the rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenaudit.importers.base import Context, FieldFault
from tokenaudit.importers.dumps import fields_of, integer_of, items_of, plain
from tokenaudit.importers.fields import length, mapping
from tokenaudit.importers.pickles.values import LazyList
from tokenaudit.log.writer import Row
from tokenaudit.record import slime_versions as rules
from tokenaudit.record.slime_versions import VersionSpan

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

    Raises:
        FieldFault: versions that make no sense.
    """
    made = items_of(sample.get("weight_versions"), "weight_versions")
    has_spans = any(isinstance(call, LazyList | dict) for call in made)
    calls = rules.Calls([_spans(call) if has_spans else str(plain(call)) for call in made], _lengths(sample))
    sampled = rules.Sampled(mask, tokens, prompt, train_step, _oldest(sample, context))
    try:
        row = rules.version_columns(calls, sampled, context.versions.model_step, context.limit)
    except FieldFault:
        raise
    except ValueError as error:
        raise FieldFault(str(error)) from error
    context.limit_of(row["version_precision"])
    return row


def _oldest(sample: dict[str, Any], context: Context) -> int:
    metadata = sample.get("metadata")
    fields = fields_of(metadata, "metadata") if metadata is not None else {}
    started = fields.get("start_rollout_id") is not None
    start = integer_of(fields, "start_rollout_id") if started else None
    return rules.oldest_weights(start, context.versions.train_steps)


def _lengths(sample: dict[str, Any]) -> list[int | None]:
    """Tokens of the generation calls, from the ends of their spans in the trace; None where one was cut off."""
    lengths: list[int | None] = []
    trace = sample.get("trace")
    for value in items_of(fields_of(trace, "trace").get("events") if trace is not None else None, "events"):
        event = fields_of(value, "an event")
        attributes = mapping(event.get("attrs"), "attrs")
        name = plain(event.get("name"))
        if name in rules.GENERATE and "completion_tokens" in attributes:
            lengths.append(length(attributes, "completion_tokens"))
        elif name == rules.STREAMED and plain(event.get("type")) == "span_end":
            lengths.append(None)
    return lengths


def _spans(call: Any) -> list[VersionSpan]:
    """The spans of a call, which are listed as they are, or beside those of its prompt."""
    spans: list[VersionSpan] = []
    for value in items_of(call.get("spans") if isinstance(call, dict) else call, "the spans of a call"):
        span = fields_of(value, "a span of versions")
        places = (integer_of(span, name) for name in ("abs_start", "abs_end"))
        spans.append(VersionSpan(str(plain(span.get("version"))), *places))
    return spans
