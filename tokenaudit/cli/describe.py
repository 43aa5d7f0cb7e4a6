"""`tokenaudit inspect`, `explain` and `lint`: what a log holds, what happened in a run, and what a config costs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import (
    CacheOption,
    ConfigOption,
    IsolatedOption,
    LogPaths,
    OverviewFormat,
    OverviewFormatOption,
    QuarantineOption,
    QuietOption,
    SetOption,
    VerboseOption,
    note_config,
    run_request,
)
from tokenaudit.contracts.errors import Problem, UsageError

if TYPE_CHECKING:
    from tokenaudit.config.model import Config
    from tokenaudit.log.digest import Digest


def inspect(
    log: LogPaths,
    format_: OverviewFormatOption = OverviewFormat.TABLE,
    cache: CacheOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Say what a log holds: events, groups, tasks, steps, versions, lengths, columns, and structural faults."""
    del quiet, verbose
    from tokenaudit.log.overview import overview_data
    from tokenaudit.render.overview import overview_blocks
    from tokenaudit.replay.session import inspect_log

    view = inspect_log(run_request(log, cache=cache))
    if format_ is OverviewFormat.JSON:
        streams.write_json(json.dumps(overview_data(view), indent=1, ensure_ascii=False) + "\n")
    else:
        streams.write_blocks(*overview_blocks(view))


def explain(
    subject: Annotated[
        list[Path], typer.Argument(metavar="LOG|CODE", help="A log, or the code or name of an audit rule.")
    ],
    group: Annotated[str | None, typer.Option(metavar="TASK/ID", help="Show the life of this group.")] = None,
    step: Annotated[int | None, typer.Option(metavar="N", min=0, help="Show this step of the run.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    cache: CacheOption = None,
    quarantine: QuarantineOption = False,
    isolated: IsolatedOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show the life of one group, one step of a run, or what an audit rule means."""
    del quiet, verbose
    if group is None and step is None:
        if len(subject) == 1 and not subject[0].exists():
            from tokenaudit.audit.checks import RULES
            from tokenaudit.audit.rule import rule_named
            from tokenaudit.render.explain import rule_blocks

            streams.write_blocks(*rule_blocks(rule_named(str(subject[0]), RULES)))
            return
        raise UsageError(Problem("nothing to explain", None, "add --group TASK/ID or --step N, or name an audit rule"))
    if group is not None and step is not None:
        raise UsageError(Problem("--group and --step exclude each other", None, "run it twice"))
    from tokenaudit.replay.notices import override_notices
    from tokenaudit.replay.open_loop import timeline_of
    from tokenaudit.replay.session import load_log

    request = run_request(subject, config=config, overrides=set_, quarantine=quarantine, isolated=isolated, cache=cache)
    loaded = load_log(request)
    digest, settings = loaded.digest, loaded.settings
    note_config(settings, request)
    kind = timeline_of(digest, None)
    streams.show_notices(override_notices(settings.config, digest.tasks, kind, settings.origins))
    streams.write_result(_explained(digest, settings.config, group, step))


def _explained(digest: Digest, config: Config, group: str | None, step: int | None) -> str:
    from tokenaudit.explain.group import group_history
    from tokenaudit.explain.step import step_report
    from tokenaudit.render.console import console_text
    from tokenaudit.render.explain import TO_ASCII, history_blocks, step_blocks

    if group is not None:
        task, group_id = _group_key(group, digest.tasks)
        text = console_text(history_blocks(group_history(digest, config, task, group_id)))
        return text if streams.is_unicode() else text.translate(TO_ASCII)
    assert step is not None
    return console_text(step_blocks(step_report(digest, config, step)))


def _group_key(text: str, tasks: tuple[str, ...]) -> tuple[str, int]:
    """Parse TASK/ID, or ID alone where the log has one task."""
    task, _, number = text.rpartition("/")
    if not re.fullmatch(r"-?\d{1,19}", number, flags=re.ASCII):
        raise UsageError(Problem(f"--group {text!r} names no group", None, "write TASK/ID, such as math/12"))
    if "/" not in text:
        if len(tasks) != 1:
            hint = f"write TASK/{number}; tasks: {', '.join(tasks)}"
            raise UsageError(Problem(f"--group {text!r} names no task", None, hint))
        task = tasks[0]
    return task, int(number)


def lint(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Config in TOML.")],
    set_: SetOption = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 when there is a warning.")] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Say what a config costs that isn't obvious from it.

    Exit code 0, 1 for a warning with --exit-code, or 2 for a config that can't be used.
    """
    del quiet, verbose
    from tokenaudit.config.loading import load_settings
    from tokenaudit.config.warnings import config_warnings
    from tokenaudit.contracts.errors import printable
    from tokenaudit.render.blocks import Lines, count_text

    settings = load_settings(config_path=config, overrides=set_ or [], working_dir=Path.cwd(), isolated=True)
    warnings = config_warnings(settings.config)
    lines: list[str] = []
    for warning in warnings:
        lines += [f"{warning.code}: {warning.message}", f"  at: {warning.where}", f"  cost: {warning.cost}"]
    lines.append(f"{printable(settings.source)}: {count_text(len(warnings), 'warning')}")
    streams.write_blocks(Lines(lines))
    if exit_code and warnings:
        raise typer.Exit(1)
