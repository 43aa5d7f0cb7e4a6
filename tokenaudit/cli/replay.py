"""`tokenaudit replay`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import (
    ConfigOption,
    Format,
    IsolatedOption,
    LogPaths,
    OutputOption,
    QuarantineOption,
    QuietOption,
    SetOption,
    VerboseOption,
)
from tokenaudit.errors import Problem, UsageError
from tokenaudit.run_events import TimelineKind

if TYPE_CHECKING:
    from tokenaudit.result import Result


def replay(
    log: LogPaths,
    config: ConfigOption = None,
    set_: SetOption = None,
    timeline: Annotated[
        TimelineKind | None,
        typer.Option(
            show_default=False,
            help="Where refreshes and takes come from. Default: the log, if it has them.",
        ),
    ] = None,
    by_task: Annotated[bool, typer.Option("--by-task", help="One row per step and task.")] = False,
    steps: Annotated[
        str | None,
        typer.Option(metavar="A..B", show_default=False, help="Show these steps only; totals stay those of the run."),
    ] = None,
    groups: Annotated[bool, typer.Option("--groups", help="Also give the ids of taken and expired groups.")] = False,
    format_: Annotated[Format, typer.Option("--format", help="Format of standard output.")] = Format.TABLE,
    output: OutputOption = None,
    quarantine: QuarantineOption = False,
    isolated: IsolatedOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Replay a recorded log under a config: expired groups, dropped tokens and trained tokens, step by step.

    LOG may also be a result saved with -o result.json, to show it again.
    """
    del quiet, verbose
    from tokenaudit.cli.output import check_outputs, emit
    from tokenaudit.result import select_steps

    selected = _step_range(steps)
    outputs = output or []
    check_outputs(outputs, log)
    if any(path.suffix.lower() == ".json" for path in log):
        replaying = {
            "--config": config,
            "--set": set_,
            "--timeline": timeline,
            "--quarantine": quarantine,
            "--groups": groups,
            "--isolated": isolated,
        }
        result = _saved_result(log, [name for name, value in replaying.items() if value])
    else:
        result = _replayed(log, config, set_ or [], timeline, quarantine, isolated, groups)
    for notice in result.warnings:
        streams.show_warning(notice.message, notice.cost)
    if selected is not None:
        result = select_steps(result, *selected)
        if not result.steps:
            raise UsageError(
                Problem(f"--steps {steps}: the run has no such step", None, "leave out --steps to see all")
            )
    flat = format_ is Format.CSV or any(path.suffix.lower() in (".csv", ".parquet") for path in outputs)
    if groups and not by_task and flat:
        streams.note("note: CSV and Parquet hold group ids with --by-task only")
    emit(result, format_, outputs, by_task=by_task)


def _replayed(
    log: list[Path],
    config: Path | None,
    overrides: list[str],
    timeline: TimelineKind | None,
    quarantine: bool,
    isolated: bool,
    groups: bool,
) -> Result:
    from tokenaudit.session import replay_log

    with streams.progress() as bar:
        replayed = replay_log(
            log,
            config_path=config,
            overrides=overrides,
            timeline=timeline,
            quarantine=quarantine,
            isolated=isolated,
            with_groups=groups,
            on_progress=bar.update if bar else None,
        )
    settings = replayed.settings
    if settings.file is not None and config is None:
        streams.note(f"note: config from {settings.source}")
    return replayed.result


def _saved_result(log: list[Path], replaying: list[str]) -> Result:
    from tokenaudit.result import result_from_json

    path = log[0]
    if len(log) > 1:
        what = "a saved result stands alone; it can't be combined with other paths"
        raise UsageError(Problem(what, ", ".join(map(str, log)), "give one result, or logs only"))
    if replaying:
        what = f"{path.name} is a saved result, and {', '.join(replaying)} would need the log"
        raise UsageError(Problem(what, str(path), "give the log instead"))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(
            Problem(f"can't read the saved result: {what}", str(path), "give a file saved with -o")
        ) from error
    return result_from_json(text, str(path))


def _step_range(text: str | None) -> tuple[int, int] | None:
    """Parse A..B, or A alone."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text, flags=re.ASCII)
    if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
        raise UsageError(
            Problem(f"--steps {text!r} is no range", None, "write A..B with A not above B, such as 10..20")
        )
    return int(match[1]), int(match[2] or match[1])
