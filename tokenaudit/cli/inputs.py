"""What commands run on: a request made of their options, or a result saved before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tokenaudit.cli import streams
from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.replay.request import RunOptions, RunRequest

if TYPE_CHECKING:
    from tokenaudit.config.loading import Settings
    from tokenaudit.replay.result import Notice, Result, StuckTask


def run_request(paths: Sequence[Path], **options: Unpack[RunOptions]) -> RunRequest:
    """The request behind a command's arguments, whose progress and notes go to standard error."""
    request = RunRequest(paths=tuple(paths)).changed(options)
    cache = request.cache
    if isinstance(cache, Path):
        from tokenaudit.log.cache import DigestCache

        cache = DigestCache(cache, streams.note)
    return replace(request, cache=cache, on_progress=streams.on_progress())


_FLAGS = {
    "config": "--config",
    "overrides": "--set",
    "timeline": "--timeline",
    "quarantine": "--quarantine",
    "with_groups": "--groups",
    "isolated": "--isolated",
    "simulate": "--simulate",
    "prompt_order": "--prompt-order",
    "token_time_us": "--token-time-us",
}
"""What a request holds that means nothing for a saved result, and the options that set it."""


def flags_for_logs(request: RunRequest) -> list[str]:
    """The options that were given and mean nothing for a saved result."""
    return [flag for name, flag in _FLAGS.items() if getattr(request, name)]


def check_kind(request: RunRequest) -> None:
    """Refuse options of replays for a simulation, and the other way round.

    Raises:
        UsageError: there is one.
    """
    if request.simulate:
        if request.timeline is not None:
            raise UsageError(Problem("--timeline is for replays", None, "leave it out, or leave out --simulate"))
        return
    simulating = {"--prompt-order": request.prompt_order, "--token-time-us": request.token_time_us}
    given = [name for name, value in simulating.items() if value is not None]
    if given:
        raise UsageError(
            Problem(f"{name} is for simulations", None, "leave it out, or add --simulate") for name in given
        )


def is_saved_result(paths: Sequence[Path]) -> bool:
    """Whether the arguments name a saved result and no log."""
    return any(path.suffix.lower() == ".json" for path in paths)


def saved_result(request: RunRequest) -> Result:
    """Read the saved result that is given in place of a log.

    Raises:
        UsageError: more than one path, or an option that needs a log.
        ResultError: the file is no result.
    """
    from tokenaudit.replay.session import load_result

    path = request.paths[0]
    if len(request.paths) > 1:
        what = "a saved result stands alone; it can't be combined with other paths"
        raise UsageError(Problem(what, ", ".join(map(str, request.paths)), "give one result, or logs only"))
    given = flags_for_logs(request)
    if given:
        what = f"{path.name} is a saved result, and {', '.join(given)} would need the log"
        raise UsageError(Problem(what, str(path), "give the log instead"))
    return load_result(path)


def note_config(settings: Settings, request: RunRequest) -> None:
    """Say which config file was found, if none was named."""
    if settings.file is not None and request.config is None:
        streams.note(f"note: config from {settings.source}")


def show_notices(notices: Iterable[Notice]) -> None:
    """Show the warnings of a result on standard error."""
    for notice in notices:
        streams.show_warning(notice.message, notice.cost)


def stuck_problems(stuck: Iterable[StuckTask]) -> Iterator[Problem]:
    """Why a simulated run can't go on."""
    for task in stuck:
        where = f"task {task.task}, step {task.train_step}"
        yield Problem(f"the run can't go on: {task.message}", where, task.hint)


def parquet_output(path: Path, what: str) -> Path:
    """The file to write, which is Parquet.

    Raises:
        UsageError: its name says otherwise.
    """
    if path.suffix.lower() != ".parquet":
        raise UsageError(Problem(f"{what} are written as Parquet", str(path), "name a file that ends in .parquet"))
    return path
