"""From a request to a result: open a log, find its settings, digest it, replay it. Read `replay_log` first."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from tokenaudit.config.loading import LOG_METADATA, Settings, check_overridden_tasks, load_settings
from tokenaudit.config.model import Config, resolved
from tokenaudit.config.toml import OVERRIDE
from tokenaudit.contracts.errors import ConfigError, LogError, Problem, ResultError, UsageError, shown
from tokenaudit.contracts.files import read_bounded
from tokenaudit.log.cache import DigestCache
from tokenaudit.log.columns import Int64s
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import Log, open_log
from tokenaudit.log.overview import Overview, overview
from tokenaudit.log.reading import read_digest
from tokenaudit.log.recorded_times import recorded_times
from tokenaudit.log.version_spans import NEWEST, newest_reading, uncertain_responses
from tokenaudit.replay.cost import RunCost, run_cost, runs_otherwise
from tokenaudit.replay.events import RunEvent
from tokenaudit.replay.ledger import count
from tokenaudit.replay.notices import counterfactual_notices, notices, settings_notices, span_notice
from tokenaudit.replay.open_loop import replay, run_tasks, timeline_of
from tokenaudit.replay.request import Paths, RunOptions, RunRequest
from tokenaudit.replay.result import KIND_REPLAY, Coverage, InputInfo, Result, build_result
from tokenaudit.replay.run_times import times_of_log
from tokenaudit.replay.saved_result import result_from_json

MOST_RESULT_BYTES = 2**28
"""Size of a saved result that is still read."""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its result and the settings it was made with."""

    result: Result
    settings: Settings

    def __repr__(self) -> str:
        return repr(self.result).replace("Result(", "Run(", 1)


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log, its digest, the settings that go with it, and the request it was loaded for.

    Attributes:
        log: the opened log.
        digest: what replay reads of it.
        settings: the settings.
        request: the request.
        times: the time of every event, where they were read for a [cost].
    """

    log: Log
    digest: Digest
    settings: Settings
    request: RunRequest
    times: Int64s | None = None

    def __repr__(self) -> str:
        return f"LoadedLog({self.digest.summary()}; config from {config_source(self.settings)})"

    def replay(self, **options: Unpack[RunOptions]) -> Result:
        """Replay the log, which isn't read again, with other options than those it was loaded with.

        Options are those of `replay_log` without `quarantine` and `cache`, which are for reading.

        Raises:
            TokenauditError: as for `replay_log`.
        """
        if not options:
            return replay_loaded(self)
        request = self.request.changed(options, "LoadedLog.replay")
        settings = settings_for(self.log, request)
        check_overridden_tasks(settings, self.digest.tasks, self.digest.name)
        return replay_loaded(replace(self, settings=settings, request=request))


def replay_log(paths: Paths | RunRequest, **options: Unpack[RunOptions]) -> Run:
    """Replay a recorded log under a config.

    Args:
        paths: files, folders or glob patterns that make up one log; or a whole request.
        options: what else a `RunRequest` holds: `config`, `overrides`, `timeline`, `quarantine`, `isolated`,
            `with_groups`, `cache`, `working_dir`, `on_progress`.

    Raises:
        TokenauditError: the log, the config or their combination can't be used; holds every problem found.
    """
    loaded = load_log(paths, **options)
    return Run(replay_loaded(loaded), loaded.settings)


def load_log(paths: Paths | RunRequest, **options: Unpack[RunOptions]) -> LoadedLog:
    """Open a log, find its settings and read it once; arguments and errors as for `replay_log`."""
    request = RunRequest.of(paths, options, "replay_log")
    log = open_log(request.paths)
    settings = settings_for(log, request)
    loaded = LoadedLog(log, digest_for(log, [settings], request), settings, request)
    return replace(loaded, times=_event_times(loaded)) if settings.config.cost.is_given else loaded


def settings_for(log: Log | None, request: RunRequest) -> Settings:
    """The settings of a run: what the request names or is found beside the log, over the log's own config.

    Raises:
        ConfigError: the config can't be used.
    """
    named = request.config
    return load_settings(
        config_path=named if isinstance(named, Path) else None,
        config=None if isinstance(named, Path) else named,
        overrides=request.overrides,
        log_dir=log.files[0].path.parent if log else None,
        working_dir=request.working_dir or Path.cwd(),
        isolated=request.isolated,
        log_config=log.config_json if log else None,
    )


def digest_for(log: Log, settings: Collection[Settings], request: RunRequest) -> Digest:
    """Read a log once, so that it can be replayed under every one of `settings`.

    Raises:
        LogError: the log holds structural faults, or none of its puts is left without them.
        ConfigError: an override names a task that the log lacks.
    """
    digest = read_for(log, request, allow_missing_versions=any(one.config.timeline.stamp_missing for one in settings))
    check_left(digest)
    for one in settings:
        check_overridden_tasks(one, digest.tasks, digest.name)
    return digest


def read_for(log: Log, request: RunRequest, *, allow_missing_versions: bool = True) -> Digest:
    """The digest of a log, by its cache where the request names one; see `reading.read_digest`."""
    read, cache = read_digest, request.cache
    # a kept digest lacks the rows that versions known as spans stand in
    if cache is not None and NEWEST not in log.columns:
        read = (DigestCache(cache, warnings.warn) if isinstance(cache, Path) else cache).read_digest
    return read(
        log,
        quarantine=request.quarantine,
        allow_missing_versions=allow_missing_versions,
        on_progress=request.stage(f"reading {log.name}", log.rows),
    )


def inspect_log(paths: Paths | RunRequest, **options: Unpack[RunOptions]) -> Overview:
    """What a log holds, structural faults included; `options` may hold `cache` and `on_progress`.

    Raises:
        LogError: it can't be read.
    """
    request = replace(RunRequest.of(paths, options, "inspect_log"), quarantine=True)
    log = open_log(request.paths)
    return overview(log, read_for(log, request))


def check_left(digest: Digest) -> None:
    """Refuse a log of which quarantine leaves no put: takes alone have nothing to say.

    Raises:
        LogError: no put is left.
    """
    if digest.quarantined_groups and not len(digest.responses.tokens):
        hint = "every group holds structural faults; tokenaudit inspect shows them"
        raise LogError(Problem("no put is left to replay", digest.name, hint))


def replay_loaded(loaded: LoadedLog, observe: Callable[[RunEvent], None] | None = None) -> Result:
    """Replay a log that was read already; `observe` is called with every event of the run.

    Raises:
        TokenauditError: the log can't be replayed under this config.
    """
    log, digest, settings, request = loaded.log, loaded.digest, loaded.settings, loaded.request
    config = settings.config
    kind = timeline_of(digest, request.timeline)
    events = replay(digest, config, kind, request.stage("replaying", len(digest.events.kind)))
    newest = newest_reading(log, digest) if NEWEST in log.columns else None
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
            *settings_notices(settings, digest.tasks, kind),
        ],
        coverage=coverage,
        with_groups=request.with_groups,
        newest=ledger_of_newest,
    )
    warnings = [*result.warnings, *counterfactual_notices(result.coverage)]
    if newest is not None:
        warnings.append(span_notice(result, uncertain_responses(digest, newest)))
    return replace(result, warnings=tuple(warnings), cost=_cost(loaded, result))


def _cost(loaded: LoadedLog, result: Result) -> RunCost | None:
    """What a replayed run cost in vain, by the times of the log; None, and nothing is read, without a [cost]."""
    digest, config = loaded.digest, loaded.settings.config
    if not config.cost.is_given:
        return None
    counterfactual = result.coverage.counterfactual_tokens
    return run_cost(
        config,
        result.ledger["total"],
        times_of_log(digest.events, _event_times(loaded), config),
        is_for_simulation=runs_otherwise(config, _own_config(loaded.log), digest.tasks, counterfactual),
    )


def _event_times(loaded: LoadedLog) -> Int64s:
    if loaded.times is not None:
        return loaded.times
    log = loaded.log
    return recorded_times(log, loaded.digest, loaded.request.stage(f"reading the times of {log.name}", log.rows))


def _own_config(log: Log) -> Config | None:
    """The config in a log's metadata; None where it has none, or one that can't be used."""
    if log.config_json is None:
        return None
    try:
        return load_settings(working_dir=Path(), isolated=True, log_config=log.config_json).config
    except ConfigError:
        return None


def load_result(path: Path | str) -> Result:
    """Read a result saved with -o.

    Raises:
        ResultError: no such file, unreadable, larger than `MOST_RESULT_BYTES`, or no result.
    """
    path = Path(path)
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


def result_of(run: Result | Run | Path | str) -> Result:
    """A result, the result of a run, or one saved with -o.

    Raises:
        UsageError: it is none of them.
        ResultError: the file can't be read.
    """
    match run:
        case Result():
            return run
        case Run():
            return run.result
        case Path() | str():
            return load_result(run)
    hint = "give a result, a run, or a file saved with -o"
    raise UsageError(Problem(f"{shown(run)} is no result", None, hint))


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
    """The same events; `observe` is called with each of them first."""
    for event in events:
        observe(event)
        yield event
