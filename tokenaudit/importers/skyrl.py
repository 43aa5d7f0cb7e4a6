"""SkyRL: `dumped_data/global_step_<N>_training_input.pkl` (trainer.dump_data_batch), one trained batch a file.

A pickle whose tensors lie in bytes, as numpy has them or as `torch.save` writes them. Holds masks, lengths and
log-probabilities; names neither versions nor, since the trainer drops both before it dumps, rewards and prompts' uids.
Read: `TensorBatch.__getstate__` and `pad_training_input_batch` (skyrl/backends/skyrl_train/training_batch.py),
`RayPPOTrainer` (skyrl/train/trainer.py) and `convert_prompts_responses_to_batch_tensors`
(skyrl/train/dataset/preprocess.py) of NovaSky-AI/SkyRL a9564572, and the same of 6c500260 (skyrl_train-v0.1.0),
4bc076fa (skyrl-v0.1.0) and eddb418d (skyrl-v0.2.0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.importers.base import USUAL_READS, Context, FieldFault, Imported, Importer, Lack, Precision, each_file
from tokenaudit.importers.batch import GroupKey, note_equal_prompts, trained_responses
from tokenaudit.importers.dumps import ARRAYS, fields_of, flat, integer_of, items_of, opened, plain, record_of, row_of
from tokenaudit.importers.fields import MAX_TOKENS, stable_id, version_columns
from tokenaudit.importers.files import step_in_name
from tokenaudit.importers.pickles.arrays import Array, named_array
from tokenaudit.importers.pickles.source import LazyBytes
from tokenaudit.importers.pickles.torch_file import inner_archive
from tokenaudit.importers.pickles.values import OpaqueObject, PickleFault
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.log.writer import Row

_MASKS = ("response_mask", "loss_mask")
_TEXTS = ("sequences", "attention_mask")
_REALS = {"rollout_logprobs": "logprobs", "action_log_probs": "train_logprobs", "rewards": "reward"}
_PADDING = "rows that fill a batch up (pad_size) are left out: they are copies that aren't trained"
_NO_REWARDS = "SkyRL drops rewards before it dumps a batch: responses are unscored"
_MASKED = (
    "some responses have no trained token: those that SkyRL masks whole, such as overlong ones and groups without "
    "variance, can't be distinguished from others without any"
)


class _Places(NamedTuple):
    """Where the sequences of a batch belong: their groups as ids, and their trajectories by number."""

    groups: list[int]
    rollouts: list[int]


def _read_batch(path: Path, context: Context) -> Iterator[Imported]:
    with opened(path, context) as dump:
        with dump.all_or_nothing():
            state = _state(dump.value)
            columns = record_of(state.get("batch_dict"), "batch_dict", context)
            tables = _tables(columns)
            metadata = record_of(state.get("metadata") or {}, "metadata", context)
            if metadata.get("global_step") is None:
                train_step = step_in_name(path, r"global_step_(\d+)_", low=1)
            else:
                train_step = integer_of(metadata, "global_step", low=1)
            count = _count(tables, metadata, context)
            dump.spend_response(count=count)
            names, ends = _group_names(metadata, count), _last_turns(columns, metadata, count)
            prompts = (_prompt(tables, index) for index in range(count))
            places = _places(prompts, names, ends, train_step, context)
            turns = Counter(places.rollouts)
        if "rewards" not in tables:
            context.limit(_NO_REWARDS)

        def group(index: int) -> GroupKey:
            return GroupKey(context.task(None), places.groups[index])

        def row(index: int) -> Row:
            rollout = places.rollouts[index]
            values = _row(tables, index, context)
            values["rollout_id"] = stable_id(f"{train_step} {rollout}")
            values["agentic"] |= turns[rollout] > 1
            return values

        yield from trained_responses(train_step, count, group, row, "sequence", str(path), context)


def _state(value: object) -> dict[str, Any]:
    """What `TensorBatch.__getstate__` gave: an argument of what rebuilds it, until skyrl-v0.1.0 the object's state."""
    if isinstance(value, OpaqueObject) and value.state is None and len(value.arguments) == 2:
        value = value.arguments[1]
    return fields_of(value, "the dump")


