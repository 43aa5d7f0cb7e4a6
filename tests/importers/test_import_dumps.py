"""Importers of torch.save files: small dumps written by hand, imported, replayed, checked by hand."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.importers.importing import imported, total
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers.base import Lack
from tokenaudit.importers.detect import detected, importer_named


class Status(enum.Enum):
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    FAILED = "failed"


class RolloutState:
    """Like a pydantic model: the fields are an item of the pickled state."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __getstate__(self) -> dict[str, Any]:
        return {"__dict__": self.fields, "__pydantic_extra__": None, "__pydantic_fields_set__": set(self.fields)}


@dataclasses.dataclass
class StorageItem:
    item: list[RolloutState]
    uid: int
    timestamp_id: int
    task_name: str
    status: Status
    staleness: int


def state(rollout: int, group: int, versions: list[int], **values: Any) -> RolloutState:
    fields: dict[str, Any] = {
        "rollout_id": rollout,
        "group_id": group,
        "task_name": "math",
        "status": Status.COMPLETED,
        "response_ids": list(range(len(versions))),
        "response_model_steps": versions,
        "response_mask": None,
        "reward": {"score": 1.0},
        "prompt_ids": [1, 2, 3],
        "input_ids": None,
        "labels": None,
        "finish_reason": "stop",
        "seq_staleness": 0,
    }
    return RolloutState(**(fields | values))


def test_xtuner_debug_batches(tmp_path: Path):
    folder = tmp_path / "debug_rollout"
    folder.mkdir()
    first = [
        [state(10, 1, [3, 3, 4]), state(11, 1, [4] * 4, response_mask=[1, 0, 1, 1], reward=None)],
        [state(20, 2, [4, 4], labels=torch.tensor([5]), task_name=None)],
    ]
    torch.save(first, folder / "debug_rollout_9.pt")
    torch.save([[state(30, 3, [9], response_ids=torch.tensor([7]))]], folder / "debug_rollout_10.pt")
    assert detected([folder]).name == "xtuner"
    log = imported("xtuner", folder)
    assert log.column("train_step") == [9, 9, 9, 10]
    assert log.column("response_model_steps") == [[3, 3, 4], [4] * 4, [4, 4], [9]]
    assert log.column("reward") == [1.0, None, 1.0, 1.0]
    assert log.column("agentic") == [False, False, True, False]
    assert log.column("task_name") == ["math", "math", "default", "math"]
    assert log.imports.limits == (Lack.DROPPED, Lack.TRAINED_MASK)
    result = log.replayed("policy.max_staleness=9", "policy.max_token_staleness=4")
    # threshold 5: at step 9 version 3 has staleness 5 and is masked, version 4 has 4 and is trained
    assert total(result, "taken_groups", "trained_tokens", "masked_stale_tokens", "masked_semantic_tokens") == [
        3,
        7,
        2,
        1,
    ]


def test_xtuner_buffer_of_a_checkpoint(tmp_path: Path):
    expired = state(30, 3, [], status=Status.EXPIRED, response_ids=[], response_mask=[], reward=None)
    held = state(11, 1, [6], seq_staleness=1)
    items = [
        StorageItem([expired], 2, 7, "code", Status.EXPIRED, 5),
        StorageItem(
            [state(10, 1, [5, 6], seq_staleness=2), held],
            1,
            4,
            "math",
            Status.COMPLETED,
            2,
        ),
    ]
    saved = {
        "policy": "P",
        "storage": "NaiveStorage",
        "storage_state": {"items": items, "next_uid": 3, "next_timestamp_id": 8},
    }
    torch.save(saved, tmp_path / "replay_buffer.pth")
    assert detected([tmp_path / "replay_buffer.pth"]).name == "xtuner-buffer"
    log = imported("xtuner-buffer", tmp_path / "replay_buffer.pth")
    # the order of the puts; staleness 2 of version 5 means that step 8 compared
    assert (log.column("group_id"), log.column("train_step")) == ([1, 1, 3], [8, 8, 8])
    assert log.column("task_name") == ["math", "math", "code"]
    assert log.column("status") == ["completed", "completed", "expired"]
    torch.save(saved | {"storage": "PandasStorage", "storage_state": {"df": 1}}, tmp_path / "replay_buffer.pth")
    with pytest.raises(SourceError, match="a buffer with the storage 'PandasStorage'"):
        imported("xtuner-buffer", tmp_path / "replay_buffer.pth")


