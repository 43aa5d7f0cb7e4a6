"""Standard output gets the result and nothing else; notes, warnings, progress and errors go to standard error."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tokenaudit.contracts.errors import NoticeLevel, Problem, UsageError, printable, without_commands

if TYPE_CHECKING:
    import typer
    from rich.progress import Progress, TaskID

    from tokenaudit.contracts.errors import Notice
    from tokenaudit.render.blocks import Block
    from tokenaudit.render.console import Terminal

_PROGRESS_AFTER_SECONDS = 1.0

_is_quiet = False
_is_verbose = False


def prepare() -> None:
    """Make output never fail on a character or a closed stream, and forget earlier runs."""
    global _is_quiet, _is_verbose
    _is_quiet = _is_verbose = False
    for name in ("stdout", "stderr"):
        # A process started with a closed stream has None in its place.
        stream = getattr(sys, name) or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open to the end
        setattr(sys, name, stream)
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def set_quiet(value: bool) -> bool:
    """Remember --quiet."""
    global _is_quiet
    _is_quiet = _is_quiet or value
    return value


def set_verbose(value: bool) -> bool:
    """Remember --verbose."""
    global _is_verbose
    _is_verbose = _is_verbose or value
    return value


def write_result(text: str) -> None:
    """Write text for people to standard output, in its own encoding.

    Raises:
        UsageError: it can't be written, for instance because a disk is full.
    """
    encoding = sys.stdout.encoding or "utf-8"
    _write(without_commands(text).encode(encoding, errors="backslashreplace"))


def write_blocks(*blocks: Block) -> None:
    """Draw blocks on standard output; see `write_result`."""
    from tokenaudit.render.console import console_text

    write_result(console_text(blocks, terminal()))


def write_data(text: str) -> None:
    """Write what programs read to standard output, as UTF-8 whatever the terminal's encoding; see `write_result`."""
    _write(text.encode(errors="backslashreplace"))


def write_json(text: str) -> None:
    """Write JSON to standard output; see `write_data`.

    Its texts can't pass for commands of a CI job or of a terminal, and stay equal.
    """
    write_data(_UNUSUAL.sub(_json_escape, text.replace("##", r"#\u0023")))


def write_xml(text: str) -> None:
    """Write XML to standard output, as `write_json` does JSON."""
    write_data(text.replace("##", "#&#35;"))


_UNUSUAL = re.compile(r"[^ -~\n]")


def _json_escape(found: re.Match[str]) -> str:
    """A character as it is, or as an escape where it isn't printable, as those that set colours or turn text around."""
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def _write(content: bytes) -> None:
    """A reader that closed the pipe has seen enough, so the verdict stands."""
    end_progress()
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        what = f"can't write to standard output: {error.strerror or error}"
        raise UsageError(Problem(what, None, "write to a file with -o")) from error


def _discard(stream: TextIO) -> None:
    """Let what is still buffered go nowhere, so that the interpreter doesn't fail on it at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(text: str) -> None:
    """Lines on standard error, broken between words in a terminal; what can't be written changes no exit code."""
    end_progress()
    try:
        if sys.stderr.isatty():
            from tokenaudit.render.console import wrapped

            width = shutil.get_terminal_size().columns
            text = "\n".join(wrapped(line, width) for line in text.split("\n"))
        print(without_commands(text), file=sys.stderr, flush=True)  # noqa: T201
    except OSError:
        _discard(sys.stderr)


def note(text: str) -> None:
    """Say something on standard error, unless --quiet."""
    if not _is_quiet:
        _say(printable(text))


def show_warning(message: str, cost: str = "") -> None:
    """Show a warning on standard error, unless --quiet."""
    note(f"warning: {message}")
    if cost:
        note(f"  {cost}")


def show_notices(notices: Iterable[Notice]) -> None:
    """Show what to know about a result on standard error; with --quiet only what changes its meaning."""
    for notice in notices:
        say = note if notice.level is NoticeLevel.WARNING else _say
        for line in filter(None, (f"{notice.level}: {notice.message}", notice.cost and f"  {notice.cost}")):
            say(printable(line))


def show_problems(problems: Iterable[Problem]) -> None:
    """Show errors on standard error, three short lines each: what, where, what to do."""
    for problem in problems:
        _say(f"error: {problem}")


def show_usage_error(error: typer.TyperException) -> None:
    """Show what is wrong with the arguments; without any, how to use the command."""
    text = error.format_message()
    if text.startswith("Usage: "):
        _say(text)
        return
    context = getattr(error, "ctx", None)
    hint = f"`{'tokenaudit' if context is None else context.command_path} --help`"
    # what a wrong choice is called where the parser checks values by a model
    show_problems([Problem(text.replace(": Value error, ", ": ", 1), None, hint)])


def show_crash(error: Exception) -> None:
    """Show a fault of tokenaudit itself; the traceback only with --verbose."""
    if _is_verbose:
        _say("".join(traceback.format_exception(error)).rstrip())
    what = f"internal error: {type(error).__name__}: {error}"
    hint = "this is a fault of tokenaudit; run again with --verbose and report what it prints"
    show_problems([Problem(what, None, hint)])


def terminal() -> Terminal:
    """What standard output goes to."""
    from tokenaudit.render.console import Terminal

    return Terminal(_terminal_width(), _wants_color(), is_unicode())


def _terminal_width() -> int | None:
    """Columns of the terminal that standard output goes to; None for a pipe or file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _wants_color() -> bool:
    """Whether to colour standard output: NO_COLOR beats FORCE_COLOR beats being a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def is_unicode() -> bool:
    """Whether standard output can show characters beyond ASCII."""
    return (sys.stdout.encoding or "ascii").lower().replace("-", "").startswith("utf")


class _ProgressBar:
    """A bar on standard error that appears once work has taken a second."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._label = ""

    def update(self, label: str, done: int, total: int) -> None:
        """Show how far the work is."""
        if self._bar is None:
            if time.monotonic() - self._start < _PROGRESS_AFTER_SECONDS:
                return
            self._bar = _new_bar()
            self._bar.start()
        if self._task is None or label != self._label:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._label = label
            self._task = self._bar.add_task(printable(label), total=total)
        self._bar.update(self._task, completed=done)

    def stop(self) -> None:
        """Take the bar away; the next update brings it back."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def _new_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


_shown_bar: _ProgressBar | None = None


def on_progress() -> Callable[[str, int, int], None] | None:
    """Shows how far the work is, in a bar that whatever else is written takes away.

    None where standard error is no terminal, or with --quiet.
    """
    global _shown_bar
    if _is_quiet or not sys.stderr.isatty():
        return None
    _shown_bar = _ProgressBar()
    return _shown_bar.update


def end_progress() -> None:
    """Take the bar away, if there is one."""
    if _shown_bar is not None:
        _shown_bar.stop()