def _tables(columns: dict[str, Any]) -> dict[str, Array]:
    """The tensors that are read, all with a row for each sequence, right-aligned with one another.

    Raises:
        FieldFault: one is missing, or they don't fit each other.
    """
    tables: dict[str, Array] = {}
    for name in (*_MASKS, *_TEXTS, *_REALS):
        table = _tensor(columns.get(name), name)
        if table is not None:
            tables[name] = table
        elif name not in _REALS:
            raise FieldFault(f"the batch holds no {name}")
    rows, width = tables["response_mask"].shape
    for name, table in tables.items():
        fits = table.shape == (tables["sequences"].shape if name in _TEXTS else (rows, width))
        if not fits or table.shape[0] != rows or not width <= table.shape[1] <= MAX_TOKENS:
            raise FieldFault(f"{name} of shape {list(table.shape)} doesn't fit response_mask of {rows} by {width}")
    return tables


def _tensor(value: object, name: str, axes: int = 2) -> Array | None:
    """A tensor out of its bytes; None where there is none. Raises a `FieldFault` if it is something else."""
    if isinstance(value, dict) and value.get("format") != "torch":
        try:
            value = named_array(value.get("shape"), value.get("dtype"), value.get("data"))
        except PickleFault as fault:
            raise FieldFault(f"{name} holds {fault}") from fault
    elif isinstance(value, dict):
        value = value.get("data")
    if isinstance(value, LazyBytes):
        value = inner_archive(value).load()
    if value is None or (isinstance(value, ARRAYS) and value.ndim == axes):
        return value
    what = f"a tensor of shape {list(value.shape)}" if isinstance(value, ARRAYS) else shown(value)
    raise FieldFault(f"{name} is {what}", f"it is a tensor of {axes} axes")


def _count(tables: dict[str, Array], metadata: dict[str, Any], context: Context) -> int:
    """Sequences without those that fill the batch up, which come last."""
    rows = tables["response_mask"].shape[0]
    if metadata.get("pad_size") is None:
        return rows
    padding = integer_of(metadata, "pad_size")
    if padding > rows:
        raise FieldFault(f"pad_size is {padding}", f"the batch has {rows} rows")
    if padding:
        context.limit(_PADDING)
    return rows - padding


def _places(
    prompts: Iterable[np.ndarray[Any, Any]],
    names: Sequence[Any] | None,
    ends: np.ndarray[Any, Any] | None,
    train_step: int,
    context: Context,
) -> _Places:
    """The groups by name or boundary, else by prompt; and the trajectories, of which step-wise training has every turn.

    The turns of a trajectory come one after the other, each with a prompt that begins with that of the turn before; so
    does the first prompt of a group begin all that are in it.
    """
    if names is None:
        context.limit(Lack.GROUPS)
    places = _Places([], [])
    sizes: Counter[int] = Counter()
    first = before = np.zeros(0, dtype=np.int64)
    number, rollout = -1, -1
    for index, prompt in enumerate(prompts):
        is_new = index == 0 or (
            not _begins(first, prompt) if names is None else plain(names[index]) != plain(names[index - 1])
        )
        if is_new:
            number, first = number + 1, prompt
        is_turn = not ends[index - 1] if ends is not None else len(prompt) > len(before) and _begins(before, prompt)
        if is_new or not is_turn:
            rollout += 1
            sizes[number] += 1
        before = prompt
        places.groups.append(stable_id(f"{train_step} {number if names is None else plain(names[index])}"))
        places.rollouts.append(rollout)
    if names is None:
        note_equal_prompts(sizes, context)
    return places