def test_xtuner_buffers_replay(tmp_path: Path):
    """Step 9 compared: of five groups, one expired by its oldest token, one by its last fresh token, one earlier."""
    mixed = state(11, 1, [6, 8, 8, 8], seq_staleness=2, response_mask=[1, 1, 0, 1], reward={"score": 0.5})
    groups = [
        ("math", [state(10, 1, [8, 8, 8], seq_staleness=0), mixed]),
        ("math", [state(20, 2, [4, 8, 8], seq_staleness=4), state(21, 2, [8, 8], seq_staleness=0)]),
        ("math", [state(30, 3, [6, 6, 8, 8], seq_staleness=2, response_mask=[1, 1, 0, 0])]),
        ("math", [state(40, 4, [7, 8], seq_staleness=1, status=Status.ABORTED, reward=None)]),
        ("math", [state(50, 5, [], status=Status.EXPIRED, response_ids=[], reward=None)]),
    ]
    items = [
        StorageItem(group, uid, 10 + uid, task, group[0].fields["status"], 0)
        for uid, (task, group) in enumerate(groups)
    ]
    saved = {"policy": "P", "storage": "NaiveStorage", "storage_state": {"items": items}}
    torch.save(saved, tmp_path / "replay_buffer.pth")
    log = imported("xtuner-buffer", tmp_path / "replay_buffer.pth")
    assert log.imports.limits == (Lack.SNAPSHOT, Lack.TIMELINE)
    result = log.replayed(
        "policy.max_staleness=3",
        "policy.max_token_staleness=1",
        "timeline.train_batch_size=2",
        "policy.tail_batch_trigger_size=0",
    )
    # staleness of version v is 9 - v - 1; whole responses may reach 3, single tokens 1
    assert [row["put_groups"] for row in result.steps] == [0] * 8 + [5]
    names = ("put_groups", "produced_samples", "produced_tokens", "carried_in_tokens")
    assert total(result, *names) == [5, 7, 3 + 4 + 3 + 2 + 4 + 2, 0]
    # group 2 holds version 4 of staleness 4, group 3 nothing trainable below staleness 2; group 5 was expired before,
    # which is neither
    assert total(result, "expired_groups", "expired_at_put", "expired_by_sequence", "expired_by_token") == [3, 3, 1, 1]
    # the expired members lose their tokens: three of group 2 and four of group 3
    assert total(result, "reset_tokens", "discarded_groups") == [3 + 4, 0]
    assert [row["shortfall_groups"] for row in result.steps] == [2] * 8 + [1]
    # group 1 alone is complete: 3 + 4 tokens, version 6 is stale, one token was never trainable
    names = ("taken_groups", "taken_tokens", "trained_tokens", "masked_stale_tokens", "masked_semantic_tokens")
    assert total(result, *names) == [1, 7, 5, 1, 1]
    # the aborted group, and the fresh member of group 2
    assert total(result, "leftover_aborted", "leftover_expired") == [1, 3]
    assert result.ledger["total"]["held_tokens"] == 2 + 2
    assert total(result, "seq_staleness_sum", "seq_staleness_max", "token_staleness_max") == [0 + 2, 2, 0]
    # completed responses as they were put: 1 and 0.5, 1 and 1, 1
    assert total(result, "raw_rewards_sum", "raw_rewards_count") == [4.5, 5]


def sample(index: int, group: int, tokens: int, versions: list[str], **values: Any) -> dict[str, Any]:
    return {
        "group_index": group,
        "index": index,
        "prompt": "p",
        "tokens": list(range(tokens + 2)),
        "response": "r",
        "response_length": tokens,
        "reward": 1.0,
        "loss_mask": None,
        "weight_versions": versions,
        "status": "completed",
        "remove_sample": False,
        "metadata": {},
    } | values


def calls(*lengths: int) -> dict[str, Any]:
    events = [{"type": "span_end", "name": "sglang_generate", "attrs": {"completion_tokens": n}} for n in lengths]
    return {"trace_id": "t", "attempt": 0, "events": [{"type": "span_end", "name": "reward", "attrs": {}}, *events]}


