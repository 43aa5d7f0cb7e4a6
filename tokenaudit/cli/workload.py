"""`tokenaudit workload`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import (
    LogPaths,
    OverviewFormat,
    OverviewFormatOption,
    PromptOrderOption,
    QuarantineOption,
    QuietOption,
    TokenTimeOption,
    VerboseOption,
    run_request,
)
from tokenaudit.contracts.errors import Problem, UsageError


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
    """Derive a workload from a log: one row per response with its length, token time, mask and marks."""
    del quiet, verbose
    from tokenaudit.cli.output import check_outputs
    from tokenaudit.contracts.files import replacing
    from tokenaudit.log.files import is_workload
    from tokenaudit.simulate.notices import prompt_order_notices
    from tokenaudit.simulate.session import load_workload
    from tokenaudit.simulate.workload_files import write_workload

    if output.suffix.lower() != ".parquet":
        raise UsageError(Problem("-o must name a .parquet file", str(output), "such as -o workload.parquet"))
    check_outputs([output], log)
    if is_workload(log):
        where = ", ".join(map(str, log))
        raise UsageError(Problem("this is a workload already", where, "give it to tokenaudit simulate"))
    loaded = load_workload(
        run_request(log, token_time_us=token_time_us, prompt_order=prompt_order, quarantine=quarantine)
    )
    derived = loaded.workload
    streams.show_notices(prompt_order_notices(derived, loaded.prompt_order))
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
        streams.write_data(json.dumps(facts, indent=1) + "\n")
    else:
        width = max(map(len, facts))
        streams.write_result("".join(f"{name:<{width}}  {value:,}\n" for name, value in facts.items()))
