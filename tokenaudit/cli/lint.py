"""`tokenaudit lint`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import QuietOption, SetOption, VerboseOption


def lint(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Config in TOML.")],
    set_: SetOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Say what a config costs that isn't obvious from it. Exit code 0, or 2 for a config that can't be used."""
    del quiet, verbose
    from tokenaudit.config.loading import load_settings
    from tokenaudit.config.warnings import config_warnings
    from tokenaudit.contracts.errors import printable
    from tokenaudit.render.blocks import count_text

    settings = load_settings(config_path=config, overrides=set_ or [], working_dir=Path.cwd(), isolated=True)
    warnings = config_warnings(settings.config)
    lines: list[str] = []
    for warning in warnings:
        lines += [f"{warning.code}: {warning.message}", f"  at: {warning.where}", f"  cost: {warning.cost}"]
    lines.append(f"{printable(settings.source)}: {count_text(len(warnings), 'warning')}")
    streams.write_result("".join(f"{line}\n" for line in lines))
