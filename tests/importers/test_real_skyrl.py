"""SkyRL's training inputs, dumped by its own code from rollouts that were drawn at random, and damaged ones."""

from __future__ import annotations

import pickle
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.importers.importing import Imported, imported
from tests.importers.test_real_files import imported_real, real, sizes, takes, trainable
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers.base import Lack

PADDING, REWARDS, MASKED = "rows that fill a batch up", "SkyRL drops rewards", "some responses have no trained token"

# two steps of three groups of four
LENGTHS = [5, 4, 8, 7, 9, 9, 7, 4, 5, 9, 8, 11, 6, 11, 11, 4, 11, 5, 9, 8, 10, 7, 10, 9]
TRAINED = [5, 2, 8, 5, 9, 6, 0, 2, 5, 6, 8, 8, 6, 8, 11, 2, 11, 3, 0, 5, 10, 5, 10, 6]
PROMPTS = [5, 3, 4, 3, 7, 5]
# the same in step-wise training, with the turn that each row is
TURNS = [int(turn) for turn in "012001012 01000 01012010 001010 00010 01001201".replace(" ", "")]
TURN_LENGTHS = [5, 4, 8, 6, 4, 11, 8, 4, 6, 11, 7, 8, 5, 6, 7, 4, 11, 7, 6, 9, 6, 8]
TURN_LENGTHS += [8, 8, 7, 10, 9, 4, 5, 7, 11, 8, 7, 7, 6, 5, 5, 4, 10, 5, 5]


def notes(log: Imported, *beginnings: str) -> list[bool]:
    """Whether notes that begin so are among what was left out."""
    return [any(limit.startswith(beginning) for limit in log.imports.limits) for beginning in beginnings]


def test_groups_by_uid_and_rewards_where_a_dump_has_them(tmp_path: Path):
    log = imported_real("skyrl", tmp_path, "skyrl")
    assert (sizes(log), takes(log)) == (Counter({8: 2}), [(1, 2)])
    assert (log.column("response_len"), log.column("prompt_len")) == ([40] * 16, [10] * 16)
    assert (trainable(log), log.column("reward"), log.column("logprobs")) == ([40] * 16, [0.0] * 16, [[0.0] * 40] * 16)
    assert log.imports.limits == (Lack.DROPPED, Lack.VERSIONS)


@pytest.mark.parametrize("name", ["skyrl_bf16_padded", "skyrl_train_v0.1.0"])
def test_masks_and_log_probabilities_with_padding_on_either_side(name: str, tmp_path: Path):
    log = imported_real(name, tmp_path, "skyrl")
    is_padded = name == "skyrl_bf16_padded"
    assert (sizes(log), takes(log)) == (Counter({4: 6}), [(1, 3), (2, 3)])
    assert (log.column("response_len"), trainable(log)) == (LENGTHS, TRAINED)
    assert log.column("prompt_len") == [prompt for prompt in PROMPTS for _ in range(4)]
    np.testing.assert_allclose(log.column("logprobs")[0], [-0.434, -0.07, -0.091, -0.425, -0.827], rtol=1e-6)
    np.testing.assert_allclose(log.column("logprobs")[1], [-0.047, -0.858, -0.29, -0.144], rtol=1e-6)
    # from -2 to -1 over the rows of eleven tokens, three of which fill the batch up; the response is right or left
    rows, first = (15, 6) if is_padded else (12, 0)
    expected = torch.linspace(-2, -1, rows * 11)[first : first + 5]
    expected = expected.to(torch.bfloat16) if is_padded else expected
    assert log.column("train_logprobs")[0] == expected.to(torch.float64).tolist()
    assert [len(values) for values in log.column("train_logprobs")] == LENGTHS
    # what is masked between trained tokens, but not behind them
    masks = log.column("response_mask")
    between = ["0" in "".join(map(str, mask)).strip("0") for mask in masks]
    assert (log.column("agentic"), sum(between)) == (between, 9)
    assert set(log.column("reward")) == {None}
    assert notes(log, PADDING, REWARDS, MASKED, Lack.GROUPS) == [is_padded, True, True, not is_padded]
    assert len(set(log.column("rollout_id"))) == 24
    result = log.replayed("timeline.stamp_missing=true", "policy.max_staleness=1")
    assert result.totals["trained_tokens"] == sum(TRAINED)


