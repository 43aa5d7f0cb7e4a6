"""Batches that NeMo-RL logs after it trained on them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.importers.importing import imported, jsonl
from tests.importers.shapes import real
from tests.importers.test_real_files import imported_real, sizes, takes
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers import nemo_train
from tokenaudit.importers.base import Lack
from tokenaudit.importers.detect import detected, files_of, importer_named


def lines(path: Path) -> list[dict[str, Any]]:
    return [
        {name: value[0] for name, value in json.loads(line).items() if name != "idx"}
        for line in path.read_text().splitlines()
    ]


def test_groups_masks_and_log_probabilities(tmp_path: Path):
    """Three groups of four a step, with an assistant's message in each prompt, and a tool's in every third response."""
    log = imported_real("nemo_train_groups", tmp_path, "nemo-rl-train")
    assert (sizes(log), takes(log)) == (Counter({4: 6}), [(1, 3), (2, 3)])
    records = [lines(tmp_path / "nemo_train_groups" / f"train_data_step{step}.jsonl") for step in (1, 2)]
    puts = [row for row in log.rows if row["event"] == "put"]
    for row, record, place in zip(puts, [*records[0], *records[1]], list(range(12)) * 2, strict=True):
        first, total = record["token_loss_mask"].index(1), record["input_lengths"]
        assert (row["prompt_len"], row["response_len"]) == (first, total - first)
        assert row["response_mask"] == record["token_loss_mask"][first:total]
        # the sixth of each step is left out by its sample mask
        assert row["trained_mask"] == [0 if place == 5 else value for value in row["response_mask"]]
        assert row["logprobs"] == pytest.approx(record["generation_logprobs"][first:total])
        assert row["agentic"] == (place % 4 == 2)
    assert [row["train_logprobs"] for row in puts[:12]] == [
        pytest.approx([value / 2 for value in row["logprobs"]]) for row in puts[:12]
    ]
    # in the second step the trainer computed none before its loss, and sampled dynamically
    assert log.column("train_logprobs")[12:] == [None] * 12
    assert log.column("reward") == [r["rewards"] for r in records[0]] + [r["filtered_rewards"] for r in records[1]]
    lacks = {Lack.DROPPED, Lack.VERSIONS, Lack.GROUPS, nemo_train._FILLED, nemo_train._LEFT_OUT}
    assert set(log.imports.limits) == lacks
    result = log.replayed("timeline.stamp_missing=true", "policy.max_staleness=9")
    assert result.totals["trained_tokens"] == sum(map(sum, log.column("response_mask")))


def test_validations_are_passed_over(tmp_path: Path):
    folder = real("nemo_train_groups", tmp_path)
    assert detected([folder]).name == "nemo-rl-train"
    files, passed_over = files_of(importer_named("nemo-rl-train"), [folder])
    assert [file.name for file in files] == ["train_data_step1.jsonl", "train_data_step2.jsonl"]
    assert [file.name for file in passed_over] == ["val_data_step1.jsonl"]


def test_a_batch_of_equal_prompts_is_one_group(tmp_path: Path):
    log = imported_real("nemo_train_data", tmp_path, "nemo-rl-train")
    assert (sizes(log), takes(log)) == (Counter({16: 1}), [(1, 1)])
    assert log.column("prompt_len") == [10] * 16
    assert sum(log.column("response_len")) == sum(
        record["input_lengths"] - 10 for record in lines(tmp_path / "nemo_train_data" / "train_data_step1.jsonl")
    )


RECORD: dict[str, Any] = {
    "rewards": [0.5],
    "input_lengths": [4],
    "token_ids": [[1, 2, 3, 4, 0]],
    "token_loss_mask": [[0, 0, 1, 1, 0]],
    "sample_loss_mask": [1.0],
    "generation_logprobs": [[0.0, 0.0, -1.0, -2.0, 0.0]],
    "prev_logprobs": [[0.0, 0.0, -1.5, -2.5, 0.0]],
    "idx": 0,
}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"token_ids": None}, "token_ids is None"),
        ({"token_loss_mask": [[0, 1]]}, "token_loss_mask holds"),
        ({"prev_logprobs": [["a"] * 5]}, "prev_logprobs is no list of numbers"),
        ({"input_lengths": [-1]}, "input_lengths is -1"),
        ({"rewards": [1.0, 2.0]}, "rewards is "),
        ({"idx": None}, "idx is missing"),
    ],
)
def test_samples_that_make_no_sense_are_faults(values: dict[str, Any], message: str, tmp_path: Path):
    path = jsonl(tmp_path / "train_data_step3.jsonl", RECORD, RECORD | values)
    with pytest.raises(SourceError, match=message) as raised:
        imported("nemo-rl-train", path, is_strict=True)
    assert raised.value.problems[0].where == f"{path}, line 2"
    log = imported("nemo-rl-train", path)
    assert (log.column("response_len"), takes(log)) == ([2], [(3, 1)])


def test_a_sample_without_a_generated_token(tmp_path: Path):
    empty = RECORD | {"token_loss_mask": [[0] * 5], "input_lengths": [2], "idx": 1}
    log = imported("nemo-rl-train", jsonl(tmp_path / "train_data_step3.jsonl", RECORD, empty))
    assert log.column("group_id")[0] == log.column("group_id")[1]
    assert (log.column("response_len"), log.column("prompt_len")) == ([2, 0], [2, 2])
    assert log.column("train_logprobs")[0] == [-1.5, -2.5]


def test_the_step_stands_in_the_name(tmp_path: Path):
    with pytest.raises(SourceError, match="the name of the file doesn't hold the train step"):
        imported("nemo-rl-train", jsonl(tmp_path / "renamed.jsonl", RECORD))