def _group_names(metadata: dict[str, Any], count: int) -> Sequence[Any] | None:
    """What names the group of each sequence: its prompt's uid, or its number by the boundaries; None without either."""
    for name in ("uids", "trajectory_ids"):
        if metadata.get(name) is not None:
            ids = items_of(metadata[name], name)
            if len(ids) < count:
                raise FieldFault(f"{len(ids)} {name} for {count} sequences")
            # a trajectory is called <prompt uid>_<its number in the group>, in step-wise training until skyrl-v0.1.0
            return ids if name == "uids" else [str(plain(value)).rpartition("_")[0] for value in ids[:count]]
    if metadata.get("policy_prompt_boundaries") is None:
        return None
    numbers: list[int] = []
    for number, value in enumerate(items_of(metadata["policy_prompt_boundaries"], "policy_prompt_boundaries")):
        start, end = bounds if len(bounds := flat(value, "a boundary").tolist()) == 2 else (-1, -1)
        if start != len(numbers) or not start < end <= count:
            break
        numbers += [number] * (end - start)
    if len(numbers) != count:
        raise FieldFault(f"policy_prompt_boundaries aren't those of {count} sequences")
    return numbers


def _last_turns(columns: dict[str, Any], metadata: dict[str, Any], count: int) -> np.ndarray[Any, Any] | None:
    """Whether each sequence is the last turn of its trajectory, where step-wise training says so; else None."""
    column = _tensor(columns.get("is_last_step"), "is_last_step", axes=1)
    ends = metadata.get("is_last_step") if column is None else column
    if ends is None:
        return None
    found = flat(ends, "is_last_step") != 0
    if len(found) < count:
        raise FieldFault(f"{len(found)} values of is_last_step for {count} sequences")
    return found


def _prompt(tables: dict[str, Array], index: int) -> np.ndarray[Any, Any]:
    """The tokens before the response."""
    tokens, attended = (row_of(tables[name], index, tables[name].shape[1]) for name in _TEXTS)
    response = row_of(tables["response_mask"], index, tables["response_mask"].shape[1])
    return tokens[attended != 0][: max(0, np.count_nonzero(attended) - np.count_nonzero(response))]


def _begins(prompt: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether another prompt begins with a prompt."""
    return np.array_equal(prompt, other[: len(prompt)])


def _row(tables: dict[str, Array], index: int, context: Context) -> Row:
    width = tables["response_mask"].shape[1]
    # padded on the left, and until skyrl-v0.1.0 on the right
    response = row_of(tables["response_mask"], index, width) != 0
    tokens = int(np.count_nonzero(response))
    attended = row_of(tables["attention_mask"], index, tables["attention_mask"].shape[1])
    prompt_len = int(np.count_nonzero(attended)) - tokens
    if prompt_len < 0:
        raise FieldFault(f"{tokens} tokens of a response of which attention_mask leaves out some")
    mask = (row_of(tables["loss_mask"], index, width)[response] != 0).astype(np.int8)
    trained = np.flatnonzero(mask)
    if tokens and not len(trained):
        context.limit(_MASKED)
    row: Row = {
        "status": "completed",
        "response_len": tokens,
        "prompt_len": prompt_len,
        "response_mask": mask,
        # what lies between trained tokens came from tools or an environment
        "agentic": bool(len(trained)) and len(trained) <= int(trained[-1] - trained[0]),
    }
    for name, column in _REALS.items():
        if name in tables:
            row[column] = row_of(tables[name], index, width)[response].astype(np.float64)
    if "reward" in row:
        total = float(row["reward"].sum())
        row["reward"] = total if np.isfinite(total) else None
    return row | version_columns(None, None, context)


_FILES = "dumped_data/global_step_<N>_training_input.pkl"
_GIVES = (Gives.LENGTHS, Gives.MASKS, Gives.LOGPROBS, Gives.TRAIN_LOGPROBS, Gives.TAKES)
IMPORTER = Importer(
    name="skyrl",
    title="SkyRL training inputs (trainer.dump_data_batch)",
    files=_FILES,
    looks_like=lambda path, keys: path.suffix == ".pkl" and "TrainingInputBatch" in keys,
    read=each_file(_read_batch),
    suffixes=(".pkl",),
    precisions=(Precision.NONE,),
    reads=(*USUAL_READS, "response_mask", "agentic", "reward", "logprobs", "train_logprobs", "take"),
    lacks=(Lack.DROPPED,),
    shapes=(
        Shape("SkyRL", "a9564572", _FILES, _GIVES),
        Shape("SkyRL, step-wise", "a9564572", _FILES, _GIVES),
        Shape("SkyRL, skyrl_train", "v0.1.0", _FILES, _GIVES),
    ),
)
