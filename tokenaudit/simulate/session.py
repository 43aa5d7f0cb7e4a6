"""From paths to a simulated result: open a workload or a log, find its settings, simulate it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tokenaudit.config.loading import Settings, check_overridden_tasks, load_settings
from tokenaudit.config.sections import Config, resolved, task_order
from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.log.files import Log, is_workload, open_log, open_workload
from tokenaudit.log.reading import read_digest
from tokenaudit.replay.events import RunEvent, StepClosed
from tokenaudit.replay.ledger import count
from tokenaudit.replay.open_loop import last_step
from tokenaudit.replay.request import PromptOrder
from tokenaudit.replay.result import KIND_SIMULATE, Coverage, InputInfo, Result, Simulation, StuckTask, build_result
from tokenaudit.replay.session import Progress, config_source, no_collections, observed, stage
from tokenaudit.simulate.entries import HINTS, LogEntry, RunStuck, SimulationEvent
from tokenaudit.simulate.event_log import EventLogWriter
from tokenaudit.simulate.notices import simulation_notices
from tokenaudit.simulate.run import simulate
from tokenaudit.simulate.workload import Workload, read_workload
from tokenaudit.simulate.workload_from_log import workload_from_log

CLOSED_LOOP = "closed loop"
"""The timeline of a simulated result."""


@dataclass(frozen=True, slots=True)
class LoadedWorkload:
    """A workload and what its file says beyond it.

    Attributes:
        workload: the workload.
        source: the opened files.
        last_step: the last step of the log it was derived from; None for a workload file.
        prompt_order: the order that its prompts were put in; None for a workload file, which has its own.
        quarantined: groups of that log left out because of structural faults, and new tokens in their puts.
    """

    workload: Workload
    source: Log
    last_step: int | None = None
    prompt_order: PromptOrder | None = None
    quarantined: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class SimulatedWorkload:
    """A result and the settings it was made with."""

    result: Result
    settings: Settings


def simulate_workload(
    paths: Sequence[Path | str] | Path | str,
    *,
    config_path: Path | None = None,
    overrides: Sequence[str] = (),
    steps: int | None = None,
    max_concurrency: int | None = None,
    token_time_us: int | None = None,
    prompt_order: PromptOrder | None = None,
    quarantine: bool = False,
    isolated: bool = False,
    with_groups: bool = False,
    event_log: Path | BinaryIO | None = None,
    working_dir: Path | None = None,
    on_progress: Progress | None = None,
) -> SimulatedWorkload:
    """Simulate a workload, or one derived from a log, under a config.

    Args:
        paths: files, folders or glob patterns that make up one workload or one log.
        config_path: a config file; None: one that is found, else the one in the metadata, else defaults.
        overrides: `key=value` texts laid over the config, as on the command line.
        steps: train steps to simulate; None: those of the config, else of the log.
        max_concurrency: responses generated at once, at least 1; None: any number.
        token_time_us: for a log: time per token of every response, microseconds; None: told from the log.
        prompt_order: for a log: the order of its prompts; None: that of their first puts.
        quarantine: for a log: leave out groups with structural faults instead of refusing it.
        isolated: look for no config file.
        with_groups: keep the ids of taken and expired groups.
        event_log: also write the event log of the simulated run to this Parquet file.
        working_dir: where relative config paths begin and a config file is looked for; None: the current one.
        on_progress: told about the work as it goes on.

    Returns:
        A result of kind `tokenaudit.simulate`. A run that can't go on has what came until then, and
        `result.simulation.stuck` says why.

    Raises:
        TokenauditError: the workload, the config or their combination can't be used; holds every problem found.
    """
    listed = [Path(path) for path in ([paths] if isinstance(paths, Path | str) else paths)]
    loaded = load_workload(
        listed,
        token_time_us=token_time_us,
        prompt_order=prompt_order,
        quarantine=quarantine,
        on_progress=on_progress,
    )
    settings = load_settings(
        config_path=config_path,
        overrides=overrides,
        log_dir=loaded.source.files[0].path.parent,
        working_dir=working_dir or Path.cwd(),
        isolated=isolated,
        log_config=loaded.source.config_json,
    )
    result = simulate_loaded(
        loaded,
        settings,
        steps=steps,
        max_concurrency=max_concurrency,
        with_groups=with_groups,
        event_log=event_log,
        on_progress=on_progress,
    )
    return SimulatedWorkload(result, settings)


def load_workload(
    paths: Sequence[Path],
    *,
    token_time_us: int | None = None,
    prompt_order: PromptOrder | None = None,
    quarantine: bool = False,
    on_progress: Progress | None = None,
) -> LoadedWorkload:
    """Read a workload, or derive it from a log; see `simulate_workload`."""
    if is_workload(paths):
        given = {
            "--token-time-us": token_time_us is not None,
            "--prompt-order": prompt_order is not None,
            "--quarantine": quarantine,
        }
        if any(given.values()):
            names = ", ".join(name for name, is_given in given.items() if is_given)
            what = f"{names} is for logs, and this is a workload"
            raise UsageError(Problem(what, ", ".join(map(str, paths)), "leave it out, or give the log"))
        source = open_workload(paths)
        return LoadedWorkload(read_workload(source, stage(on_progress, f"reading {source.name}", source.rows)), source)
    source = open_log(paths)
    digest = read_digest(
        source,
        quarantine=quarantine,
        allow_missing_versions=True,
        on_progress=stage(on_progress, f"reading {source.name}", source.rows),
    )
    order = prompt_order or PromptOrder.FIRST_PUT
    workload = workload_from_log(
        source, digest, token_time_us, order, stage(on_progress, f"reading {source.name} again", source.rows)
    )
    quarantined = (digest.quarantined_groups, digest.quarantined_tokens)
    return LoadedWorkload(workload, source, last_step(digest), order, quarantined)


def simulate_loaded(
    loaded: LoadedWorkload,
    settings: Settings,
    *,
    steps: int | None = None,
    max_concurrency: int | None = None,
    with_groups: bool = False,
    event_log: Path | BinaryIO | None = None,
    observe: Callable[[RunEvent], None] | None = None,
    on_progress: Progress | None = None,
) -> Result:
    """Simulate a workload that is in memory already, for instance under one config after the other.

    See `simulate_workload` for arguments and errors; `observe` is told every event of the run that counts.
    """
    for option, value in (("steps", steps), ("max_concurrency", max_concurrency)):
        if value is not None and value < 1:
            raise UsageError(Problem(f"{option} is {value}", None, "it is 1 or more"))
    workload = loaded.workload
    check_overridden_tasks(settings, list(workload.tasks), workload.name)
    run_config = _run_config(settings.config, loaded, steps)
    events = simulate(workload, run_config, max_concurrency)
    run = _Run(events, stage(on_progress, "simulating", run_config.timeline.steps or 0))
    tasks = task_order(run_config, list(workload.tasks))
    with no_collections():
        if event_log is None:
            counted = run.counted(None)
            ledger = count(counted if observe is None else observed(counted, observe), tasks)
        else:
            with EventLogWriter(event_log, workload, run_config) as writer:
                ledger = count(run.counted(writer), tasks)
    return build_result(
        ledger,
        kind=KIND_SIMULATE,
        inputs=[InputInfo(workload.name, workload.rows, workload.content_hash())],
        timeline=CLOSED_LOOP,
        config_source=config_source(settings),
        config=resolved(run_config),
        warnings=simulation_notices(workload, loaded.source, settings, loaded.prompt_order, loaded.quarantined),
        coverage=Coverage(
            quarantined_groups=loaded.quarantined[0],
            quarantined_tokens=loaded.quarantined[1],
            unscored_rewards=workload.unscored_rewards,
        ),
        with_groups=with_groups,
        simulation=Simulation(
            groups=workload.groups,
            responses=workload.responses,
            truncated_responses=workload.truncated_responses,
            prompt_order=loaded.prompt_order,
            max_concurrency=max_concurrency,
            stuck=run.stuck,
        ),
    )


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
