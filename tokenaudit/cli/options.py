"""Arguments and options that commands share."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenaudit.cli import streams
from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.replay.request import PromptOrder, TimelineKind


class Format(StrEnum):
    """What standard output gets."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


class OverviewFormat(StrEnum):
    """What standard output gets from commands that describe."""

    TABLE = "table"
    JSON = "json"


LogPaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="LOG",
        help="Parquet files, folders or quoted glob patterns that make up one log.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        show_default=False,
        help="Config in TOML. Default: tokenaudit.toml beside the log or here, [tool.tokenaudit] in pyproject.toml, "
        "or the config in the log's metadata.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", show_default=False, help="Override one config value; repeatable."),
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
        show_default=False,
        help="For a log: microseconds per token of every response. Default: told from generate_time_us.",
    ),
]
PromptOrderOption = Annotated[
    PromptOrder | None,
    typer.Option(
        show_default=False,
        help="For a log: groups begin in the order of their first puts, which is the default, or by rising group id.",
    ),
]
TimelineOption = Annotated[
    TimelineKind | None,
    typer.Option(show_default=False, help="Where refreshes and takes come from. Default: the log, if it has them."),
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
        show_default=False,
        help="Keep digests of logs in this folder; the next command on the same log doesn't read its tokens again.",
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="Format of standard output.")]
OverviewFormatOption = Annotated[OverviewFormat, typer.Option("--format", help="Format of standard output.")]
ByTaskOption = Annotated[bool, typer.Option("--by-task", help="One row per step and task.")]
GroupsOption = Annotated[bool, typer.Option("--groups", help="Also give the ids of taken and expired groups.")]
ParquetOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", show_default=False, help="The Parquet file to write.")
]


def output_option(kinds: str) -> Any:
    """The option `-o` of a command that also writes files; `kinds` says which, for the help."""
    return typer.Option(
        "--output", "-o", metavar="FILE", show_default=False, help=f"Also write a file: {kinds}; repeatable."
    )


QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", callback=streams.set_quiet, help="No notes, warnings or progress on stderr."),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", callback=streams.set_verbose, help="Tracebacks for crashes.")
]


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
