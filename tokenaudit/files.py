"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tokenaudit.errors import Problem, UsageError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, under a temporary name beside `path`; it gets its name when the block ends without a fault.

    Raises:
        UsageError: the file can't be written.
    """
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
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
