"""Hooks for verl's replay buffer and queue: what a run put, took and evicted is what the log's replay says."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.record.stand_ins import verl
from tokenaudit import Recorder, load_log, replay_log
from tokenaudit.log.files import open_log
from tokenaudit.record.limits import Lack
from tokenaudit.record.verl import attach_verl
from tokenaudit.record.verl_queue import attach_verl_queue, recorded_queue_client

THRESHOLD = 3
CONFIG = {"mode": "disaggregated", "buffer": {"replay_policy": "fifo"}, "policy": {"max_staleness": THRESHOLD - 1}}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for part in sorted(folder.glob("*.parquet")) for row in pq.read_table(part).to_pylist()]


class Rollouts:
    """Agent loops that write what they made into the transfer queue, in any order, and what became of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.step = 1
        self.running: list[tuple[str, int]] = []
        self.numbers = 0
        self.counts: dict[str, Counter[str]] = {}
        self.tq = verl.TransferQueue(self.advance)

    def refill(self, count: int) -> None:
        """Begin prompts of the step that is trained."""
        for _ in range(count):
            uid = f"prompt{self.numbers}"
            self.numbers += 1
            self.running.append((uid, self.step))
            self.tq.tags["train"][uid] = {"is_prompt": True, "status": "running", "global_steps": self.step}

    def advance(self) -> None:
        """Some prompts end."""
        for prompt in self.random.sample(self.running, self.random.randint(0, min(3, len(self.running)))):
            self.running.remove(prompt)
            self.end(*prompt)

    def end(self, uid: str, step: int) -> None:
        """A prompt ends: its responses began with the weights before its step."""
        random_ = self.random
        has_failed, is_flat = random_.random() < 0.1, random_.random() < 0.2
        count = Counter(groups=1)
        for session in range(1 if has_failed else 2):
            tokens = random_.randint(1, 9)
            mask = torch.tensor([int(random_.random() < 0.8) for _ in range(tokens)])
            key = f"{uid}_{session}_0"
            scores = torch.zeros(tokens)
            scores[-1] = 1.0 if is_flat else session
            extra = {"reward_extra_info": {"score": float(scores.sum())}}
            fields = {"response_mask": mask, "rm_scores": scores, "num_turns": 2, "data_source": "math"}
            self.tq.fields[key] = fields | {"extra_fields": extra}
            tag = {"status": "success", "prompt_len": 4, "response_len": tokens, "global_steps": step}
            newest = random_.randint(step - 1, self.step - 1)
            self.tq.tags["train"][key] = tag | {"min_global_steps": step - 1, "max_global_steps": newest}
            count.update(tokens=tokens, trained=int(mask.sum()))
        self.counts[uid] = count
        self.tq.tags["train"][uid]["status"] = "failure" if has_failed else "finished"


def buffer_of(rollouts: Rollouts, kind: type[Any] = verl.ReplayBufferAsync, **config: Any) -> Any:
    buffer = kind(
        "separate_async", config, THRESHOLD, "drop", {}, poll_interval=0.0, refill_fn=rollouts.refill,
        filter_groups_metric="score",
    )  # fmt: skip
    buffer.tq = rollouts.tq
    return buffer


def drive(buffer: Any, rollouts: Rollouts, steps: int, samples: int) -> dict[int, Counter[str]]:
    """Train, with twice as many prompts in flight as a step needs: what each step took, counted by hand."""
    taken: dict[int, Counter[str]] = {}
    rollouts.refill(8 * samples)
    for step in range(1, steps + 1):
        rollouts.step = step
        taken[step] = Counter()
        for _ in range(samples):
            buffer.wait_for_sampleable(step, "train", 2)
            batch, _ = buffer.sample(global_steps=step, partition_id="train", batch_size=4)
            for uid in dict.fromkeys(key.split("_")[0] for key in batch.keys):
                taken[step].update(rollouts.counts[uid])
            rollouts.refill(4)
    return taken


