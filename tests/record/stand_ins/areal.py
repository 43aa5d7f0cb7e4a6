"""AReaL's workflow executor as far as a recorder sees it: signatures, order of calls, and what they carry.

After areal/infra/workflow_executor.py and areal/infra/staleness_manager.py of areal-project/AReaL cbff54d6.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch


class Engine:
    def __init__(self) -> None:
        self._version = 0

    def set_version(self, version: int) -> None:
        self._version = version

    def get_version(self) -> int:
        return self._version


class StalenessManager:
    def __init__(self) -> None:
        self.accepted = self.rejected = 0

    def on_rollout_accepted(self) -> None:
        self.accepted += 1

    def on_rollout_rejected(self) -> None:
        self.rejected += 1


@dataclass
class RolloutTaskInput:
    task_id: int
    data: dict[str, Any]
    workflow: Any
    should_accept_fn: Callable[[dict[str, Any]], bool] | None = None
    is_eval: bool = False


@dataclass
class RolloutResult:
    task_id: int
    trajectory: dict[str, Any]


class BatchTaskDispatcher:
    """Begins and runs tasks on a thread of its own; a batch are those that began first of what has finished."""

    def __init__(self, task_factory: Callable[[RolloutTaskInput], Callable[[], Awaitable[Any]]]) -> None:
        self.task_factory = task_factory
        self._inputs: queue.SimpleQueue[RolloutTaskInput] = queue.SimpleQueue()
        self._pending: dict[int, RolloutResult | None] = {}
        self._changed = threading.Condition()
        self._running = 0
        self._is_over = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def destroy(self) -> None:
        self._is_over = True
        self._thread.join()

    async def _run(self) -> None:
        tasks: list[asyncio.Task[None]] = []
        while not self._is_over:
            while not self._inputs.empty():
                task_input = self._inputs.get()
                tasks.append(asyncio.create_task(self._finish(task_input, self.task_factory(task_input))))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)

    async def _finish(self, task_input: RolloutTaskInput, run: Callable[[], Awaitable[Any]]) -> None:
        result = await run()
        with self._changed:
            self._pending[task_input.task_id] = result
            self._running -= 1
            self._changed.notify_all()

    def submit_task_input(self, task_input: RolloutTaskInput) -> None:
        with self._changed:
            self._running += 1
        self._inputs.put(task_input)

    def wait_results(self, count: int, timeout: float | None = None, raise_timeout: bool = True) -> list[Any]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._pending) >= count, 60)
            first = sorted(self._pending)[:count]
            return [self._pending.pop(task_id) for task_id in first]

    def active_submit_and_wait(
        self, input_generator: Iterator[RolloutTaskInput], batch_size: int, dynamic_bs: bool = False
    ) -> list[RolloutResult]:
        results: list[RolloutResult] = []
        attempts = 0
        while (attempts if dynamic_bs else len(results)) < batch_size:
            while self._running + len(self._pending) < 2 * batch_size:
                self.submit_task_input(next(input_generator))
            arrived = self.wait_results(batch_size - (attempts if dynamic_bs else len(results)), timeout=1)
            attempts += len(arrived)
            results += [result for result in arrived if result is not None]
        return results

    def drain(self) -> None:
        """Wait until nothing runs."""
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0, 60)


class Workflow:
    """Generates groups of two samples; some it rejects itself, and some fail.

    Args:
        is_in_order: whether tasks finish in the order in which they began.
    """

    def __init__(self, seed: int, *, is_in_order: bool) -> None:
        self._random = Random(seed)
        self._turn = asyncio.Lock() if is_in_order else None

    async def arun_episode(self, engine: Engine, data: dict[str, Any]) -> dict[str, Any] | None:
        if self._turn is None:
            await asyncio.sleep(self._random.random() * 0.01)
            return self._made(engine, data)
        async with self._turn:
            await asyncio.sleep(0)
            return self._made(engine, data)

    def _made(self, engine: Engine, data: dict[str, Any]) -> dict[str, Any] | None:
        fate = self._random.random()
        if fate < 0.1:
            raise ValueError("the tool broke")
        if fate < 0.2:
            return None
        version = engine.get_version()
        samples = []
        prompt = self._random.randint(1, 3)
        for _ in range(2):
            turns = self._random.randint(1, 3)
            mask, versions = [0] * prompt, [-1] * prompt
            for turn in range(turns):
                # a tool's reply stands between turns
                mask += [0] * (turn > 0) + [1] * self._random.randint(1, 4)
                versions += [-1] * (turn > 0) + [max(0, version - turns + 1 + turn)] * (len(mask) - len(versions))
                versions = versions[: len(mask)]
            samples.append((mask, versions))
        longest = max(len(mask) for mask, _ in samples)

        def padded(rows: list[list[Any]], fill: Any = 0) -> torch.Tensor:
            return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])

        return {
            "input_ids": padded([[self._random.randint(0, 99) for _ in mask] for mask, _ in samples]),
            "loss_mask": padded([mask for mask, _ in samples]),
            "logprobs": padded([[-0.5 * bit for bit in mask] for mask, _ in samples], 0.0),
            "versions": padded([versions for _, versions in samples], -1),
            "attention_mask": padded([[True] * len(mask) for mask, _ in samples], False),
            "rewards": torch.tensor([float(self._random.randint(0, 1)) for _ in samples]),
        }


class WorkflowExecutor:
    """Runs workflows, and gives batches of what is accepted.

    Attributes:
        journal: ("accepted", task, trajectory), ("filtered", task, trajectory or None), ("failed", task, None) and
            ("batch", version, tasks), in the order in which they happened.
    """

    def __init__(self) -> None:
        self.inference_engine = Engine()
        self.staleness_manager = StalenessManager()
        self.dispatcher = BatchTaskDispatcher(self._create_workflow_task)
        self.journal: list[tuple[Any, ...]] = []
        self._next = 0

    def _create_workflow_task(self, pending_task: RolloutTaskInput) -> Callable[[], Awaitable[RolloutResult | None]]:
        should_accept_fn = pending_task.should_accept_fn

        async def execute() -> RolloutResult | None:
            name = pending_task.task_id
            try:
                trajectory = await pending_task.workflow.arun_episode(self.inference_engine, pending_task.data)
                is_accepted = trajectory is not None and (
                    should_accept_fn is None or bool(should_accept_fn(trajectory))
                )
                if is_accepted:
                    self.staleness_manager.on_rollout_accepted()
                    self.journal.append(("accepted", name, trajectory))
                    return RolloutResult(name, trajectory)
                self.staleness_manager.on_rollout_rejected()
                self.journal.append(("filtered", name, trajectory))
            except Exception:  # noqa: BLE001 - any failure of a workflow rejects its task
                self.staleness_manager.on_rollout_rejected()
                self.journal.append(("failed", name, None))
            return None

        return execute

    def submit(
        self,
        data: dict[str, Any],
        workflow: Any,
        should_accept_fn: Callable[[dict[str, Any]], bool] | None = None,
        task_id: int | None = None,
        is_eval: bool = False,
    ) -> int:
        task = self._task(data, workflow, should_accept_fn, is_eval=is_eval)
        self.dispatcher.submit_task_input(task)
        return task.task_id

    def wait(self, count: int, timeout: float | None = None, raise_timeout: bool = True) -> list[Any]:
        results = self.dispatcher.wait_results(count, timeout, raise_timeout)
        return [result.trajectory if result is not None else None for result in results]

    def prepare_batch(
        self,
        dataloader: Iterator[dict[str, Any]],
        workflow: Any,
        should_accept_fn: Callable[[dict[str, Any]], bool] | None = None,
        dynamic_bs: bool = False,
        batch_size: int = 4,
    ) -> list[dict[str, Any]]:
        tasks = (self._task(data, workflow, should_accept_fn, is_eval=False) for data in dataloader)
        results = self.dispatcher.active_submit_and_wait(tasks, batch_size=batch_size, dynamic_bs=dynamic_bs)
        self.journal.append(("batch", self.inference_engine.get_version(), [result.task_id for result in results]))
        return [result.trajectory for result in results]

    def _task(self, data: Any, workflow: Any, should_accept: Any, *, is_eval: bool) -> RolloutTaskInput:
        self._next += 1
        return RolloutTaskInput(self._next - 1, data, workflow, should_accept, is_eval)
