from __future__ import annotations

import os
import pty
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import typer.main
from hypothesis import settings

from tokenaudit.cli import main
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import Log, open_log
from tokenaudit.log.reading import read_digest

# A change is judged by few examples, the same ones every time, and by more of them in `.ci/run`;
# `--hypothesis-profile=deep` tries many new ones.
settings.register_profile("quick", deadline=None, max_examples=10, derandomize=True)
settings.register_profile("ci", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("deep", deadline=None, max_examples=100, derandomize=False)
# What runs again for every mutant, see tests/mutation.py.
settings.register_profile("few", deadline=None, max_examples=4, derandomize=True)
# Processes that tests start would compile the package again, each of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
settings.load_profile(os.environ.get("TOKENAUDIT_TEST_PROFILE", "quick"))

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_data" / "rollouts.parquet"


def examples(share: float) -> settings:
    """Settings of a test that needs more or fewer examples than others: a share of the profile's number."""
    return settings(max_examples=max(1, round(share * settings.default.max_examples)))


get_command = cache(typer.main.get_command)
"""The commands as typer makes them, made once instead of at every run: that takes longer than most runs do."""


class Ran(NamedTuple):
    """A command that ran in this process."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _pinned_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for name in (
        "NO_COLOR",
        "FORCE_COLOR",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
        "GITHUB_STEP_SUMMARY",
        "GITHUB_WORKSPACE",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _sample_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of tests replay the sample; they share one digest of it, whose arrays none may write to."""

    def read(log: Log, *, on_progress: Callable[[int], None] | None = None, **options: bool) -> Digest:
        if [file.path for file in log.files] != [SAMPLE]:
            return read_digest(log, on_progress=on_progress, **options)
        if on_progress is not None:
            on_progress(log.rows)
        return _sample_digest(log.name, **options)

    monkeypatch.setattr("tokenaudit.replay.session.read_digest", read)


@cache
def _sample_digest(name: str, **options: bool) -> Digest:
    digest = read_digest(open_log([SAMPLE]), **options)
    assert digest.name == name
    for array in (*digest.events, *digest.responses, *digest.runs, digest.log_row):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return digest


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    """Runs `tokenaudit ARGUMENTS` through the real entry point, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typer.main, "get_command", get_command)

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["tokenaudit", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        captured = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return Ran(exited.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def run_on_terminal(run_cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs `tokenaudit ARGUMENTS` as `run_cli` does, with its streams on a terminal; all that it shows is in `out`."""

    def run(
        *arguments: object, columns: int = 100, lines: int = 20, has_keyboard: bool = True, **environment: str
    ) -> Ran:
        owner, terminal = pty.openpty()
        shown = bytearray()
        reader = threading.Thread(target=_read_until_closed, args=(owner, shown))
        reader.start()
        with monkeypatch.context() as patch, open(terminal, "w", encoding="utf-8") as stream, ExitStack() as stack:  # noqa: PTH123
            stdin = stream.fileno() if has_keyboard else os.open(os.devnull, os.O_RDONLY)
            patch.setattr(sys, "stdin", stack.enter_context(open(stdin, closefd=not has_keyboard)))
            for name in ("stdout", "stderr"):
                patch.setattr(sys, name, stream)
            terminal_size = {"COLUMNS": str(columns), "LINES": str(lines)}
            for name, value in (terminal_size | {"TERM": "xterm-256color"} | environment).items():
                patch.setenv(name, value)
            ran = run_cli(*arguments)
        reader.join()
        os.close(owner)
        return Ran(ran.code, shown.decode().replace("\r\n", "\n"), "")

    return run


def _read_until_closed(owner: int, shown: bytearray) -> None:
    # an error is how Linux says that nobody holds the terminal any more
    with suppress(OSError):
        while chunk := os.read(owner, 65536):
            shown += chunk


def _no_gpu() -> str | None:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "no CUDA device here"


def _no_browser() -> str | None:
    return None if any(map(shutil.which, BROWSERS)) else f"none of {', '.join(BROWSERS)} is here"


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")
LACKING = {"gpu": _no_gpu, "browser": _no_browser}
"""By marker: why tests that bear it cannot run here."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need what not every machine has say why they don't run."""
    for marker, lacking in LACKING.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := lacking()) is not None:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """No workers for single test files and tests, since starting them takes longer; as many as cores for folders."""
    return None if any(Path(name).is_dir() for name in config.args) else 0
