"""Arguments and options that commands share, and the request or saved result that they name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from tokenaudit.cli import completion, streams
from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.replay.request import PromptOrder, RunOptions, RunRequest, TimelineKind

if TYPE_CHECKING:
    from tokenaudit.compare.metric_values import Figure
    from tokenaudit.config.loading import Settings
    from tokenaudit.contracts.errors import Notice
    from tokenaudit.replay.result import Result


class Format(StrEnum):
    """What standard output gets."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"
    MARKDOWN = "markdown"


class OverviewFormat(StrEnum):
    """What standard output gets from commands that describe."""

    TABLE = "table"
    JSON = "json"


LogPaths = Annotated[
    list[Path],
    typer.Argument(metavar="LOG", help="Parquet files, folders or quoted glob patterns that make up one log."),
]
MethodsOption = Annotated[
    Path | None,
    typer.Option("--methods", metavar="FILE", help="TOML or JSON that lists methods: name, trainer, options, dtype."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Config in TOML. Default: tokenaudit.toml beside the log or here, [tool.tokenaudit] in pyproject.toml, "
        "or the config in the log's metadata.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Override one config value; repeatable.",
        autocompletion=completion.config_keys,
    ),
]
IsolatedOption = Annotated[bool, typer.Option("--isolated", help="Don't look for config files.")]
QuarantineOption = Annotated[
    bool, typer.Option("--quarantine", help="Leave out groups with structural faults, and count them.")
]
TokenTimeOption = Annotated[
    int | None,
    typer.Option(
        "--token-time-us",
        min=1,
        max=2**53,
        metavar="N",
        help="For a log: microseconds per token of every response. Default: derived from generate_time_us.",
    ),
]
PromptOrderOption = Annotated[
    PromptOrder | None,
    typer.Option(
        help="For a log: groups begin when they did (start), as first put, or by rising id. Default, auto: start "
        "where the log has time_us and generate_time_us, else first-put."
    ),
]
TimelineOption = Annotated[
    TimelineKind | None, typer.Option(help="Where refreshes and takes come from. Default: the log, if it has them.")
]
SimulateOption = Annotated[
    bool,
    typer.Option("--simulate", help="Simulate a workload, or one derived from the log, instead of replaying the log."),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        envvar="TOKENAUDIT_CACHE",
        help="Keep digests of logs in this folder; the next command on the same log doesn't read its tokens again.",
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="Format of standard output.")]
OverviewFormatOption = Annotated[OverviewFormat, typer.Option("--format", help="Format of standard output.")]
ByTaskOption = Annotated[bool, typer.Option("--by-task", help="One row per step and task.")]
GroupsOption = Annotated[bool, typer.Option("--groups", help="Also give the ids of taken and expired groups.")]
ParquetOption = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The Parquet file to write.")]


def output_option(kinds: str) -> Any:
    """The option `-o` of a command that also writes files; `kinds` says which, for the help."""
    return typer.Option("--output", "-o", metavar="FILE", help=f"Also write a file: {kinds}; repeatable.")


def metrics_option(help_text: str) -> Any:
    """The option --metrics; `help_text` says what it chooses."""
    return typer.Option("--metrics", metavar="NAME,...", help=help_text, autocompletion=completion.metric_lists)


def chosen_figures(names: str | None) -> list[Figure] | None:
    """The metrics and rates that --metrics names, in order; None without it.

    Raises:
        UsageError: it names none, or unknown ones.
    """
    if names is None:
        return None
    from tokenaudit.compare.metric_values import figures_named

    listed = [name.strip() for name in names.split(",") if name.strip()]
    if not listed:
        raise UsageError(Problem("--metrics names none", None, "write --metrics dropped_tokens,trained_tokens"))
    return figures_named(listed)


QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        callback=streams.set_quiet,
        help="On stderr only errors, and what changes the meaning of the answer.",
    ),
]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        callback=streams.set_verbose,
        help="Everything that can be listed, and tracebacks for crashes.",
    ),
]


ColumnsOption = Annotated[
    str | None,
    metrics_option("Metrics and rates that are the columns of tables, CSV, JSON Lines and Parquet, in this order."),
]


def check_columns(figures: Sequence[Figure] | None, *, simulated: bool) -> None:
    """Refuse columns that no run of a kind has.

    Args:
        figures: what --metrics names.
        simulated: whether the run is simulated.

    Raises:
        UsageError: there are some; names all of them.
    """
    from tokenaudit.compare.metric_values import metrics_of
    from tokenaudit.contracts.metrics import SIMULATED_METRICS

    lacking = [one.name for one in figures or () if not simulated and not metrics_of(one).isdisjoint(SIMULATED_METRICS)]
    if lacking:
        hint = "tokenaudit simulate counts it, on a log too"
        raise UsageError(Problem(f"--metrics: a replay has no {name}", None, hint) for name in lacking)


def step_range(option: str, text: str | None) -> tuple[int, int] | None:
    """Parse A..B, or A alone.

    Raises:
        UsageError: it is neither.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text, flags=re.ASCII)
    if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
        raise UsageError(
            Problem(f"{option} {text!r} is no range", None, "write A..B with A not above B, such as 10..20")
        )
    return int(match[1]), int(match[2] or match[1])


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


def with_command(result: Result, request: RunRequest, command: Sequence[str]) -> list[Notice]:
    """The notices of a replay; what a simulation decides gets the command that runs it, or what it would need.

    Args:
        result: the replay.
        request: what was replayed; its options stand behind the command.
        command: the command and the arguments that no request holds.
    """
    from tokenaudit.replay.notices import COUNTERFACTUAL

    if all(notice.code != COUNTERFACTUAL for notice in result.warnings):
        return list(result.warnings)
    from tokenaudit.simulate.session import simulation_lacks

    lacking = "; ".join(f"{problem.what} ({problem.hint})" for problem in simulation_lacks(request, result))
    cost = f"It can't run yet: {lacking}" if lacking else f"Run `{command_text(request, command)}`"
    return [replace(notice, cost=cost) if notice.code == COUNTERFACTUAL else notice for notice in result.warnings]


def command_text(request: RunRequest, command: Sequence[str]) -> str:
    """A command that runs a request's config and options; see `with_command`."""
    from tokenaudit.config.toml import last_overrides

    options = [*(["-c", str(request.config)] if isinstance(request.config, Path) else [])]
    options += [part for text in last_overrides(request.overrides) for part in ("-s", text)]
    options += [flag for flag in ("--isolated", "--quarantine") if flag in flags_for_logs(request)]
    return shlex.join(["tokenaudit", *command, *options])
