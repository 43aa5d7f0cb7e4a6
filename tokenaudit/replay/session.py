"""From paths to a result: open a log, find its settings, digest it, replay it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tokenaudit.config.loading import LOG_METADATA, OVERRIDE, Settings, check_overridden_tasks, load_settings
from tokenaudit.config.sections import resolved
from tokenaudit.contracts.errors import LogError, Problem, ResultError
from tokenaudit.contracts.files import read_bounded
from tokenaudit.log.cache import DigestCache
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import Log, open_log
from tokenaudit.log.reading import read_digest
from tokenaudit.log.version_spans import NEWEST, newest_reading, uncertain_responses
from tokenaudit.replay.events import RunEvent
from tokenaudit.replay.ledger import count
from tokenaudit.replay.notices import notices, override_notices, span_notice
from tokenaudit.replay.open_loop import replay, run_tasks, timeline_of
from tokenaudit.replay.request import TimelineKind
from tokenaudit.replay.result import KIND_REPLAY, Coverage, InputInfo, Result, build_result
from tokenaudit.replay.saved_result import result_from_json

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

MOST_RESULT_BYTES = 2**28
"""Size of a saved result that is still read."""


@dataclass(frozen=True, slots=True)
class ReplayedLog:
    """A result and the settings it was made with."""

    result: Result
    settings: Settings


class LoadedLog(NamedTuple):
    """A log, its digest, and the settings that go with it."""

    log: Log
    digest: Digest
    settings: Settings


def load_log(
    paths: Sequence[Path],
    *,
    config_path: Path | None = None,
    overrides: Sequence[str] = (),
    quarantine: bool = False,
    isolated: bool = False,
    cache: DigestCache | None = None,
    working_dir: Path | None = None,
    on_progress: Progress | None = None,
) -> LoadedLog:
    """Open a log, find its settings and digest it; arguments and errors as for `replay_log`."""
    log = open_log(paths)
    settings = load_settings(
        config_path=config_path,
        overrides=overrides,
        log_dir=log.files[0].path.parent,
        working_dir=working_dir or Path.cwd(),
        isolated=isolated,
        log_config=log.config_json,
    )
    digest = digest_for(log, [settings], quarantine=quarantine, cache=cache, on_progress=on_progress)
    return LoadedLog(log, digest, settings)


def replay_log(
    paths: Sequence[Path | str] | Path | str,
    *,
    config_path: Path | None = None,
    overrides: Sequence[str] = (),
    timeline: TimelineKind | None = None,
    quarantine: bool = False,
    isolated: bool = False,
    with_groups: bool = False,
    cache: DigestCache | None = None,
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
        cache: where digests are kept between runs.
        working_dir: where relative config paths begin and a config file is looked for; None: the current one.
        on_progress: told about the work as it goes on.

    Raises:
        TokenauditError: the log, the config or their combination can't be used; holds every problem found.
    """
    listed = [paths] if isinstance(paths, Path | str) else paths
    log, digest, settings = load_log(
        [Path(path) for path in listed],
        config_path=config_path,
        overrides=overrides,
        quarantine=quarantine,
        isolated=isolated,
        cache=cache,
        working_dir=working_dir,
        on_progress=on_progress,
    )
    result = replay_digest(log, digest, settings, timeline, with_groups=with_groups, on_progress=on_progress)
    return ReplayedLog(result, settings)


def digest_for(
    log: Log,
    settings: Collection[Settings],
    *,
    quarantine: bool = False,
    cache: DigestCache | None = None,
    on_progress: Progress | None = None,
) -> Digest:
    """Read a log once, so that it can be replayed under every one of `settings`; see `replay_log`."""
    # what is kept of a digest doesn't tell the rows that versions known as spans stand in
    read = read_digest if cache is None or NEWEST in log.columns else cache.read_digest
    digest = read(
        log,
        quarantine=quarantine,
        allow_missing_versions=any(one.config.timeline.stamp_missing for one in settings),
        on_progress=stage(on_progress, f"reading {log.name}", log.rows),
    )
    check_left(digest)
    for one in settings:
        check_overridden_tasks(one, digest.tasks, digest.name)
    return digest


