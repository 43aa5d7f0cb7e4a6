"""The files that the paths of a log name: files, folders and glob patterns."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from tokenaudit.contracts.errors import Problem


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The files that paths name, in reading order; paths that name none are passed over."""
    return [file for path in paths for file in expand(path)[0]]


def expand(path: Path) -> tuple[list[Path], Problem | None]:
    """The files behind one path argument, or why there are none."""
    try:
        return _found(path)
    except (OSError, RuntimeError, ValueError) as error:
        # Names too long or not encodable, loops of links, folders that may not be entered.
        what = f"can't look there: {getattr(error, 'strerror', None) or error}"
        return [], Problem(what, str(path), "check the path and its permissions")


def _found(path: Path) -> tuple[list[Path], Problem | None]:
    text = str(path)
    if path.is_dir():
        below = (file for file in path.rglob("*.parquet") if file.is_file())
        hidden = (".", "_")
        files = [file for file in below if not any(part.startswith(hidden) for part in file.relative_to(path).parts)]
        files.sort(key=lambda file: file.relative_to(path).parts)
        if files:
            return files, None
        return [], Problem("the folder holds no *.parquet file", text, "name the folder the log was written to")
    if path.exists():
        return [path], None
    if glob.has_magic(text):
        matches = sorted(Path(match) for match in glob.glob(text, recursive=True))  # noqa: PTH207 - may be absolute
        files = [match for match in matches if match.is_file()]
        if files:
            return files, None
        return [], Problem("the pattern matches no file", text, "quote it, and check it with ls")
    parent = path.parent
    try:
        neighbours = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    except OSError:
        neighbours = []
    close = get_close_matches(path.name, neighbours, n=1)
    hint = f"did you mean {parent / close[0]}?" if close else "give a Parquet file, a folder or a glob pattern"
    return [], Problem("there is no such file or folder", text, hint)