@pytest.mark.parametrize(
    ("name", "has_groups"), [("skyrl_turns", True), ("skyrl_v0.2.0_turns", False), ("skyrl_v0.1.0_turns", True)]
)
def test_turns_of_step_wise_training_are_parts_of_rollouts(name: str, has_groups: bool, tmp_path: Path):
    log = imported_real(name, tmp_path, "skyrl")
    assert (sizes(log), takes(log)) == (Counter({8: 2, 5: 2, 9: 1, 6: 1}), [(1, 3), (2, 3)])
    assert (log.column("response_len"), trainable(log)) == (TURN_LENGTHS, TURN_LENGTHS)
    rollouts = log.column("rollout_id")
    assert len(set(rollouts)) == 24
    assert [turn > 0 for turn in TURNS] == [False, *(a == b for a, b in pairwise(rollouts))]
    counts = Counter(rollouts)
    assert log.column("agentic") == [counts[rollout] > 1 for rollout in rollouts]
    assert notes(log, PADDING, Lack.GROUPS) == [True, not has_groups]
    result = log.replayed("timeline.stamp_missing=true", "policy.max_staleness=1")
    assert result.totals["trained_tokens"] == sum(TURN_LENGTHS)


def column(values: Any, dtype: str) -> dict[str, Any]:
    """A tensor as `TensorBatch` pickles it."""
    array = np.asarray(values, dtype=dtype)
    return {"format": "numpy", "data": array.tobytes(), "shape": array.shape, "dtype": dtype}


