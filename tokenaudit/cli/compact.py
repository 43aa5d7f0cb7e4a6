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
    parquet_output,
    run_request,
)


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
    from tokenaudit.cli.output import check_outputs
    from tokenaudit.contracts.files import replacing
    from tokenaudit.log.compact import write_compact
    from tokenaudit.log.files import open_log
    from tokenaudit.replay.notices import quarantine_notices
    from tokenaudit.replay.session import check_left, read_for

    check_outputs([parquet_output(output, "logs")], log)
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
