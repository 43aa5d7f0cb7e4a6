"""`tokenaudit mask`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenaudit.cli import completion, streams
from tokenaudit.cli.options import (
    CacheOption,
    ConfigOption,
    IsolatedOption,
    LogPaths,
    MethodsOption,
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
from tokenaudit.contracts.errors import Problem, UsageError, plural, printable

if TYPE_CHECKING:
    from tokenaudit.masks.filters import Masking


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
    correction: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Also take out what this off-policy correction drops; SPEC as for corrections --method.",
            autocompletion=completion.methods,
        ),
    ] = None,
    methods: MethodsOption = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="Write the correction's weight of every token, too.")
    ] = False,
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

    if correction is None and (methods is not None or weights):
        option = "--weights" if weights else "--methods"
        raise UsageError(
            Problem(f"{option} is for --correction", None, "name the correction, such as --correction verl")
        )
    if correction is not None and include_untaken is not None:
        what = "--include-untaken and --correction exclude each other"
        raise UsageError(Problem(what, None, "what isn't taken is in no batch that a correction could look at"))
    check_outputs([output], [*log, *(path for path in (config, methods) if path is not None)], ("parquet",))
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
    masking = None if correction is None else _masking(correction, methods, device)
    masked = mask_log(request, output, backend, selection=selection, masking=masking, with_weights=weights)
    note_config(masked.settings, request)
    streams.show_notices(masked.notices)
    totals = masked.totals
    trained = f"{plural(totals.responses, 'response')}: {plural(totals.trained_tokens, 'token')} trained"
    masked_tokens = f"{totals.masked_stale_tokens:,} masked as stale, {totals.masked_semantic_tokens:,} not in the loss"
    corrected = f", {totals.masked_correction_tokens:,} dropped by the correction" if correction is not None else ""
    streams.write_blocks(Paragraph(f"{trained}, {masked_tokens}{corrected}"))
    if totals.unjudged_tokens:
        tokens = plural(totals.unjudged_tokens, "token")
        what = f"{tokens} in the loss can't be judged by the correction, and stay in it"
        streams.show_warning(what, "`tokenaudit corrections` says why; their weights are null")


def _masking(correction: str, methods: Path | None, device: str) -> Masking:
    from tokenaudit.corrections.devices import choose_arrays
    from tokenaudit.corrections.masking import MethodMasking
    from tokenaudit.corrections.methods import methods_of

    (method,) = methods_of([correction], methods)
    for note in method.notes:
        streams.note(f"note: {printable(method.name)}: {note}")
    return MethodMasking(method, choose_arrays(device))
