"""`tokenaudit record`."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import QuietOption, VerboseOption
from tokenaudit.contracts.errors import Problem, RecordError, UsageError


def record(
    from_jsonl: Annotated[
        Path, typer.Option("--from-jsonl", metavar="FILE", help="JSON lines, one event each; - is stdin.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the part files.")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The run's own config, for the metadata.")
    ] = None,
    token_columns: Annotated[
        bool, typer.Option("--token-columns", help="Write one entry per token in place of version runs.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="Go on behind the parts that are there.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove the parts that are there.")] = False,
    force: Annotated[bool, typer.Option("--force", hidden=True)] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", help="Rank whose events these are; every line has time_us.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option("--world-size", metavar="N", help="Ranks that record into the folder.")
    ] = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit record`."""
    del quiet, verbose
    from tokenaudit.record.json_lines import record_lines
    from tokenaudit.record.recorder import Recorder

    name = "standard input" if str(from_jsonl) == "-" else str(from_jsonl)
    stream, size = _opened(from_jsonl)
    is_there = output.exists()
    with (
        stream,
        Recorder(
            output,
            config,
            token_columns=token_columns,
            append=append,
            overwrite=overwrite,
            force=force or None,
            source="tokenaudit record",
            rank=rank,
            world_size=world_size,
            # when lines arrive says nothing of when their events were
            stamp_time=False,
        ) as recorder,
    ):
        bar = streams.on_progress()
        on_progress = (lambda done: bar("recording", done, size)) if bar and size else None
        try:
            recorded = record_lines(stream, name, recorder, on_progress)
        except OSError as error:
            raise _unreadable(name, error) from error
    if recorded.events or not recorded.problems:
        streams.write_result(f"{recorder.sealed_events} events in {output}\n")
    elif not is_there:
        with suppress(OSError):
            output.rmdir()
    if recorded.problems:
        raise RecordError(recorded.problems)


def _opened(path: Path) -> tuple[IO[bytes], int]:
    """The stream, and its size; 0 for standard input."""
    if str(path) == "-":
        # a process started without standard input has none
        if sys.stdin is None:
            raise UsageError(Problem("standard input is closed", None, "pipe the events in, or name a file"))
        return sys.stdin.buffer, 0
    try:
        return path.open("rb"), path.stat().st_size
    except OSError as error:
        raise _unreadable(str(path), error) from error


def _unreadable(name: str, error: OSError) -> UsageError:
    return UsageError(Problem(f"can't read: {error.strerror or error}", name, "name a file, or -"))
