"""Files that appear whole or not at all, files read whole within a limit, and files that are named twice."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tokenaudit.errors import Problem, UsageError


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes` of a regular file; pipes and devices, which could wait or go on for ever, are refused.

    Raises:
        OSError: the file can't be read, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(most_bytes)


def named_twice(paths: Sequence[Path], whole: str) -> Iterator[Problem]:
    """Files that several arguments name, by links too: their rows would count twice.

    Args:
        paths: the files of all arguments.
        whole: what they make up together, for people.
    """
    seen: set[Path] = set()
    for path in paths:
        place = path.resolve()
        if place in seen:
            yield Problem("the file is named twice", str(path), f"name every file of a {whole} once")
        seen.add(place)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, under a temporary name beside `path`; it gets its name when the block ends without a fault.

    Raises:
        UsageError: the file can't be written.
    """
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tokenaudit.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        temporary = None
    except OSError as error:
        problem = Problem(f"can't write: {error.strerror or error}", str(path), "choose another place")
        raise UsageError(problem) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
