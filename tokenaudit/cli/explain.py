"""`tokenaudit explain`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import (
    CacheOption,
    ConfigOption,
    IsolatedOption,
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


def explain(
    subject: Annotated[
        list[Path], typer.Argument(metavar="LOG|CODE", help="A log, or the code or name of an audit rule.")
    ],
    group: Annotated[str | None, typer.Option(metavar="TASK/ID", help="Tell the life of this group.")] = None,
    step: Annotated[int | None, typer.Option(metavar="N", min=0, help="Tell this step of the run.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    cache: CacheOption = None,
    quarantine: QuarantineOption = False,
    isolated: IsolatedOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Tell the life of one group, one step of a run, or what an audit rule means."""
    del quiet, verbose
    if group is None and step is None:
        if len(subject) == 1 and not subject[0].exists():
            from tokenaudit.audit.checks import RULES
            from tokenaudit.audit.rule import rule_named
            from tokenaudit.render.console import console_text
            from tokenaudit.render.explain import rule_blocks

            streams.write_result(console_text(rule_blocks(rule_named(str(subject[0]), RULES))))
            return
        raise UsageError(Problem("nothing to explain", None, "add --group TASK/ID or --step N, or name an audit rule"))
    if group is not None and step is not None:
        raise UsageError(Problem("--group and --step exclude each other", None, "run it twice"))
    from tokenaudit.replay.session import load_log

    request = run_request(subject, config=config, overrides=set_, quarantine=quarantine, isolated=isolated, cache=cache)
    loaded = load_log(request)
    note_config(loaded.settings, request)
    streams.write_result(_told(loaded.digest, loaded.settings.config, group, step))


def _told(digest: Digest, config: Config, group: str | None, step: int | None) -> str:
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
