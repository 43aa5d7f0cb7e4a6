"""NeMo-RL: `train_data_step<N>.jsonl` in the folder of its logs, the batch of a step with one sample a line.

Every value is a list of one, and those by token cover prompt, response and padding. Names neither groups nor versions.
Read: `grpo_train` and `async_grpo_train` (nemo_rl/algorithms/grpo.py), nemo_rl/algorithms/grpo_sync.py and
`log_batched_dict_as_jsonl` (nemo_rl/utils/logger.py) of NVIDIA-NeMo/RL 7ea279ab.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.importers.base import Context, FieldFault, Imported, ImportedPut, Importer, Lack, Precision, each_file
from tokenaudit.importers.batch import PromptGroups, check_group, takes
from tokenaudit.importers.fields import int_list, integer, length, number, real_list, stable_id, version_columns
from tokenaudit.importers.files import json_records, step_in_name
from tokenaudit.importers.nemo_rl import masked_columns
from tokenaudit.importers.repeats import Writing
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.log.writer import Row

_LOGPROBS = {"logprobs": "generation_logprobs", "train_logprobs": "prev_logprobs"}
_FILLED = (
    "log-probabilities that are 0 at every generated token of a sample are fill values (as with "
    "force_on_policy_ratio), and are left out"
)
_LEFT_OUT = "samples that sample_loss_mask leaves out of the loss have a trained_mask of zeros"


def _read_step(path: Path, context: Context) -> Iterator[Imported]:
    train_step = step_in_name(path, r"train_data_step(\d+)\.jsonl", low=1)
    prompts, writing = PromptGroups(), Writing(train_step, str(path))
    sizes: Counter[str] = Counter()
    put: ImportedPut | None = None
    tokens = 0
    for data, where in json_records(path, context):
        with context.noting(where):
            prompt, row = _sample(data, train_step, context)
            group_id = stable_id(f"{train_step} {prompts.group_of(prompt)}")
            if put is None or put.group_id != group_id:
                if put is not None:
                    yield put
                put, tokens = ImportedPut(train_step, context.task(None), group_id, [], where, writing), 0
                sizes[put.task_name] += 1
            tokens += row["response_len"]
            check_group(tokens)
            put.rows.append(row)
    if put is not None:
        yield put
    prompts.end(context)
    yield from takes(train_step, sizes, str(path), writing)


def _sample(data: dict[str, Any], train_step: int, context: Context) -> tuple[bytes, Row]:
    """The prompt of a sample, as what is equal for equal ones, and the columns of its response."""
    total = length({"input_lengths": _one(data, "input_lengths")}, "input_lengths")
    mask = _by_token(data, "token_loss_mask", total, real_list) != 0
    row = masked_columns(mask)
    prompt_len, response = row["prompt_len"], row["response_mask"]
    is_trained = number(_one(data, "sample_loss_mask"), "sample_loss_mask") != 0
    if not is_trained:
        context.limit(_LEFT_OUT)
    # with dynamic sampling, `rewards` are those of other samples, of before the filter
    rewards = "filtered_rewards" if "filtered_rewards" in data else "rewards"
    row |= {
        "rollout_id": stable_id(f"{train_step} {integer(data, 'idx')}"),
        "trained_mask": response if is_trained else np.zeros_like(response),
        "reward": number(_one(data, rewards), rewards),
    }
    for ours, theirs in _LOGPROBS.items():
        logprobs = _by_token(data, theirs, total, real_list)
        if logprobs[mask].any():
            row[ours] = logprobs[prompt_len:]
        elif mask.any():
            context.limit(_FILLED)
    prompt = _by_token(data, "token_ids", total, int_list)[:prompt_len]
    return prompt.tobytes(), row | version_columns(None, None, context)


def _one(data: dict[str, Any], name: str) -> Any:
    """The only value of a column."""
    values = data.get(name)
    if not isinstance(values, list) or len(values) != 1:
        raise FieldFault(f"{name} is {shown(values)}", "it is a list with the value of one sample")
    return values[0]


def _by_token(
    data: dict[str, Any], name: str, total: int, numbers_in: Callable[[object, str], np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    """A column by token, without padding, shape [total]."""
    values = _one(data, name)
    array = numbers_in(values, name)
    if len(array) < total:
        raise FieldFault(f"{name} holds {shown(values)}", f"it has a number for each of the {total} tokens")
    return array[:total]


IMPORTER = Importer(
    name="nemo-rl-train",
    title="NeMo-RL batches that were trained",
    files="train_data_step<N>.jsonl",
    looks_like=lambda path, keys: (
        path.suffix == ".jsonl" and keys >= {"token_loss_mask", "sample_loss_mask", "input_lengths"}
    ),
    read=each_file(_read_step),
    suffixes=(".jsonl",),
    precisions=(Precision.NONE,),
    reads=(
        "group_id",
        "rollout_id",
        "response_len",
        "prompt_len",
        "response_mask",
        "agentic",
        "reward",
        "logprobs",
        "train_logprobs",
        "trained_mask",
        "take",
    ),
    lacks=(Lack.DROPPED, Lack.VERSIONS, Lack.GROUPS),
    shapes=(
        Shape(
            "NeMo-RL, GRPO",
            "7ea279ab",
            "train_data_step<N>.jsonl",
            (
                Gives.LENGTHS,
                Gives.MASKS,
                Gives.TRAINED_MASKS,
                Gives.REWARDS,
                Gives.TAKES,
                Gives.LOGPROBS,
                Gives.TRAIN_LOGPROBS,
            ),
        ),
    ),
)
