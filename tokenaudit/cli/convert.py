"""`tokenaudit compact` and `workload`: a smaller log, or a workload, made from a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import (
    CacheOption,
    LogPaths,
    OverviewFormat,
    OverviewFormatOption,
    ParquetOption,
    PromptOrderOption,
    QuarantineOption,
    QuietOption,
    TokenTimeOption,
    VerboseOption,
    run_request,
)
from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.contracts.files import json_text


def compact(
    log: LogPaths,
    output: ParquetOption,
    cache: CacheOption = None,
    quarantine: QuarantineOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit compact`."""
    del quiet, verbose
    from tokenaudit.cli.output import check_outputs
    from tokenaudit.contracts.files import replacing
    from tokenaudit.log.compact import write_compact
    from tokenaudit.log.files import open_log
    from tokenaudit.replay.notices import quarantine_notices
    from tokenaudit.replay.session import check_left, read_for

    check_outputs([output], log, ("parquet",))
    request = run_request(log, quarantine=quarantine, cache=cache)
    opened = open_log(log)
    digest = read_for(opened, request)
    check_left(digest)
    with replacing(output) as target:
        done = write_compact(target, opened, digest, request.stage(f"writing {output.name}", opened.rows))
    streams.show_notices(quarantine_notices(digest))
    if done.left_out:
        streams.note(f"note: left out {', '.join(done.left_out)}; audits of the new log can't check single tokens")
    streams.write_result(f"{done.rows} rows: {done.tokens} tokens as {done.runs} version runs\n")


def workload(
    log: LogPaths,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The workload to write: .parquet.")],
    token_time_us: TokenTimeOption = None,
    prompt_order: PromptOrderOption = None,
    format_: OverviewFormatOption = OverviewFormat.TABLE,
    quarantine: QuarantineOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit workload`."""
    del quiet, verbose
    from tokenaudit.cli.output import check_outputs
    from tokenaudit.contracts.files import replacing
    from tokenaudit.log.files import is_workload
    from tokenaudit.render.blocks import Pairs
    from tokenaudit.simulate.notices import prompt_order_notices
    from tokenaudit.simulate.session import load_workload
    from tokenaudit.simulate.workload_files import write_workload

    check_outputs([output], log, ("parquet",))
    if is_workload(log):
        where = ", ".join(map(str, log))
        raise UsageError(Problem("this is a workload already", where, "give it to tokenaudit simulate"))
    loaded = load_workload(
        run_request(log, token_time_us=token_time_us, prompt_order=prompt_order, quarantine=quarantine)
    )
    derived = loaded.workload
    streams.show_notices(prompt_order_notices(derived))
    with replacing(output) as temporary:
        write_workload(derived, temporary, loaded.source.config_json)
    facts = {
        "tasks": len(derived.tasks),
        "groups": derived.groups,
        "responses": derived.responses,
        "tokens": derived.tokens,
        "truncated_responses": derived.truncated_responses,
        "quarantined_groups": loaded.quarantined[0],
    }
    if format_ is OverviewFormat.JSON:
        streams.write_json(json_text(facts))
    else:
        pairs = Pairs([(name, f"{value:,}") for name, value in facts.items()])
        streams.write_blocks(pairs)
