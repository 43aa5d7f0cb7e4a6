"""Write a realistic rollout log of any size: long-tailed lengths, groups of mates, 1 to 6 versions, tool masks.

    python tests/benchmarks/make_log.py out.parquet --tokens 100_000_000

A quarter of the groups is cut off at the end of its step, sampled and put again one step later. Every step is
refresh, puts, take, sync. What is written depends on the arguments alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP_SIZE = 8
MAX_VERSIONS = 6
CONFIG = (
    '{"mode": "disaggregated", "policy": {"max_staleness": 5, "max_token_staleness": 3, '
    '"tail_batch_trigger_size": 4, "enable_partial_rollout": true}}'
)
EVENTS = ("put", "sample", "refresh", "take", "sync")
STATUSES = ("completed", "aborted")
CHUNK_TOKENS = 8_000_000
"""Tokens that are made at a time."""


@dataclass(frozen=True)
class LogShape:
    """What a log looks like.

    Attributes:
        responses: responses that are completed in the end; those cut off first are put once more.
        mean_tokens: mean length of a response.
        steps: train steps.
        masked_share: share of the responses that record a mask.
        ids: also write token ids, which hardly compress.
        logprobs: also write the log-probabilities of engine and trainer, which hardly compress either.
        seed: what everything random comes from.
    """

    responses: int
    mean_tokens: int = 2000
    steps: int = 400
    masked_share: float = 1.0
    ids: bool = False
    logprobs: bool = False
    seed: int = 1


def write_log(path: Path, shape: LogShape, *, rows_per_group: int | None = 4096) -> int:
    """Write the log and return its tokens; one row group, made in memory, where `rows_per_group` is None."""
    rows = _rows(shape)
    rng = np.random.default_rng(shape.seed + 1)
    schema = _schema(shape).with_metadata({"tokenaudit.schema_version": "1", "tokenaudit.config": CONFIG})
    batches = (
        _batch(shape, {name: column[first:last] for name, column in rows.items()}, schema, rng)
        for first, last in _chunks(rows["response_len"], rows_per_group)
    )
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        if rows_per_group is None:
            writer.write_table(pa.Table.from_batches(batches), row_group_size=len(rows["event"]))
        else:
            for batch in batches:
                writer.write_batch(batch, row_group_size=rows_per_group)
    return int(np.maximum(rows["response_len"], 0).sum())


def _chunks(lengths: np.ndarray, rows_per_group: int | None) -> Iterator[tuple[int, int]]:
    """Spans of rows that fit in memory, at row group borders if there are any."""
    mean = max(1, int(lengths.mean()))
    size = max(1, CHUNK_TOKENS // mean)
    if rows_per_group is not None:
        size = max(1, size // rows_per_group) * rows_per_group
    for first in range(0, len(lengths), size):
        yield first, min(first + size, len(lengths))


def _rows(shape: LogShape) -> dict[str, np.ndarray]:
    """All columns but the lists, and what these are made of.

    `versions`: how many versions a response has; `hole_first` and `hole_last`: the stretch of its tokens that its mask
    leaves out.
    """
    rng = np.random.default_rng(shape.seed)
    groups = max(1, shape.responses // GROUP_SIZE)
    step_of_group = np.sort(rng.integers(1, shape.steps + 1, groups))
    cut = (rng.random(groups) < 0.25) & (step_of_group < shape.steps)
    sigma = 0.9
    lengths = rng.lognormal(np.log(shape.mean_tokens) - sigma**2 / 2, sigma, groups * GROUP_SIZE)
    lengths = np.clip(lengths, 16, 40 * shape.mean_tokens).astype(np.int64).reshape(groups, GROUP_SIZE)
    hole_first = (rng.random(lengths.shape) * lengths).astype(np.int64)
    hole_last = hole_first + (rng.random(lengths.shape) * (lengths - hole_first) * 0.5).astype(np.int64)
    made = {
        "versions": np.minimum(rng.geometric(0.45, lengths.shape), MAX_VERSIONS),
        "hole_first": hole_first,
        "hole_last": hole_last,
    }
    parts: list[dict[str, np.ndarray]] = []
    bounds = np.searchsorted(step_of_group, np.arange(1, shape.steps + 2))
    waiting = np.zeros(0, dtype=np.int64)
    for step in range(1, shape.steps + 1):
        fresh = np.arange(bounds[step - 1], bounds[step])
        whole = fresh[~cut[fresh]]
        parts.append(_event("refresh", step))
        parts.extend(_samples(waiting, step))
        done = np.concatenate([waiting, whole])
        prior = np.where(np.isin(done, waiting)[:, None], lengths[done] // 2, 0)
        parts.append(_puts(done, step, "completed", lengths[done], prior, made))
        waiting = fresh[cut[fresh]]
        halves = lengths[waiting] // 2
        parts.append(_puts(waiting, step, "aborted", halves, np.zeros_like(halves), made))
        parts.append(_event("take", step, batch_size=max(1, len(done) - 1)))
        parts.append(_event("sync", step, model_step=step))
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    is_new = np.ones(len(rows["event"]), dtype=bool)
    is_put = rows["event"] == EVENTS.index("put")
    is_new[1:] = ~(is_put[1:] & is_put[:-1] & (rows["group_id"][1:] == rows["group_id"][:-1]))
    rows["event_id"] = np.cumsum(is_new) - 1
    is_whole = is_put & (rows["status"] == STATUSES.index("completed"))
    rows["reward"] = np.where(is_whole, rng.random(len(is_put)).round(3), np.nan)
    return rows


def _event(event: str, step: int, *, model_step: int = -1, batch_size: int = -1) -> dict[str, np.ndarray]:
    values = {"event": EVENTS.index(event), "train_step": step, "model_step": model_step, "batch_size": batch_size}
    names = ("group_id", "rollout_id", "status", "response_len", "prior_len", "versions", "hole_first", "hole_last")
    absent = dict.fromkeys(names, -1)
    return {name: np.array([value]) for name, value in (values | absent).items()}


def _samples(groups: np.ndarray, step: int) -> Iterator[dict[str, np.ndarray]]:
    for group in groups.tolist():
        row = _event("sample", step)
        yield row | {"group_id": np.array([group]), "status": np.array([STATUSES.index("aborted")])}


def _puts(
    groups: np.ndarray, step: int, status: str, lengths: np.ndarray, prior: np.ndarray, made: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    count = len(groups) * GROUP_SIZE
    group_id = np.repeat(groups, GROUP_SIZE)
    constants = {
        "event": EVENTS.index("put"),
        "train_step": step,
        "model_step": step - 1,
        "status": STATUSES.index(status),
        "batch_size": -1,
    }
    return {name: np.full(count, value) for name, value in constants.items()} | {
        "group_id": group_id,
        "rollout_id": group_id * GROUP_SIZE + np.tile(np.arange(GROUP_SIZE), len(groups)),
        "response_len": lengths.reshape(-1),
        "prior_len": prior.reshape(-1),
        **{name: column[groups].reshape(-1) for name, column in made.items()},
    }


def _schema(shape: LogShape) -> pa.Schema:
    text = pa.dictionary(pa.int32(), pa.string())
    fields = {
        "event": text,
        "event_id": pa.int64(),
        "train_step": pa.int32(),
        "model_step": pa.int32(),
        "task_name": text,
        "group_id": pa.int64(),
        "rollout_id": pa.int64(),
        "status": text,
        "response_len": pa.int32(),
        "prior_len": pa.int32(),
        "response_model_steps": pa.list_(pa.int32()),
        "response_mask": pa.list_(pa.int8()),
        "reward": pa.float64(),
        "batch_size": pa.int32(),
    }
    if shape.ids:
        fields["response_ids"] = pa.list_(pa.int32())
    if shape.logprobs:
        fields |= dict.fromkeys(("logprobs", "train_logprobs"), pa.list_(pa.float32()))
    return pa.schema(list(fields.items()))


def _batch(shape: LogShape, rows: dict[str, np.ndarray], schema: pa.Schema, rng: np.random.Generator) -> pa.RecordBatch:
    lengths = np.maximum(rows["response_len"], 0)
    position = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    is_put = rows["event"] == EVENTS.index("put")
    has_mask = is_put & (rng.random(len(is_put)) < shape.masked_share)
    columns: dict[str, pa.Array] = {}
    if shape.logprobs:
        versions = _versions(rows, lengths, position)
        rollout = -rng.exponential(0.6, len(position)) * np.where(rng.random(len(position)) < 0.4, 0.02, 1)
        spread = 0.015 + 0.03 * np.maximum(np.repeat(rows["model_step"], lengths) - versions, 0)
        trained = np.minimum(rollout + spread * np.minimum(-4 * rollout, 1) * rng.normal(size=len(position)), -1e-6)
        for name, values in (("logprobs", rollout), ("train_logprobs", trained)):
            columns[name] = _lists(values.astype(np.float32), lengths, is_put)
    for field in schema:
        if field.name == "event":
            columns[field.name] = _text(rows["event"], EVENTS)
        elif field.name == "status":
            columns[field.name] = _text(rows["status"], STATUSES)
        elif field.name == "task_name":
            columns[field.name] = _text(np.where(rows["group_id"] >= 0, rows["group_id"] % 2, 0), ("code", "math"))
        elif field.name == "response_model_steps":
            columns[field.name] = _lists(_versions(rows, lengths, position), lengths, is_put)
        elif field.name == "response_mask":
            masks = _masks(rows, lengths, position)[np.repeat(has_mask, lengths)]
            columns[field.name] = _lists(masks, lengths * has_mask, has_mask)
        elif field.name == "response_ids":
            columns[field.name] = _lists(_ids(rows, lengths, position), lengths, is_put)
        elif field.name in columns:
            continue
        elif field.name == "reward":
            columns[field.name] = pa.array(rows["reward"], mask=np.isnan(rows["reward"]))
        else:
            absent = rows[field.name] < 0
            columns[field.name] = pa.array(rows[field.name], mask=absent).cast(field.type)
    return pa.record_batch([columns[field.name] for field in schema], schema=schema)


def _text(codes: np.ndarray, names: tuple[str, ...]) -> pa.Array:
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names))


def _versions(rows: dict[str, np.ndarray], lengths: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Of the first put of a response, rising versions up to its own, each with about the same share of the tokens.

    Tokens that a second put adds have its version, the next one.
    """
    goes_on = rows["prior_len"] > 0
    first_len = np.where(goes_on, rows["prior_len"], lengths)
    first_newest = rows["model_step"] - goes_on
    count = np.maximum(rows["versions"], 1)
    first_len, first_newest, count, newest = (
        np.repeat(column, lengths) for column in (first_len, first_newest, count, rows["model_step"])
    )
    from_end = count - 1 - position * count // np.maximum(first_len, 1)
    return np.where(position < first_len, np.maximum(first_newest - from_end, 0), newest).astype(np.int32)


