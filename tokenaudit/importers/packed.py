"""Files that may be compressed: those of lines are unpacked while they are read, any others are refused."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from tokenaudit.contracts.errors import Problem, SourceError
from tokenaudit.importers.base import Context
from tokenaudit.importers.pickles.source import unreadable

CSV_SUFFIXES = (".csv", ".tsv")
LINE_SUFFIXES = (".jsonl", ".ndjson", ".json", *CSV_SUFFIXES)
"""Extensions of files that are read from beginning to end, so that they may be compressed."""

_PACKED_SUFFIXES = (".gz", ".zst", ".zstd")
_COMPRESSIONS = {
    "gzip": (re.compile(rb"\x1f\x8b\x08"), "gunzip"),
    # pzstd begins with a frame to skip
    "zstd": (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), "unzstd"),
    "bzip2": (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "bunzip2"),
    "xz": (re.compile(rb"\xfd7zXZ\x00"), "unxz"),
}
"""Kinds of compression: how their files begin, and what unpacks them."""
_UNPACKED = ("gzip", "zstd")
_OLD_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
"""How torch.save began before it wrote archives."""
_HEAD_BYTES = 15
_AT_ONCE = 1 << 16
"""Bytes of a file that are read at once."""
_UNPACKED_AT_ONCE = 1 << 13
"""Bytes that are unpacked at once; of zstd, up to as many before a cut are lost."""
UNPACKED_ANYWAY = 2**30
"""Bytes that a file of any size may unpack to; what a crafted one makes takes minutes, not days."""
UNPACKED_PER_BYTE = 1000
"""How many times its size a file may unpack to beyond that. Masks of equal numbers reach it, logs as a whole don't."""


class CutOffError(EOFError):
    """A compressed file ends before its end: what lies before it was read."""


def plain_name(path: Path) -> Path:
    """A path without the extension of a compression: what the file is called once it is unpacked."""
    return path.with_suffix("") if path.suffix.lower() in _PACKED_SUFFIXES else path


def plain_suffix(path: Path) -> str:
    """The extension of a file once it is unpacked, in lower case."""
    return plain_name(path).suffix.lower()


def first_unreadable(paths: Iterable[Path], suffixes: Sequence[str]) -> Problem | None:
    """The first of some files that can't be read as it is, as one of these extensions."""
    return next((problem for path in paths if (problem := unreadable_as_is(path, suffixes)) is not None), None)


def unreadable_as_is(path: Path, suffixes: Sequence[str]) -> Problem | None:
    """Why a file can't be read before it is unpacked or saved anew; None where it can, or can't be read at all.

    Args:
        path: the file.
        suffixes: extensions of the files that are read.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError:
        return None
    name = _compression(head)
    if name is not None and not (name in _UNPACKED and plain_suffix(path) in {*LINE_SUFFIXES} & {*suffixes}):
        hint = f"unpack it first, such as with {_COMPRESSIONS[name][1]}"
        return Problem(f"the file is compressed with {name}", str(path), hint)
    if head == _OLD_TORCH:
        hint = "load it with torch and save it again, without _use_new_zipfile_serialization=False"
        return Problem("a file of torch.save in its old format, of before torch 1.6", str(path), hint)
    return None


def _compression(head: bytes) -> str | None:
    return next((name for name, (beginning, _) in _COMPRESSIONS.items() if beginning.match(head)), None)


@contextmanager
def opened(path: Path, advance: Callable[[int], None] = lambda _: None) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked where its first bytes say that it is compressed with gzip or zstd.

    Members and frames that follow each other are one text. Memory doesn't grow with the file.

    Args:
        path: the file.
        advance: called with the bytes of the file, as it stands on the disk, that were read.

    Raises:
        SourceError: a compressed file is damaged, or unpacks to far more than one of its size can hold.
        CutOffError: a compressed file ends too early. Both may come from any read.
        OSError: the file can't be read.
    """
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        kind = _compression(file.read(_HEAD_BYTES))
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        raw: io.RawIOBase = _Counted(file, advance)
        if kind in _UNPACKED:
            raw = _Unpacked(kind, io.BufferedReader(raw, _AT_ONCE), path, size)
        yield stack.enter_context(io.BufferedReader(raw, _AT_ONCE))


@contextmanager
def opened_lines(path: Path, context: Context) -> Iterator[IO[bytes]]:
    """Like `opened`, for records: a file that is cut off is noted like a record that can't be read.

    Raises:
        SourceError: the file can't be read.
    """
    try:
        with opened(path, context.advance) as stream:
            yield stream
    except CutOffError as cut:
        context.problems.add(Problem(str(cut), str(path), "copy it again, or let its writer end"))
    except OSError as error:
        raise unreadable(path, error) from error


class _Counted(io.RawIOBase):
    """A file of which every read is counted."""

    def __init__(self, file: IO[bytes], advance: Callable[[int], None]) -> None:
        self._file = file
        self._advance = advance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._file.read(len(view))
        view[: len(data)] = data
        self._advance(len(data))
        return len(data)


class _Unpacked(io.RawIOBase):
    """What a compressed file holds."""

    def __init__(self, kind: str, packed: IO[bytes], path: Path, size: int) -> None:
        self._kind = kind
        self._path = path
        self._most = UNPACKED_ANYWAY + UNPACKED_PER_BYTE * size
        self._done = 0
        self._read: Callable[[int], Any]
        if kind == "gzip":
            # not `read`, which loses what it has made when it comes to a cut
            self._read = gzip.GzipFile(fileobj=packed, mode="rb").read1
        else:
            self._read = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), kind).read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        try:
            data = self._read(min(len(view), _UNPACKED_AT_ONCE))
        except EOFError as error:
            raise self._cut_off() from error
        except (zlib.error, gzip.BadGzipFile, pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            if "Truncated" in str(error):
                raise self._cut_off() from error
            what = f"can't unpack what {self._kind} compressed: {error}"[:200]
            raise SourceError(Problem(what, str(self._path), "the file is damaged: copy it again")) from error
        view[: len(data)] = data
        self._done += len(data)
        if self._done > self._most:
            what = f"the file unpacks to more than {self._most} bytes, far more than a dump of its size holds"
            raise SourceError(Problem(what, str(self._path), "if it is none that was crafted, unpack it first"))
        return len(data)

    def _cut_off(self) -> CutOffError:
        return CutOffError(f"the {self._kind} file is cut off: it ends after {self._done} unpacked bytes")