@pytest.mark.parametrize("samples", [1, 2])
def test_a_run_is_replayed_as_it_was(samples: int, tmp_path: Path):
    rollouts = Rollouts(seed=3)
    buffer = buffer_of(rollouts, parameter_sync_step=samples)
    with Recorder(tmp_path, CONFIG) as recorder:
        detach = attach_verl(buffer, recorder, fetch=rollouts.tq.kv_batch_get)
        taken = drive(buffer, rollouts, steps=10, samples=samples)
        assert recorder.rejected_events == 0
        detach()
        assert not {"sample", "_clear_groups", "wait_for_sampleable"} & set(vars(buffer))
    result = replay_log(tmp_path, isolated=True, config=CONFIG).result
    steps = {
        step["train_step"]: Counter(
            groups=step["taken_groups"], tokens=step["taken_tokens"], trained=step["trained_tokens"]
        )
        for step in result.steps
    }
    assert steps == taken
    evicted = {key.split("_")[0] for key in rollouts.tq.cleared if "_" in key}
    put = sum((rollouts.counts[uid] for uid in evicted), sum(taken.values(), Counter[str]()))
    totals = result.totals
    assert (totals["put_groups"], totals["produced_tokens"]) == (put["groups"], put["tokens"])
    puts = [row for row in rows_of(tmp_path) if row["event"] == "put"]
    assert result.totals["shortfall_groups"] == 0
    statuses = Counter(row["status"] for row in puts)
    assert min(statuses["failed"], statuses["filtered"], result.totals["expired_groups"]) > 0
    assert {row["task_name"] for row in puts} == {"math"}
    assert {row["version_precision"] for row in puts} == {"exact", "span"}
    assert load_log(tmp_path, isolated=True).log.limits == (Lack.SPANS,)


def tag(**values: Any) -> dict[str, Any]:
    usual = {"status": "success", "prompt_len": 3, "response_len": 2, "global_steps": 2}
    return usual | {"min_global_steps": 1, "max_global_steps": 1} | values


def test_a_response_has_its_values_and_validation_leaves_none(tmp_path: Path):
    rollouts = Rollouts(seed=1)
    buffer = buffer_of(rollouts)
    fields = ("response_mask", "rm_scores", "num_turns", "data_source", "responses", "rollout_log_probs")
    values = {
        "response_mask": torch.tensor([1, 0, 0]),
        "rm_scores": torch.tensor([0.25, 0.5, 0.0]),
        "num_turns": verl.NonTensorData(4),
    }
    values |= {"data_source": verl.NonTensorData("code"), "responses": torch.tensor([7, 8, 0])}
    rollouts.tq.fields["b_1_0"] = values | {"rollout_log_probs": torch.tensor([-0.5, -1.0, 0.0])}
    for partition in ("train", "val"):
        rollouts.tq.tags[partition]["b"] = {"is_prompt": True, "status": "finished", "global_steps": 2}
        rollouts.tq.tags[partition]["b_1_0"] = tag(max_global_steps=2)
    with Recorder(tmp_path, token_columns=True) as recorder:
        attach_verl(buffer, recorder, fetch=rollouts.tq.kv_batch_get, fields=fields)
        assert buffer.sample(3, "val", 1)[0].keys == ["b_1_0"]
        assert buffer.sample(3, "train", 1)[0].keys == ["b_1_0"]
    sync, refresh, put, take = rows_of(tmp_path)
    assert [(row["event"], row["train_step"]) for row in (sync, refresh)] == [("sync", 2), ("refresh", 3)]
    assert (put["response_ids"], put["response_mask"], put["logprobs"]) == ([7, 8], [1, 0], [-0.5, -1.0])
    assert (put["reward"], put["agentic"], put["task_name"], put["prompt_len"]) == (0.75, True, "code", 3)
    assert (put["model_step"], put["model_step_end"], put["version_precision"]) == (1, 2, "span")
    assert (take["train_step"], take["batch_size"], take["task_name"]) == (3, 1, "code")
    assert (take["group_id"], take["rollout_id"]) == (put["group_id"], put["rollout_id"])


