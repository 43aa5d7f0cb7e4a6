"""Workloads: what a run has to generate, one row per response in prompt order, whoever schedules it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.semantic_masks import SemanticMasks


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
    """

    name: str
    rows: int
    tasks: dict[str, TaskWorkload]
    truncated_responses: int = 0
    unscored_rewards: int = 0

    def __repr__(self) -> str:
        return (
            f"Workload({self.name}: {len(self.tasks)} tasks, {self.groups:,} groups, {self.responses:,} responses,"
            f" {self.tokens:,} tokens)"
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
