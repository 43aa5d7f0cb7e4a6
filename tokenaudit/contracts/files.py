"""Files: written whole or not at all, as JSON, read within a limit, named twice, tables for an import, their places."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from tokenaudit.contracts.errors import Problem, UsageError


def json_text(document: Mapping[str, object]) -> str:
    """A document as JSON for a file or a program, with a line feed at the end; equal ones give equal bytes.

    Raises:
        ValueError: it holds a number that JSON lacks: an infinite one, or none at all.
    """
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


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


CONFIG_FILE = "tokenaudit.toml"
"""The config file that is found without being named."""
OTHER_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
"""Extensions of tables that become logs by an import."""


def import_hint(path: Path) -> str:
    """How a table that is no log becomes one."""
    return f"`tokenaudit import {shlex.quote(str(path))} --from generic -o rollouts.parquet` makes a log of it"


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


def from_folder(path: Path, folder: Path) -> Path:
    """A path as it is written from a folder that it lies in; as it is where it lies elsewhere."""
    absolute, folder = path.absolute(), folder.absolute()
    return absolute.relative_to(folder) if absolute.is_relative_to(folder) else path


def from_repository_root(path: str) -> str:
    """A path from the root of the repository, which CI systems want; an absolute one where it lies elsewhere.

    The root is what `GITHUB_WORKSPACE` names, else the nearest folder above with a `.git`, else the working folder.
    """
    here, workspace = Path.cwd(), os.environ.get("GITHUB_WORKSPACE")
    above = (folder for folder in (here, *here.parents) if (folder / ".git").exists())
    root = Path(workspace).resolve() if workspace else next(above, here)
    # links in the repository keep their names, those to it are followed
    named = Path(os.path.normpath(here / path))
    for place in (named, Path(path).resolve()):
        if place.is_relative_to(root):
            return place.relative_to(root).as_posix()
    return named.as_posix()


class Repository(NamedTuple):
    """The repository that a CI job runs on: its address, the commit, and the branch if it is on one."""

    url: str
    revision: str
    branch: str


def ci_repository() -> Repository | None:
    """The repository as the variables of GitHub Actions or GitLab CI say; None elsewhere."""
    server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    found = Repository(
        f"{server}/{name}" if server and name else "",
        os.environ.get("GITHUB_SHA", ""),
        os.environ.get("GITHUB_REF_NAME", "") if os.environ.get("GITHUB_REF_TYPE") == "branch" else "",
    )
    if not found.url:
        of_gitlab = (os.environ.get(f"CI_{name}", "") for name in ("PROJECT_URL", "COMMIT_SHA", "COMMIT_BRANCH"))
        found = Repository(*of_gitlab)
    is_known = found.url.startswith(("https://", "http://")) and re.fullmatch(r"[0-9a-f]{40,64}", found.revision)
    return found if is_known else None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, under a temporary name beside `path`; it gets its name when the block ends without a fault.

    Raises:
        UsageError: the file can't be written.
    """
    with _writing(path), _Temporary(path) as temporary:
        yield temporary.opened()
        temporary.take_place()


def write_files(contents: Sequence[tuple[Path, bytes]]) -> None:
    """Write files as a whole; where one of them can't be written, none gets its name.

    Raises:
        UsageError: a file can't be written.
    """
    with ExitStack() as stack:
        written: list[_Temporary] = []
        for path, content in contents:
            with _writing(path):
                written.append(stack.enter_context(_Temporary(path)))
                # What is still buffered could fail to fit the disk, once others have their names.
                with written[-1].opened() as file:
                    file.write(content)
        for temporary in written:
            with _writing(temporary.path):
                temporary.take_place()


class _Temporary:
    """A file under a temporary name beside `path`: it takes that name, or is removed when the block ends.

    It is made inside the block only: where a signal comes, there is no moment at which nobody would remove it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = path.with_name(f".tokenaudit.{secrets.token_hex(8)}")
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        # where the file couldn't be made, its folder may be none
        with suppress(OSError):
            self._name.unlink(missing_ok=True)

    def opened(self) -> BinaryIO:
        """The file to write. It must not be there yet: nobody's link is followed."""
        self._file = self._name.open("xb")
        return self._file

    def take_place(self) -> None:
        """Replace what is at `path`."""
        assert self._file is not None
        self._file.close()
        self._name.replace(self.path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Faults of the system as a problem with a file to write."""
    try:
        yield
    except OSError as error:
        problem = Problem(f"can't write: {error.strerror or error}", str(path), "choose another place")
        raise UsageError(problem) from error
