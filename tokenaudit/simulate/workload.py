"""Workloads: what a run has to generate, one row per response, and its prompts, handed out in order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.contracts.errors import plural
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.semantic_masks import SemanticMasks
from tokenaudit.replay.request import PromptOrder
from tokenaudit.simulate.entries import CannotGoOnError, StuckReason, StuckTaskReport


class ResponseColumns(NamedTuple):
    """R responses; every array has the shape [R].

    Attributes:
        group_id: the prompt's group, unique inside the task.
        rollout_id: identity inside the task; shared by the segments of a split rollout.
        response_len: tokens once it is completed.
        token_time_us: time to generate one token, microseconds, at least 1.
        agentic: whether it exempts its group from the token rule.
        reward: NaN where unscored.
        failed: whether its generation ends as failed.
        filtered: whether the run's own filter rejects its group.
    """

    group_id: Int64s
    rollout_id: Int64s
    response_len: Int64s
    token_time_us: Int64s
    agentic: Bools
    reward: np.ndarray[Any, np.dtype[np.float64]]
    failed: Bools
    filtered: Bools

    def take(self, rows: Int64s) -> ResponseColumns:
        """Some of the responses, in the order of `rows`."""
        return self._make(array[rows] for array in self)


@dataclass(frozen=True, slots=True)
class TaskWorkload:
    """The prompts of one task, in order, and their responses.

    Attributes:
        responses: the responses, those of one prompt next to each other.
        masks: their semantic masks.
        first_response: index of each prompt's first response, shape [prompts + 1].
    """

    responses: ResponseColumns
    masks: SemanticMasks
    first_response: Int64s

    @property
    def prompts(self) -> int:
        """Number of prompts, that is, of groups."""
        return len(self.first_response) - 1


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run has to generate.

    Attributes:
        name: name for reports, without folders.
        rows: rows it was read from.
        tasks: prompts by task, in order of first appearance.
        truncated_responses: responses that were never completed in the log it comes from, so that their lengths are
            what was generated until then.
        unscored_rewards: rewards that are not finite and count as unscored.
        prompt_order: what the prompts of a log were put in order by, never `AUTO`; None: they stand as in their file.
    """

    name: str
    rows: int
    tasks: dict[str, TaskWorkload]
    truncated_responses: int = 0
    unscored_rewards: int = 0
    prompt_order: PromptOrder | None = None

    def __repr__(self) -> str:
        return (
            f"Workload({self.name}: {plural(len(self.tasks), 'task')}, {plural(self.groups, 'group')},"
            f" {plural(self.responses, 'response')}, {plural(self.tokens, 'token')})"
        )

    @property
    def groups(self) -> int:
        """Groups of all tasks."""
        return sum(task.prompts for task in self.tasks.values())

    @property
    def responses(self) -> int:
        """Responses of all tasks."""
        return sum(len(task.masks) for task in self.tasks.values())

    @property
    def tokens(self) -> int:
        """Tokens of all responses."""
        return sum(int(task.responses.response_len.sum()) for task in self.tasks.values())

    def content_hash(self) -> str:
        """SHA-256 of what is simulated, whatever files, batches or column types it was stored in."""
        digest = hashlib.sha256()
        for name, task in self.tasks.items():
            encoded = name.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
            for array in (*task.responses, *task.masks.without_all_ones().arrays()):
                little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
                digest.update(len(little).to_bytes(8, "little"))
                digest.update(little.data)
        return f"sha256:{digest.hexdigest()}"


def grouped_by_task(
    task: Int64s, names: list[str], responses: ResponseColumns, masks: SemanticMasks
) -> dict[str, TaskWorkload]:
    """Gather responses by task and prompt; both keep the order of first appearance.

    Args:
        task: index into `names` of every response.
        names: task names.
        responses: the responses.
        masks: their masks.
    """
    used, first = np.unique(task, return_index=True)
    tasks: dict[str, TaskWorkload] = {}
    for code in used[np.argsort(first)].tolist():
        rows = np.flatnonzero(task == code)
        _, first_seen, group = np.unique(responses.group_id[rows], return_index=True, return_inverse=True)
        order = np.argsort(first_seen[group], kind="stable")
        sizes = np.bincount(group)[np.argsort(first_seen)]
        first_response = np.concatenate([[0], np.cumsum(sizes)])
        tasks[names[code]] = TaskWorkload(responses.take(rows[order]), masks.take(rows[order]), first_response)
    return tasks


_LARGEST_ID = 2**63 - 1


class Prompt(NamedTuple):
    """One group to generate.

    Attributes:
        group_id: its group in this pass.
        first: index of its first response in the task's workload.
        last: index behind its last response.
        rollout_shift: what this pass adds to rollout ids.
        number: which pass over the workload this is; 0 for the first.
    """

    group_id: int
    first: int
    last: int
    rollout_shift: int
    number: int


class PromptPasses:
    """Hands out prompts without end: pass p adds p times (the largest id of the task + 1) to its ids."""

    def __init__(self, task_name: str, workload: TaskWorkload) -> None:
        self._task_name = task_name
        self._bounds = workload.first_response.data
        self._count = workload.prompts
        self._group_ids = workload.responses.group_id[workload.first_response[:-1]]
        self._index = {group_id: index for index, group_id in enumerate(self._group_ids.tolist())}
        self._group_stride = int(workload.responses.group_id.max(initial=-1)) + 1
        self._rollout_stride = int(workload.responses.rollout_id.max(initial=-1)) + 1
        self._next = 0

    def __len__(self) -> int:
        return self._count

    def take(self) -> Prompt:
        """The next prompt.

        Raises:
            CannotGoOnError: its ids would not fit the log.
        """
        number, index = divmod(self._next, self._count)
        if index == 0 and number and (number + 1) * max(self._group_stride, self._rollout_stride) > _LARGEST_ID:
            message = f"the ids of pass {number + 1} over the prompts of task {self._task_name} don't fit 64 bits"
            raise CannotGoOnError(StuckTaskReport(self._task_name, StuckReason.IDS_RUN_OUT, message))
        self._next += 1
        return self._prompt(index, number)

    def of(self, group_id: int) -> Prompt:
        """The prompt of a group that was handed out before."""
        number, first_id = divmod(group_id, self._group_stride)
        return self._prompt(self._index[first_id], number)

    def _prompt(self, index: int, number: int) -> Prompt:
        return Prompt(
            int(self._group_ids[index]) + number * self._group_stride,
            self._bounds[index],
            self._bounds[index + 1],
            number * self._rollout_stride,
            number,
        )
