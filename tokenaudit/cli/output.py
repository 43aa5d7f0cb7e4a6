"""Where results go: standard output in one format, and files whose names give their format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenaudit.cli import streams
from tokenaudit.cli.options import Format
from tokenaudit.compare.metric_values import Figure
from tokenaudit.contracts.errors import Problem, UsageError, without_commands
from tokenaudit.contracts.files import write_files
from tokenaudit.log.files import log_files
from tokenaudit.render.blocks import Block, json_lines
from tokenaudit.render.console import NO_TERMINAL, Terminal, console_text
from tokenaudit.render.markdown import markdown_text
from tokenaudit.render.result import result_blocks
from tokenaudit.replay.result import Result
from tokenaudit.replay.saved_result import result_to_json

SUFFIXES = {
    ".json": "json",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "table",
    ".xml": "junit",
    ".sarif": "sarif",
    ".toml": "toml",
}
"""Formats by file name extension; a command has some of them."""
RESULT_FORMATS = (*Format, "parquet")
"""Formats of a run."""
_JSON_FORMATS = ("json", "jsonl", "sarif")
_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Names the file that the steps of a GitHub Actions job append Markdown to."""


def check_outputs(
    outputs: Sequence[Path], inputs: Sequence[Path], formats: Iterable[str] = RESULT_FORMATS, option: str = "-o"
) -> None:
    """Refuse, before any work is done, files that could not be written or that would change what is read.

    Args:
        outputs: files to write.
        inputs: what is read: files, folders or glob patterns.
        formats: what may be written; other extensions are refused.
        option: what messages call the option that names the outputs.

    Raises:
        UsageError: an unknown extension, no such folder, a folder, or a part of the input; all of them at once.
    """
    if not outputs:
        return
    files = {path.resolve() for path in log_files(inputs)} | {path.resolve() for path in inputs}
    folders = {path.resolve() for path in inputs if path.is_dir()}
    names = set(formats)
    suffixes = [suffix for suffix, name in SUFFIXES.items() if name in names]
    problems: list[Problem] = []
    for path in outputs:
        try:
            problems += _output_problems(path, files, folders, suffixes, option)
        except (OSError, RuntimeError, ValueError) as error:
            # Names too long or not encodable, loops of links, folders that may not be entered.
            what = f"{option} can't be written there: {error}"
            problems.append(Problem(what, str(path), "check the path and its permissions"))
    if problems:
        raise UsageError(problems)


def _output_problems(
    path: Path, files: set[Path], folders: set[Path], suffixes: Sequence[str], option: str
) -> Iterator[Problem]:
    """The first thing that is wrong with a file to write."""
    if path.is_dir():
        yield Problem(f"{option} names a folder", str(path), "name a file in it")
    elif path.suffix.lower() not in suffixes:
        what = f"{option} knows no format by the extension {path.suffix!r}"
        yield Problem(what, str(path), f"extensions: {', '.join(suffixes)}")
    elif not path.parent.is_dir():
        yield Problem(f"{option} names a folder that isn't there", str(path), f"create {path.parent} first")
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        yield Problem(f"{option} names a folder that may not be written to", str(path), "choose another folder")
    elif path.exists() and not path.is_file():
        yield Problem(f"{option} names something that is no regular file", str(path), "name a file")
    elif path.resolve() in files:
        yield Problem(f"{option} would overwrite what is being read", str(path), "choose another name")
    elif path.suffix.lower() == ".parquet" and folders.intersection(path.resolve().parents):
        yield Problem(f"{option} would become part of the log being read", str(path), "choose another folder")


Renderers = Mapping[str, Callable[[Terminal], str | bytes]]
"""What makes a report in each of its formats; only text for people depends on the terminal."""


