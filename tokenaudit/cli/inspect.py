"""`tokenaudit inspect`."""

from __future__ import annotations

import json

from tokenaudit.cli import streams
from tokenaudit.cli.options import (
    CacheOption,
    LogPaths,
    OverviewFormat,
    OverviewFormatOption,
    QuietOption,
    VerboseOption,
    run_request,
)


def inspect(
    log: LogPaths,
    format_: OverviewFormatOption = OverviewFormat.TABLE,
    cache: CacheOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Say what a log holds: events, groups, tasks, steps, versions, lengths, columns, and structural faults."""
    del quiet, verbose
    from tokenaudit.log.overview import overview_data
    from tokenaudit.render.console import console_text
    from tokenaudit.render.overview import overview_blocks
    from tokenaudit.replay.session import inspect_log

    view = inspect_log(run_request(log, cache=cache))
    if format_ is OverviewFormat.JSON:
        streams.write_data(json.dumps(overview_data(view), indent=1, ensure_ascii=False) + "\n")
    else:
        streams.write_result(console_text(overview_blocks(view)))
