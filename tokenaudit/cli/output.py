"""Where results go: standard output in one format, and files whose format their names tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tokenaudit.cli import streams
from tokenaudit.cli.options import Format
from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.contracts.files import write_files
from tokenaudit.log.files import log_files
from tokenaudit.render.table import TableOptions, render_table
from tokenaudit.replay.result import Result
from tokenaudit.replay.saved_result import result_to_json

SUFFIXES = {
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "table",
}
"""Formats by file name extension."""


def check_outputs(
    outputs: Sequence[Path],
    inputs: Sequence[Path],
    suffixes: Mapping[str, str] = SUFFIXES,
    option: str = "-o",
) -> None:
    """Refuse, before any work is done, files that could not be written or that would change what is read.

    Args:
        outputs: files to write.
        inputs: what is read: files, folders or glob patterns.
        suffixes: formats by file name extension.
        option: what messages call the option that names the outputs.

    Raises:
        UsageError: an unknown extension, no such folder, a folder, or a part of the input; all of them at once.
    """
    if not outputs:
        return
    files = {path.resolve() for path in log_files(inputs)} | {path.resolve() for path in inputs}
    folders = {path.resolve() for path in inputs if path.is_dir()}
    problems = [_output_problem(path, files, folders, suffixes, option) for path in outputs]
    if any(problems):
        raise UsageError(problem for problem in problems if problem is not None)


def _output_problem(
    path: Path, files: set[Path], folders: set[Path], suffixes: Mapping[str, str], option: str
) -> Problem | None:
    try:
        return _told_problem(path, files, folders, suffixes, option)
    except (OSError, RuntimeError, ValueError) as error:
        # Names too long or not encodable, loops of links, folders that may not be entered.
        return Problem(f"{option} can't be written there: {error}", str(path), "check the path and its permissions")


def _told_problem(
    path: Path, files: set[Path], folders: set[Path], suffixes: Mapping[str, str], option: str
) -> Problem | None:
    if path.is_dir():
        return Problem(f"{option} names a folder", str(path), "name a file in it")
    if path.suffix.lower() not in suffixes:
        what = f"{option} can't tell a format from the extension {path.suffix!r}"
        return Problem(what, str(path), f"extensions: {', '.join(suffixes)}")
    if not path.parent.is_dir():
        return Problem(f"{option} names a folder that isn't there", str(path), f"create {path.parent} first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return Problem(f"{option} names a folder that may not be written to", str(path), "choose another folder")
    if path.exists() and not path.is_file():
        return Problem(f"{option} names something that is no regular file", str(path), "name a file")
    place = path.resolve()
    if place in files:
        return Problem(f"{option} would overwrite what is being read", str(path), "choose another name")
    if path.suffix.lower() == ".parquet" and folders.intersection(place.parents):
        return Problem(f"{option} would become part of the log being read", str(path), "choose another folder")
    return None


def emit(result: Result, stdout_format: Format, outputs: Sequence[Path], *, by_task: bool) -> None:
    """Render everything first, then write: a fault leaves no half of it behind."""
    contents = [(path, _render(result, SUFFIXES[path.suffix.lower()], by_task)) for path in outputs]
    write = streams.write_result if stdout_format is Format.TABLE else streams.write_data
    write_all(_stdout_text(result, stdout_format, by_task), contents, write)


def write_all(text: str, contents: Sequence[tuple[Path, bytes]], write: Callable[[str], None]) -> None:
    """Write files, all of them or none, then standard output with one of the functions of `streams`."""
    write_files(contents)
    write(text)


def _stdout_text(result: Result, stdout_format: Format, by_task: bool) -> str:
    if stdout_format is not Format.TABLE:
        return _render(result, stdout_format.value, by_task).decode()
    return render_table(
        result,
        TableOptions(
            by_task=by_task,
            width=streams.terminal_width(),
            color=streams.wants_color(),
            unicode=streams.is_unicode(),
        ),
    )


def _render(result: Result, name: str, by_task: bool) -> bytes:
    if name == "json":
        return result_to_json(result).encode(errors="backslashreplace")
    if name == "table":
        return render_table(result, TableOptions(by_task=by_task)).encode(errors="backslashreplace")
    if name == "markdown":
        from tokenaudit.render.markdown import render_markdown

        return render_markdown(result, by_task=by_task).encode(errors="backslashreplace")
    from tokenaudit.render.frames import csv_text, parquet_bytes, rows_frame

    frame = rows_frame(result, by_task=by_task)
    return csv_text(frame).encode() if name == "csv" else parquet_bytes(frame)
