"""A folder belongs to one recorder at a time: a lock on a file in it that ends with the process that holds it."""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import suppress
from pathlib import Path

from tokenaudit.contracts.errors import Problem, RecordError

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None

LOCK_NAME = ".tokenaudit-recorder.lock"

_Inode = tuple[int, int]
_held: dict[_Inode, int] = {}
"""The lock files that this process holds: by device and inode the process, because forked ones inherit the table.

A process may lock its own lock file again, and loses the lock when it closes the file anywhere: so it must ask here
before it opens one.
"""
_guard = threading.Lock()


class FolderLock:
    """Held from its making until `release`, or until the process ends, however it ends; forked processes don't hold it.

    Args:
        folder: the folder, which exists.
        name: name of the lock file, which is made there and removed when the lock is released.

    Raises:
        RecordError: another recorder, of this process or another one, holds the lock.
        OSError: the lock file can't be made.
    """

    def __init__(self, folder: Path, name: str = LOCK_NAME) -> None:
        self._path = folder / name
        self._handle = -1
        self._inode: _Inode | None = None
        with _guard:
            self._acquire()

    def _acquire(self) -> None:
        while True:
            if _held.get(_inode(self._path)) == os.getpid():
                raise self._busy()
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            try:
                self._lock(handle)
            except BaseException:
                os.close(handle)
                raise
            opened = os.fstat(handle)
            inode = (opened.st_dev, opened.st_ino)
            # whoever held it before may have removed the file in between
            if _inode(self._path) == inode:
                self._handle, self._inode = handle, inode
                _held[inode] = os.getpid()
                return
            os.close(handle)

    def _lock(self, handle: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise self._busy() from error
        except OSError as error:
            why = f"the file system of {self._path.parent} gives no locks ({error.strerror})"
            warnings.warn(f"{why}: make sure that only one recorder writes there", RuntimeWarning, stacklevel=5)

    def _busy(self) -> RecordError:
        hint = "record into another folder, or close the other recorder first"
        return RecordError(Problem("another recorder writes to this folder", str(self._path.parent), hint))

    @property
    def is_valid(self) -> bool:
        """Whether the lock file is still the one that was locked; it isn't when the folder was removed."""
        return self._inode is not None and _inode(self._path) == self._inode

    def release(self) -> None:
        """Give the folder free. Not for a process that was forked from the one that made the lock."""
        with _guard:
            if self._inode is None:
                return
            with suppress(OSError):
                if self.is_valid:
                    self._path.unlink()
            os.close(self._handle)
            del _held[self._inode]
            self._inode = None


def _inode(path: Path) -> _Inode:
    """Device and inode of a file, links not followed; (-1, -1) where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino


def _forget_guard() -> None:
    global _guard
    _guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_guard)
