"""TRL's asynchronous GRPO trainer as far as a recorder sees it: signatures, order of calls, and what they carry.

After trl/experimental/async_grpo/{async_grpo_trainer,async_rollout_worker}.py of huggingface/trl f2cd5771.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any


@dataclass(slots=True)
class RolloutSample:
    prompt: list[dict[str, str]]
    completion: list[dict[str, str]]
    input_ids: list[int]
    completion_mask: list[int]
    old_log_probs: list[float]
    advantage: float
    model_version: int
    group_id: int
    metrics: dict[str, float]


class RolloutWorker:
    """Starts groups under the live version, and finishes them in any order, which makes some of them stale."""

    def __init__(self, random: Random, group_size: int) -> None:
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue()
        self._random, self._group_size = random, group_size
        self._version = 0
        self._running: list[tuple[int, int]] = []
        self._groups = 0

    def update_model_version(self, model_version: int) -> None:
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Asked when the queue is empty: generates."""
        while len(self._running) < 6:
            self._running.append((self._groups, self._version))
            self._groups += 1
        place = 0 if self._random.random() < 0.6 else self._random.randrange(6)
        group_id, version = self._running.pop(place)
        prompt = self._random.randint(1, 4)
        for _ in range(self._group_size):
            mask = [0] * prompt + [1]
            mask += [self._random.randint(0, 1) for _ in range(self._random.randint(0, 12))]
            ids = [self._random.randint(0, 99) for _ in mask]
            metrics = {"reward": self._random.choice([0.0, 1.0, float("nan")])}
            logprobs = [-0.5 * bit for bit in mask]
            advantage = 0.25 * len(mask) - 1
            sample = RolloutSample([], [], ids, mask, logprobs, advantage, version, group_id, metrics)
            self.rollout_buffer.put_nowait(sample)


class RolloutQueueDataset:
    def __init__(self, trainer: AsyncGRPOTrainer) -> None:
        self._trainer = trainer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        trainer = self._trainer
        while True:
            try:
                sample = trainer.rollout_queue.get(timeout=0.0)
            except queue.Empty:
                trainer.rollout_worker.check_health(300.0)
                continue
            if trainer.model_version - sample.model_version > trainer.args.max_staleness:
                trainer.journal.append(("stale", sample))
                continue
            names = ("input_ids", "completion_mask", "old_log_probs", "advantage", "group_id")
            yield {name: getattr(sample, name) for name in names} | {"metrics": {**sample.metrics}}


def fixed_count(samples: Iterator[dict[str, Any]], ranks: int, size: int) -> Iterator[list[list[dict[str, Any]]]]:
    while True:
        batch = sorted((next(samples) for _ in range(size)), key=lambda example: -len(example["input_ids"]))
        yield [batch[rank::ranks] for rank in range(ranks)]


def token_budget(trainer: AsyncGRPOTrainer, samples: Iterator[dict[str, Any]]) -> Iterator[list[list[dict[str, Any]]]]:
    """Micro-batches of one rank, up to so many tokens."""
    row: list[dict[str, Any]] = []
    for sample in samples:
        if len(sample["input_ids"]) > trainer.args.token_budget:
            trainer.journal.append(("too long", sample))
            continue
        if sum(len(example["input_ids"]) for example in [*row, sample]) > trainer.args.token_budget:
            yield [row]
            row = []
        row.append(sample)


@dataclass
class DataCollatorForRollout:
    pad_token_id: int
    num_processes: int = 1
    return_tensors: str = "pt"
    groups_trained: set[int] = field(default_factory=set)

    def __call__(self, features: list[Any]) -> dict[str, Any]:
        return self.torch_call(features)

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        (groups,) = examples
        return {"examples": [example for group in groups for example in group]}


class Loader:
    """Makes a micro-batch ahead of the one that it gives, as Accelerate's does that one process feeds."""

    def __init__(self, dataset: Iterator[Any], collate_fn: Callable[[list[Any]], dict[str, Any]]) -> None:
        self.dataset, self.collate_fn = dataset, collate_fn

    def __iter__(self) -> Iterator[dict[str, Any]]:
        ahead = self.collate_fn([next(self.dataset)])
        while True:
            given, ahead = ahead, self.collate_fn([next(self.dataset)])
            yield given


class AsyncGRPOTrainer:
    """Trains micro-batches of samples, several to a step, and pushes weights every few steps.

    Attributes:
        journal: ("stale", sample), ("too long", example) and ("trained", step, examples), in the order in which they
            happened; both kinds hold `input_ids` and `completion_mask`.
    """

    def __init__(self, seed: int, steps: int, **args: int) -> None:
        defaults = {"max_staleness": 1, "token_budget": 0, "weight_sync_steps": 1, "gradient_accumulation_steps": 2}
        self.args = SimpleNamespace(**defaults | args)
        self.state = SimpleNamespace(global_step=0)
        self.model_version = 0
        self.rollout_worker = RolloutWorker(Random(seed), 4)
        self.rollout_queue = self.rollout_worker.rollout_buffer
        self.journal: list[tuple[Any, ...]] = []
        self._steps = steps

    def get_train_dataloader(self) -> Loader:
        samples = iter(RolloutQueueDataset(self))
        batches = token_budget(self, samples) if self.args.token_budget else fixed_count(samples, 2, 6)
        return Loader(batches, DataCollatorForRollout(0))

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> float:
        self.journal.append(("trained", self.state.global_step + 1, inputs["examples"]))
        return 0.0

    def train(self) -> None:
        self._sync_weight()
        batches = iter(self.get_train_dataloader())
        while self.state.global_step < self._steps:
            for inputs in [next(batches) for _ in range(self.args.gradient_accumulation_steps)]:
                self.training_step(None, inputs)
            self.state.global_step += 1
            if self.state.global_step % self.args.weight_sync_steps == 0:
                self._sync_weight()

    def _sync_weight(self) -> None:
        self.model_version += 1
        self.rollout_worker.update_model_version(self.model_version)
