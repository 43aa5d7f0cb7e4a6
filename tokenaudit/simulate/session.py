"""From a request to a simulated result: open a workload or a log, find its settings, simulate it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Unpack

from tokenaudit.config.loading import Settings, check_overridden_tasks
from tokenaudit.config.model import Config, Mode, parse_config, resolved, task_order
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import Notice, Problem, UsageError
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import Log, is_workload, open_log, open_workload
from tokenaudit.replay.cost import run_cost
from tokenaudit.replay.events import RunEvent, StepClosed
from tokenaudit.replay.ledger import count
from tokenaudit.replay.notices import structure_notices
from tokenaudit.replay.open_loop import last_step
from tokenaudit.replay.request import Paths, PromptOrder, RunOptions, RunRequest
from tokenaudit.replay.result import KIND_SIMULATE, Coverage, InputInfo, Result, Simulation, StuckTask, build_result
from tokenaudit.replay.run_times import COLOCATED_WAIT, RunTimes
from tokenaudit.replay.session import Run, config_source, no_collections, observed, read_for, settings_for
from tokenaudit.simulate.entries import HINTS, LogEntry, RunStuck, SimulationEvent
from tokenaudit.simulate.event_log import EventLogWriter
from tokenaudit.simulate.notices import simulation_notices
from tokenaudit.simulate.run import simulate
from tokenaudit.simulate.settings import settings_problems
from tokenaudit.simulate.workload import Workload
from tokenaudit.simulate.workload_files import read_workload
from tokenaudit.simulate.workload_from_log import no_token_time, workload_from_log

CLOSED_LOOP = "closed loop"
"""The timeline of a simulated result."""


@dataclass(frozen=True, slots=True)
class LoadedWorkload:
    """A workload and what its file says beyond it.

    Attributes:
        workload: the workload.
        source: the opened files.
        last_step: the last step of the log it was derived from; None for a workload file.
        structure: what can't be meant in that log as a whole.
        quarantined: groups of that log left out because of structural faults, and new tokens in their puts.
    """

    workload: Workload
    source: Log
    last_step: int | None = None
    quarantined: tuple[int, int] = (0, 0)
    structure: tuple[Notice, ...] = ()

    def __repr__(self) -> str:
        return f"Loaded{self.workload!r}"


def simulate_workload(
    paths: Paths | RunRequest, *, event_log: Path | BinaryIO | None = None, **options: Unpack[RunOptions]
) -> Run:
    """Simulate a workload, or one derived from a log, under a config.

    Args:
        paths: files, folders or glob patterns that make up one workload or one log; or a whole request.
        event_log: also write the event log of the simulated run to this Parquet file.
        options: what else a `RunRequest` holds: `config`, `overrides`, `steps`, `max_concurrency`, `isolated`,
            `with_groups`, `working_dir`, `on_progress`; for a log also `token_time_us`, `prompt_order`, `quarantine`.

    Returns:
        A result of kind `tokenaudit.simulate`. A run that can't go on has what came until then, and
        `result.simulation.stuck` says why.

    Raises:
        TokenauditError: the workload, the config or their combination can't be used; holds every problem found.
    """
    request = RunRequest.of(paths, options, "simulate_workload")
    loaded = load_workload(request)
    settings = settings_for(loaded.source, request)
    return Run(simulate_loaded(loaded, settings, request, event_log=event_log), settings)


def load_workload(paths: Paths | RunRequest, **options: Unpack[RunOptions]) -> LoadedWorkload:
    """Read a workload, or derive it from a log; arguments and errors as for `simulate_workload`."""
    request = RunRequest.of(paths, options, "simulate_workload")
    if is_workload(request.paths):
        _refuse_options_of_logs(request)
        source = open_workload(request.paths)
        workload = read_workload(source, request.stage(f"reading {source.name}", source.rows))
        return LoadedWorkload(workload, source)
    source = open_log(request.paths)
    return workload_of_log(source, read_for(source, replace(request, cache=None)), request)


def workload_of_log(source: Log, digest: Digest, request: RunRequest) -> LoadedWorkload:
    """Derive a workload from a log whose digest was read already; arguments and errors as for `simulate_workload`."""
    order = request.prompt_order or PromptOrder.AUTO
    on_progress = request.stage(f"reading {source.name} again", source.rows)
    workload = workload_from_log(source, digest, request.token_time_us, order, on_progress)
    quarantined = (digest.quarantined_groups, digest.quarantined_tokens)
    return LoadedWorkload(workload, source, last_step(digest), quarantined, tuple(structure_notices(digest)))


def simulation_lacks(request: RunRequest, result: Result) -> list[Problem]:
    """What a simulation of a replayed log lacks, as far as its config and its columns say.

    Args:
        request: what was replayed.
        result: the replay.
    """
    config = parse_config(result.config, "replay")
    timeline = config.timeline.model_copy(update={"steps": 1})  # the log has as many as are needed
    problems = settings_problems(config.model_copy(update={"timeline": timeline}), result.tasks)
    log = open_log(request.paths)
    if request.token_time_us is None and "generate_time_us" not in log.columns:
        problems.append(no_token_time(log))
    return problems


def _refuse_options_of_logs(request: RunRequest) -> None:
    given = {
        "--token-time-us": request.token_time_us is not None,
        "--prompt-order": request.prompt_order is not None,
        "--quarantine": request.quarantine,
    }
    if any(given.values()):
        names = ", ".join(name for name, is_given in given.items() if is_given)
        what = f"{names} is for logs, and this is a workload"
        raise UsageError(Problem(what, ", ".join(map(str, request.paths)), "leave it out, or give the log"))


def simulate_loaded(
    loaded: LoadedWorkload,
    settings: Settings,
    request: RunRequest,
    *,
    event_log: Path | BinaryIO | None = None,
    observe: Callable[[RunEvent], None] | None = None,
) -> Result:
    """Simulate a workload that is in memory already, for instance under one config after the other.

    See `simulate_workload` for arguments and errors; `observe` is called with every event of the run that counts.
    """
    for option, value in (("steps", request.steps), ("max_concurrency", request.max_concurrency)):
        if value is not None and value < 1:
            raise UsageError(Problem(f"{option} is {value}", None, "it is 1 or more"))
    workload = loaded.workload
    check_overridden_tasks(settings, list(workload.tasks), workload.name)
    run_config = _run_config(settings.config, loaded, request.steps)
    events = simulate(workload, run_config, request.max_concurrency)
    run = _Run(events, request.stage("simulating", run_config.timeline.steps or 0))
    tasks = task_order(run_config, list(workload.tasks))
    with no_collections():
        if event_log is None:
            counted = run.counted(None)
            ledger = count(counted if observe is None else observed(counted, observe), tasks)
        else:
            with EventLogWriter(event_log, workload, run_config) as writer:
                ledger = count(run.counted(writer), tasks)
    result = build_result(
        ledger,
        kind=KIND_SIMULATE,
        inputs=[InputInfo(workload.name, workload.rows, workload.content_hash())],
        timeline=CLOSED_LOOP,
        config_source=config_source(settings),
        config=resolved(run_config),
        warnings=[*loaded.structure, *simulation_notices(workload, loaded.source, settings, loaded.quarantined)],
        coverage=Coverage(
            quarantined_groups=loaded.quarantined[0],
            quarantined_tokens=loaded.quarantined[1],
            unscored_rewards=workload.unscored_rewards,
        ),
        with_groups=request.with_groups,
        simulation=Simulation(
            groups=workload.groups,
            responses=workload.responses,
            truncated_responses=workload.truncated_responses,
            prompt_order=workload.prompt_order,
            max_concurrency=request.max_concurrency,
            stuck=run.stuck,
        ),
    )
    if not run_config.cost.is_given:
        return result
    return replace(result, cost=run_cost(run_config, result.ledger["total"], _times(result, run_config)))


def _times(result: Result, config: Config) -> RunTimes:
    """How long a simulated run took; colocated, training takes no time, so that all of it is generating."""
    wall, wait = (result.totals[metric.name] for metric in (m.WALL_TIME_US, m.TRAINER_WAIT_US))
    return RunTimes(wall, None, "", COLOCATED_WAIT) if config.mode is Mode.COLOCATED else RunTimes(wall, wait)


class _Run:
    """Splits the events of a simulation into those that count and those that are logged."""

    def __init__(self, events: Iterator[SimulationEvent], on_step: Callable[[int], None] | None) -> None:
        self._events = events
        self._on_step = on_step
        self.stuck: tuple[StuckTask, ...] = ()

    def counted(self, writer: EventLogWriter | None) -> Iterator[RunEvent]:
        for event in self._events:
            if isinstance(event, LogEntry):
                if writer is not None:
                    writer.add(event)
            elif isinstance(event, RunStuck):
                self.stuck = tuple(
                    StuckTask(
                        task.task_name,
                        task.reason.value,
                        task.message,
                        HINTS[task.reason],
                        event.train_step,
                        event.time_us,
                    )
                    for task in event.tasks
                )
            else:
                if self._on_step is not None and isinstance(event, StepClosed):
                    self._on_step(event.train_step)
                yield event


def _run_config(config: Config, loaded: LoadedWorkload, steps: int | None) -> Config:
    """The config as it is simulated: with its steps, and syncs as they happen."""
    timeline = config.timeline.model_copy(
        update={"steps": steps or config.timeline.steps or loaded.last_step or None, "resync": False}
    )
    return config.model_copy(update={"timeline": timeline})
