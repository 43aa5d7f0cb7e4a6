"""From paths to a result: open a log, find its settings, digest it, replay it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenaudit.config import Config, resolved
from tokenaudit.config_warnings import config_warnings
from tokenaudit.digest import KIND_CODE, Digest
from tokenaudit.ledger import Ledger, count
from tokenaudit.log import Log, open_log
from tokenaudit.reading import read_digest
from tokenaudit.replay import replay, run_tasks, timeline_of
from tokenaudit.result import KIND_REPLAY, Coverage, InputInfo, Notice, Result, build_result
from tokenaudit.run_events import TimelineKind
from tokenaudit.runs import MISSING_VERSION
from tokenaudit.schema import EventKind
from tokenaudit.settings import Settings, load_settings

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class ReplayedLog:
    """A result and the settings it was made with."""

    result: Result
    settings: Settings


def replay_log(
    paths: Sequence[Path | str] | Path | str,
    *,
    config_path: Path | None = None,
    overrides: Sequence[str] = (),
    timeline: TimelineKind | None = None,
    quarantine: bool = False,
    isolated: bool = False,
    with_groups: bool = False,
    working_dir: Path | None = None,
    on_progress: Progress | None = None,
) -> ReplayedLog:
    """Replay a recorded log under a config.

    Args:
        paths: files, folders or glob patterns that make up one log.
        config_path: a config file; None: one that is found, else the log's own config, else defaults.
        overrides: `key=value` texts laid over the config, as on the command line.
        timeline: where refreshes and takes come from; None: the log if it has them.
        quarantine: leave out groups with structural faults instead of refusing the log.
        isolated: look for no config file.
        with_groups: keep the ids of taken and expired groups.
        working_dir: where relative config paths begin and a config file is looked for; None: the current one.
        on_progress: told about the work as it goes on.

    Raises:
        TokenauditError: the log, the config or their combination can't be used; holds every problem found.
    """
    listed = [paths] if isinstance(paths, Path | str) else paths
    log = open_log([Path(path) for path in listed])
    first = log.files[0].path
    settings = load_settings(
        config_path=config_path,
        overrides=overrides,
        log_dir=first.parent,
        working_dir=working_dir or Path.cwd(),
        isolated=isolated,
        log_config=log.config_json,
    )
    digest = read_digest(
        log,
        quarantine=quarantine,
        allow_missing_versions=settings.config.timeline.stamp_missing,
        on_progress=_stage(on_progress, f"reading {log.name}", log.rows),
    )
    result = replay_digest(log, digest, settings.config, timeline, with_groups=with_groups, on_progress=on_progress)
    return ReplayedLog(result, settings)


def replay_digest(
    log: Log,
    digest: Digest,
    config: Config,
    timeline: TimelineKind | None = None,
    *,
    with_groups: bool = False,
    on_progress: Progress | None = None,
) -> Result:
    """Replay an already digested log under a config; see `replay_log`."""
    kind = timeline_of(digest, timeline)
    progress = _stage(on_progress, "replaying", len(digest.events.kind))
    ledger = count(replay(digest, config, kind, progress), run_tasks(digest, config))
    runs = digest.runs
    coverage = Coverage(
        quarantined_groups=digest.quarantined_groups,
        quarantined_tokens=digest.quarantined_tokens,
        left_out_puts=ledger.left_out_puts,
        stamped_tokens=int(runs.tokens[runs.model_step == MISSING_VERSION].sum(dtype=np.int64)),
        unscored_rewards=digest.unscored_rewards,
    )
    return build_result(
        ledger,
        kind=KIND_REPLAY,
        inputs=[InputInfo(digest.name, digest.rows, digest.content_hash())],
        timeline=kind.value,
        config=resolved(config),
        warnings=[
            *_config_notices(config, log, digest),
            *_log_notices(log, digest, coverage),
            *_group_size_notices(config, digest),
            *_timeline_notices(config, kind, ledger),
        ],
        coverage=coverage,
        with_groups=with_groups,
    )


def recorded_sync_weights_interval(log: Log) -> int | None:
    """The K that the log was recorded with, if its metadata tells."""
    try:
        value = json.loads(log.config_json or "null")["timeline"]["sync_weights_interval"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _stage(on_progress: Progress | None, label: str, total: int) -> Callable[[int], None] | None:
    if on_progress is None:
        return None
    return lambda done: on_progress(label, done, total)


def _config_notices(config: Config, log: Log, digest: Digest) -> list[Notice]:
    warnings = config_warnings(config, recorded_sync_weights_interval(log), digest.tasks)
    return [Notice(warning.code, warning.message, warning.cost) for warning in warnings]


def _log_notices(log: Log, digest: Digest, coverage: Coverage) -> list[Notice]:
    notices = [Notice("source-limit", limit) for limit in log.limits]
    notices += [Notice("log-note", note) for note in log.notes]
    if coverage.quarantined_groups:
        faults = ", ".join(f"{kind} ({rows})" for kind, rows in digest.faults.items())
        message = f"{coverage.quarantined_groups} groups with {coverage.quarantined_tokens} new tokens are left out"
        notices.append(Notice("quarantined", f"{message} because of structural faults: {faults}"))
    if coverage.stamped_tokens:
        message = f"{coverage.stamped_tokens} tokens carry no version"
        cost = "They got the version that a sync every sync_weights_interval steps would have made live."
        notices.append(Notice("stamped-missing", message, cost))
    if coverage.unscored_rewards:
        message = f"{coverage.unscored_rewards} rewards are not finite numbers and count as unscored"
        notices.append(Notice("unscored-rewards", message))
    return notices


def _group_size_notices(config: Config, digest: Digest) -> list[Notice]:
    """Puts that don't have as many rollouts as the config says; segments of one rollout count once."""
    events = digest.events
    is_put = events.kind == KIND_CODE[EventKind.PUT]
    rollouts_before = np.concatenate([[0], np.cumsum(digest.responses.segment == 0)])
    rollouts = np.diff(rollouts_before[events.first_response])
    notices: list[Notice] = []
    for code, task in enumerate(digest.tasks):
        size = config.task_policy(task).group_size
        if size is None:
            continue
        of_task = is_put & (events.task == code)
        other = int((of_task & (rollouts != size)).sum())
        if other:
            message = f"task {task}: {other} of {int(of_task.sum())} puts don't have {size} responses (group_size)"
            notices.append(Notice("group-size-differs", message))
    return notices


def _timeline_notices(config: Config, kind: TimelineKind, ledger: Ledger) -> list[Notice]:
    notices: list[Notice] = []
    if ledger.left_out_puts:
        message = f"{ledger.left_out_puts} puts outside steps 1 to {len(ledger.rows)} are left out"
        notices.append(Notice("puts-left-out", message, "timeline.steps sets the last step."))
    if not ledger.rows:
        what = "the log records no take" if kind is TimelineKind.RECORDED else "no put lies in a step"
        notices.append(Notice("no-steps", f"there is no step to report: {what}", "Everything is in the tail."))
    return notices