def _masks(rows: dict[str, np.ndarray], lengths: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Ones, but for one stretch in each response: the output of a tool."""
    first, last = (np.repeat(rows[name], lengths) for name in ("hole_first", "hole_last"))
    return ((position < first) | (position >= last)).astype(np.int8)


def _ids(rows: dict[str, np.ndarray], lengths: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Token ids that look random and are the same in every put of a response."""
    mixed = np.repeat(rows["rollout_id"], lengths).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed + position.astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
    return ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(150_000)).astype(np.int32)


def _lists(values: np.ndarray, lengths: np.ndarray, present: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=pa.array(~present))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--tokens", type=int, help="tokens, about")
    size.add_argument("--responses", type=int)
    parser.add_argument("--mean-tokens", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--masked-share", type=float, default=1.0)
    parser.add_argument("--ids", action="store_true", help="write token ids too")
    parser.add_argument("--logprobs", action="store_true", help="write log-probabilities of engine and trainer too")
    parser.add_argument("--one-row-group", action="store_true")
    given = parser.parse_args()
    responses = given.responses or max(GROUP_SIZE, int(given.tokens / given.mean_tokens / 1.125))
    shape = LogShape(responses, given.mean_tokens, given.steps, given.masked_share, given.ids, given.logprobs)
    tokens = write_log(given.path, shape, rows_per_group=None if given.one_row_group else 4096)
    print(f"{given.path}: {tokens} tokens, {given.path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
