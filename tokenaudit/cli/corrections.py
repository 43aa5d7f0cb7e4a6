"""`tokenaudit corrections`."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenaudit.cli import completion, streams
from tokenaudit.cli.options import (
    CacheOption,
    ConfigOption,
    Format,
    FormatOption,
    IsolatedOption,
    LogPaths,
    MethodsOption,
    QuarantineOption,
    QuietOption,
    SetOption,
    TimelineOption,
    VerboseOption,
    command_text,
    note_config,
    output_option,
    run_request,
    step_range,
)

if TYPE_CHECKING:
    from tokenaudit.cli.output import Renderers
    from tokenaudit.corrections.result import CorrectionsReport


class Dtype(StrEnum):
    """What log-probabilities are computed in."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        metavar="SPEC",
        help="A preset, alone or as 'PRESET: OPTION=VALUE, …' with the trainer's own options; or a name in --methods; "
        "repeatable. Without any: one well-known setting of each kind. `tokenaudit help corrections` lists all.",
        autocompletion=completion.methods,
    ),
]


def corrections(
    log: LogPaths,
    config: ConfigOption = None,
    set_: SetOption = None,
    method: MethodOption = None,
    methods: MethodsOption = None,
    dtype: Annotated[
        Dtype | None, typer.Option(metavar="float32|float64", help="Compute in this type. Default: the trainer's.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(metavar="auto|cpu|cuda|cuda:N|mps", help="What computes.", autocompletion=completion.devices),
    ] = "auto",
    step: Annotated[
        str | None, typer.Option(metavar="A..B", help="Only what these train steps take; A alone is one step.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this task; repeatable.")] = None,
    timeline: TimelineOption = None,
    format_: FormatOption = Format.TABLE,
    output: Annotated[list[Path] | None, output_option(".json, .csv, .jsonl, .parquet, .md or .txt")] = None,
    quarantine: QuarantineOption = False,
    isolated: IsolatedOption = False,
    cache: CacheOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit corrections`."""
    del quiet
    from tokenaudit.cli.output import check_outputs, emit
    from tokenaudit.corrections.devices import choose_arrays
    from tokenaudit.corrections.methods import methods_of
    from tokenaudit.corrections.session import corrections_of_log
    from tokenaudit.masks.plan import Selection

    selected = None if step is None else step_range("--step", step)
    outputs = output or []
    check_outputs(outputs, [*log, *(path for path in (config, methods) if path is not None)])
    asked = methods_of(method or [], methods, None if dtype is None else dtype.value)
    arrays = choose_arrays(device)
    request = run_request(
        log, config=config, overrides=set_, timeline=timeline, quarantine=quarantine, isolated=isolated, cache=cache
    )
    selection = Selection(selected, frozenset(task) if task else None)
    corrected = corrections_of_log(request, asked, arrays, selection=selection)
    note_config(corrected.settings, request)
    streams.show_notices(corrected.notices)
    again = [] if methods is None else ["--methods", str(methods)]
    again += [] if step is None else ["--step", step]
    again += [part for name in task or () for part in ("--task", name)]
    again += [] if timeline is None else ["--timeline", timeline.value]

    def next_command(name: str) -> str:
        return command_text(request, ["mask", *map(str, log), "--correction", name, *again, "-o", "masks.parquet"])

    emit(_renderers(corrected.report, next_command, verbose), format_, outputs)
    if not any(one.not_run is None for one in corrected.report.methods):
        raise typer.Exit(2)


def _renderers(report: CorrectionsReport, next_command: Callable[[str], str], verbose: bool) -> Renderers:
    from tokenaudit.cli.output import in_render
    from tokenaudit.render.blocks import json_lines
    from tokenaudit.render.console import console_text
    from tokenaudit.render.corrections import corrections_blocks
    from tokenaudit.render.corrections_data import (
        ROW_COLUMNS,
        corrections_csv,
        corrections_json,
        corrections_records,
        corrections_rows,
    )
    from tokenaudit.render.markdown import markdown_text

    return {
        "table": lambda terminal: console_text(corrections_blocks(report, next_command, verbose=verbose), terminal),
        "json": lambda _: corrections_json(report),
        "markdown": lambda _: markdown_text(corrections_blocks(report, next_command, verbose=verbose)),
        "csv": lambda _: corrections_csv(report),
        "jsonl": lambda _: json_lines(corrections_records(report)),
        "parquet": lambda _: in_render("frames.parquet_of_rows")(ROW_COLUMNS, corrections_rows(report)),
    }
