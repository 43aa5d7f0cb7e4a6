"""A folder of sealed part files: numbered, whole, and never overwritten by accident."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.errors import Problem, RecordError
from tokenaudit.log_writer import seal, sync_folder

_PART = re.compile(r"part-(\d{6,})\.parquet")
_UNSEALED = re.compile(r"\.part-\d{6,}\.parquet\.tmp")


class PartFolder:
    """Seals tables as `part-000001.parquet`, `part-000002.parquet`, … in one folder.

    Args:
        path: the folder; it is made if it isn't there.
        append: go on behind the parts that are there.
        force: remove the parts that are there.

    Raises:
        RecordError: the folder can't be used, or holds Parquet files and neither `append` nor `force` is set.
    """

    def __init__(self, path: Path, *, append: bool = False, force: bool = False) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            there = sorted(path.glob("*.parquet"))
            for leftover in path.iterdir():
                if _UNSEALED.fullmatch(leftover.name):
                    leftover.unlink()
            if there and not append and not force:
                hint = "choose another folder; --append goes on behind them, --force removes them"
                raise RecordError(Problem(f"the folder already holds {len(there)} Parquet files", str(path), hint))
            if force:
                for part in _parts(there):
                    part.unlink()
                there = []
        except OSError as error:
            what = f"can't write here: {error.strerror or error}"
            raise RecordError(Problem(what, str(path), "choose another folder")) from error
        foreign = [part.name for part in there if not _PART.fullmatch(part.name)]
        if foreign:
            what = f"the folder holds {foreign[0]}, which is no part file"
            raise RecordError(Problem(what, str(path), "choose another folder"))
        parts = _parts(there)
        self.last_event_id = _last_event_id(parts)
        self._number = _number(parts[-1]) if parts else 0

    def seal(self, table: pa.Table) -> Path:
        """Write the next part.

        Raises:
            OSError: it can't be written; the number stays free.
        """
        path = self.path / f"part-{self._number + 1:06}.parquet"
        seal(table, path)
        self._number += 1
        return path

    def sync(self) -> None:
        """Make the folder itself last."""
        sync_folder(self.path.parent)


def _parts(paths: Sequence[Path]) -> list[Path]:
    return sorted((path for path in paths if _PART.fullmatch(path.name)), key=_number)


def _number(part: Path) -> int:
    match = _PART.fullmatch(part.name)
    return int(match[1]) if match else 0


def _last_event_id(parts: Sequence[Path]) -> int:
    """The last event of the last part; ids never fall, so that is the largest."""
    if not parts:
        return 0
    try:
        ids = pq.read_table(parts[-1], columns=["event_id"]).column(0)
        return int(ids[-1].as_py()) if len(ids) else 0
    except (pa.ArrowException, OSError, TypeError) as error:
        what = "can't go on behind this part: it isn't a readable log"
        raise RecordError(Problem(what, str(parts[-1]), "record into another folder")) from error
