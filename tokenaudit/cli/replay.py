"""`tokenaudit replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import (
    ByTaskOption,
    CacheOption,
    ColumnsOption,
    ConfigOption,
    Format,
    FormatOption,
    GroupsOption,
    IsolatedOption,
    LogPaths,
    QuarantineOption,
    QuietOption,
    SetOption,
    TimelineOption,
    VerboseOption,
    check_columns,
    chosen_figures,
    is_saved_result,
    note_config,
    output_option,
    run_request,
    saved_result,
    step_range,
    with_command,
)


def replay(
    log: LogPaths,
    config: ConfigOption = None,
    set_: SetOption = None,
    timeline: TimelineOption = None,
    metrics: ColumnsOption = None,
    by_task: ByTaskOption = False,
    steps: Annotated[
        str | None, typer.Option(metavar="A..B", help="Show these steps only; totals stay those of the run.")
    ] = None,
    groups: GroupsOption = False,
    format_: FormatOption = Format.TABLE,
    output: Annotated[list[Path] | None, output_option(".json, .csv, .jsonl, .parquet, .md or .txt")] = None,
    quarantine: QuarantineOption = False,
    isolated: IsolatedOption = False,
    cache: CacheOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit replay`."""
    del quiet, verbose
    from tokenaudit.cli.output import check_outputs, emit_result
    from tokenaudit.replay.result import TRAIN_STEP, no_such_step, select_steps
    from tokenaudit.replay.session import load_log, replay_loaded

    selected = step_range("--steps", steps)
    figures = chosen_figures(metrics)
    outputs = output or []
    check_outputs(outputs, log if config is None else [*log, config])
    request = run_request(
        log,
        config=config,
        overrides=set_,
        timeline=timeline,
        quarantine=quarantine,
        isolated=isolated,
        with_groups=groups,
        cache=cache,
    )
    if is_saved_result(log):
        result = saved_result(request)
        check_columns(figures, simulated=result.simulation is not None)
        notices = result.warnings
    else:
        check_columns(figures, simulated=False)
        loaded = load_log(request)
        note_config(loaded.settings, request)
        for text in loaded.log.unread_notes:
            streams.note(f"note: {text}")
        result = replay_loaded(loaded)
        notices = with_command(result, request, ["simulate", *map(str, log)])
    streams.show_notices(notices)
    if selected is not None:
        whole, result = result, select_steps(result, *selected)
        if not result.steps:
            raise no_such_step(f"--steps {steps}", [row[TRAIN_STEP] for row in whole.steps])
    flat = format_ in (Format.CSV, Format.JSONL) or any(
        path.suffix.lower() in (".csv", ".jsonl", ".parquet") for path in outputs
    )
    if groups and not by_task and flat:
        streams.note("note: CSV, JSON Lines and Parquet hold group ids with --by-task only")
    emit_result(result, format_, outputs, by_task=by_task, figures=figures)