def test_fields_that_cannot_be_fetched_are_counted_and_the_batch_is_recorded(tmp_path: Path):
    rollouts = Rollouts(seed=1)
    buffer = buffer_of(rollouts)
    rollouts.tq.tags["train"]["b"] = {"is_prompt": True, "status": "finished", "global_steps": 1}
    rollouts.tq.tags["train"]["b_0_0"] = tag(min_global_steps=None)
    buffer.filter_groups_metric = None
    with Recorder(tmp_path) as recorder:
        attach_verl(buffer, recorder, fetch=rollouts.tq.kv_batch_get)
        with pytest.warns(RuntimeWarning, match="not recorded: KeyError: 'b_0_0'"):
            assert buffer.sample(1, "train", 1)[0].keys == ["b_0_0"]
        assert recorder.rejected_events == 1
    _, put, take = rows_of(tmp_path)
    assert (put["event"], put["response_len"], put["version_precision"]) == ("put", 2, "none")
    assert (take["event"], take["rollout_id"]) == ("take", put["rollout_id"])
    assert open_log([tmp_path]).limits == (Lack.VERSIONS, Lack.MASK)


def test_a_buffer_without_eviction_says_what_is_missing(tmp_path: Path):
    class Custom:
        def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[verl.KVBatchMeta, dict]:
            return verl.KVBatchMeta(partition_id, ["a_0_0"], [tag()]), {}

    buffer = Custom()
    with Recorder(tmp_path) as recorder:
        attach_verl(buffer, recorder)
        with pytest.raises(TypeError, match="attached to this buffer already"):
            attach_verl(buffer, recorder)
        buffer.sample(2, "train", 1)
    assert [row["event"] for row in rows_of(tmp_path)] == ["sync", "refresh", "put", "take"]
    assert "evicted are missing" in load_log(tmp_path, isolated=True).log.limits[0]


def test_a_step_that_sampled_less_often_is_taken_at_the_end(tmp_path: Path):
    rollouts = Rollouts(seed=1)
    buffer = buffer_of(rollouts, parameter_sync_step=2)
    rollouts.tq.tags["train"]["b"] = {"is_prompt": True, "status": "finished", "global_steps": 2}
    rollouts.tq.tags["train"]["b_0_0"] = tag()
    buffer.filter_groups_metric = None
    with Recorder(tmp_path) as recorder:
        detach = attach_verl(buffer, recorder)
        buffer.sample(2, "train", 1)
        detach()
    assert [row["event"] for row in rows_of(tmp_path)] == ["sync", "refresh", "put", "take"]


WIDTH = 4
QUEUE_CONFIG = {"mode": "disaggregated", "buffer": {"replay_policy": "fifo"}, "policy": {"max_staleness": 9}}


def rollout_sample(number: int, random_: random.Random, version: int) -> tuple[verl.RolloutSample, Counter[str]]:
    """A group of two padded responses, and its counts."""
    lengths = [random_.randint(1, WIDTH) for _ in range(2)]
    attention = torch.tensor([[0, 1, 1] + [1] * tokens + [0] * (WIDTH - tokens) for tokens in lengths])
    mask = attention[:, 3:] * torch.tensor([[int(random_.random() < 0.8) for _ in range(WIDTH)] for _ in lengths])
    batch = {"attention_mask": attention, "response_mask": mask, "responses": torch.zeros(2, WIDTH).long()}
    others = {"min_global_steps": [max(0, version - 1), version], "max_global_steps": [version, version]}
    proto = verl.DataProto(batch, others | {"data_source": ["math"] * 2})
    count = Counter(groups=1, tokens=sum(lengths), trained=int(mask.sum()))
    return verl.RolloutSample(proto, f"sample_0_{number}", 0, {}), count


