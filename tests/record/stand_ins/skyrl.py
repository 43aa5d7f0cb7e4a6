"""SkyRL's fully asynchronous trainer as far as a recorder sees it: signatures, order of calls, and what they carry.

After skyrl/train/fully_async_trainer.py and skyrl/train/generators/base.py of NovaSky-AI/SkyRL a9564572.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass
class TrajectoryID:
    instance_id: str
    repetition_id: int


@dataclass
class BatchMetadata:
    global_step: int
    training_phase: str


@dataclass
class GeneratedOutputGroup:
    generator_output: dict[str, Any]
    uid: str
    global_step_when_scheduled: int
    group_completion_time_s: float | None = None
    prompts: list[Any] | None = None


class Generator:
    """Makes groups of random lengths; some have rewards without variance."""

    def __init__(self, random: Random) -> None:
        self._random = random

    async def generate(self, input_batch: dict[str, Any], disable_tqdm: bool = False) -> dict[str, Any]:
        for _ in range(self._random.randint(0, 12)):
            await asyncio.sleep(0)
        names = input_batch["trajectory_ids"]
        lengths = [self._random.randint(0, 9) for _ in names]
        is_flat = self._random.random() < 0.3
        return {
            "prompt_token_ids": [[1, 2, 3]] * len(names),
            "response_ids": [[self._random.randint(0, 99) for _ in range(length)] for length in lengths],
            "rewards": [0.0 if is_flat else float(index) for index, _ in enumerate(names)],
            "loss_masks": [[self._random.randint(0, 1) for _ in range(length)] for length in lengths],
            "stop_reasons": ["stop"] * len(names),
            "rollout_metrics": {},
            "rollout_logprobs": [[-0.5] * length for length in lengths],
            "trajectory_ids": names,
            "trajectory_generation_times": [0.25] * len(names),
            "is_last_step": None,
        }


class AsyncDataloader:
    async def mark_filtered_uids(self, uids: Iterable[str]) -> None:
        pass


class Dispatch:
    async def save_weights_for_sampler(self) -> None:
        await asyncio.sleep(0)


class FullyAsyncTrainer:
    """Trains epochs of prompts, a mini-batch of groups a step, while workers generate ahead.

    Attributes:
        journal: what happened, in order: ("finished", group), ("trained", step, groups) and ("dropped", groups).
    """

    def __init__(self, prompts: int, epochs: int, mini_batch_size: int, *, sample_full_batch: bool, seed: int) -> None:
        self.generator = Generator(Random(seed))
        self.async_train_dataloader = AsyncDataloader()
        self.mini_batch_size = mini_batch_size
        self.sample_full_batch = sample_full_batch
        self.global_step = 0
        self.journal: list[tuple[Any, ...]] = []
        self._prompts, self._epochs = prompts, epochs

    def init_weight_sync_state(self) -> None:
        self.dispatch = Dispatch()

    async def train(self) -> None:
        self.init_weight_sync_state()
        await self.dispatch.save_weights_for_sampler()
        self.global_step += 1
        for _ in range(self._epochs):
            buffer: asyncio.Queue[GeneratedOutputGroup] = asyncio.Queue()
            uids = iter(map(str, range(self._prompts)))
            workers = [asyncio.create_task(self._generate(buffer, uids)) for _ in range(2 * self.mini_batch_size)]
            while len(kept := await self._collected(buffer, workers)) == self.mini_batch_size:
                await asyncio.to_thread(self.convert_generation_group_mini_batch_to_training_input, kept, [])
                self.journal.append(("trained", self.global_step, kept))
                await asyncio.sleep(0)
                await self.dispatch.save_weights_for_sampler()
                self.global_step += 1
            if kept:
                await self.async_train_dataloader.mark_filtered_uids([group.uid for group in kept])
                self.journal.append(("dropped", kept))

    async def _generate(self, buffer: asyncio.Queue[GeneratedOutputGroup], uids: Iterable[str]) -> None:
        for uid in uids:
            request = {
                "prompts": [[]] * 3,
                "env_classes": ["math"] * 3,
                "trajectory_ids": [TrajectoryID(uid, repetition) for repetition in range(3)],
                "batch_metadata": BatchMetadata(self.global_step, "train"),
            }
            scheduled = self.global_step
            output = await self.generator.generate(request, disable_tqdm=True)
            group = GeneratedOutputGroup(output, uid, scheduled, 1.0, request["prompts"])
            buffer.put_nowait(group)
            self.journal.append(("finished", group))

    async def _collected(self, buffer: asyncio.Queue[Any], workers: list[asyncio.Task[None]]) -> list[Any]:
        kept: list[GeneratedOutputGroup] = []
        while len(kept) < self.mini_batch_size:
            if buffer.empty():
                if all(worker.done() for worker in workers):
                    break
                await asyncio.sleep(0)
                continue
            group = buffer.get_nowait()
            if self.sample_full_batch and len(set(group.generator_output["rewards"])) == 1:
                await self.async_train_dataloader.mark_filtered_uids([group.uid])
                self.journal.append(("dropped", [group]))
            else:
                kept.append(group)
        return kept

    def convert_generation_group_mini_batch_to_training_input(
        self,
        cur_generation_group_mini_batch: list[GeneratedOutputGroup],
        dropped_groups: list[GeneratedOutputGroup] | None = None,
    ) -> Any:
        return object()
