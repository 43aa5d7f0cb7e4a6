"""Small files that trainers' own code wrote, imported; what is expected was counted by other means."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.importers.importing import Imported, imported, jsonl
from tests.importers.shapes import real
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers.base import Lack
from tokenaudit.importers.detect import detected


def imported_real(name: str, folder: Path, importer: str, offset: int | None = None) -> Imported:
    """The log of such files, whose format is recognised."""
    source = real(name, folder)
    assert detected([source]).name == importer
    return imported(importer, source, offset=offset)


def sizes(log: Imported) -> Counter[int]:
    """How many groups of a step have so many responses."""
    puts = (row for row in log.rows if row["event"] == "put")
    groups = Counter((row["train_step"], row["task_name"], row["group_id"]) for row in puts)
    return Counter(groups.values())


def takes(log: Imported) -> list[tuple[int, int]]:
    """Step and groups of every take."""
    return [(row["train_step"], row["batch_size"]) for row in log.rows if row["event"] == "take"]


def trainable(log: Imported) -> list[int]:
    """Trainable tokens of each response."""
    return [int(np.sum(mask)) for mask in log.column("response_mask")]


def test_verl_queue_padded_columns_of_a_tensordict(tmp_path: Path):
    log = imported_real("verl_tq_real", tmp_path, "verl-queue")
    assert (sizes(log), takes(log)) == (Counter({8: 3}), [(1, 3)])
    assert log.column("response_len") == [20] * 24
    # with a tool, three of the tokens are its own
    tool, none = 17, 20
    pattern = [tool, none, none, tool, none, none, tool, none]
    assert trainable(log) == pattern * 3
    assert log.column("agentic") == [tokens == tool for tokens in trainable(log)]
    rewards = "1 0 1 1 0 1 1 1  0 1 1 1 0 0 1 0  1 1 0 0 1 1 1 1"
    assert log.column("reward") == [float(reward) for reward in rewards.split()]
    assert set(log.column("task_name")) == {"openai/gsm8k"}
    assert (log.column("model_step"), set(log.column("version_precision"))) == ([0] * 24, {"exact"})
    assert [row["logprobs"] for row in log.rows[:24]] == [pytest.approx([-0.1] * 20)] * 24
    assert log.imports.limits == (Lack.DROPPED,)


def test_verl_queue_nested_columns_of_a_tensordict(tmp_path: Path):
    log = imported_real("verl_tq_jagged", tmp_path, "verl-queue")
    assert (sizes(log), takes(log)) == (Counter({8: 3}), [(1, 3)])
    expected = [17, 6, 59, 32, 7, 42, 17, 22, 28, 59, 28, 12, 3, 22, 56, 23, 4, 38, 19, 42, 21, 42, 10, 25]
    assert trainable(log) == expected
    rewards = "0 0 1 1 1 1 1 1  1 1 1 1 1 0 0 1  0 0 1 0 1 1 1 0"
    assert log.column("reward") == [float(reward) for reward in rewards.split()]
    # nine responses called a tool, which wrote three tokens each
    assert sum(log.column("response_len")) == sum(expected) + 27
    assert sum(log.column("agentic")) == 9
    assert [len(values) for values in log.column("logprobs")] == log.column("response_len")


def test_nemo_rl_single_controller_in_order(tmp_path: Path):
    log = imported_real("nemo_sc_inorder", tmp_path, "nemo-rl")
    assert sizes(log) == Counter({8: 9})
    # meant for the trainer's versions 10, 11 and 12
    assert log.column("train_step") == [11] * 24 + [12] * 24 + [13] * 24
    assert trainable(log)[:8] == [45, 47, 25, 22, 16, 16, 34, 42]
    assert log.column("response_len")[:8] == [47, 49, 27, 24, 18, 18, 36, 44]
    assert log.column("prompt_len") == [10] * 72
    assert log.column("reward") == [0.0, 1.0] * 36
    # the fifth group, and the seventh to ninth
    assert log.column("model_step")[32] == 10
    assert log.column("model_step_end")[32::8] == [11, None, 13, None, 13]
    assert log.imports.limits == (Lack.SNAPSHOT, Lack.TIMELINE, Lack.SPANS)


def test_nemo_rl_single_controller_without_targets(tmp_path: Path):
    log = imported_real("nemo_sc_default", tmp_path, "nemo-rl")
    assert sizes(log) == Counter({8: 9})
    # the newest version in the buffer is 12
    assert set(log.column("train_step")) == {13}
    assert trainable(log)[:8] == [43, 44, 8, 44, 32, 20, 28, 32]
    assert log.column("reward") == [0.0, 1.0] * 36
    assert log.column("model_step")[::8] == [10, 10, 10, 11, 11, 11, 12, 12, 11]
    assert log.column("model_step_end")[::8] == [11, None, None, 12, 12, None, None, None, 12]
    assert any(limit.startswith("groups without target_step") for limit in log.imports.limits)


def test_verl_groups_of_a_balanced_batch(tmp_path: Path):
    log = imported_real("verl_balanced_order", tmp_path, "verl")
    assert (sizes(log), takes(log)) == (Counter({8: 4}), [(1, 4)])
    assert log.imports.limits[-1] == Lack.PROMPTS


def test_verl_validation_is_left_out(tmp_path: Path):
    log = imported_real("verl_val_beside_train", tmp_path, "verl")
    assert (sizes(log), takes(log)) == (Counter({8: 8}), [(1, 4), (2, 4)])
    assert "1 file of validations left out: they train nothing" in log.imports.limits
    # by the step before any training, whatever the folders are called
    source = real("verl_step0", tmp_path / "other")
    (tmp_path / "other" / "train").mkdir()
    train = (tmp_path / "verl_val_beside_train" / "rollout" / "1.jsonl").rename(
        tmp_path / "other" / "train" / "1.jsonl"
    )
    (source / "1.jsonl").write_bytes(train.read_bytes())
    log = imported("verl", tmp_path / "other")
    assert (sizes(log), takes(log)) == (Counter({8: 4}), [(1, 4)])
    assert "2 files of validations left out: they train nothing" in log.imports.limits
    # beside training in one folder
    assert sizes(imported("verl", source)) == Counter({8: 4})


def test_verl_validation_alone_is_no_training(tmp_path: Path):
    for source in (real("verl_step0", tmp_path), real("verl_val_beside_train", tmp_path) / "validation"):
        with pytest.raises(SourceError, match="the files are those of a validation"):
            imported("verl", source)


def test_verl_scores_may_be_booleans(tmp_path: Path):
    log = imported_real("verl_score_bool", tmp_path, "verl")
    assert sizes(log) == Counter({8: 4})
    lines = (tmp_path / "verl_score_bool" / "1.jsonl").read_text("utf-8").strip().split("\n")
    scores = [json.loads(line)["score"] for line in lines]
    assert log.column("reward") == [1.0 if score else 0.0 for score in scores]
    assert {True, False} == set(scores)


def test_equal_prompts_of_one_step_are_noticed(tmp_path: Path):
    rows = [{"input": name, "output": "", "score": 1, "step": 1} for name in "abcacb" * 2 + "aaaa"]
    log = imported("verl", jsonl(tmp_path / "dump" / "1.jsonl", *rows))
    assert (sizes(log), Lack.EQUAL_PROMPTS in log.imports.limits) == (Counter({4: 2, 8: 1}), True)
    by_uid = [row | {"uid": f"{'ab'[index % 2]}_{index}_0"} for index, row in enumerate(rows)]
    log = imported("verl", jsonl(tmp_path / "dump" / "1.jsonl", *by_uid))
    assert (sizes(log), log.imports.limits) == (Counter({8: 2}), (Lack.DROPPED, Lack.VERSIONS, Lack.MASK, Lack.LENGTHS))


def test_trl_extra_numbers_are_no_rewards(tmp_path: Path):
    log = imported_real("trl_extra_float", tmp_path, "trl")
    table = pq.read_table(tmp_path / "trl_extra_float" / "completions_00001.parquet").to_pydict()
    pairs = zip(table["accuracy_reward"], table["format_reward"], strict=True)
    assert log.column("reward") == [accuracy + (style or 0) for accuracy, style in pairs]
    assert set(table["similarity"]) == {17.25}
    assert set(sizes(log)) == {8}
    assert Lack.LOGGED_STEPS in log.imports.limits


def test_trl_batches_of_several_iterations_count_once(tmp_path: Path):
    log = imported_real("trl_reused_batch", tmp_path, "trl")
    table = pq.read_table(tmp_path / "trl_reused_batch" / "completions_00001.parquet")
    assert (len(log.column("reward")), set(log.column("train_step"))) == (table.num_rows, {1})
    assert log.column("advantage") == table["advantage"].to_pylist()
    assert takes(log) == [(1, table.num_rows // 8)]
    assert any(limit.startswith("batches that several steps trained on") for limit in log.imports.limits)


def test_trl_evaluations_are_noticed(tmp_path: Path):
    def step(number: int, prompts: str, name: str = "length_penalty") -> None:
        count = len(prompts)
        completions = [f"{number} {index}" for index in range(count)]
        rewards = {name: [0.5] * count, "judge": [1.0] * count}
        columns = {"step": [number] * count, "prompt": list(prompts), "completion": completions, **rewards}
        (tmp_path / "dump").mkdir(exist_ok=True)
        table = pa.table(columns | {"advantage": [0.0] * count})
        pq.write_table(table, tmp_path / "dump" / f"completions_{number:05d}.parquet")

    step(0, "xy")
    step(1, "aaabbb")
    step(2, "cccdddee")
    log = imported("trl", tmp_path / "dump")
    assert (takes(log), log.column("reward")) == ([(1, 2), (2, 3)], [1.5] * 14)
    starts = ("some steps hold groups of several sizes", "what TRL evaluated before", "no column is called a reward")
    assert all(any(limit.startswith(start) for limit in log.imports.limits) for start in starts)


def test_slime_groups_with_failed_members_were_trained(tmp_path: Path):
    log = imported_real("slime_failed_member", tmp_path, "slime")
    assert (sizes(log), takes(log)) == (Counter({8: 12}), [(1, 4), (2, 4), (3, 4)])
    assert Counter(log.column("finish_reason")) == {None: 87, "error": 9}
    result = log.replayed("policy.max_staleness=9")
    assert [row["taken_groups"] for row in result.steps] == [4, 4, 4]
    assert result.totals["trained_tokens"] == 12 * 8 * 20


def test_slime_folders_of_dump_details_are_taken_whole(tmp_path: Path):
    log = imported_real("slime_dump_details_dir", tmp_path, "slime")
    assert (sizes(log), takes(log)) == (Counter({4: 4}), [(1, 2), (2, 2)])
    assert sum(log.column("response_len")) == 16 * 20


def test_slime_calls_that_stream_are_placed(tmp_path: Path):
    log = imported_real("slime_sglang_generate_stream", tmp_path, "slime")
    # ten tokens before the second push, twenty behind it
    assert log.column("response_model_steps") == [[0] * 10 + [1] * 20] * 8
    assert set(log.column("version_precision")) == {"segment"}


def test_slime_samples_may_lack_their_group_and_index(tmp_path: Path):
    log = imported_real("slime_group_index_none.pt", tmp_path, "slime")
    assert (sizes(log), takes(log)) == (Counter({8: 1}), [(1, 1)])
    assert len(set(log.column("rollout_id"))) == 8
    assert Lack.GROUPS in log.imports.limits


def test_slime_rewards_may_be_booleans(tmp_path: Path):
    assert imported_real("slime_reward_bool.pt", tmp_path, "slime").column("reward") == [0.0, 1.0] * 4


def test_slime_rewards_of_several_numbers_are_noted(tmp_path: Path):
    common = {"group_index": 0, "response_length": 1, "status": "completed", "prompt": [{"content": "p"}]}
    rewards = [{"acc": True, "by": "x"}, {"acc": 0.5, "right": True}, {"acc": 0.5, "style": 1}]
    samples = [common | {"index": index, "reward": reward} for index, reward in enumerate(rewards)]
    torch.save({"rollout_id": 0, "samples": samples}, tmp_path / "0.pt")
    log = imported("slime", tmp_path / "0.pt")
    assert log.column("reward") == [1.0, 0.5, None]
    assert any(limit.startswith("rewards with several numbers are left out") for limit in log.imports.limits)
    # two prompts as lists of messages, without groups
    samples = [
        sample | {"group_index": None, "prompt": [{"content": "pqq"[index]}]} for index, sample in enumerate(samples)
    ]
    torch.save({"rollout_id": 0, "samples": samples}, tmp_path / "0.pt")
    assert sizes(imported("slime", tmp_path / "0.pt")) == Counter({1: 1, 2: 1})


def test_areal_evaluations_are_left_out(tmp_path: Path):
    log = imported_real("areal_eval", tmp_path, "areal")
    assert len(set(log.column("group_id"))) == 20
    assert 900020 not in log.column("group_id")


def test_areal_ranks_in_one_folder_count_tasks_on_their_own(tmp_path: Path):
    log = imported_real("areal_two_ranks", tmp_path, "areal")
    assert sum(log.column("response_len")) == 12_808
    groups = Counter(zip(log.column("train_step"), log.column("group_id"), strict=True))
    assert len(groups) == 2 * 20
    assert set(groups.values()) <= {7, 8}
    assert len(set(log.column("rollout_id"))) == len(log.column("rollout_id"))
    # the sessions of the two ranks differ in the status of some tasks
    notes = ("ranks, or resumed runs", "ranks differ in the status of tasks")
    assert all(any(limit.startswith(note) for limit in log.imports.limits) for note in notes)
    result = log.replayed("policy.max_staleness=9", "timeline.train_batch_size=2")
    assert result.totals["produced_tokens"] == 12_808


def test_xtuner_trajectories_name_groups_tasks_and_rollouts(tmp_path: Path):
    log = imported_real("xtuner_train_rollout", tmp_path, "xtuner-trajectories")
    assert (sizes(log), takes(log)) == (Counter({8: 3}), [(1, 3)])
    assert log.column("group_id") == [1] * 8 + [2] * 8 + [3] * 8
    assert set(log.column("task_name")) == {"math"}
    assert log.column("rollout_id")[:2] == [2305843010213693952, 2305843011213693952]
    assert (log.column("prompt_len")[0], log.column("response_len")[0]) == (7, 58)
    assert Counter(log.column("finish_reason")) == {None: 7, "stop": 7, "abort": 6, "length": 4}
    assert log.imports.limits == (Lack.DROPPED, Lack.VERSIONS, Lack.MASK)


def test_xtuner_trajectories_of_v1_0(tmp_path: Path):
    log = imported_real("xtuner_v1.0.1", tmp_path, "xtuner-trajectories")
    assert (sizes(log), takes(log)) == (Counter({8: 3}), [(1, 3)])
    assert log.column("response_len")[:4] == [10, 11, 12, 13]
    assert sum(log.column("reward")) == 12
