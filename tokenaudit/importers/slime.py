"""slime and miles: `rollout_data/<rollout_id>.pt` or any name of --save-debug-rollout-data, one trained batch a file.

Lacks what was dropped, filtered or left over; versions are those of generation calls. What the trainer saw of a batch
(`train_data/`) fills columns of it. Read: `save_debug_rollout_data` (slime/observability/rollout_data_utils.py) and
`_convert_samples_to_train_data` (slime/ray/rollout.py) of THUDM/slime 624b824a.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenaudit.contracts.errors import Problem, SourceError, shown
from tokenaudit.importers.base import USUAL_READS, Context, FieldFault, Imported, Importer, Lack, Precision
from tokenaudit.importers.batch import GroupKey, PromptGroups, trained_responses
from tokenaudit.importers.dumps import (
    Dump,
    count_of,
    fields_of,
    first_texts,
    flat,
    items_of,
    length_of,
    name_of,
    opened,
    plain,
    reals,
    record_of,
    unpacked,
)
from tokenaudit.importers.fields import integer, number, stable_id
from tokenaudit.importers.pickles.values import LazyList
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.importers.slime_train import TrainFiles, is_train_data
from tokenaudit.importers.slime_versions import versions_of
from tokenaudit.log.writer import Row
from tokenaudit.record import slime

_STATUSES = ("pending", "completed", "truncated", "aborted", "failed")
_OTHER_LOGPROBS = "rollout_log_probs that aren't one for each token of their response are left out"
_GIVES = (Gives.LENGTHS, Gives.MASKS, Gives.REWARDS, Gives.TAKES, Gives.LOGPROBS)
_TRAINED = (Gives.TRAINED_MASKS, Gives.TRAIN_LOGPROBS)
_MAX_REWARDS = 100
"""Entries of a dictionary among which the only number is looked for."""


def _is_eval(path: Path) -> bool:
    return path.name.startswith("eval_")


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    are_seen = {path: is_train_data(first_texts(path)) for path in files}
    seen = [path for path in files if are_seen[path]]
    if len(seen) == len(files):
        what = "what a trainer saw of its batches, without the batches: it names neither groups nor versions"
        hint = "give the folder of --dump-details, which holds rollout_data/ too"
        raise SourceError(Problem(what, str(seen[0]), hint))
    trains = TrainFiles(seen, context)
    for path in files:
        if not are_seen[path] and not _is_eval(path):
            with context.reading():
                yield from _read_batch(path, trains, context)
    trains.end()


def _read_batch(path: Path, trains: TrainFiles, context: Context) -> Iterator[Imported]:
    with opened(path, context) as dump:
        with dump.all_or_nothing():
            fields = fields_of(dump.value, "the dump")
            rollout_id = integer(fields, "rollout_id")
            samples = items_of(fields.get("samples"), "samples")
        train_step = rollout_id + 1

        prompts = PromptGroups()

        def group(index: int) -> GroupKey:
            sample = record_of(samples[index], "a sample", context)
            group_index = plain(sample.get("group_index"))
            if group_index is None:
                context.limit(Lack.GROUPS)
                group_index = f"{train_step} {prompts.group_of(_prompt(sample.get('prompt'), index))}"
            return GroupKey(context.task(None), stable_id(group_index))

        with trains.of(path, rollout_id, samples) as train:

            def row(index: int) -> Row:
                sample = record_of(samples[index], "a sample", context)
                values = _row(sample, f"{train_step} {index}", train_step, context, dump)
                if train is not None and "prompt_len" in values:
                    tokens = values["response_len"]
                    values |= train.columns(index, tokens, values["prompt_len"] + tokens)
                return values

            yield from trained_responses(train_step, len(samples), group, row, "sample", str(path), context)


def _prompt(prompt: object, index: int) -> object:
    """What is equal for equal prompts, texts or lists of messages; any other is like no other."""
    text = name_of(prompt)
    if text is not None or not isinstance(prompt, LazyList):
        return index if text is None else text
    return [name_of(fields_of(message, "a message").get("content")) for message in items_of(prompt, "prompt")]


def _row(sample: dict[str, Any], place: str, train_step: int, context: Context, dump: Dump) -> Row:
    tokens = length_of(sample, "response_length")
    dump.spend_response(tokens)
    status = plain(sample.get("status", "completed"))
    if status not in _STATUSES:
        raise FieldFault(f"unknown status {shown(status)}", f"statuses: {', '.join(_STATUSES)}")
    if status in ("aborted", "failed"):
        context.limit(slime.NOT_COMPLETED)
    mask = None if sample.get("loss_mask") is None else flat(sample["loss_mask"], "loss_mask")
    ids = count_of(sample.get("tokens"), "tokens")
    try:
        row = slime.sample_columns(status, tokens, ids, mask, is_removed=bool(sample.get("remove_sample")))
    except ValueError as error:
        raise FieldFault(str(error)) from error
    index = plain(sample.get("index"))
    row["rollout_id"] = stable_id(place if index is None else index)
    row["reward"] = _reward(sample.get("reward"), context)
    versions = versions_of(sample, row["response_mask"], tokens, row.get("prompt_len"), train_step, context)
    return row | versions | _logprobs(sample, tokens, context)


def _logprobs(sample: dict[str, Any], tokens: int, context: Context) -> Row:
    """The engine's log-probabilities, if there is one for each token."""
    if sample.get("rollout_log_probs") is None:
        return {}
    logprobs = reals(sample["rollout_log_probs"], "rollout_log_probs")
    if len(logprobs) != tokens:
        context.limit(_OTHER_LOGPROBS)
        return {}
    return {"logprobs": logprobs}


