"""A folder belongs to one recorder at a time, or to one of each rank: locks that end with the process that holds them.

Each is a lock on a hidden file of the folder.
"""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import suppress
from pathlib import Path

from tokenaudit.contracts.errors import Problem, RecordError
from tokenaudit.record.ranks import Rank

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None

LOCK_NAME = ".tokenaudit-recorder.lock"
_RANK_LOCK_NAME = ".tokenaudit-recorder-{}.lock"

MIXED_HINT = "give every recorder of the folder its rank and world_size, or record into another folder"
"""What to do where some recorders of a folder have ranks and others none."""

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
        rank: the rank that records there, or None. Its lock file is made there, and removed when the lock is released.

    Raises:
        RecordError: another recorder, of this process or another one, holds the lock; or one with a rank holds the
            folder where there is none, or the other way round.
        OSError: the lock file can't be made.
    """

    def __init__(self, folder: Path, rank: Rank | None = None) -> None:
        self._rank = rank
        self._path = folder / (_RANK_LOCK_NAME.format(rank.label) if rank else LOCK_NAME)
        self._handle = -1
        self._inode: _Inode | None = None
        with _guard:
            self._acquire()
            # after its own lock is held: of two recorders that come at once, one at least sees the other
            others = (folder / LOCK_NAME,) if rank else folder.glob(_RANK_LOCK_NAME.format("rank*"))
            is_mixed = any(map(_is_held, others))
        if is_mixed:
            self.release()
            other = "a recorder without a rank" if rank else "a recorder of a rank"
            raise RecordError(Problem(f"{other} writes to this folder", str(folder), MIXED_HINT))

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
        of_rank, hint = (
            "",
            "record into another folder, or close the other recorder first; many ranks: give each its rank",
        )
        if self._rank:
            of_rank, hint = f" of rank {self._rank.number}", "give each recorder a rank of its own"
        return RecordError(Problem(f"another recorder{of_rank} writes to this folder", str(self._path.parent), hint))

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


def _is_held(path: Path) -> bool:
    """Whether a recorder holds the lock of a file; only looked at, and never by opening one that this process holds."""
    if _held.get(_inode(path)) == os.getpid():
        return True
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return False
    try:
        if fcntl is not None:
            # many may look at the same time
            fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def _forget_guard() -> None:
    global _guard
    _guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_guard)
