"""verl: texts of trained batches, `<global_step>.jsonl`, and trained batches of the transfer queue, `tq_batch.pt`.

The first are written for people (trainer.rollout_data_dir) and hold scores, but neither versions nor masks nor token
counts; the second are saved to skip rollouts (skip.rollout_tq), and the tags of a response hold its oldest and newest
version. Both lack what was dropped, filtered or left over. Read: verl-project/verl 1dda039b, `RolloutTqSkip`
(verl/utils/skip/rollout_skip.py) and `_dump_generations` (verl/trainer/ppo/ray_trainer.py and v1/trainer_base.py).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import Problem, SourceError, plural
from tokenaudit.importers import batch, dumps
from tokenaudit.importers.base import USUAL_READS, Context, FieldFault, Imported, Importer, Lack, Precision, each_file
from tokenaudit.importers.dumps import columns_of, fields_of, integer_of, items_of, length_of, plain
from tokenaudit.importers.fields import integer, number, stable_id, version_columns
from tokenaudit.importers.files import json_records
from tokenaudit.importers.packed import plain_name
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.log.writer import Row
from tokenaudit.record.verl import PLACE_IN_GROUP, queue_columns

_VALIDATION = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|eval|evaluation)(?:$|[^a-z])", re.IGNORECASE)


def _read_texts(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    prompts, rollout_ids = batch.PromptGroups(is_reordered=True), itertools.count()

    def response(data: dict[str, Any]) -> batch.TrainedResponse:
        step = integer(data, "step", low=1)
        group = batch.GroupKey(context.task(data.get("data_source")), _group_id(step, data, prompts, context))
        return batch.TrainedResponse(
            step, group, batch.unversioned_row(next(rollout_ids), number(data.get("score"), "score"))
        )

    for path in _trained_texts(files, context):
        yield from batch.trained_batches(json_records(path, context), response, str(path), context)
        prompts.end(context)


def _trained_texts(files: Sequence[Path], context: Context) -> list[Path]:
    """The files without those of a validation, which look the same (trainer.validation_data_dir).

    Such are those of a folder that is called so, and those of step 0, before any training, with all of their folder
    if training stands in another one.

    Raises:
        SourceError: there are no others.
    """
    folders = {path.parent for path in files}
    named = {folder for folder in folders if _VALIDATION.search(folder.name)}
    before = {path.parent for path in files if plain_name(path).stem == "0"}
    left_out = named | before if folders - named - before else named
    kept = [path for path in files if path.parent not in left_out and plain_name(path).stem != "0"]
    passed_over = len(files) - len(kept)
    if not kept:
        hint = "name the folder of trainer.rollout_data_dir; one that is called like a validation must be renamed"
        raise SourceError(Problem("the files are those of a validation", str(files[0]), hint))
    if passed_over:
        context.limit(f"{plural(passed_over, 'file')} of validations left out: they train nothing")
    return kept


def _group_id(step: int, data: dict[str, Any], prompts: batch.PromptGroups, context: Context) -> int:
    """The prompt's part of `uid`, which is `<prompt uid>_<session>_<index>`; else equal inputs of a step.

    By default a batch is reordered before it is written (trainer.balance_batch), so groups don't stand together.
    """
    uid = data.get("uid")
    if isinstance(uid, str) and uid:
        return stable_id(PLACE_IN_GROUP.sub("", uid))
    context.limit(Lack.PROMPTS)
    return prompts.group_of((step, data.get("input")))


def _read_batch(path: Path, context: Context) -> Iterator[Imported]:
    with dumps.opened(path, context) as dump:
        with dump.all_or_nothing():
            fields = fields_of(dump.value, "the dump")
            train_step = integer_of(fields, "global_steps", low=1)
            tags, keys = items_of(fields.get("tags"), "tags"), items_of(fields.get("keys"), "keys")
            if len(tags) != len(keys):
                raise FieldFault(f"{len(tags)} tags for {len(keys)} keys")
            columns = columns_of(fields.get("tensordict"), "tensordict")
            tables = context.fields({name: value for name, value in columns.items() if dumps.is_table(value)})
            columns = context.fields(columns)
            stacks = {name: dumps.stacked(columns.get(name), len(tags), name) for name in ("data_source", "num_turns")}

        def tag_of(index: int) -> dict[str, Any]:
            """The tag of a response, with what else is known of it."""
            known = {name: values[index] for name, values in stacks.items() if index < len(values)}
            return context.fields(known | fields_of(tags[index], "a tag"))

        def group(index: int) -> batch.GroupKey:
            task_name = context.task(dumps.name_of(tag_of(index).get("data_source")))
            return batch.GroupKey(task_name, stable_id(PLACE_IN_GROUP.sub("", str(plain(keys[index])))))

        def row(index: int) -> Row:
            dump.spend_response()
            return _queue_row(tag_of(index), str(plain(keys[index])), index, tables, context)

        yield from batch.trained_responses(train_step, len(tags), group, row, "response", str(path), context)


def _queue_row(tag: dict[str, Any], key: str, index: int, tables: dict[str, dumps.Table], context: Context) -> Row:
    tokens = length_of(tag, "response_len")
    status = str(plain(tag.get("status", "success")))
    turns = plain(tag.get("num_turns"))
    row = queue_columns(status, tokens, turns if isinstance(turns, int) else None) | {"rollout_id": stable_id(key)}
    if plain(tag.get("prompt_len")) is not None:
        row["prompt_len"] = length_of(tag, "prompt_len")
    mask, scores = tables.get("response_mask"), tables.get("rm_scores")
    if mask is not None and index < mask.shape[0] and dumps.width_of(mask, index) >= tokens:
        row["response_mask"] = (dumps.row_of(mask, index, tokens) != 0).astype(np.int8)
    else:
        context.limit(Lack.MASK)
    logprobs = tables.get("rollout_log_probs")
    if logprobs is not None and index < logprobs.shape[0] and dumps.width_of(logprobs, index) >= tokens:
        # of the engine, one for each token of the response; those of tools' tokens are fill values
        row["logprobs"] = dumps.row_of(logprobs, index, tokens).astype(np.float32)
    if scores is not None and index < scores.shape[0]:
        total = float(dumps.row_of(scores, index, dumps.width_of(scores, index)).sum(dtype=np.float64))
        row["reward"] = total if np.isfinite(total) else None
    return row | _versions(tag, context)


def _versions(tag: dict[str, Any], context: Context) -> Row:
    if plain(tag.get("min_global_steps")) is None:
        return version_columns(None, None, context)
    names = ("min_global_steps", "max_global_steps")
    start, end = (context.versions.model_step(integer_of(tag, name)) for name in names)
    return version_columns(start, end, context)


TEXTS = Importer(
    name="verl",
    title="verl rollout texts (trainer.rollout_data_dir)",
    files="<global_step>.jsonl",
    looks_like=lambda path, keys: path.suffix == ".jsonl" and keys >= {"input", "output", "score", "step"},
    read=_read_texts,
    suffixes=(".jsonl",),
    precisions=(Precision.NONE,),
    reads=("task_name", "group_id", "rollout_id", "reward", "take"),
    lacks=(Lack.DROPPED, Lack.VERSIONS, Lack.MASK, Lack.LENGTHS),
    shapes=(Shape("verl", "1dda039b", "<global_step>.jsonl", (Gives.REWARDS, Gives.TAKES)),),
)
QUEUE = Importer(
    name="verl-queue",
    title="verl batches of the transfer queue (skip.rollout_tq)",
    files="<step>/<inner>/tq_batch.pt",
    looks_like=lambda path, keys: (
        path.name == "tq_batch.pt" or (path.suffix == ".pt" and keys >= {"tensordict", "tags"})
    ),
    read=each_file(_read_batch),
    suffixes=(".pt",),
    precisions=(Precision.EXACT, Precision.SPAN, Precision.NONE),
    reads=("task_name", *USUAL_READS, "response_mask", "agentic", "reward", "logprobs", "take"),
    lacks=(Lack.DROPPED,),
    shapes=(
        Shape(
            "verl",
            "1dda039b",
            "<step>/<inner>/tq_batch.pt",
            (Gives.EXACT, Gives.LENGTHS, Gives.MASKS, Gives.REWARDS, Gives.TASKS, Gives.LOGPROBS, Gives.TAKES),
        ),
    ),
)
