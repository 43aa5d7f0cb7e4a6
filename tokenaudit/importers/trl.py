"""TRL: `completions/completions_<step>.parquet` that its trainers write with `log_completions`, one response a row.

Holds texts and rewards of what was trained: neither groups nor versions nor masks nor token counts. Read:
`GRPOTrainer.log` (trl/trainer/grpo_trainer.py) of huggingface/trl f2cd5771; of the same, trl/experimental/async_grpo,
which writes no files of its own (`_score_loop` prints, `log_rollout_traces` gives samples to trackio, and loses some).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenaudit.importers.base import Context, FieldFault, Imported, Importer, Lack, Precision
from tokenaudit.importers.batch import GroupKey, PromptGroups, TrainedResponse, trained_batches, unversioned_row
from tokenaudit.importers.fields import integer, number
from tokenaudit.importers.files import parquet_records
from tokenaudit.importers.shapes import Gives, Shape

_READ = ("step", "prompt", "completion")
_COLUMNS = (*_READ, "advantage")
_REPEATED = "batches that several steps trained on (num_iterations, steps_per_generation) count once, at the first step"
_EVALUATION = (
    "some steps hold groups of several sizes: TRL logs evaluations into the same files, so rows of one may stand among "
    "those of training"
)
_BEFORE = "what TRL evaluated before any training (step 0) is left out"


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    prompts, rollout_ids, repeats = PromptGroups(), itertools.count(), _Repeats(context)
    rewards: list[str] = []

    def response(data: dict[str, Any]) -> TrainedResponse | None:
        step = integer(data, "step")
        if step == 0:
            context.limit(_BEFORE)
            return None
        if "prompt" not in data:
            raise FieldFault("prompt is missing", "responses to one prompt are a group")
        repeats.see(step, data["prompt"], data.get("completion"))
        values = [number(data.get(name), name) for name in rewards]
        scored = [value for value in values if value is not None]
        row = unversioned_row(next(rollout_ids), sum(scored) if scored else None)
        row["advantage"] = number(data.get("advantage"), "advantage")
        return TrainedResponse(step, GroupKey(context.task(None), prompts.group_of(data["prompt"])), row)

    def columns(schema: pa.Schema) -> list[str]:
        rewards[:] = _reward_columns(schema, context)
        return [name for name in schema.names if name in _COLUMNS or name in rewards]

    for path in files:
        records = parquet_records(path, columns, context)
        yield from trained_batches(records, response, str(path), context, repeats.is_new)
        if len(prompts.sizes()) > 1:
            context.limit(_EVALUATION)
        prompts.end(context)


def _reward_columns(schema: pa.Schema, context: Context) -> list[str]:
    """The columns of reward functions: numbers, and before those that a function logged beside (`log_extra`).

    Both are called as anyone likes. Where some are called a reward, numbers behind the last of these are none.
    """
    others = (column for column in schema if column.name not in _COLUMNS)
    numbers = [column.name for column in itertools.takewhile(lambda column: pa.types.is_floating(column.type), others)]
    called = [index for index, name in enumerate(numbers) if "reward" in name.lower()]
    if not called and len(numbers) > 1:
        context.limit("no column is called a reward: all columns of numbers are summed, whatever they are")
    return numbers[: called[-1] + 1] if called else numbers


class _Repeats:
    """Notices batches that are written again, since TRL trained on them in several steps."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seen: dict[int, hashlib.blake2b] = {}
        self._last = b""

    def see(self, step: int, *texts: object) -> None:
        """The next response of a step."""
        self._seen.setdefault(step, hashlib.blake2b()).update(repr(texts).encode("utf-8", "backslashreplace"))

    def is_new(self, step: int) -> bool:
        """Whether the batch of a step, which is complete, differs from the one before."""
        digest = self._seen.pop(step).digest()
        is_new, self._last = digest != self._last, digest
        if not is_new:
            self._context.limit(_REPEATED)
        return is_new


IMPORTER = Importer(
    name="trl",
    title="TRL completions of trained batches (log_completions)",
    files="completions/completions_<step>.parquet",
    looks_like=lambda path, keys: path.suffix == ".parquet" and keys >= {*_COLUMNS},
    read=_read,
    suffixes=(".parquet",),
    precisions=(Precision.NONE,),
    reads=("group_id", "rollout_id", "reward", "advantage", "take"),
    lacks=(Lack.DROPPED, Lack.VERSIONS, Lack.MASK, Lack.LENGTHS, Lack.GROUPS, Lack.LOGGED_STEPS),
    shapes=(Shape("TRL", "f2cd5771", "completions/completions_<step>.parquet", (Gives.REWARDS, Gives.TAKES)),),
)
