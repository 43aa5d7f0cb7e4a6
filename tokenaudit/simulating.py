"""From paths to a simulated result: open a workload or a log, find its settings, simulate it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenaudit.columns import Bools, Int64s
from tokenaudit.config import Config, resolved, task_order
from tokenaudit.config_warnings import config_warnings
from tokenaudit.errors import Problem, UsageError
from tokenaudit.event_log import EventLogWriter
from tokenaudit.ledger import count
from tokenaudit.log import Log, is_workload, open_log, open_workload
from tokenaudit.reading import read_digest
from tokenaudit.replay import last_step
from tokenaudit.result import KIND_SIMULATE, Coverage, InputInfo, Notice, Result, Simulation, StuckTask, build_result
from tokenaudit.run_events import RunEvent, StepClosed
from tokenaudit.session import Progress, stage
from tokenaudit.settings import Settings, load_settings
from tokenaudit.simulate.entries import HINTS, LogEntry, RunStuck, SimulationEvent
from tokenaudit.simulate.run import simulate
from tokenaudit.workload import Workload, read_workload
from tokenaudit.workload_from_log import workload_from_log

CLOSED_LOOP = "closed loop"
"""The timeline of a simulated result."""


@dataclass(frozen=True, slots=True)
class LoadedWorkload:
    """A workload and what its file says beyond it.

    Attributes:
        workload: the workload.
        source: the opened files.
        last_step: the last step of the log it was derived from; None for a workload file.
        quarantined_groups: groups of that log left out because of structural faults.
        quarantined_tokens: new tokens in their puts, as far as their rows tell.
    """

    workload: Workload
    source: Log
    last_step: int | None = None
    quarantined_groups: int = 0
    quarantined_tokens: int = 0


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
    quarantine: bool = False,
    isolated: bool = False,
    with_groups: bool = False,
    event_log: Path | None = None,
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
    loaded = load_workload(listed, token_time_us=token_time_us, quarantine=quarantine, on_progress=on_progress)
    settings = load_settings(
        config_path=config_path,
        overrides=[*overrides, *([] if steps is None else [f"timeline.steps={steps}"])],
        log_dir=loaded.source.files[0].path.parent,
        working_dir=working_dir or Path.cwd(),
        isolated=isolated,
        log_config=loaded.source.config_json,
    )
    result = simulate_loaded(
        loaded,
        settings.config,
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
    quarantine: bool = False,
    on_progress: Progress | None = None,
) -> LoadedWorkload:
    """Read a workload, or derive it from a log; see `simulate_workload`."""
    if is_workload(paths):
        given = {"--token-time-us": token_time_us is not None, "--quarantine": quarantine}
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
    workload = workload_from_log(
        source, digest, token_time_us, stage(on_progress, f"reading {source.name} again", source.rows)
    )
    return LoadedWorkload(workload, source, last_step(digest), digest.quarantined_groups, digest.quarantined_tokens)


def simulate_loaded(
    loaded: LoadedWorkload,
    config: Config,
    *,
    max_concurrency: int | None = None,
    with_groups: bool = False,
    event_log: Path | None = None,
    on_progress: Progress | None = None,
) -> Result:
    """Simulate a workload that is in memory already, for instance under one config after the other."""
    workload = loaded.workload
    run_config = _run_config(config, loaded)
    events = simulate(workload, run_config, max_concurrency)
    run = _Run(events, stage(on_progress, "simulating", run_config.timeline.steps or 0))
    tasks = task_order(run_config, list(workload.tasks))
    if event_log is None:
        ledger = count(run.counted(None), tasks)
    else:
        with EventLogWriter(event_log, workload, run_config) as writer:
            ledger = count(run.counted(writer), tasks)
    return build_result(
        ledger,
        kind=KIND_SIMULATE,
        inputs=[InputInfo(workload.name, workload.rows, workload.content_hash())],
        timeline=CLOSED_LOOP,
        config=resolved(run_config),
        warnings=[*_config_notices(config, workload), *_workload_notices(config, loaded)],
        coverage=Coverage(
            quarantined_groups=loaded.quarantined_groups,
            quarantined_tokens=loaded.quarantined_tokens,
            unscored_rewards=workload.unscored_rewards,
        ),
        with_groups=with_groups,
        simulation=Simulation(
            groups=workload.groups,
            responses=workload.responses,
            truncated_responses=workload.truncated_responses,
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


def _run_config(config: Config, loaded: LoadedWorkload) -> Config:
    """The config as it is simulated: with its steps, and syncs as they happen."""
    timeline = config.timeline.model_copy(
        update={"steps": config.timeline.steps or loaded.last_step or None, "resync": False}
    )
    return config.model_copy(update={"timeline": timeline})


def _config_notices(config: Config, workload: Workload) -> Iterator[Notice]:
    for warning in config_warnings(config, None, list(workload.tasks)):
        yield Notice(warning.code, warning.message, warning.cost)
    if config.timeline.resync:
        message = "timeline.resync is for replays of recorded logs, and off here"
        yield Notice("resync-off", message, "A simulation syncs weights by itself.")


def _workload_notices(config: Config, loaded: LoadedWorkload) -> Iterator[Notice]:
    workload = loaded.workload
    yield from (Notice("log-note", note) for note in loaded.source.notes)
    if loaded.quarantined_groups:
        message = f"{loaded.quarantined_groups} groups with {loaded.quarantined_tokens} new tokens are left out"
        yield Notice("quarantined", f"{message} because of structural faults")
    if workload.truncated_responses:
        message = f"{workload.truncated_responses} of {workload.responses} responses were never completed in the log"
        cost = "They are simulated as long as they were seen, which is shorter than they would have been."
        yield Notice("truncated-responses", message, cost)
    if workload.unscored_rewards:
        message = f"{workload.unscored_rewards} rewards are not finite numbers and count as unscored"
        yield Notice("unscored-rewards", message)
    for name, task in workload.tasks.items():
        size = config.task_policy(name).group_size
        if size is None:
            continue
        starts = task.first_response[:-1]
        segments = np.concatenate([[0], np.cumsum(_is_segment(task.responses.rollout_id))])
        rollouts = np.diff(task.first_response) - (segments[task.first_response[1:]] - segments[starts])
        other = int((rollouts != size).sum())
        if other:
            message = f"task {name}: {other} of {task.prompts} groups don't have {size} responses (group_size)"
            yield Notice("group-size-differs", message)


def _is_segment(rollout_id: Int64s) -> Bools:
    """Whether a response isn't the first of its rollout."""
    is_segment = np.ones(len(rollout_id), dtype=np.bool_)
    is_segment[np.unique(rollout_id, return_index=True)[1]] = False
    return is_segment