@pytest.mark.parametrize("by_class", [False, True])
def test_a_run_of_the_queue_is_replayed_as_it_was(by_class: bool, tmp_path: Path):
    """The rollouter and the trainer have a client each, as in processes of their own."""
    interval, steps, required = 2, 6, 3
    taken: dict[int, Counter[str]] = {}
    counts: dict[str, Counter[str]] = {}
    version = 0

    async def rollouter(client: Any) -> None:
        random_ = random.Random(4)
        for number in range(steps * required):
            sample, counts[f"sample_0_{number}"] = rollout_sample(number, random_, version)
            assert await client.put_sample(sample=pickle.dumps(sample))
            for _ in range(random_.randint(0, 4)):
                await asyncio.sleep(0)
        await client.put_sample(sample=None)

    async def trainer(client: Any) -> None:
        nonlocal version
        for step in range(1, steps + 1):
            taken[step] = Counter()
            for _ in range(required):
                sample, _ = await client.get_sample()
                taken[step].update(counts[pickle.loads(sample).sample_id])
            version = step // interval
        assert (await client.get_sample())[0] is None

    async def run(putting: Any, taking: Any) -> None:
        await asyncio.gather(rollouter(putting), trainer(taking))

    recorders: list[Recorder] = []

    def make(rank: int, world_size: int) -> Recorder:
        recorders.append(Recorder(tmp_path, QUEUE_CONFIG, rank=rank, world_size=world_size))
        return recorders[-1]

    actor = verl.MessageQueue(max_queue_size=100)
    keywords: dict[str, Any] = {"required_samples": required, "sync_interval": interval}
    if by_class:
        kind = recorded_queue_client(verl.MessageQueueClient, make, **keywords)
        clients = [kind(actor), kind(actor)]
    else:
        clients = [verl.MessageQueueClient(actor), verl.MessageQueueClient(actor)]
        for rank, client in enumerate(clients):
            attach_verl_queue(client, make(rank, 2), **keywords)
    asyncio.run(run(*clients))
    for recorder in recorders:
        recorder.close()
        assert recorder.rejected_events == 0
    result = replay_log(tmp_path, isolated=True, config=QUEUE_CONFIG).result
    by_step = {
        step["train_step"]: Counter(
            groups=step["taken_groups"], tokens=step["taken_tokens"], trained=step["trained_tokens"]
        )
        for step in result.steps
    }
    assert by_step == taken
    rows = rows_of(tmp_path)
    assert [row["model_step"] for row in rows if row["event"] == "sync"] == [2, 4]
    assert {row["task_name"] for row in rows if row["event"] == "put"} == {"math"}


def test_a_recorded_client_travels_as_the_plain_one_does(tmp_path: Path):
    with Recorder(tmp_path) as recorder:
        kind = recorded_queue_client(verl.MessageQueueClient, lambda rank, size: recorder, required_samples=1)
        client = kind(verl.MessageQueue(1))
        sample, _ = rollout_sample(0, random.Random(0), 0)
        assert asyncio.run(client.put_sample(sample))
        assert vars(client).keys() == {"queue_actor", "_recorded"}
        assert client.__getstate__().keys() == {"queue_actor"}
        assert asyncio.run(client.put_sample(sample)) is False
    assert any("the queue of verl was full" in limit for limit in load_log(tmp_path, isolated=True).log.limits)
    assert len(rows_of(tmp_path)) == 4


def test_a_group_that_cannot_be_recorded_is_one_of_its_step(tmp_path: Path):
    async def run(putting: Any, taking: Any) -> None:
        for number in range(4):
            sample, _ = rollout_sample(number, random.Random(number), 0)
            await putting.put_sample(b"no pickle" if number == 1 else pickle.dumps(sample))
        for _ in range(4):
            await taking.get_sample()

    with Recorder(tmp_path) as recorder:
        client = verl.MessageQueueClient(verl.MessageQueue(max_queue_size=9))
        attach_verl_queue(client, recorder, required_samples=2)
        with pytest.warns(RuntimeWarning, match="not recorded: "):
            asyncio.run(run(client, client))
        assert recorder.rejected_events == 2
    takes = [(row["train_step"], row["batch_size"]) for row in rows_of(tmp_path) if row["event"] == "take"]
    assert takes == [(1, 1)] * 2 + [(2, 2)] * 4


def test_a_client_with_more_arguments_is_called_with_them(tmp_path: Path):
    class Client(verl.MessageQueueClient):
        async def put_sample(self, sample: Any, priority: int = 0, *, tag: str = "") -> Any:
            return await super().put_sample(sample), priority, tag

    with Recorder(tmp_path) as recorder:
        client: Any = recorded_queue_client(Client, lambda *_: recorder, required_samples=1)(verl.MessageQueue(9))
        sample, _ = rollout_sample(0, random.Random(0), 0)
        assert asyncio.run(client.put_sample(sample, 3, tag="a")) == (True, 3, "a")
    assert [row["event"] for row in rows_of(tmp_path)] == ["put", "put"]