SAMPLES = [
    sample(0, 0, 6, ["4"]),
    sample(1, 0, 6, ["3", "4"], trace=calls(2, 4)),
    sample(2, 1, 6, ["3", "4"], trace=calls(2, 3), loss_mask=[1, 1, 0, 1, 1, 1], reward={"acc": 0.5}),
    sample(3, 1, 6, ["3", "4"], status="truncated"),
    sample(4, 2, 6, ["default"], remove_sample=True),
    sample(5, 3, 6, ["4"], status="aborted"),
]


def slime_dump(folder: Path) -> Path:
    folder.mkdir()
    torch.save({"rollout_id": 4, "samples": SAMPLES}, folder / "rollout_4.pt")
    torch.save({"rollout_id": 4, "samples": SAMPLES}, folder / "eval_4.pt")
    return folder


def test_slime_versions_are_placed_by_the_calls_of_the_trace(tmp_path: Path):
    assert detected([slime_dump(tmp_path / "dump")]).name == "slime"
    assert importer_named("miles").name == "slime"
    log = imported("slime", tmp_path / "dump")
    assert log.column("train_step") == [5] * 6
    assert log.column("version_precision") == ["segment"] * 3 + ["span", "none", "segment"]
    # the first push is 1, so versions 3 and 4 are the weights after 2 and 3 steps
    assert log.column("response_model_steps")[1] == [2, 2, 3, 3, 3, 3]
    # two tokens, one that a tool wrote, three tokens
    assert log.column("response_model_steps")[2] == [2, 2, 2, 3, 3, 3]
    assert (log.column("model_step")[3], log.column("model_step_end")[3]) == (2, 3)
    assert log.column("response_mask")[4] == [0] * 6
    # aborted or not, all were trained
    assert log.column("status") == ["completed"] * 6
    assert log.column("finish_reason") == [None, None, None, "length", None, "abort"]
    assert (log.column("prompt_len")[0], log.column("reward")[2]) == (2, 0.5)
    lacks = {Lack.DROPPED, Lack.RESUME, Lack.SPANS, Lack.VERSIONS}
    (note,) = set(log.imports.limits) - lacks
    assert note.startswith("members that failed or were aborted were trained")


def test_numbers_in_tensors_of_one_element_are_numbers(tmp_path: Path):
    rewards: list[Any] = [
        torch.tensor(0.5),
        torch.tensor([0.25]),
        np.array(2.0),
        {"acc": torch.tensor(0.75), "by": "x"},
    ]
    samples = [sample(index, 0, 6, ["4"], reward=reward) for index, reward in enumerate(rewards)]
    samples[0]["response_length"] = torch.tensor(6)
    torch.save({"rollout_id": 0, "samples": samples}, tmp_path / "a.pt")
    assert imported("slime", tmp_path / "a.pt").column("reward") == [0.5, 0.25, 2.0, 0.75]
    groups = [[state(1, 1, [3], reward={"score": torch.tensor(0.5)}), state(2, 1, [3], reward=torch.tensor([1.5]))]]
    torch.save(groups, tmp_path / "debug_rollout_9.pt")
    assert imported("xtuner", tmp_path / "debug_rollout_9.pt").column("reward") == [0.5, 1.5]


def test_slime_versions_count_pushes(tmp_path: Path):
    log = imported("slime", slime_dump(tmp_path / "dump"), offset=2, interval=3)
    assert log.column("model_step")[0] == (4 - 2) * 3
    with pytest.raises(SourceError, match="version 3 lies outside the run"):
        imported("slime", tmp_path / "dump", offset=4, is_strict=True)


