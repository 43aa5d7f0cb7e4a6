"""NeMo-RL: the `replay_buffer.pt` of a checkpoint, of classic asynchronous GRPO and of the single controller.

One moment of one buffer: lacks refreshes, takes and what was there before. Classic buffers have start versions only.
Read: `TQReplayBuffer.state_dict` (nemo_rl/algorithms/async_utils/replay_buffer.py) of NVIDIA-NeMo/RL 7ea279ab.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.importers import dumps
from tokenaudit.importers.base import Context, FieldFault, Imported, ImportedPut, Importer, Lack, Precision, each_file
from tokenaudit.importers.batch import bounded
from tokenaudit.importers.dumps import Dump, columns_of, fields_of, flat, integer_of, items_of, plain
from tokenaudit.importers.fields import MAX_TOKENS, number, stable_id, version_columns
from tokenaudit.importers.repeats import Writing
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.log.writer import Row
from tokenaudit.record.response_columns import message_mask

_MASKS = ("token_mask", "token_loss_mask")
_LENGTHS = ("input_lengths", "length", "lengths")
_REWARDS = ("rewards", "total_reward", "reward")
_COLUMNS = ("trajectories", "trajectory_versions", "target_weight_versions")
_NAMES = {"batch": "fields_data", "start": "start_weight", "end": "end_weight", "target": "target_step"}
_RESPONSES = 1_000
_UNSTAMPED = (
    "groups without target_step may be trained at any step: all are put at the step behind the newest version in the "
    "buffer, which can be older than the checkpoint"
)


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    numbers = itertools.count()
    return each_file(lambda path, context: _read_buffer(path, next(numbers), context))(files, context)


def _read_buffer(path: Path, number: int, context: Context) -> Iterator[Imported]:
    with dumps.opened(path, context) as dump:
        with dump.all_or_nothing():
            groups = dict(_groups(fields_of(dump.value, "the dump"), number, path, context))
            unstamped = _unstamped_step([*groups.values()], context)
        steps: dict[int, int] = {}
        for index, group in groups.items():
            with context.noting(f"{path}, group {index}"):
                is_stamped = plain(group["target"]) is not None
                steps[index] = integer_of(group, "target") + 1 if is_stamped else unstamped
        for index in sorted(steps, key=steps.__getitem__):
            where = f"{path}, group {index}"
            with context.noting(where):
                put = _put(groups[index], steps[index], where, context, dump)
                yield replace(put, writing=Writing(groups[index]["name"] or _content(put), str(path)))


def _content(put: ImportedPut) -> bytes:
    """What tells a group without a name from others, as it stands in every checkpoint that it waited through."""
    digest = hashlib.blake2b(repr(put.train_step).encode(), digest_size=16)
    for row in put.rows:
        digest.update(row["response_mask"].tobytes())
        names = ("prompt_len", "response_len", "reward", "model_step", "model_step_end")
        digest.update(repr([row.get(name) for name in names]).encode())
    return digest.digest()


def _groups(dump: dict[str, Any], number: int, path: Path, context: Context) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each group's place, and batch, name, group_id, start, end and target of it, whatever the buffer's kind.

    Groups of a classic buffer have no name: they are numbered, in each of several files anew. One that can't be read is
    noted and left out.
    """
    if "groups" in dump:
        for index, value in enumerate(items_of(dump["groups"], "groups")):
            with context.noting(f"{path}, group {index}"):
                group = fields_of(value, "a group")
                named = {ours: group.get(theirs) for ours, theirs in _NAMES.items()}
                name = plain(group.get("group_id"))
                yield index, named | {"group_id": name, "name": name}
        return
    columns = [items_of(dump.get(name), name) for name in _COLUMNS]
    if len({len(column) for column in columns}) != 1:
        raise FieldFault("trajectories, their versions and their targets differ in number")
    for index, (trajectory, start, target) in enumerate(zip(*columns, strict=True)):
        with context.noting(f"{path}, group {index}"):
            fields = fields_of(trajectory, "a trajectory")
            known = {"batch": fields.get("batch", fields), "start": start, "end": None, "target": target, "name": None}
            yield index, known | {"group_id": number * dumps.MAX_ITEMS + index}


def _unstamped_step(groups: list[dict[str, Any]], context: Context) -> int:
    """The step of groups that are meant for none, as samplers but the in-order one leave them: that of the checkpoint.

    It isn't recorded; the newest version in the buffer was there by then.
    """
    ends = [plain(group["end"]) for group in groups if plain(group["target"]) is None]
    if not ends:
        return 0
    context.limit(_UNSTAMPED)
    return max((context.versions.model_step(end) for end in ends if isinstance(end, int) and end >= 0), default=0) + 1


def _put(group: dict[str, Any], train_step: int, where: str, context: Context, dump: Dump) -> ImportedPut:
    batch = columns_of(group["batch"], "the batch")
    if isinstance(batch.get("data"), dict):
        batch = batch["data"]
    batch = context.fields(batch)
    masks = _masks(batch)
    rewards = _numbers(batch, _REWARDS, len(masks))
    group_id = stable_id(group["group_id"])
    versions = _versions(group, train_step, context)

    def row(index: int) -> Row:
        dump.spend_response()
        rollout_id = stable_id(f"{group['group_id']} {index} {train_step}")
        return versions | masked_columns(masks[index]()) | {"rollout_id": rollout_id, "reward": rewards[index]}

    rows = bounded(map(row, range(len(masks))))
    return ImportedPut(train_step, context.task(None), group_id, rows, where)


