"""A folder of sealed part files: numbered, whole, and never overwritten by accident."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import Problem, RecordError
from tokenaudit.log.writer import TOKEN_COLUMNS, Row, seal, sync_folder
from tokenaudit.record.folder_lock import FolderLock

_PART = re.compile(r"part-(\d{6,})\.parquet")
_UNSEALED = re.compile(r"\.part-\d{6,}\.parquet(\.[0-9a-f]+)?\.tmp")
_SIZED = (*TOKEN_COLUMNS, "task_name", "finish_reason")
PART_ELEMENTS = 16_000_000
"""Elements of token columns, characters of texts, and `ROW_COST` per row, at which a part is sealed."""
ROW_COST = 64
"""What a row counts for, beside its lists, in bounds of memory."""


class UnsealedRows:
    """Rows that wait to be sealed.

    Attributes:
        rows: the rows, in order.
        events: events they belong to.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the rows; they are sealed."""
        self.rows: list[Row] = []
        self.events = self._cost = 0
        self._since: float | None = None

    def start_clock(self) -> None:
        """There is something to seal from now on, if there was nothing before."""
        if self._since is None:
            self._since = time.monotonic()

    def add(self, rows: list[Row]) -> None:
        """Add the rows of one event."""
        self.start_clock()
        self.rows.extend(rows)
        self.events += 1
        self._cost += cost_of(rows)

    def seconds_left(self, seconds: float) -> float | None:
        """How long what is there may go on waiting, if it may wait for `seconds`; None without anything."""
        return None if self._since is None else max(0.0, self._since + seconds - time.monotonic())

    def is_due(self, rows: int, seconds: float) -> bool:
        """Whether there are `rows` rows, or many elements, or what is there has waited for `seconds`."""
        if self._since is None:
            return False
        waited = time.monotonic() - self._since
        return len(self.rows) >= rows or self._cost >= PART_ELEMENTS or waited >= seconds


def cost_of(rows: Sequence[Row]) -> int:
    """What rows take in bounds of memory: their list elements, the characters of their texts, and `ROW_COST` each."""
    sized = (row[name] for row in rows for name in _SIZED if row.get(name) is not None)
    return ROW_COST * len(rows) + sum(map(len, sized))


class PartFolder:
    """Seals tables as `part-000001.parquet`, `part-000002.parquet`, … in one folder.

    Args:
        path: the folder; it is made if it isn't there.
        append: go on behind the parts that are there.
        force: remove the parts that are there.

    Raises:
        RecordError: the folder can't be used, another recorder writes to it, or it holds Parquet files and neither
            `append` nor `force` is set.
    """

    def __init__(self, path: Path, *, append: bool = False, force: bool = False) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(path)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            self._prepare(append=append, force=force)
        except BaseException:
            self.close()
            raise

    def _prepare(self, *, append: bool, force: bool) -> None:
        """Look at what is there, and remove what may be removed."""
        path = self.path
        try:
            there = list(path.glob("*.parquet"))
            for leftover in path.iterdir():
                if _UNSEALED.fullmatch(leftover.name):
                    leftover.unlink()
            if there and not append and not force:
                hint = "choose another folder; --append goes on behind them, --force removes them"
                raise RecordError(Problem(f"the folder already holds {len(there)} Parquet files", str(path), hint))
            foreign = [part.name for part in there if not _PART.fullmatch(part.name)]
            if foreign:
                what = f"the folder holds {foreign[0]}, which is no part file"
                raise RecordError(Problem(what, str(path), "choose another folder"))
            if force:
                for part in there:
                    part.unlink()
                there = []
        except OSError as error:
            raise _unusable(path, error) from error
        parts = sorted(there, key=_number)
        self.last_event_id = _last_event_id(parts)
        self._number = _number(parts[-1]) if parts else 0

    def seal(self, table: pa.Table) -> Path:
        """Write the next part.

        Raises:
            OSError: it can't be written, and the number stays free; RecordError: the folder was removed, and another
                recorder writes to one in its place.
        """
        if not self._lock.is_valid:
            self._lock.release()
            self._lock = FolderLock(self.path)
        path = self.path / f"part-{self._number + 1:06}.parquet"
        try:
            seal(table, path)
        except FileExistsError as error:
            what = f"{path.name} is there already: another recorder writes to this folder"
            raise FileExistsError(what) from error
        self._number += 1
        return path

    def close(self) -> None:
        """Give the folder free."""
        self._lock.release()

    def sync(self) -> None:
        """Make the folder itself last."""
        sync_folder(self.path.parent)


def _unusable(path: Path, error: OSError) -> RecordError:
    return RecordError(Problem(f"can't write here: {error.strerror or error}", str(path), "choose another folder"))


def _number(part: Path) -> int:
    match = _PART.fullmatch(part.name)
    return int(match[1]) if match else 0


def _last_event_id(parts: Sequence[Path]) -> int:
    """The last event of the last part that has one; ids never fall, so that is the largest."""
    for part in reversed(parts):
        try:
            ids = pq.read_table(part, columns=["event_id"]).column(0)
            if len(ids):
                return int(ids[-1].as_py())
        except (pa.ArrowException, OSError, TypeError) as error:
            what = "can't go on behind this part: it isn't a readable log"
            raise RecordError(Problem(what, str(part), "record into another folder")) from error
    return 0
