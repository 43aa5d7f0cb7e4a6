"""`tokenaudit diff`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenaudit.cli import completion, streams
from tokenaudit.cli.options import (
    CacheOption,
    Format,
    FormatOption,
    IsolatedOption,
    PromptOrderOption,
    QuarantineOption,
    QuietOption,
    SimulateOption,
    TimelineOption,
    TokenTimeOption,
    VerboseOption,
    chosen_figures,
    metrics_option,
    output_option,
    run_request,
    with_command,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenaudit.cli.output import Renderers
    from tokenaudit.compare.compare import Comparison, Side
    from tokenaudit.replay.request import RunRequest


def diff(
    a: Annotated[
        Path | None, typer.Argument(metavar="A", help="Config or saved result. Default with --log: the log's config.")
    ] = None,
    b: Annotated[
        Path | None,
        typer.Argument(metavar="B", help="Config or saved result to compare with A. Default: A with --set-b."),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            "--log",
            metavar="LOG",
            help="Log (with --simulate also a workload) that configs run on: file, folder or pattern; repeatable.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="Override a value of both configs; repeatable.",
            autocompletion=completion.config_keys,
        ),
    ] = None,
    set_b: Annotated[
        list[str] | None,
        typer.Option(
            "--set-b",
            metavar="KEY=VALUE",
            help="Override a value of B's config; repeatable.",
            autocompletion=completion.config_keys,
        ),
    ] = None,
    metrics: Annotated[str | None, metrics_option("Compare these metrics and rates only.")] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Steps with the largest change to show.")] = 5,
    groups: Annotated[bool, typer.Option("--groups", help="Also list the groups that changed fate.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 when anything differs: a setting, figure, step or group.")
    ] = False,
    allow_different_log: Annotated[
        bool, typer.Option("--allow-different-log", help="Compare results of different logs.")
    ] = False,
    simulate: SimulateOption = False,
    prompt_order: PromptOrderOption = None,
    token_time_us: TokenTimeOption = None,
    timeline: TimelineOption = None,
    format_: FormatOption = Format.TABLE,
    output: Annotated[list[Path] | None, output_option(".json, .csv, .jsonl, .md or .txt")] = None,
    cache: CacheOption = None,
    quarantine: QuarantineOption = False,
    isolated: IsolatedOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit diff`."""
    del quiet, verbose
    from tokenaudit.cli.diff_sides import load_sides
    from tokenaudit.cli.output import check_outputs, emit
    from tokenaudit.compare.compare import compare
    from tokenaudit.compare.session import check_same_log

    figures = chosen_figures(metrics)
    outputs = output or []
    check_outputs(outputs, [*(log or []), *(path for path in (a, b) if path is not None)], Format)
    request = run_request(
        log or [],
        overrides=set_,
        timeline=timeline,
        quarantine=quarantine,
        isolated=isolated,
        simulate=simulate,
        prompt_order=prompt_order,
        token_time_us=token_time_us,
        cache=cache,
    )
    sides = load_sides(a, b, request, set_b or [])
    if not allow_different_log:
        check_same_log(*sides)
    command = ["diff", *(str(path) for path in (a, b) if path)]
    command += [part for path in log or [] for part in ("--log", str(path))]
    command += [part for text in set_b or [] for part in ("--set-b", text)]
    _show_warnings(sides, request, [*command, "--simulate"])
    comparison = compare(*sides, figures=figures, top=top, with_ids=groups)
    emit(_renderers(comparison, show_all=figures is not None), format_, outputs)
    if exit_code and comparison.differs:
        raise typer.Exit(1)


def _show_warnings(sides: Sequence[Side], request: RunRequest, simulating: Sequence[str]) -> None:
    """Show what to know about both sides; `simulating` compares them by simulation, where no side is a saved result."""
    from tokenaudit.compare.metric_values import is_defined_alike
    from tokenaudit.contracts.metrics import METRICS

    a, b = (side.result for side in sides)
    made = all(side.tape is not None for side in sides)
    of_a, of_b = (with_command(one, request, simulating) if made else one.warnings for one in (a, b))
    for notice in dict.fromkeys((*of_a, *of_b)):
        names = [name for name, notices in (("A", of_a), ("B", of_b)) if notice in notices]
        streams.show_notices([replace(notice, message=f"{' and '.join(names)}: {notice.message}")])
    shared = [metric for metric in METRICS.values() if metric.name in a.totals and metric.name in b.totals]
    unlike = [metric.name for metric in shared if not is_defined_alike(a, b, metric)]
    if unlike:
        message = f"A and B were made with different definitions of {', '.join(unlike)}"
        streams.show_warning(message, "make both with one release")
    if a.kind != b.kind:
        streams.show_warning(f"A is a {a.kind}, B a {b.kind}")


def _renderers(comparison: Comparison, *, show_all: bool) -> Renderers:
    from tokenaudit.render.console import console_text
    from tokenaudit.render.diff import diff_blocks
    from tokenaudit.render.diff_data import diff_csv, diff_json, diff_jsonl
    from tokenaudit.render.markdown import markdown_text

    return {
        "table": lambda terminal: console_text(diff_blocks(comparison, all_figures=show_all), terminal),
        "json": lambda _: diff_json(comparison),
        "csv": lambda _: diff_csv(comparison),
        "jsonl": lambda _: diff_jsonl(comparison),
        "markdown": lambda _: markdown_text(diff_blocks(comparison, all_figures=show_all)),
    }