def test_slime_batches_replay(tmp_path: Path):
    folder = tmp_path / "dump"
    folder.mkdir()
    torch.save({"rollout_id": 4, "samples": SAMPLES[:3]}, folder / "a.pt")
    log = imported("slime", folder)
    result = log.replayed("policy.max_staleness=3", "policy.max_token_staleness=1")
    # step 5: version 3 has staleness 1, version 2 has 2 and is masked in group 0; group 1 is agentic
    names = ("taken_groups", "trained_tokens", "masked_stale_tokens", "masked_semantic_tokens", "token_staleness_max")
    assert total(result, *names[:4]) == [2, 6 + 4 + 5, 2, 1]
    assert result.steps[0]["token_staleness_max"] == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss_mask": [1]}, "1 loss_mask entries for 6 tokens"),
        ({"loss_mask": [1.5] * 6}, "loss_mask is no list of whole numbers"),
        ({"status": "lost"}, "unknown status 'lost'"),
        ({"response_length": -1}, "response_length is -1"),
        ({"reward": "good"}, "reward is 'good'"),
        ({"group_index": -1}, "-1 is no id"),
        ({"weight_versions": [[1]]}, "a span of versions is 1"),
        ({"weight_versions": [{"a": 1}, 2]}, "the spans of a call is 2"),
    ],
)
def test_slime_samples_that_make_no_sense_are_faults(values: dict, message: str, tmp_path: Path):
    torch.save({"rollout_id": 0, "samples": [SAMPLES[0], SAMPLES[0] | values]}, tmp_path / "a.pt")
    with pytest.raises(SourceError, match=message) as raised:
        imported("slime", tmp_path / "a.pt", is_strict=True)
    assert raised.value.problems[0].where == f"{tmp_path / 'a.pt'}, sample 1"
    assert imported("slime", tmp_path / "a.pt").column("response_len") == [6]


