"""The two sides of a comparison: saved results, and configs replayed on one log that is read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tokenaudit.cli.options import check_kind, flags_for_logs
from tokenaudit.compare.compare import Side
from tokenaudit.compare.group_events import GroupEvents
from tokenaudit.config.loading import Settings
from tokenaudit.config.toml import read_toml
from tokenaudit.contracts.errors import Problem, TokenauditError, UsageError
from tokenaudit.contracts.files import read_bounded
from tokenaudit.log.files import looks_like_log, open_log
from tokenaudit.replay.request import RunRequest
from tokenaudit.replay.result import Result
from tokenaudit.replay.session import LoadedLog, digest_for, load_result, replay_loaded, settings_for
from tokenaudit.simulate.session import load_workload, simulate_loaded

Loaded = TypeVar("Loaded")

RunMaker = Callable[[Settings, GroupEvents], Result]
"""Makes a run under a config and adds every event of it to the tape."""


def load_sides(a: Path | None, b: Path | None, request: RunRequest, set_b: Sequence[str] = ()) -> tuple[Side, Side]:
    """Load or make both sides.

    Args:
        a: config or saved result; None: the config that is found for the log.
        b: the same; None: the config of A, changed by `set_b`.
        request: how configs are run, on which log and with which overrides for both; without a log, both sides are
            saved results.
        set_b: further overrides for B's config.

    Raises:
        UsageError: the arguments don't make two sides.
        TokenauditError: a log, config or result can't be used.
    """
    for name, path in (("A", a), ("B", b)):
        if path is not None and looks_like_log(path):
            what = f"{name} is a log, where a config or a saved result is wanted"
            raise UsageError(Problem(what, str(path), f"call it as `tokenaudit diff A.toml B.toml --log {path}`"))
    is_saved = (a is not None and is_result(a), b is not None and is_result(b))
    if not request.paths:
        return _saved_sides(a, b, is_saved, [*flags_for_logs(request), *(["--set-b"] if set_b else [])])
    if all(is_saved):
        raise UsageError(Problem("two saved results need no log", str(request.paths[0]), "leave out --log"))
    if b is None and is_saved[0]:
        raise UsageError(Problem("there is no B", None, "name a config or a saved result to compare with"))
    if b is None and not set_b:
        hint = "name a second config, or change the first with --set-b KEY=VALUE"
        raise UsageError(Problem("A would be compared with itself", None, hint))
    if is_saved[1] and set_b:
        raise UsageError(Problem("--set-b can't change a saved result", str(b), "name a config"))
    request_a = replace(request, config=a, with_groups=any(is_saved))
    request_b = replace(request_a, config=a if b is None else b, overrides=(*request.overrides, *set_b))
    return _made_sides((request_a, request_b), is_saved)


def is_result(path: Path) -> bool:
    """Whether a file is a saved result and no config: known by its name, else by how it begins."""
    suffix = path.suffix.lower()
    if suffix in (".json", ".toml"):
        return suffix == ".json"
    try:
        return read_bounded(path, 64).lstrip().startswith(b"{")
    except OSError:
        return False


def _saved_sides(
    a: Path | None, b: Path | None, is_saved: tuple[bool, bool], need_log: Sequence[str]
) -> tuple[Side, Side]:
    if need_log:
        what = f"{', '.join(need_log)} would need a log"
        raise UsageError(Problem(what, None, "add --log LOG and name configs"))
    if a is None or b is None:
        hint = "name two saved results, or two configs and --log LOG"
        raise UsageError(Problem("there are no two sides to compare", None, hint))
    result_a, result_b = _each(lambda: _saved(a), lambda: _saved(b))
    return Side(a.name, result_a), Side(b.name, result_b)


def _saved(path: Path) -> Result:
    """A saved result. A config is none: without a log, it has no figures."""
    is_config = path.suffix.lower() == ".toml"
    if is_config:
        read_toml(path, str(path))
    if is_config or (path.exists() and not is_result(path)):
        raise UsageError(Problem("a config has no figures without a log", str(path), "add --log LOG"))
    return load_result(path)


def _made_sides(requests: tuple[RunRequest, RunRequest], is_saved: tuple[bool, bool]) -> tuple[Side, Side]:
    """Both sides, at least one of them run on the log."""
    common = requests[0]
    check_kind(common)
    workload = load_workload(common) if common.simulate else None
    log = open_log(common.paths) if workload is None else workload.source

    def load(request: RunRequest, saved: bool) -> Settings | Result:
        return load_result(request.config) if saved and isinstance(request.config, Path) else settings_for(log, request)

    loaded = _each(*(lambda pair=pair: load(*pair) for pair in zip(requests, is_saved, strict=True)))
    if workload is not None:

        def make(settings: Settings, tape: GroupEvents) -> Result:
            return simulate_loaded(workload, settings, common, observe=tape.add)

    else:
        digest = digest_for(log, [one for one in loaded if isinstance(one, Settings)], common)

        def make(settings: Settings, tape: GroupEvents) -> Result:
            return replay_loaded(LoadedLog(log, digest, settings, common), tape.add)

    a, b = (_side(one, request, make) for one, request in zip(loaded, requests, strict=True))
    return a, b


def _side(loaded: Settings | Result, request: RunRequest, make: RunMaker) -> Side:
    path = request.config if isinstance(request.config, Path) else None
    if isinstance(loaded, Result):
        return Side(path.name if path else loaded.kind, loaded)
    tape = GroupEvents()
    result = make(loaded, tape)
    name = path.name if path else loaded.file.name if loaded.file else loaded.source
    return Side(" ".join((name, *(f"-s {text}" for text in request.overrides))), result, loaded.origins, tape)


def _each(*loads: Callable[[], Loaded]) -> list[Loaded]:
    """All values; the problems of all sides are raised at once."""
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
