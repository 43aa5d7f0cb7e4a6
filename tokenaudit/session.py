"""From paths to a result: open a log, find its settings, digest it, replay it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenaudit.config import resolved
from tokenaudit.digest import Digest
from tokenaudit.ledger import count
from tokenaudit.log import Log, open_log
from tokenaudit.notices import notices, override_notices
from tokenaudit.reading import read_digest
from tokenaudit.replay import replay, run_tasks, timeline_of
from tokenaudit.result import KIND_REPLAY, Coverage, InputInfo, Result, build_result
from tokenaudit.run_events import TimelineKind
from tokenaudit.runs import MISSING_VERSION
from tokenaudit.settings import LOG_METADATA, OVERRIDE, Settings, load_settings

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
    result = replay_digest(log, digest, settings, timeline, with_groups=with_groups, on_progress=on_progress)
    return ReplayedLog(result, settings)


def replay_digest(
    log: Log,
    digest: Digest,
    settings: Settings,
    timeline: TimelineKind | None = None,
    *,
    with_groups: bool = False,
    on_progress: Progress | None = None,
) -> Result:
    """Replay an already digested log under a config; see `replay_log`."""
    config = settings.config
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
        config_source=_config_source(settings),
        warnings=[
            *notices(log, digest, config, kind, ledger, coverage),
            *override_notices(config, digest, kind, settings.origins),
        ],
        coverage=coverage,
        with_groups=with_groups,
    )


def _config_source(settings: Settings) -> str:
    """Where the config came from, without folders."""
    base = LOG_METADATA if settings.source.startswith(LOG_METADATA) else Path(settings.source).name
    overridden = sum(origin == OVERRIDE for origin in settings.origins.values())
    return f"{base}, {overridden} value{'s' * (overridden != 1)} by {OVERRIDE}" if overridden else base


def _stage(on_progress: Progress | None, label: str, total: int) -> Callable[[int], None] | None:
    if on_progress is None:
        return None
    return lambda done: on_progress(label, done, total)
