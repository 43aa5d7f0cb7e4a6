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
    digest_cache,
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
    from tokenaudit.log.files import open_log
    from tokenaudit.log.overview import overview, overview_data
    from tokenaudit.log.reading import read_digest
    from tokenaudit.render.overview import render_overview

    opened = open_log(log)
    with streams.progress() as bar:
        label = f"reading {opened.name}"
        on_progress = (lambda done: bar.update(label, done, opened.rows)) if bar else None
        kept = digest_cache(cache)
        read = read_digest if kept is None else kept.read_digest
        digest = read(opened, quarantine=True, allow_missing_versions=True, on_progress=on_progress)
    view = overview(opened, digest)
    if format_ is OverviewFormat.JSON:
        streams.write_data(json.dumps(overview_data(view), indent=1, ensure_ascii=False) + "\n")
    else:
        streams.write_result(render_overview(view))
