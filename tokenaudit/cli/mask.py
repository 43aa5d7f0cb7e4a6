"""`tokenaudit mask`."""

from __future__ import annotations

from typing import Annotated

import typer

from tokenaudit.cli import completion, streams
from tokenaudit.cli.options import (
    CacheOption,
    ConfigOption,
    IsolatedOption,
    LogPaths,
    ParquetOption,
    QuarantineOption,
    QuietOption,
    SetOption,
    TimelineOption,
    VerboseOption,
    note_config,
    run_request,
    step_range,
)


def mask(
    log: LogPaths,
    output: ParquetOption,
    config: ConfigOption = None,
    set_: SetOption = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cuda|cuda:N|mps",
            help="What computes the masks; all give equal bits.",
            autocompletion=completion.devices,
        ),
    ] = "auto",
    step: Annotated[
        str | None, typer.Option(metavar="A..B", help="Only what these train steps take; A alone is one step.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this task; repeatable.")] = None,
    include_untaken: Annotated[
        int | None,
        typer.Option(
            metavar="STEP",
            help="Also what is still held right after the take of STEP, masked as at STEP; `taken` is false there.",
        ),
    ] = None,
    timeline: TimelineOption = None,
    quarantine: QuarantineOption = False,
    isolated: IsolatedOption = False,
    cache: CacheOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit mask`."""
    del quiet, verbose
    selected = None if step is None else step_range("--step", step)
    from tokenaudit.cli.output import check_outputs

    check_outputs([output], log if config is None else [*log, config], ("parquet",))
    from tokenaudit.masks.backends import choose_backend
    from tokenaudit.masks.plan import Selection
    from tokenaudit.masks.session import mask_log
    from tokenaudit.render.blocks import Paragraph

    backend = choose_backend(device)
    if device == "auto":
        streams.note(f"note: masks are computed by {backend.description}")
    request = run_request(
        log, config=config, overrides=set_, timeline=timeline, quarantine=quarantine, isolated=isolated, cache=cache
    )
    selection = Selection(selected, frozenset(task) if task else None, include_untaken)
    masked = mask_log(request, output, backend, selection=selection)
    note_config(masked.settings, request)
    streams.show_notices(masked.notices)
    totals = masked.totals
    trained = f"{totals.responses} responses: {totals.trained_tokens} tokens trained"
    masked_tokens = f"{totals.masked_stale_tokens} masked as stale, {totals.masked_semantic_tokens} not in the loss"
    streams.write_blocks(Paragraph(f"{trained}, {masked_tokens}"))