class TrainingInputBatch:
    """Pickles itself like that of SkyRL, with a state of anybody's choice."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __reduce__(self) -> Any:
        return rebuild_tensor_batch, (TrainingInputBatch, self._state)


def rebuild_tensor_batch(*_: Any) -> None:
    """Stands for the one of SkyRL, and is never called."""
    raise AssertionError("a name of the file was called")


def dump(path: Path, metadata: Any = None, **columns: Any) -> Path:
    """A batch of four sequences, of two tokens each behind two of a prompt."""
    ones = column(np.ones((4, 2)), "int64")
    batch = {"response_mask": ones, "loss_mask": ones, "attention_mask": column(np.ones((4, 4)), "int64")}
    batch |= {"sequences": column([[prompt, 1, 2, 3] for prompt in (7, 7, 8, 8)], "int64")} | columns
    path.write_bytes(pickle.dumps(TrainingInputBatch({"batch_dict": batch, "metadata": metadata}), 4))
    return path


def test_the_step_is_in_the_name_of_the_file_or_in_the_batch(tmp_path: Path):
    path = dump(tmp_path / "global_step_12_training_input.pkl")
    assert takes(imported("skyrl", path)) == [(12, 2)]
    path = dump(tmp_path / "any.pkl", {"global_step": 3})
    assert takes(imported("skyrl", path)) == [(3, 2)]
    with pytest.raises(SourceError, match="the name of the file doesn't hold the train step"):
        imported("skyrl", dump(path))


def test_groups_of_equal_prompts_that_follow_each_other_are_noticed(tmp_path: Path):
    sequences = column([[prompt, 1, 2, 3] for prompt in (7, 7, 9, 9, 8, 8, 8, 8)], "int64")
    ones = column(np.ones((8, 2)), "int64")
    columns = {"response_mask": ones, "loss_mask": ones, "attention_mask": column(np.ones((8, 4)), "int64")}
    path = dump(tmp_path / "x.pkl", {"global_step": 1}, sequences=sequences, **columns)
    log = imported("skyrl", path)
    assert (sizes(log), Lack.EQUAL_PROMPTS in log.imports.limits) == (Counter({2: 2, 4: 1}), True)


@pytest.mark.parametrize(
    ("metadata", "columns", "message"),
    [
        (None, {"loss_mask": None}, "the batch holds no loss_mask"),
        (None, {"loss_mask": column(np.ones((4, 3)), "int64")}, r"loss_mask of shape \[4, 3\] doesn't fit"),
        (None, {"sequences": column(np.ones((4, 1)), "int64")}, r"sequences of shape \[4, 1\] doesn't fit"),
        (None, {"attention_mask": column(np.ones((4, 5)), "int64")}, r"attention_mask of shape \[4, 5\] doesn't fit"),
        (None, {"loss_mask": column(np.ones(8), "int64")}, r"loss_mask is a tensor of shape \[8\]"),
        (None, {"loss_mask": column(np.ones((4, 2)), "int64") | {"dtype": "O"}}, "loss_mask is <numpy.ndarray>"),
        (None, {"loss_mask": column(np.ones((4, 2)), "int64") | {"shape": (4, 3)}}, "shape doesn't fit its bytes"),
        (None, {"loss_mask": column(np.ones((4, 2)), "int64") | {"shape": (-4, -2)}}, "shape makes no sense"),
        (None, {"loss_mask": {"format": "torch", "data": b"PK"}}, "loss_mask is b'PK'"),
        (None, {"loss_mask": {"format": "torch", "data": bytes(300)}}, "not a file of torch.save"),
        ({"pad_size": 5}, {}, "pad_size is 5"),
        ({"uids": ["a"]}, {}, "1 uids for 4 sequences"),
        ({"is_last_step": [True]}, {}, "1 values of is_last_step for 4 sequences"),
        ({"policy_prompt_boundaries": [(0, 2), (2, 2)]}, {}, "policy_prompt_boundaries aren't those of 4 sequences"),
        ({"policy_prompt_boundaries": [(0, 3), (2, 4)]}, {}, "policy_prompt_boundaries aren't those of 4 sequences"),
        ({"policy_prompt_boundaries": [(0, 2)]}, {}, "policy_prompt_boundaries aren't those of 4 sequences"),
        ({"policy_prompt_boundaries": [(0, 1, 4)]}, {}, "policy_prompt_boundaries aren't those of 4 sequences"),
        (None, {"loss_mask": {}}, "loss_mask is <numpy.ndarray>"),
    ],
)
def test_batches_that_contradict_themselves_are_refused(
    metadata: Any, columns: dict[str, Any], message: str, tmp_path: Path
):
    path = dump(tmp_path / "global_step_1_training_input.pkl", metadata, **columns)
    with pytest.raises(SourceError, match=message) as raised:
        imported("skyrl", path)
    assert all(str(path) in str(problem.where) for problem in raised.value.problems)
    assert not (tmp_path / "log.parquet").exists()


def test_a_batch_of_endless_rows_is_refused_at_once(tmp_path: Path):
    empty = {"format": "numpy", "data": b"", "shape": (2**39, 0), "dtype": "int64"}
    columns = dict.fromkeys(("response_mask", "loss_mask", "attention_mask", "sequences"), empty)
    path = dump(tmp_path / "global_step_1_training_input.pkl", **columns)
    with pytest.raises(SourceError, match="names far more than it can hold"):
        imported("skyrl", path)


def test_a_damaged_dump_is_refused_and_nothing_else(tmp_path: Path):
    """Cuts, and bytes changed at random: an error for people, or a log."""
    (source,) = real("skyrl_v0.1.0_turns", tmp_path).glob("*_2_*.pkl")
    whole = source.read_bytes()
    chance = np.random.default_rng(5)
    path = tmp_path / "global_step_2_training_input.pkl"
    imports = 0
    for attempt in range(150):
        data = bytearray(whole)
        if attempt % 3 == 0:
            del data[int(chance.integers(len(data))) :]
        else:
            # most of the file is numbers; its names and archives begin and end the entries
            for place in chance.integers(len(data), size=20):
                data[place] = chance.integers(256)
        path.write_bytes(data)
        with suppress(SourceError):
            imported("skyrl", path)
            imports += 1
    assert 10 < imports < 100
