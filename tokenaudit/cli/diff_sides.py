"""The two sides of a comparison: saved results, and configs replayed on one log that is read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tokenaudit.cli import streams
from tokenaudit.cli.run_options import RunOptions
from tokenaudit.compare.compare import Side
from tokenaudit.compare.event_tape import EventTape
from tokenaudit.config.loading import Settings, load_settings
from tokenaudit.contracts.errors import Problem, TokenauditError, UsageError
from tokenaudit.contracts.files import read_bounded
from tokenaudit.log.files import Log, looks_like_log, open_log
from tokenaudit.replay.result import Result
from tokenaudit.replay.session import digest_for, load_result, replay_digest
from tokenaudit.simulate.session import LoadedWorkload, load_workload, simulate_loaded

Loaded = TypeVar("Loaded")

RunMaker = Callable[[Settings, EventTape], Result]
"""Makes a run under a config and tells the tape every event of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOptions:
    """What the command line says about the two sides.

    Attributes:
        a: config or saved result; None: the config that is found for the log.
        b: the same; None: the config of A, changed by `set_b`.
        log: the log, as its paths.
        set_both: overrides for both configs.
        set_b: overrides for B's config.
        run: how configs are run on the log.
    """

    a: Path | None
    b: Path | None
    log: Sequence[Path]
    set_both: Sequence[str]
    set_b: Sequence[str]
    run: RunOptions


def load_sides(options: SideOptions) -> tuple[Side, Side]:
    """Load or make both sides.

    Raises:
        UsageError: the arguments don't make two sides.
        TokenauditError: a log, config or result can't be used.
    """
    for name, path in (("A", options.a), ("B", options.b)):
        if path is not None and looks_like_log(path):
            what = f"{name} is a log, where a config or a saved result is wanted"
            raise UsageError(Problem(what, str(path), f"call it as: tokenaudit diff A.toml B.toml --log {path}"))
    is_saved = tuple(path is not None and is_result(path) for path in (options.a, options.b))
    if not options.log:
        return _saved_sides(options, is_saved)
    if all(is_saved):
        raise UsageError(Problem("two saved results need no log", str(options.log[0]), "leave out --log"))
    if options.b is None and is_saved[0]:
        raise UsageError(Problem("there is no B", None, "name a config or a saved result to compare with"))
    if options.b is None and not options.set_b:
        hint = "name a second config, or change the first with --set-b KEY=VALUE"
        raise UsageError(Problem("A would be compared with itself", None, hint))
    if is_saved[1] and options.set_b:
        raise UsageError(Problem("--set-b can't change a saved result", str(options.b), "name a config"))
    return _made_sides(options, is_saved)


def is_result(path: Path) -> bool:
    """Whether a file is a saved result and no config: told by its name, else by how it begins."""
    suffix = path.suffix.lower()
    if suffix in (".json", ".toml"):
        return suffix == ".json"
    try:
        return read_bounded(path, 64).lstrip().startswith(b"{")
    except OSError:
        return False


def _saved_sides(options: SideOptions, is_saved: Sequence[bool]) -> tuple[Side, Side]:
    replaying = {
        "--set": options.set_both,
        "--set-b": options.set_b,
        **options.run.need_log(),
    }
    given = [name for name, value in replaying.items() if value]
    if given:
        what = f"{', '.join(given)} would need a log"
        raise UsageError(Problem(what, None, "add --log LOG and name configs"))
    if options.a is None or options.b is None:
        hint = "name two saved results, or two configs and --log LOG"
        raise UsageError(Problem("there are no two sides to compare", None, hint))
    for path, saved in zip((options.a, options.b), is_saved, strict=True):
        if not saved and path.exists():
            raise UsageError(Problem("a config has no figures without a log", str(path), "add --log LOG"))
    a, b = _each(lambda: load_result(options.a or Path()), lambda: load_result(options.b or Path()))
    return Side(options.a.name, a), Side(options.b.name, b)


def _made_sides(options: SideOptions, is_saved: Sequence[bool]) -> tuple[Side, Side]:
    options.run.check()
    workload = _load_workload(options) if options.run.simulate else None
    log = open_log(list(options.log)) if workload is None else workload.source

    def settings(config: Path | None, overrides: Sequence[str]) -> Settings:
        return load_settings(
            config_path=config,
            overrides=overrides,
            log_dir=log.files[0].path.parent,
            working_dir=Path.cwd(),
            isolated=options.run.isolated,
            log_config=log.config_json,
        )

    config_b = options.a if options.b is None else options.b
    overrides_b = (*options.set_both, *options.set_b)
    loaded_a, loaded_b = _each(
        lambda: load_result(options.a) if is_saved[0] and options.a else settings(options.a, options.set_both),
        lambda: load_result(options.b) if is_saved[1] and options.b else settings(config_b, overrides_b),
    )
    with streams.progress() as bar:
        on_progress = bar.update if bar else None
        if workload is not None:
            make = _simulation_maker(workload, on_progress, with_groups=any(is_saved))
        else:
            configs = [loaded for loaded in (loaded_a, loaded_b) if isinstance(loaded, Settings)]
            make = _replay_maker(log, configs, options, on_progress, with_groups=any(is_saved))
        a = _side(loaded_a, options.a, options.set_both, make)
        b = _side(loaded_b, config_b, overrides_b, make)
    return a, b


def _side(loaded: Settings | Result, path: Path | None, overrides: Sequence[str], make: RunMaker) -> Side:
    if isinstance(loaded, Result):
        return Side(path.name if path else loaded.kind, loaded)
    tape = EventTape()
    result = make(loaded, tape)
    name = path.name if path else loaded.file.name if loaded.file else loaded.source
    return Side(" ".join((name, *(f"-s {text}" for text in overrides))), result, loaded.origins, tape)


def _replay_maker(
    log: Log,
    settings: Sequence[Settings],
    options: SideOptions,
    on_progress: Callable[[str, int, int], None] | None,
    *,
    with_groups: bool,
) -> RunMaker:
    """Replays on one digest of the log."""
    digest = digest_for(
        log, settings, quarantine=options.run.quarantine, cache=options.run.cache, on_progress=on_progress
    )

    def make(one: Settings, tape: EventTape) -> Result:
        return replay_digest(
            log,
            digest,
            one,
            options.run.timeline,
            with_groups=with_groups,
            observe=tape.add,
            on_progress=on_progress,
        )

    return make


def _load_workload(options: SideOptions) -> LoadedWorkload:
    with streams.progress() as bar:
        return load_workload(
            list(options.log),
            token_time_us=options.run.token_time_us,
            prompt_order=options.run.prompt_order,
            quarantine=options.run.quarantine,
            on_progress=bar.update if bar else None,
        )


def _simulation_maker(
    workload: LoadedWorkload, on_progress: Callable[[str, int, int], None] | None, *, with_groups: bool
) -> RunMaker:
    """Simulations of one workload."""

    def make(one: Settings, tape: EventTape) -> Result:
        return simulate_loaded(workload, one, with_groups=with_groups, observe=tape.add, on_progress=on_progress)

    return make


def _each(*loads: Callable[[], Loaded]) -> list[Loaded]:
    """All values; the problems of all sides are told at once."""
    problems: list[Problem] = []
    values: list[Loaded] = []
    for load in loads:
        try:
            values.append(load())
        except TokenauditError as error:
            problems += error.problems
    if problems:
        raise UsageError(dict.fromkeys(problems))
    return values