def _reward(reward: object, context: Context) -> float | None:
    """A number or whether it was right, or the only number of a dictionary; None where several stand side by side."""
    if isinstance(reward, dict):
        values = [unpacked(value) for value in itertools.islice(reward.values(), _MAX_REWARDS)]
        numbers = slime.reward_numbers(values)
        if len(numbers) > 1 or len(reward) > _MAX_REWARDS:
            context.limit(slime.SEVERAL_REWARDS)
            return None
        reward = numbers[0] if numbers else None
    return number(unpacked(reward), "reward")


IMPORTER = Importer(
    name="slime",
    title="slime and miles batches (--save-debug-rollout-data, --dump-details)",
    files="rollout_data/<rollout_id>.pt",
    looks_like=lambda path, keys: (
        path.suffix == ".pt" and (is_train_data(keys) or (keys >= {"rollout_id", "samples"} and not _is_eval(path)))
    ),
    read=_read,
    suffixes=(".pt",),
    precisions=(Precision.EXACT, Precision.SEGMENT, Precision.SPAN, Precision.NONE),
    reads=(
        *USUAL_READS,
        "response_model_steps",
        "response_mask",
        "agentic",
        "reward",
        "finish_reason",
        "take",
        "logprobs",
        "train_logprobs",
        "trained_mask",
    ),
    lacks=(Lack.DROPPED,),
    shapes=(
        Shape("slime", "624b824a", "rollout_data/<rollout_id>.pt", (Gives.SEGMENT, *_GIVES)),
        Shape(
            "slime",
            "624b824a",
            "rollout_data/, train_data/<rollout_id>.pt",
            (Gives.SEGMENT, Gives.SPAN, *_GIVES, *_TRAINED),
        ),
        Shape(
            "miles",
            "31f1ca96",
            "rollout_data/, train_data/<rollout_id>_<rank>.pt",
            (Gives.SEGMENT, Gives.SPAN, *_GIVES, *_TRAINED),
        ),
        Shape(
            "miles, spans of versions",
            "688cf82b",
            "rollout_data/, train_data/<rollout_id>_<rank>.pt",
            (Gives.EXACT, Gives.SEGMENT, *_GIVES, *_TRAINED),
        ),
    ),
    counts_pushes=True,
    version_offset=1,
)