def masked_columns(mask: np.ndarray[Any, Any]) -> Row:
    """The columns that the loss mask of prompt and response gives: the response begins with its first trained token."""
    trained = np.flatnonzero(mask)
    prompt_len = int(trained[0]) if len(trained) else len(mask)
    response = (mask[prompt_len:] != 0).astype(np.int8)
    return {
        "status": "completed",
        "response_len": len(response),
        "prompt_len": prompt_len,
        "response_mask": response,
        # what isn't trained of it came from tools or an environment
        "agentic": bool(len(trained)) and len(trained) < len(response),
    }


def _masks(batch: dict[str, Any]) -> list[Callable[[], np.ndarray[Any, Any]]]:
    """What reads the loss mask of each response, over prompt and response, without padding."""
    mask = _first_of(batch, _MASKS)
    if dumps.is_table(mask):
        _check_count(mask.shape[0])
        widths = np.array([dumps.width_of(mask, index) for index in range(mask.shape[0])], dtype=np.int64)
        lengths = next((flat(batch[name], name) for name in _LENGTHS if batch.get(name) is not None), None)
        if lengths is None or len(lengths) != len(widths) or (lengths < 0).any() or (lengths > widths).any():
            hint = f"they are in {' or '.join(_LENGTHS)}"
            raise FieldFault("the lengths of the responses don't fit their masks", hint)
        return [partial(dumps.row_of, mask, index, size) for index, size in enumerate(lengths.tolist())]
    logs = items_of(batch.get("message_log"), "message_log")
    if not logs:
        raise FieldFault(f"the batch holds neither {' nor '.join(_MASKS)} nor message_log")
    _check_count(len(logs))
    return [partial(_log_mask, log) for log in logs]


def _first_of(batch: dict[str, Any], names: Sequence[str]) -> Any:
    """The first column that is there; None if none is."""
    return next((batch[name] for name in names if batch.get(name) is not None), None)


def _check_count(responses: int) -> None:
    if responses > _RESPONSES:
        raise FieldFault(f"{responses} responses in a group", f"up to {_RESPONSES} are read")


def _log_mask(log: object) -> np.ndarray[Any, Any]:
    parts = [np.zeros(0, dtype=np.int8)]
    tokens = 0
    for message in items_of(log, "a message log"):
        part = _message_mask(fields_of(message, "a message"))
        tokens += len(part)
        if tokens > MAX_TOKENS:
            raise FieldFault("a response too long", f"responses of up to {MAX_TOKENS} tokens are read")
        parts.append(part)
    return np.concatenate(parts)


def _message_mask(message: dict[str, Any]) -> np.ndarray[Any, Any]:
    mask, tokens = None, 0
    if message.get("token_loss_mask") is not None:
        mask = flat(message["token_loss_mask"], "token_loss_mask")
    else:
        tokens = dumps.count_of(message.get("token_ids"), "token_ids")
    return message_mask(mask, dumps.name_of(message.get("role")), tokens).astype(np.int8)


def _numbers(batch: dict[str, Any], names: Sequence[str], count: int) -> list[float | None]:
    value = _first_of(batch, names)
    if value is None:
        return [None] * count
    values = items_of(value, "rewards")
    if len(values) != count:
        raise FieldFault(f"{len(values)} rewards for {count} responses")
    return [number(item, "reward") for item in values]


def _versions(group: dict[str, Any], train_step: int, context: Context) -> Row:
    """A span where the end is recorded; else only the start, and nothing is newer than the target's weights."""
    start = context.versions.model_step(integer_of(group, "start"))
    if plain(group["end"]) is None:
        return version_columns(start, max(start, train_step - 1), context, mixed=Precision.START)
    return version_columns(start, context.versions.model_step(integer_of(group, "end")), context)


IMPORTER = Importer(
    name="nemo-rl",
    title="NeMo-RL replay buffer of a checkpoint",
    files="replay_buffer.pt",
    looks_like=lambda path, keys: path.name == "replay_buffer.pt" and not keys.isdisjoint({"trajectories", "groups"}),
    read=_read,
    suffixes=(".pt",),
    precisions=(Precision.EXACT, Precision.SPAN, Precision.START),
    reads=("group_id", "rollout_id", "response_len", "prompt_len", "response_mask", "agentic", "reward"),
    lacks=(Lack.SNAPSHOT, Lack.TIMELINE),
    shapes=(
        Shape(
            "NeMo-RL, asynchronous GRPO",
            "7ea279ab",
            "replay_buffer.pt",
            (Gives.EXACT, Gives.START, Gives.LENGTHS, Gives.MASKS, Gives.REWARDS),
        ),
        Shape(
            "NeMo-RL, single controller",
            "7ea279ab",
            "replay_buffer.pt",
            (Gives.EXACT, Gives.SPAN, Gives.LENGTHS, Gives.MASKS, Gives.REWARDS),
        ),
    ),
)