def emit(
    renderers: Renderers,
    stdout_format: str,
    outputs: Sequence[Path],
    *,
    further: Sequence[tuple[Path, bytes]] = (),
    job_summary: Path | None = None,
) -> None:
    """Render everything first, then write files, all of them or none, then standard output.

    Args:
        renderers: the formats of a report.
        stdout_format: what standard output gets; text for people in its own encoding, text for programs as UTF-8.
        outputs: files whose names give their format, as `check_outputs` made sure.
        further: other files, with their contents.
        job_summary: a file that Markdown is appended to.
    """
    contents = [(path, renderers[SUFFIXES[path.suffix.lower()]](NO_TERMINAL)) for path in outputs]
    text = renderers[stdout_format](streams.terminal())
    assert isinstance(text, str), stdout_format
    write_files([*((path, _encoded(content)) for path, content in contents), *further])
    if job_summary is not None:
        _append_summary(job_summary, str(renderers["markdown"](NO_TERMINAL)))
    if stdout_format in _JSON_FORMATS:
        streams.write_json(text)
    elif stdout_format == "junit":
        streams.write_xml(text)
    elif stdout_format == Format.TABLE:
        streams.write_result(text)
    elif stdout_format == Format.MARKDOWN:
        streams.write_data(without_commands(text))
    else:
        streams.write_data(text)


def _encoded(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode(errors="backslashreplace")


def in_render(function: str) -> Callable[..., Any]:
    """A function of the render room, named as module.function: its module is loaded only where a format needs it."""
    module, _, name = function.partition(".")
    return getattr(import_module(f"tokenaudit.render.{module}"), name)


def emit_result(
    result: Result, stdout_format: str, outputs: Sequence[Path], *, by_task: bool, figures: Sequence[Figure] | None
) -> None:
    """Write a run in the formats that are asked for; `figures` are the columns of its tables, None: the usual ones."""
    if figures is not None and "json" in (stdout_format, *(SUFFIXES[path.suffix.lower()] for path in outputs)):
        streams.note("note: JSON holds every metric, whatever --metrics names: it is a result to be read back")
    emit(_result_renderers(result, by_task, figures), stdout_format, outputs)


def _result_renderers(result: Result, by_task: bool, figures: Sequence[Figure] | None) -> Renderers:
    """The formats of a run; those of a flat table load polars."""

    def frame() -> Any:
        names = None if figures is None else [figure.name for figure in figures]
        return in_render("frames.rows_frame")(result, by_task=by_task, metrics=names)

    def blocks() -> Iterator[Block]:
        return result_blocks(result, by_task=by_task, figures=figures)

    return {
        "table": lambda terminal: console_text(blocks(), terminal),
        "json": lambda _: result_to_json(result),
        "markdown": lambda _: markdown_text(blocks()),
        "csv": lambda _: in_render("frames.csv_text")(frame()),
        "jsonl": lambda _: json_lines(frame().iter_rows(named=True)),
        "parquet": lambda _: in_render("frames.parquet_bytes")(frame()),
    }


def summary_file() -> Path:
    """The job summary to append to.

    Raises:
        UsageError: the variable isn't set, or names something that can't be appended to.
    """
    name = os.environ.get(_SUMMARY)
    if not name:
        raise UsageError(Problem(f"--summary needs the variable {_SUMMARY}", None, "GitHub Actions sets it in a job"))
    path = Path(name)
    if path.exists() and not path.is_file():
        raise UsageError(Problem("can't write the job summary: not a regular file", str(path), f"see {_SUMMARY}"))
    return path


def _append_summary(path: Path, text: str) -> None:
    """Append a text, cut where the file would grow beyond what a summary may hold.

    Raises:
        UsageError: the file can't be written.
    """
    from tokenaudit.render.github import SUMMARY_BYTES, summary_part

    try:
        room = SUMMARY_BYTES - (path.stat().st_size if path.exists() else 0)
        with path.open("a", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(summary_part(text, room))
    except OSError as error:
        what = f"can't write the job summary: {error.strerror or error}"
        raise UsageError(Problem(what, str(path), f"see {_SUMMARY}")) from error
