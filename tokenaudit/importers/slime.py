"""slime and miles: `rollout_data/<rollout_id>.pt` or any name of --save-debug-rollout-data, one trained batch a file.

Lacks what was dropped, filtered or left over; versions are those of generation calls. Read: `save_debug_rollout_data`
(slime/observability/rollout_data_utils.py) and `_convert_samples_to_train_data` (slime/ray/rollout.py) of THUDM/slime
624b824a.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.importers.base import USUAL_READS, Context, FieldFault, Imported, Importer, Lack, Precision, each_file
from tokenaudit.importers.batch import GroupKey, PromptGroups, trained_responses
from tokenaudit.importers.dumps import (
    Dump,
    count_of,
    fields_of,
    flat,
    items_of,
    name_of,
    opened,
    plain,
    scalar,
    unpacked,
)
from tokenaudit.importers.fields import integer, length, mapping, number, pieces, stable_id, version_columns
from tokenaudit.importers.pickles.values import LazyList
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.log.writer import Row

_STATUSES = ("pending", "completed", "truncated", "aborted", "failed")
_REASONS = {"truncated": "length", "aborted": "abort", "failed": "error"}
_GENERATE = ("sglang_generate", "sglang_generate_stream")
_NOT_COMPLETED = (
    "members that failed or were aborted were trained like others (only remove_sample keeps one out), so they count as "
    "completed; finish_reason says what they were"
)
_REWARDS = "rewards with several numbers are left out: none of them is the one that was trained on for sure"
_MAX_REWARDS = 100
"""Entries of a dictionary among which the only number is looked for."""


_TRAIN_KEYS = frozenset({"format_version", "response_lengths"})
"""Keys of what the trainer saw of a batch, `train_data/<rollout_id>.pt`, which is no batch of its own."""


def _is_eval(path: Path) -> bool:
    return path.name.startswith("eval_")


def _read_batch(path: Path, context: Context) -> Iterator[Imported]:
    if _is_eval(path):
        return
    with opened(path, context) as dump:
        with dump.all_or_nothing():
            fields = fields_of(dump.value, "the dump")
            train_step = integer(fields, "rollout_id") + 1
            samples = items_of(fields.get("samples"), "samples")

        prompts = PromptGroups()

        def group(index: int) -> GroupKey:
            sample = fields_of(samples[index], "a sample")
            group_index = plain(sample.get("group_index"))
            if group_index is None:
                context.limit(Lack.GROUPS)
                group_index = f"{train_step} {prompts.group_of(_prompt(sample.get('prompt'), index))}"
            return GroupKey(context.task(None), stable_id(group_index))

        def row(index: int) -> Row:
            return _row(fields_of(samples[index], "a sample"), f"{train_step} {index}", context, dump)

        yield from trained_responses(train_step, len(samples), group, row, "sample", str(path), context)


def _prompt(prompt: object, index: int) -> object:
    """What is equal for equal prompts, texts or lists of messages; any other is like no other."""
    text = name_of(prompt)
    if text is not None or not isinstance(prompt, LazyList):
        return index if text is None else text
    return [name_of(fields_of(message, "a message").get("content")) for message in items_of(prompt, "prompt")]


def _row(sample: dict[str, Any], place: str, context: Context, dump: Dump) -> Row:
    tokens = length(scalar(sample, "response_length"), "response_length")
    dump.spend_response(tokens)
    status = plain(sample.get("status", "completed"))
    if status not in _STATUSES:
        raise FieldFault(f"unknown status {shown(status)}", f"statuses: {', '.join(_STATUSES)}")
    if status in ("aborted", "failed"):
        context.limit(_NOT_COMPLETED)
    mask = _mask(sample, tokens)
    index = plain(sample.get("index"))
    row: Row = {
        "rollout_id": stable_id(place if index is None else index),
        "status": "completed",
        "response_len": tokens,
        "response_mask": mask,
        "reward": _reward(sample.get("reward"), context),
        "agentic": mask is not None and not mask.all() and not sample.get("remove_sample"),
        "finish_reason": _REASONS.get(status),
    }
    ids = count_of(sample.get("tokens"), "tokens")
    if ids >= tokens:
        row["prompt_len"] = ids - tokens
    return row | _versions(sample, mask, tokens, context)


def _mask(sample: dict[str, Any], tokens: int) -> np.ndarray[Any, Any] | None:
    """The loss mask; none means ones, and a removed sample is trained on nowhere."""
    if sample.get("remove_sample"):
        return np.zeros(tokens, dtype=np.int8)
    if sample.get("loss_mask") is None:
        return None
    mask = flat(sample["loss_mask"], "loss_mask")
    if len(mask) != tokens:
        raise FieldFault(f"{len(mask)} loss_mask entries for {tokens} tokens")
    return (mask != 0).astype(np.int8)


def _reward(reward: object, context: Context) -> float | None:
    """A number or whether it was right, or the only number of a dictionary; None where several stand side by side."""
    if isinstance(reward, dict):
        values = [unpacked(value) for value in itertools.islice(reward.values(), _MAX_REWARDS)]
        numbers = [value for value in values if type(value) in (int, float)]
        numbers = numbers or [value for value in values if isinstance(value, bool)]
        if len(numbers) > 1 or len(reward) > _MAX_REWARDS:
            context.limit(_REWARDS)
            return None
        reward = numbers[0] if numbers else None
    return number(unpacked(reward), "reward")


def _versions(sample: dict[str, Any], mask: np.ndarray[Any, Any] | None, tokens: int, context: Context) -> Row:
    """One version per call: placed by the lengths of the calls where the trace has them, else a span."""
    stamps = [str(plain(stamp)) for stamp in items_of(sample.get("weight_versions"), "weight_versions")]
    if not stamps or not all(stamp.isascii() and stamp.isdigit() and len(stamp) < 19 for stamp in stamps):
        return version_columns(None, None, context)
    versions = [context.versions.model_step(int(stamp)) for stamp in stamps]
    if len(set(versions)) > 1:
        placed = _placed(versions, _calls(sample), mask, tokens)
        if placed is not None:
            return {"response_model_steps": placed, "version_precision": Precision.SEGMENT}
    return version_columns(min(versions), max(versions), context, uniform=Precision.SEGMENT)


def _calls(sample: dict[str, Any]) -> list[int]:
    """Tokens of the generation calls, from the ends of their spans in the trace."""
    lengths: list[int] = []
    trace = sample.get("trace")
    for value in items_of(fields_of(trace, "trace").get("events") if trace is not None else None, "events"):
        event = fields_of(value, "an event")
        attributes = mapping(event.get("attrs"), "attrs")
        if event.get("name") in _GENERATE and "completion_tokens" in attributes:
            lengths.append(length(attributes, "completion_tokens"))
    return lengths


def _placed(
    versions: list[int], calls: list[int], mask: np.ndarray[Any, Any] | None, tokens: int
) -> np.ndarray[Any, Any] | None:
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


IMPORTER = Importer(
    name="slime",
    title="slime and miles batches (--save-debug-rollout-data, --dump-details)",
    files="rollout_data/<rollout_id>.pt",
    looks_like=lambda path, keys: (
        path.suffix == ".pt" and keys >= {"rollout_id", "samples"} and not keys & _TRAIN_KEYS and not _is_eval(path)
    ),
    read=each_file(_read_batch),
    suffixes=(".pt",),
    precisions=(Precision.SEGMENT, Precision.SPAN, Precision.NONE),
    reads=(*USUAL_READS, "response_model_steps", "response_mask", "agentic", "reward", "finish_reason", "take"),
    lacks=(Lack.DROPPED, Lack.RESUME),
    shapes=(
        Shape(
            "slime",
            "624b824a",
            "rollout_data/<rollout_id>.pt",
            (Gives.SEGMENT, Gives.LENGTHS, Gives.MASKS, Gives.REWARDS, Gives.TAKES),
        ),
    ),
    counts_pushes=True,
    version_offset=1,
)
