from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

from tokenaudit.cli import main

# A change is judged by the same examples every time; at a desk, every run tries new ones.
settings.register_profile("default", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("default")

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_data" / "rollouts.parquet"


class Ran(NamedTuple):
    """A command that ran in this process."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _pinned_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    """Runs `tokenaudit ARGUMENTS` through the real entry point, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["tokenaudit", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        captured = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return Ran(exited.value.code, captured.out, captured.err)

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a CUDA device say why they don't run where there is none."""
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    try:
        import torch

        reason = None if torch.cuda.is_available() else "no CUDA device here"
    except ImportError:
        reason = "torch is not installed"
    if reason is not None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))
