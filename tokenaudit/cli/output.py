"""Where results go: standard output in one format, and files whose names give their format."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenaudit.cli import streams
from tokenaudit.cli.options import Format
from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.contracts.files import write_files
from tokenaudit.log.files import log_files
from tokenaudit.render.console import NO_TERMINAL, Terminal, console_text
from tokenaudit.render.markdown import markdown_text
from tokenaudit.render.result import result_blocks
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
    outputs: Sequence[Path], inputs: Sequence[Path], suffixes: Mapping[str, str] = SUFFIXES, option: str = "-o"
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
        return _path_problem(path, files, folders, suffixes, option)
    except (OSError, RuntimeError, ValueError) as error:
        # Names too long or not encodable, loops of links, folders that may not be entered.
        return Problem(f"{option} can't be written there: {error}", str(path), "check the path and its permissions")


def _path_problem(
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


Renderers = Mapping[str, Callable[[Terminal], str | bytes]]
"""What makes a report in each of its formats; only text for people depends on the terminal."""


def emit(
    renderers: Renderers, stdout_format: str, outputs: Sequence[Path], suffixes: Mapping[str, str] = SUFFIXES
) -> None:
    """Render everything first, then write files, all of them or none, then standard output."""
    contents = rendered(renderers, outputs, suffixes)
    text = rendered_stdout(renderers, stdout_format)
    write_files(contents)
    write_stdout(text, stdout_format)


def rendered(renderers: Renderers, outputs: Sequence[Path], suffixes: Mapping[str, str]) -> list[tuple[Path, bytes]]:
    """Files with their contents, in the formats that their names give."""
    contents = ((path, renderers[suffixes[path.suffix.lower()]](NO_TERMINAL)) for path in outputs)
    return [
        (path, text.encode(errors="backslashreplace") if isinstance(text, str) else text) for path, text in contents
    ]


def rendered_stdout(renderers: Renderers, stdout_format: str) -> str:
    """What standard output gets."""
    terminal = Terminal(streams.terminal_width(), streams.wants_color(), streams.is_unicode())
    text = renderers[stdout_format](terminal)
    assert isinstance(text, str), stdout_format
    return text


def write_stdout(text: str, stdout_format: str) -> None:
    """Write text for people in the encoding of standard output, and text for programs as UTF-8."""
    write = streams.write_result if stdout_format == Format.TABLE else streams.write_data
    write(text)


def in_render(function: str) -> Callable[..., Any]:
    """A function of the render room, named as module.function: its module is loaded only where a format needs it."""
    module, _, name = function.partition(".")
    return getattr(import_module(f"tokenaudit.render.{module}"), name)


def result_renderers(result: Result, *, by_task: bool) -> Renderers:
    """The formats of a run; those of a flat table load polars."""
    return {
        "table": lambda terminal: console_text(result_blocks(result, by_task=by_task), terminal),
        "json": lambda _: result_to_json(result),
        "markdown": lambda _: markdown_text(result_blocks(result, by_task=by_task)),
        "csv": lambda _: in_render("frames.csv_text")(in_render("frames.rows_frame")(result, by_task=by_task)),
        "parquet": lambda _: in_render("frames.parquet_bytes")(in_render("frames.rows_frame")(result, by_task=by_task)),
    }
