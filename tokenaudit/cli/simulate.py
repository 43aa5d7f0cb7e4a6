"""`tokenaudit simulate`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import (
    ByTaskOption,
    ColumnsOption,
    ConfigOption,
    Format,
    FormatOption,
    GroupsOption,
    IsolatedOption,
    PromptOrderOption,
    QuarantineOption,
    QuietOption,
    SetOption,
    TokenTimeOption,
    VerboseOption,
    chosen_figures,
    note_config,
    output_option,
    run_request,
    step_range,
)
from tokenaudit.contracts.errors import Problem, UsageError

CANNOT_GO_ON = 1
"""Exit code of a run that ended before its last step."""


def simulate(
    workload: Annotated[
        list[Path],
        typer.Argument(
            metavar="WORKLOAD|LOG...",
            help="Parquet files, folders or quoted glob patterns that make up a workload, or a log to derive one from.",
        ),
    ],
    config: ConfigOption = None,
    set_: SetOption = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train steps to simulate. Default: timeline.steps, else the log's. To select rows: --show-steps.",
        ),
    ] = None,
    max_concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Responses generated at once, first spawned first served. Default: any number."),
    ] = None,
    token_time_us: TokenTimeOption = None,
    prompt_order: PromptOrderOption = None,
    metrics: ColumnsOption = None,
    by_task: ByTaskOption = False,
    show_steps: Annotated[
        str | None, typer.Option(metavar="A..B", help="Show these steps only; totals stay those of the run.")
    ] = None,
    groups: GroupsOption = False,
    format_: FormatOption = Format.TABLE,
    output: Annotated[
        list[Path] | None,
        output_option(
            ".parquet is the event log of the run, for replay; .json, .csv, .jsonl, .md and .txt are the result"
        ),
    ] = None,
    quarantine: QuarantineOption = False,
    isolated: IsolatedOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit simulate`."""
    del quiet, verbose
    from tokenaudit.cli.output import check_outputs, emit_result
    from tokenaudit.contracts.files import replacing
    from tokenaudit.replay.result import TRAIN_STEP, no_such_step, select_steps
    from tokenaudit.simulate.notices import stuck_problems
    from tokenaudit.simulate.session import simulate_workload

    selected = step_range("--show-steps", show_steps)
    figures = chosen_figures(metrics)
    outputs = output or []
    check_outputs(outputs, workload if config is None else [*workload, config])
    request = run_request(
        workload,
        config=config,
        overrides=set_,
        steps=steps,
        max_concurrency=max_concurrency,
        token_time_us=token_time_us,
        prompt_order=prompt_order,
        quarantine=quarantine,
        isolated=isolated,
        with_groups=groups,
    )
    event_log = _event_log(outputs)
    with replacing(event_log) if event_log else nullcontext() as event_log_file:
        simulated = simulate_workload(request, event_log=event_log_file)
        note_config(simulated.settings, request)
        result = simulated.result
        streams.show_notices(result.warnings)
        stuck = stuck_problems(result)
        if selected is not None:
            whole, result = result, select_steps(result, *selected)
            if not result.steps and not stuck:
                raise no_such_step(f"--show-steps {show_steps}", [row[TRAIN_STEP] for row in whole.steps])
        # Inside of the block: the event log gets its name only where the other files got theirs.
        files = [path for path in outputs if path != event_log]
        emit_result(result, format_, files, by_task=by_task, figures=figures)
    if stuck:
        streams.show_problems(stuck)
        raise typer.Exit(CANNOT_GO_ON)


def _event_log(outputs: list[Path]) -> Path | None:
    logs = [path for path in outputs if path.suffix.lower() == ".parquet"]
    if len(logs) > 1:
        where = ", ".join(map(str, logs))
        raise UsageError(Problem("-o names more than one event log", where, "name one .parquet file"))
    return logs[0] if logs else None
