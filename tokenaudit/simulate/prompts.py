"""The prompts of one task, handed out in order, pass after pass."""

from __future__ import annotations

from typing import NamedTuple

from tokenaudit.simulate.entries import CannotGoOnError, StuckReason, StuckTaskReport
from tokenaudit.simulate.workload import TaskWorkload

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
