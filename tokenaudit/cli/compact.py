"""`tokenaudit compact`."""

from __future__ import annotations

from tokenaudit.cli import streams
from tokenaudit.cli.options import (
    CacheOption,
    LogPaths,
    ParquetOption,
    QuarantineOption,
    QuietOption,
    VerboseOption,
    digest_cache,
)
from tokenaudit.contracts.errors import Problem, UsageError


def compact(
    log: LogPaths,
    output: ParquetOption,
    cache: CacheOption = None,
    quarantine: QuarantineOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write a log that stores version runs instead of tokens: small, and read in no time.

    Replay, diff, gate, simulate and mask give the same numbers. What is told token by token is gone: audits can't
    look at token ids, log-probabilities, or columns the log schema doesn't know.
    """
    del quiet, verbose
    if output.suffix.lower() != ".parquet":
        raise UsageError(Problem("logs are written as Parquet", str(output), "name a file that ends in .parquet"))
    from tokenaudit.cli.output import check_outputs
    from tokenaudit.contracts.files import replacing
    from tokenaudit.log.compact import write_compact
    from tokenaudit.log.files import open_log
    from tokenaudit.log.reading import read_digest
    from tokenaudit.replay.notices import quarantine_notices
    from tokenaudit.replay.session import check_left, stage

    check_outputs([output], log)
    opened = open_log(log)
    with streams.progress() as bar:
        update = bar.update if bar else None
        reading = stage(update, f"reading {opened.name}", opened.rows)
        kept = digest_cache(cache)
        read = read_digest if kept is None else kept.read_digest
        digest = read(opened, quarantine=quarantine, allow_missing_versions=True, on_progress=reading)
        check_left(digest)
        with replacing(output) as target:
            done = write_compact(target, opened, digest, stage(update, f"writing {output.name}", opened.rows))
    for notice in quarantine_notices(digest):
        streams.show_warning(notice.message, notice.cost)
    if done.left_out:
        streams.note(f"note: left out {', '.join(done.left_out)}; audits of the new log can't check single tokens")
    streams.write_result(f"{done.rows} rows: {done.tokens} tokens as {done.runs} version runs\n")