class TensorDict:
    """Like the class of that name: its columns are an item of the pickled state."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._tensordict = columns


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"reward": [0.5]}, "reward is <list>"),
        ({"reward": torch.ones(2)}, "reward is <array of shape [2]>"),
        ({"index": np.ones((2, 200))}, "<array of shape [2, 200]> is no plain value"),
        ({"loss_mask": np.array(["a", "b"])}, "loss_mask is <numpy.ndarray>"),
    ],
)
def test_a_value_of_another_kind_is_told_in_words(values: dict[str, Any], message: str, tmp_path: Path):
    torch.save({"rollout_id": 0, "samples": [sample(0, 0, 6, ["4"]) | values]}, tmp_path / "a.pt")
    with pytest.raises(SourceError) as raised:
        imported("slime", tmp_path / "a.pt")
    assert [problem.what for problem in raised.value.problems] == [message]


def test_verl_queue_batches(tmp_path: Path):
    path = tmp_path / "dump" / "6" / "0" / "tq_batch.pt"
    path.parent.mkdir(parents=True)
    columns = {
        "responses": torch.zeros(3, 5, dtype=torch.int64),
        "response_mask": torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [1, 1, 0, 0, 0]]),
        "rm_scores": torch.tensor([[0, 0, 0.5, 0, 0], [0, 0, 0, 0, 1.0], [0, 0.25, 0, 0, 0]]),
    }
    tags = [
        {"status": "success", "prompt_len": 4, "response_len": 3, "min_global_steps": 5, "max_global_steps": 5},
        {"status": "success", "prompt_len": 4, "response_len": 5, "min_global_steps": 3, "max_global_steps": 5},
        {"status": "success", "prompt_len": 4, "response_len": 2, "num_turns": 4},
    ]
    keys = ["ab_0_0", "ab_0_1", "cd_0_0"]
    torch.save({"tensordict": TensorDict(columns), "tags": tags, "keys": keys, "global_steps": 6}, path)
    assert detected([tmp_path / "dump"]).name == "verl-queue"
    log = imported("verl-queue", tmp_path / "dump")
    assert log.column("response_mask") == [[1, 1, 1], [1, 0, 1, 1, 1], [1, 1]]
    assert log.column("reward") == [0.5, 1.0, 0.25]
    assert log.column("version_precision") == ["exact", "span", "none"]
    assert (log.column("model_step"), log.column("model_step_end")) == ([5, 3, None], [None, 5, None])
    assert log.column("agentic") == [False, False, True]
    assert log.column("group_id")[0] == log.column("group_id")[1] != log.column("group_id")[2]
    assert (log.rows[-1]["train_step"], log.rows[-1]["batch_size"]) == (6, 2)


def queue_batch(path: Path, step: int, responses: list[tuple[str, list[int], int, int]]) -> None:
    """A batch of (key, mask, first version, last version), masks padded to a table."""
    path.parent.mkdir(parents=True)
    masks = torch.zeros(len(responses), 8, dtype=torch.int64)
    scores = torch.zeros(len(responses), 8)
    tags = []
    for index, (_, mask, low, high) in enumerate(responses):
        masks[index, : len(mask)] = torch.tensor(mask)
        scores[index, len(mask) - 1] = 0.5
        tags.append({"prompt_len": 2, "response_len": len(mask), "min_global_steps": low, "max_global_steps": high})
    columns = {"response_mask": masks, "rm_scores": scores}
    keys = [key for key, *_ in responses]
    torch.save({"tensordict": TensorDict(columns), "tags": tags, "keys": keys, "global_steps": step}, path)


def test_verl_queue_batches_replay(tmp_path: Path):
    first = [("a_0_0", [1, 1, 1], 4, 4), ("a_0_1", [1, 0, 1, 1], 4, 4), ("b_0_0", [1, 1], 3, 3), ("b_0_1", [1], 4, 4)]
    second = [("c_0_0", [1] * 5, 4, 5), ("d_0_0", [1, 1, 0], 5, 5)]
    queue_batch(tmp_path / "dump" / "5" / "0" / "tq_batch.pt", 5, first)
    queue_batch(tmp_path / "dump" / "6" / "0" / "tq_batch.pt", 6, second)
    log = imported("verl-queue", tmp_path / "dump")
    assert log.imports.limits == (Lack.DROPPED, Lack.SPANS)
    result = log.replayed("policy.max_staleness=1", "policy.max_token_staleness=0", "policy.tail_batch_trigger_size=0")
    assert [row["train_step"] for row in result.steps] == [5, 6]
    assert total(result, "put_groups", "produced_samples", "produced_tokens") == [4, 6, 3 + 4 + 2 + 1 + 5 + 3]
    # step 5: version 3 is one step old, and so all of b_0_0 is stale: group b expires by token and is rolled again
    assert total(result, "expired_groups", "expired_by_token", "expired_by_sequence") == [2, 2, 0]
    # step 6: read as old as it may be, all of c is of version 4, one step old
    assert [row["expired_groups"] for row in result.steps] == [1, 1]
    assert [row["taken_groups"] for row in result.steps] == [1, 1]
    assert [row["shortfall_groups"] for row in result.steps] == [1, 1]
    # group a with 7 tokens, of which one is never trained; group d with 3, of which one is never trained
    assert [row["trained_tokens"] for row in result.steps] == [6, 2]
    assert total(result, "masked_semantic_tokens", "masked_stale_tokens", "reset_tokens") == [2, 0, 2 + 5]
    # b_0_1 keeps its token while its group waits
    assert result.ledger["total"]["held_tokens"] == 1
    assert total(result, "raw_rewards_sum", "raw_rewards_count") == [3.0, 6]
    # as new as it may be, all of c is of version 5 and trained: nothing of step 6 expires
    assert result.intervals["expired_groups"] == (1, 2)
    assert result.intervals["trained_tokens"] == (6 + 2, 6 + 2 + 5)
    assert result.intervals["reset_tokens"] == (2, 2 + 5)


def test_nemo_rl_classic_buffer(tmp_path: Path):
    batch = {
        "token_loss_mask": torch.tensor([[0, 0, 1, 1, 1, 0], [0, 0, 1, 0, 1, 1]]),
        "input_lengths": torch.tensor([5, 6]),
        "total_reward": torch.tensor([1.0, 0.0]),
    }
    messages = [
        [
            {"role": "user", "token_ids": torch.tensor([1, 2])},
            {"role": "assistant", "token_ids": torch.tensor([3, 4, 5])},
        ]
    ]
    saved = {
        "trajectories": [{"batch": batch}, {"batch": {"message_log": messages}}],
        "trajectory_versions": [7, 8],
        "target_weight_versions": [9, 8],
        "max_size": 4,
    }
    torch.save(saved, tmp_path / "replay_buffer.pt")
    assert detected([tmp_path / "replay_buffer.pt"]).name == "nemo-rl"
    log = imported("nemo-rl", tmp_path / "replay_buffer.pt")
    # in the order of the steps they are meant for
    assert (log.column("group_id"), log.column("train_step")) == ([1, 0, 0], [9, 10, 10])
    assert log.column("response_mask") == [[1, 1, 1], [1, 1, 1], [1, 0, 1, 1]]
    assert log.column("prompt_len") == [2, 2, 2]
    assert log.column("reward") == [None, 1.0, 0.0]
    # what is trained at step 10 can be of version 9 at most
    assert log.column("version_precision") == ["exact", "start", "start"]
    assert (log.column("model_step"), log.column("model_step_end")) == ([8, 7, 7], [None, 9, 9])


def test_nemo_rl_single_controller_buffer(tmp_path: Path):
    fields = {
        "token_loss_mask": torch.tensor([[0, 1, 1]]),
        "input_lengths": torch.tensor([3]),
        "rewards": torch.tensor([0.5]),
    }
    group = {"meta": {}, "start_weight": 2, "end_weight": 4, "target_step": 4, "group_id": "g-1", "fields_data": fields}
    torch.save({"partition_id": "train", "saved_capacity": 8, "groups": [group]}, tmp_path / "replay_buffer.pt")
    (row,) = imported("nemo-rl", tmp_path / "replay_buffer.pt").rows
    assert (row["train_step"], row["model_step"], row["model_step_end"]) == (5, 2, 4)
    assert (row["version_precision"], row["response_len"], row["reward"]) == ("span", 2, 0.5)


def nemo_group(start: int, end: int, target: int, name: str, *masks: list[int]) -> dict[str, Any]:
    """A group of the single controller, masks over prompt and response, padded to a table."""
    table = torch.zeros(len(masks), 8, dtype=torch.int64)
    for row, mask in zip(table, masks, strict=True):
        row[: len(mask)] = torch.tensor(mask)
    lengths = torch.tensor([len(mask) for mask in masks])
    fields = {"token_loss_mask": table, "input_lengths": lengths, "rewards": torch.ones(len(masks))}
    return {"start_weight": start, "end_weight": end, "target_step": target, "group_id": name, "fields_data": fields}


def test_nemo_rl_buffers_replay(tmp_path: Path):
    groups = [
        # step 9: fresh, 3 + 2 tokens, and one that a tool wrote
        nemo_group(8, 8, 8, "a", [0, 1, 1, 1], [0, 1, 0, 1]),
        # step 9: two steps old
        nemo_group(6, 6, 8, "b", [0, 0, 1, 1]),
        # step 10: from version 7, two steps old, to version 9
        nemo_group(7, 9, 9, "c", [0, 1, 1, 1, 1]),
        nemo_group(8, 8, 9, "d", [0, 1, 1, 1, 1, 1]),
    ]
    torch.save({"groups": groups}, tmp_path / "replay_buffer.pt")
    log = imported("nemo-rl", tmp_path / "replay_buffer.pt")
    assert log.imports.limits == (Lack.SNAPSHOT, Lack.TIMELINE, Lack.SPANS)
    result = log.replayed("policy.max_staleness=1", "timeline.train_batch_size=1", "policy.tail_batch_trigger_size=-1")
    assert [row["put_groups"] for row in result.steps] == [0] * 8 + [2, 2]
    assert total(result, "put_groups", "produced_samples", "produced_tokens") == [4, 5, 3 + 3 + 2 + 4 + 5]
    # b at step 9, and c at step 10 read as old as it may be; nothing is rolled again
    assert total(result, "expired_by_sequence", "discarded_groups", "discarded_stale_tokens") == [2, 2, 2 + 4]
    assert [row["trained_tokens"] for row in result.steps] == [0] * 8 + [5, 5]
    assert [row["shortfall_groups"] for row in result.steps] == [1] * 8 + [0, 0]
    assert (result.totals["masked_semantic_tokens"], result.ledger["total"]["held_tokens"]) == (1, 0)
    assert [row["seq_staleness_max"] for row in result.steps[-2:]] == [0, 1]
    # as new as it may be, c is kept, and still there when d was taken as the older one
    assert result.intervals["discarded_stale_tokens"] == (2, 2 + 4)
    assert result.intervals["leftover_completed"] == (0, 1)
    assert "trained_tokens" not in result.intervals


def test_a_hostile_dump_is_a_fault_like_any_other(tmp_path: Path, run_cli):
    import os
    import pickle
    import zipfile

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    for name, value in (("debug_rollout_1.pt", [[Evil()]]), ("samples.pt", {"rollout_id": 0, "samples": [Evil()]})):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            file.writestr("x/data.pkl", pickle.dumps(value, 2))
        ran = run_cli("import", tmp_path / name, "-o", "log.parquet")
        assert (ran.code, ran.out) == (2, "")
        assert "it has named fields" in ran.err
    assert not (tmp_path / "ran").exists()
