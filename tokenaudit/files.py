"""Files that appear whole or not at all, and files read whole within a limit."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
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
