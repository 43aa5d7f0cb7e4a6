"""The doors: files of `torch.save` and bare pickles, read without torch and without running or importing anything.

Long lists, long texts and tensors are lazy: they stay in the file until they are asked for. Everything is bounded:
objects, nesting, and what is read by what the file can hold.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tokenaudit.importers.pickles.archive import TorchArchive
from tokenaudit.importers.pickles.machine import run_pickle
from tokenaudit.importers.pickles.source import LazyBytes, Source, unreadable
from tokenaudit.importers.pickles.values import Limits, PickleFault

_INNER = Limits(objects=1_000, depth=20)
_INNER_ENTRIES = 100
"""What an archive inside of a file may hold: a tensor is a few objects and entries."""


class _File:
    """An open file; use it as a context manager, and as long as values from it are wanted.

    Raises:
        SourceError: it can't be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise unreadable(path, error) from error
        self.source = Source(path, self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class TorchFile(_File):
    """A file of `torch.save`. Raises a `SourceError` if it isn't one, or is damaged."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        super().__init__(path)
        try:
            self._archive = TorchArchive(self.source, 0, self.source.size, limits or Limits())
        except BaseException:
            self._file.close()
            raise

    def load(self) -> Any:
        """The object in the file. Raises like `TorchArchive.load`."""
        return self._archive.load()

    def head(self, size: int) -> bytes:
        """The beginning of the pickle. Raises a `SourceError` if the file is damaged."""
        return self._archive.head(size)


class PickleFile(_File):
    """A file that is one pickle."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        super().__init__(path)
        self._limits = limits or Limits()

    def load(self) -> Any:
        """The object in the file. Tensors that the pickle itself holds are opaque. Raises like `TorchArchive.load`."""
        return run_pickle(
            self.source, 0, self.source.size, self._limits, _no_storage, lambda name, arguments: NotImplemented
        )

    def head(self, size: int) -> bytes:
        """The beginning of the pickle. Raises a `SourceError` if the file can't be read."""
        return self.source.read(0, min(size, self.source.size))


def _no_storage(reference: Any) -> Any:
    raise PickleFault("a persistent id, which a bare pickle has no need of")


def inner_archive(content: LazyBytes) -> TorchArchive:
    """What `torch.save` wrote into memory, and a pickle holds as bytes: one tensor, say.

    Raises:
        SourceError: it isn't such an archive, or is damaged.
    """
    if content.is_text:
        raise content.source.fault("a tensor in bytes that are written as a text")
    return TorchArchive(content.source, content.start, content.size, _INNER, _INNER_ENTRIES)
