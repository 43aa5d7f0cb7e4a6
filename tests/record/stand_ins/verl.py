"""The replay buffer of verl's v1 trainers and the client of its queue, as verl-project/verl 1dda039b has them."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class TransferQueue:
    """Groups and responses by key, with tags; whatever runs beside the trainer goes on when it is looked at."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance
        self.tags: dict[str, dict[str, dict[str, Any]]] = {"train": {}, "val": {}}
        self.fields: dict[str, dict[str, Any]] = {}
        self.cleared: list[str] = []

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        self._advance()
        return self.tags

    def kv_clear(self, *, partition_id: str, keys: list[str]) -> None:
        self.cleared += keys
        for key in keys:
            self.tags[partition_id].pop(key, None)

    def kv_batch_get(self, *, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        assert set(keys) <= set(self.tags[partition_id])
        return {name: [self.fields[key][name] for key in keys] for name in select_fields}


@dataclass
class NonTensorData:
    """What a TensorDict has in the place of a value that is no tensor."""

    data: Any

    def tolist(self) -> Any:
        return self.data


@dataclass
class KVBatchMeta:
    partition_id: str
    keys: list[str] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)


class ReplayBufferAsync:
    """Takes finished groups of the oldest prompts; evicts groups that are too old, failed or all of one reward."""

    tq: TransferQueue

    def __init__(
        self,
        trainer_mode: str,
        trainer_config: dict[str, Any],
        max_off_policy_threshold: int,
        max_off_policy_strategy: str,
        sampler_kwargs: dict[str, Any],
        poll_interval: float = 2.0,
        refill_fn: Callable[[int], None] | None = None,
        filter_groups_metric: str | None = None,
        train_batch_size: int | None = None,
        gen_batch_size: int | None = None,
        max_inflight_gen_batches: int = 1,
        sync_refill_failed_groups: bool = False,
    ) -> None:
        self.trainer_config = trainer_config
        self.max_off_policy_threshold = max_off_policy_threshold
        self.max_off_policy_strategy = max_off_policy_strategy
        self.refill_fn = refill_fn
        self.filter_groups_metric = filter_groups_metric
        self._look()

    def _look(self) -> None:
        self.partitions: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self.finished_keys: dict[str, set[str]] = defaultdict(set)
        self.failure_keys: dict[str, set[str]] = defaultdict(set)
        self.prompt_global_steps: dict[str, dict[str, int]] = defaultdict(dict)

    def _sync_metadata_from_transfer_queue(self) -> None:
        self._look()
        for partition_id, items in self.tq.kv_list().items():
            for key, tag in items.items():
                if not tag.get("is_prompt", False):
                    self.partitions[partition_id][key] = dict(tag)
                    continue
                self.prompt_global_steps[partition_id][key] = tag["global_steps"]
                if tag["status"] == "finished":
                    self.finished_keys[partition_id].add(key)
                elif tag["status"] == "failure":
                    self.failure_keys[partition_id].add(key)

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        if not uids:
            return
        keys = {key for key in self.partitions[partition_id] if key.split("_")[0] in uids}
        self.tq.kv_clear(partition_id=partition_id, keys=[*uids, *keys])
        for key in keys:
            del self.partitions[partition_id][key]
        for known in (self.finished_keys, self.failure_keys):
            known[partition_id].difference_update(uids)
        for uid in uids:
            self.prompt_global_steps[partition_id].pop(uid, None)

    def wait_for_sampleable(self, global_steps: int, partition_id: str, target_count: int) -> tuple[set[str], dict]:
        while True:
            self._sync_metadata_from_transfer_queue()
            finished, failed = self.finished_keys[partition_id], self.failure_keys[partition_id]
            if partition_id != "val":
                steps = self.prompt_global_steps[partition_id]
                old = {uid for uid in finished if global_steps - steps[uid] + 1 > self.max_off_policy_threshold}
                evicted = failed | (old if self.max_off_policy_strategy == "drop" else set())
                evicted |= {uid for uid in finished if self.filter_groups_metric and self._is_flat(partition_id, uid)}
                if evicted:
                    self._clear_groups(partition_id, evicted)
                    if self.refill_fn is not None:
                        self.refill_fn(len(evicted))
                    continue
            if len(finished | failed) >= target_count:
                return finished | failed, {}

    def _is_flat(self, partition_id: str, uid: str) -> bool:
        keys = [key for key in self.partitions[partition_id] if key.split("_")[0] == uid]
        scores = [float(self.tq.fields[key]["rm_scores"].sum()) for key in keys]
        return len(scores) > 1 and float(np.std(scores)) == 0.0

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        sampleable, metrics = self.wait_for_sampleable(global_steps, partition_id, batch_size)
        ordered = sorted(sampleable, key=lambda uid: self.prompt_global_steps[partition_id].get(uid, 0))
        chosen = set(ordered[:batch_size])
        self.tq.kv_clear(partition_id=partition_id, keys=list(chosen))
        kept = {key: tag for key, tag in self.partitions[partition_id].items() if key.split("_")[0] in chosen}
        return KVBatchMeta(partition_id, list(kept), list(kept.values())), metrics


class MessageQueue:
    """What the client talks to; elsewhere it is a Ray actor."""

    def __init__(self, max_queue_size: int) -> None:
        self.queue: deque[Any] = deque()
        self.max_queue_size = max_queue_size

    async def put_sample(self, sample: Any) -> bool:
        is_full = len(self.queue) >= self.max_queue_size
        if is_full:
            self.queue.popleft()
        self.queue.append(sample)
        return not is_full

    async def get_sample(self) -> Any:
        while not self.queue:
            await asyncio.sleep(0)
        return self.queue.popleft(), len(self.queue)


class MessageQueueClient:
    def __init__(self, queue_actor: Any) -> None:
        self.queue_actor = queue_actor

    async def put_sample(self, sample: Any) -> bool:
        return await self.queue_actor.put_sample(sample)

    async def get_sample(self) -> Any | None:
        return await self.queue_actor.get_sample()


@dataclass
class DataProto:
    batch: dict[str, Any]
    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass
class RolloutSample:
    full_batch: DataProto
    sample_id: str
    epoch: int
    rollout_status: dict[str, Any]
