"""`tokenaudit inspect` and `lint`: what a log holds, and what a config costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import (
    CacheOption,
    LogPaths,
    OverviewFormat,
    OverviewFormatOption,
    QuietOption,
    SetOption,
    VerboseOption,
    run_request,
)
from tokenaudit.contracts.files import json_text


def inspect(
    log: LogPaths,
    format_: OverviewFormatOption = OverviewFormat.TABLE,
    cache: CacheOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit inspect`."""
    del quiet, verbose
    from tokenaudit.log.overview import overview_data
    from tokenaudit.render.overview import overview_blocks
    from tokenaudit.replay.session import inspect_log

    view = inspect_log(run_request(log, cache=cache))
    if format_ is OverviewFormat.JSON:
        streams.write_json(json_text(overview_data(view)))
    else:
        streams.write_blocks(*overview_blocks(view))


def lint(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Config in TOML.")],
    set_: SetOption = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="CODE", help="Leave a warning out, such as tail-batch-zero where it is meant."),
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 when there is a warning.")] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit lint`."""
    del quiet, verbose
    from tokenaudit.config.loading import load_settings
    from tokenaudit.config.warnings import WARNING_CODES, config_warnings
    from tokenaudit.contracts.errors import Problem, UsageError, nearest_hint, plural, printable
    from tokenaudit.render.blocks import Lines

    settings = load_settings(config_path=config, overrides=set_ or [], working_dir=Path.cwd(), isolated=True)
    unknown = [code for code in ignore or () if code not in WARNING_CODES]
    if unknown:
        raise UsageError(
            Problem(f"--ignore {code}: there is no such warning", None, nearest_hint(code, WARNING_CODES, "warnings"))
            for code in unknown
        )
    found = config_warnings(settings.config)
    warnings = [warning for warning in found if warning.code not in (ignore or ())]
    left_out = len(found) - len(warnings)
    ignored = f", {left_out} ignored" if left_out else ""
    lines: list[str] = []
    for warning in warnings:
        lines += [f"{warning.code}: {warning.message}", f"  at: {warning.where}", f"  cost: {warning.cost}"]
    lines.append(f"{printable(settings.source)}: {plural(len(warnings), 'warning')}{ignored}")
    streams.write_blocks(Lines(lines))
    if exit_code and warnings:
        raise typer.Exit(1)
