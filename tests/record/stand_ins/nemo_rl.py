"""The replay buffers of NeMo-RL, as NVIDIA-NeMo/RL 7ea279ab has them (nemo_rl/algorithms/async_utils)."""

from __future__ import annotations

import asyncio
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any


class ReplayBufferImpl:
    """The buffer of asynchronous GRPO: a batch is what was meant for the trainer's weights, in order."""

    def __init__(self, max_size: int, drop_incomplete_targets_on_restore: bool) -> None:
        self.max_size = max_size
        self.trajectories: list[dict[str, Any]] = []
        self.trajectory_versions: list[int] = []
        self.target_weight_versions: list[int] = []
        self._lock = threading.Lock()

    def add(self, trajectory: dict[str, Any], weight_version: int, target_weight_version: int) -> str:
        with self._lock:
            if len(self.trajectories) >= self.max_size:
                return "full"
            self.trajectories.append(trajectory)
            self.trajectory_versions.append(weight_version)
            self.target_weight_versions.append(target_weight_version)
            return "success"

    def sample(self, num_prompt_groups: int, current_weight_version: int, max_age_steps: int) -> dict[str, Any] | None:
        with self._lock:
            oldest = max(0, current_weight_version - max_age_steps)
            self._keep([index for index, version in enumerate(self.trajectory_versions) if version >= oldest])
            targets = self.target_weight_versions
            fitting = [index for index, target in enumerate(targets) if target == current_weight_version]
            if len(fitting) < num_prompt_groups:
                return None
            chosen = fitting[:num_prompt_groups]
            ages = [current_weight_version - self.trajectory_versions[index] for index in chosen]
            sampled = [self.trajectories[index] for index in chosen]
            self._keep([index for index in range(len(targets)) if index not in chosen])
            return {"trajectories": sampled, "avg_trajectory_age": sum(ages) / len(ages)}

    def _keep(self, indices: list[int]) -> None:
        for name in ("trajectories", "trajectory_versions", "target_weight_versions"):
            values = getattr(self, name)
            setattr(self, name, [values[index] for index in indices])


@dataclass
class Completion:
    message_log: list[dict[str, Any]]
    env_extras: dict[str, Any] | None
    truncated: bool
    reward: float


@dataclass
class PromptGroupRecord:
    prompt_idx: int
    prompt: list[dict[str, Any]]
    extra_env_info: dict[str, Any] | None
    metadata: dict[str, Any]
    completions: list[Completion]
    rollout_metrics: dict[str, Any]


@dataclass
class KVBatchMeta:
    partition_id: str
    sample_ids: list[str] = field(default_factory=list)

    def concat(self, *others: KVBatchMeta) -> KVBatchMeta:
        return KVBatchMeta(self.partition_id, [name for meta in (self, *others) for name in meta.sample_ids])


class TQReplayBuffer:
    """The buffer of the single controller: slots are reserved, then committed; rows are written elsewhere."""

    def __init__(
        self,
        dp_client: Any,
        partition_id: str,
        *,
        pad_value_dict: dict[str, int],
        require_routed_experts: bool = False,
    ) -> None:
        self._partition_id = partition_id
        self.meta_list: list[KVBatchMeta | None] = []
        self.start_weight_list: list[int] = []
        self.end_weight_list: list[int] = []
        self.target_step_list: list[int | None] = []
        self.ready_list: list[bool] = []
        self._group_ids: list[str] = []

    def reserve(self, *, weight_version: int, target_step: int | None = None, group_id: str | None = None) -> str:
        group_id = str(uuid.uuid4()) if group_id is None else group_id
        self.meta_list.append(None)
        self.start_weight_list.append(weight_version)
        self.end_weight_list.append(-1)
        self.target_step_list.append(target_step)
        self.ready_list.append(False)
        self._group_ids.append(group_id)
        return group_id

    async def commit(
        self, group_id: str, record: PromptGroupRecord, start_weight_version: int, end_weight_version: int
    ) -> KVBatchMeta:
        if group_id not in self._group_ids:
            raise ValueError(f"commit called with unknown group_id={group_id!r}")
        await asyncio.sleep(0)
        meta = KVBatchMeta(self._partition_id, [f"{group_id}_g{index}" for index in range(len(record.completions))])
        index = self._group_ids.index(group_id)
        self.meta_list[index], self.end_weight_list[index], self.ready_list[index] = meta, end_weight_version, True
        return meta

    async def remove_group(self, group_id: str, *, remove_in_dp: bool = False) -> int:
        return await self.remove([self._group_ids.index(group_id)], remove_in_dp=remove_in_dp)

    async def remove(self, idxs: list[int], remove_in_dp: bool) -> int:
        names = ("meta_list", "start_weight_list", "end_weight_list", "target_step_list", "ready_list", "_group_ids")
        for index in sorted(idxs, reverse=True):
            for name in names:
                del getattr(self, name)[index]
        if remove_in_dp:
            await asyncio.sleep(0)
        return len(idxs)

    def __len__(self) -> int:
        return len(self.meta_list)


class WindowedSampler:
    """Takes any ready group in the window of weights, oldest slot first."""

    def __init__(
        self, buffer: TQReplayBuffer, *, max_staleness_versions: int, sample_freshest_first: bool = False
    ) -> None:
        self._buffer = buffer
        self.max_staleness_versions = max_staleness_versions

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        buffer, oldest = self._buffer, current_train_weight - self.max_staleness_versions
        weights = enumerate(zip(buffer.start_weight_list, buffer.ready_list, strict=True))
        valid = [index for index, (weight, ready) in weights if ready and oldest <= weight <= current_train_weight]
        if len(valid) < min_prompt_groups:
            return None, 0
        chosen = valid[:max_prompt_groups]
        first, *others = [meta for index in chosen if (meta := buffer.meta_list[index]) is not None]
        await buffer.remove(chosen, remove_in_dp=False)
        return first.concat(*others), len(chosen)

    async def evict(self, *, current_train_weight: int) -> int:
        buffer, oldest = self._buffer, current_train_weight - self.max_staleness_versions
        weights = enumerate(zip(buffer.start_weight_list, buffer.ready_list, strict=True))
        stale = [index for index, (weight, ready) in weights if ready and weight < oldest]
        return await buffer.remove(stale, remove_in_dp=True) if stale else 0
