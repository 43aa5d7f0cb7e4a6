"""A replay buffer with XTuner's interface and behaviour, written from the design and held against the golden cases."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class FakeStatus(Enum):
    INIT = "init"
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    FAILED = "failed"
    FILTERED = "filtered"


@dataclass
class FakeState:
    rollout_id: int
    group_id: int
    status: FakeStatus
    response_ids: list[int] | None = field(default_factory=list)
    response_model_steps: list[int] | None = field(default_factory=list)
    response_mask: list[int] | None = None
    reward: dict[str, float] | None = None
    prompt_ids: list[int] | None = None
    input_ids: list[int] | None = None
    labels: list[int] | None = None
    logprobs: list[float] | None = None
    finish_reason: str | None = None
    seq_staleness: int = 0


@dataclass
class Record:
    items: list[FakeState]
    task_name: str
    status: FakeStatus
    staleness: int
    timestamp: int


def group_status(items: list[FakeState]) -> FakeStatus:
    present = {item.status for item in items}
    for status in (FakeStatus.FAILED, FakeStatus.ABORTED, FakeStatus.EXPIRED, FakeStatus.FILTERED):
        if status in present:
            return status
    return FakeStatus.COMPLETED


class FakeReplayBuffer:
    """`by_staleness`: the order of the asynchronous buffer, else first in first out."""

    def __init__(self, by_staleness: bool) -> None:
        self._by_staleness = by_staleness
        self._lock = asyncio.Lock()
        self._records: list[Record] = []
        self._time = 0

    async def put(
        self,
        items: list[FakeState],
        task_name: str,
        model_step: int | None = None,
        current_train_step: int | None = None,
        stale_threshold: int | None = None,
        token_stale_threshold: int | None = None,
        expired_groups_retryable: bool = True,
    ) -> None:
        async with self._lock:
            status = group_status(items)
            if not items or status in (FakeStatus.FAILED, FakeStatus.FILTERED):
                return
            for item in items:
                item.response_ids = item.response_ids or []
                steps = item.response_model_steps or []
                item.response_model_steps = steps + [model_step or 0] * (len(item.response_ids) - len(steps))
            record = Record(items, task_name, status, 0, self._time)
            self._time += 1
            self._records.append(record)
            if current_train_step is not None:
                self._apply(
                    record, current_train_step, stale_threshold, token_stale_threshold, expired_groups_retryable
                )

    async def get(self, batch_size: int, task_name: str, group_status: FakeStatus) -> list[list[FakeState]]:
        async with self._lock:
            fitting = [
                record for record in self._records if (record.task_name, record.status) == (task_name, group_status)
            ]
            if self._by_staleness:
                fitting.sort(key=lambda record: (-record.staleness, record.timestamp))
            for record in fitting[:batch_size]:
                self._records.remove(record)
            return [record.items for record in fitting[:batch_size]]

    async def refresh_staleness(
        self,
        task_stale_thresholds: Mapping[str, int],
        expired_groups_retryable_by_task: Mapping[str, bool],
        current_train_step: int,
        task_token_stale_thresholds: Mapping[str, int | None],
    ) -> None:
        async with self._lock:
            for record in list(self._records):
                self._apply(
                    record,
                    current_train_step,
                    task_stale_thresholds[record.task_name],
                    task_token_stale_thresholds[record.task_name],
                    expired_groups_retryable_by_task[record.task_name],
                )

    async def take_batch(self, task_batch_sizes: Mapping[str, int], current_train_step: int) -> dict[str, Any]:
        # through the public method, as a buffer may do it
        return {task: await self.get(size, task, FakeStatus.COMPLETED) for task, size in task_batch_sizes.items()}

    def _apply(
        self, record: Record, step: int, threshold: int | None, token_threshold: int | None, retryable: bool
    ) -> None:
        agentic = any(item.input_ids is not None or item.labels is not None for item in record.items)
        for item in record.items:
            steps = item.response_model_steps or []
            item.seq_staleness = max((step - version - 1 for version in steps), default=0)
            if steps:
                item.seq_staleness = step - min(steps) - 1
        record.staleness = max(item.seq_staleness for item in record.items)
        expired = [item for item in record.items if item.status is FakeStatus.EXPIRED]
        for item in record.items:
            steps = item.response_model_steps or []
            mask = item.response_mask or [1] * len(steps)
            trained = [version for version, bit in zip(steps, mask, strict=True) if bit]
            old = threshold is not None and item.seq_staleness >= threshold
            if token_threshold is not None and not agentic and trained:
                old = old or step - max(trained) - 1 >= token_threshold
            if old and item not in expired:
                expired.append(item)
        if not expired:
            return
        record.status = FakeStatus.EXPIRED
        if not retryable:
            self._records.remove(record)
        for item in expired:
            item.status = FakeStatus.EXPIRED
            item.response_ids, item.response_model_steps, item.response_mask, item.reward = [], [], [], None