def check_left(digest: Digest) -> None:
    """Refuse a log of which quarantine leaves no put: takes alone have nothing to say.

    Raises:
        LogError: no put is left.
    """
    if digest.quarantined_groups and not len(digest.responses.tokens):
        hint = "every group holds structural faults; tokenaudit inspect shows them"
        raise LogError(Problem("no put is left to replay", digest.name, hint))


def load_result(path: Path) -> Result:
    """Read a result saved with -o.

    Raises:
        ResultError: no such file, unreadable, larger than `MOST_RESULT_BYTES`, or no result.
    """
    hint = "give a file saved with -o"
    try:
        content = read_bounded(path, MOST_RESULT_BYTES + 1)
        text = content.decode()
    except OSError as error:
        raise ResultError(
            Problem(f"can't read the saved result: {error.strerror or error}", str(path), hint)
        ) from error
    except UnicodeDecodeError as error:
        raise ResultError(Problem("can't read the saved result: not UTF-8 text", str(path), hint)) from error
    if len(content) > MOST_RESULT_BYTES:
        what = f"a saved result of more than {MOST_RESULT_BYTES // 2**20} MiB"
        raise ResultError(Problem(what, str(path), "save it without --groups"))
    return result_from_json(text, str(path))


def replay_digest(
    log: Log,
    digest: Digest,
    settings: Settings,
    timeline: TimelineKind | None = None,
    *,
    with_groups: bool = False,
    observe: Callable[[RunEvent], None] | None = None,
    on_progress: Progress | None = None,
) -> Result:
    """Replay an already digested log under a config; see `replay_log`. `observe` is told every event of the run."""
    config = settings.config
    kind = timeline_of(digest, timeline)
    progress = stage(on_progress, "replaying", len(digest.events.kind))
    events = replay(digest, config, kind, progress)
    newest = newest_reading(log, digest)
    with no_collections():
        ledger = count(events if observe is None else observed(events, observe), run_tasks(digest, config))
        ledger_of_newest = None if newest is None else count(replay(newest, config, kind), run_tasks(digest, config))
    coverage = Coverage(
        quarantined_groups=digest.quarantined_groups,
        quarantined_tokens=digest.quarantined_tokens,
        left_out_puts=ledger.left_out_puts,
        stamped_tokens=digest.unversioned_tokens,
        unscored_rewards=digest.unscored_rewards,
    )
    result = build_result(
        ledger,
        kind=KIND_REPLAY,
        inputs=[InputInfo(digest.name, digest.rows, digest.content_hash())],
        timeline=kind.value,
        config=resolved(config),
        config_source=config_source(settings),
        warnings=[
            *notices(log, digest, config, kind, ledger, coverage),
            *override_notices(config, digest.tasks, kind, settings.origins),
        ],
        coverage=coverage,
        with_groups=with_groups,
        newest=ledger_of_newest,
    )
    if newest is None:
        return result
    return replace(result, warnings=(*result.warnings, span_notice(result, uncertain_responses(digest, newest))))


@contextmanager
def no_collections() -> Iterator[None]:
    """No garbage collection for a while: a replay makes no cycles, and looking for them takes a third of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:
                # What is left counts as old from here on: else the first collection would look through all of it.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def config_source(settings: Settings) -> str:
    """Where the config came from, without folders."""
    base = LOG_METADATA if settings.source.startswith(LOG_METADATA) else Path(settings.source).name
    overridden = sum(origin == OVERRIDE for origin in settings.origins.values())
    return f"{base}, {overridden} value{'s' * (overridden != 1)} by {OVERRIDE}" if overridden else base


def observed(events: Iterable[RunEvent], observe: Callable[[RunEvent], None]) -> Iterator[RunEvent]:
    """The same events; `observe` is told each of them first."""
    for event in events:
        observe(event)
        yield event


def stage(on_progress: Progress | None, label: str, total: int) -> Callable[[int], None] | None:
    """Progress of one piece of work, told by how much of it is done."""
    if on_progress is None:
        return None
    return lambda done: on_progress(label, done, total)
