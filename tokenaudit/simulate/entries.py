"""What a simulated run yields beyond `replay.events`: the entries of its event log, and why it can't go on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tokenaudit.lifecycle.types import Response, Status
from tokenaudit.replay.events import RunEvent


@dataclass(frozen=True, slots=True)
class RefreshEntry:
    """The buffer recomputed staleness."""

    time_us: int
    train_step: int


@dataclass(frozen=True, slots=True)
class TakeEntry:
    """The trainer took the batch of one task; `batch_size` groups were asked for."""

    time_us: int
    train_step: int
    task_name: str
    batch_size: int


@dataclass(frozen=True, slots=True)
class SyncEntry:
    """The engine received the weights of `model_step`."""

    time_us: int
    train_step: int
    model_step: int


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """A group left its pool to be generated again; `status` is the pool's."""

    time_us: int
    task_name: str
    group_id: int
    status: Status


@dataclass(frozen=True, slots=True)
class PutEntry:
    """A group was put.

    Attributes:
        time_us: when.
        train_step: the step the buffer compared with.
        model_step: version that made the new tokens.
        task_name: its task.
        group_id: its group.
        responses: its members, as they were put.
        first_response: index of its first member in the workload of its task.
        generate_time_us: how long each member was generated in this round.
    """

    time_us: int
    train_step: int
    model_step: int
    task_name: str
    group_id: int
    responses: tuple[Response, ...]
    first_response: int
    generate_time_us: tuple[int, ...]


LogEntry = RefreshEntry | TakeEntry | SyncEntry | SampleEntry | PutEntry


class StuckReason(StrEnum):
    """Why a task keeps a run from going on."""

    PRODUCER_STOPPED = "producer_stopped"
    """The trainer waits for a batch, and the producer waits for newer weights, which only a batch can bring."""
    NO_COMPLETED_GROUP = "no_completed_group"
    """A whole pass over the prompts ended without one group that the trainer could take."""
    TOO_MANY_GROUPS = "too_many_groups"
    """More groups began in one step than a run may have."""
    IDS_RUN_OUT = "ids_run_out"
    """The ids of a further pass over the prompts don't fit 64 bits."""
    CLOCK_RUNS_OUT = "clock_runs_out"
    """The simulated time doesn't fit 64 bits."""


HINTS: dict[StuckReason, str] = {
    StuckReason.PRODUCER_STOPPED: "allow a larger max_staleness, or take smaller batches",
    StuckReason.NO_COMPLETED_GROUP: "give the task more prompts, or let its tokens be older (max_token_staleness)",
    StuckReason.TOO_MANY_GROUPS: "bound how far the producer may run ahead with a smaller max_staleness",
    StuckReason.IDS_RUN_OUT: "number groups and rollouts of the workload from 0",
    StuckReason.CLOCK_RUNS_OUT: "times are microseconds; check train_time_us, sync_time_us and token times",
}
"""What may help."""


@dataclass(frozen=True, slots=True)
class StuckTaskReport:
    """What a task waits for."""

    task_name: str
    reason: StuckReason
    message: str


@dataclass(frozen=True, slots=True)
class RunStuck:
    """The run can't go on; right before its end.

    Attributes:
        time_us: when it became certain.
        train_step: the step whose row never closed.
        tasks: the tasks at fault, in task order.
    """

    time_us: int
    train_step: int
    tasks: tuple[StuckTaskReport, ...]


class CannotGoOnError(Exception):
    """Ends a simulation from the inside; never leaves the package."""

    def __init__(self, *reports: StuckTaskReport) -> None:
        self.reports = reports
        super().__init__("; ".join(report.message for report in reports))


SimulationEvent = RunEvent | LogEntry | RunStuck
"""What a simulation yields."""
