"""TRL: `completions/completions_<step>.parquet` that its trainers write with `log_completions`, one response a row.

Holds texts and rewards of what was trained: neither groups nor versions nor masks nor token counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenaudit.importers.base import Context, FieldFault, Imported, Importer, Lack, Precision
from tokenaudit.importers.batch import GroupKey, PromptGroups, TrainedResponse, trained_batches, unversioned_row
from tokenaudit.importers.fields import integer, number
from tokenaudit.importers.files import parquet_records

_NO_REWARDS = ("step", "prompt", "advantage")


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    prompts, rollout_ids = PromptGroups(), itertools.count()

    def response(data: dict[str, Any]) -> TrainedResponse:
        step = integer(data, "step", low=1)
        if "prompt" not in data:
            raise FieldFault("prompt is missing", "responses to one prompt are a group")
        rewards = [number(value, name) for name, value in data.items() if name not in _NO_REWARDS]
        scored = [reward for reward in rewards if reward is not None]
        row = unversioned_row(next(rollout_ids), sum(scored) if scored else None)
        return TrainedResponse(step, GroupKey(context.task(None), prompts.group_of(data["prompt"])), row)

    def columns(schema: pa.Schema) -> list[str]:
        # completions are never read
        return [field.name for field in schema if pa.types.is_floating(field.type) or field.name in _NO_REWARDS]

    for path in files:
        yield from trained_batches(parquet_records(path, columns, context), response, str(path), context)
        prompts.end(context)


IMPORTER = Importer(
    name="trl",
    title="TRL completions of trained batches (log_completions)",
    files="completions/completions_<step>.parquet",
    looks_like=lambda path, keys: path.suffix == ".parquet" and keys >= {"completion", *_NO_REWARDS},
    read=_read,
    suffixes=(".parquet",),
    precisions=(Precision.NONE,),
    reads=("group_id", "rollout_id", "reward", "take"),
    lacks=(Lack.DROPPED, Lack.VERSIONS, Lack.MASK, Lack.LENGTHS, Lack.GROUPS),
)
