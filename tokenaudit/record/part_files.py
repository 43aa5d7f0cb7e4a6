"""A folder of sealed part files: numbered, whole, and never overwritten by accident."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.config.loading import load_settings
from tokenaudit.config.model import resolved
from tokenaudit.contracts.errors import Problem, RecordError, UsageError, plural
from tokenaudit.contracts.schema import META_CLOCK_ORIGIN, META_WORLD_SIZE
from tokenaudit.log.losses import PART_NAME
from tokenaudit.log.writer import TOKEN_COLUMNS, log_metadata, log_table, seal, sync_folder, write_parquet
from tokenaudit.record.event_rows import put_rows
from tokenaudit.record.folder_lock import MIXED_HINT, FolderLock
from tokenaudit.record.ranks import Rank

_UNSEALED = re.compile(rf"\.{PART_NAME.pattern}(\.[0-9a-f]+)?\.tmp")


RunConfig = Path | str | Mapping[str, Any] | None
"""The run's own config: a TOML file, or a mapping like it."""


def run_metadata(config: RunConfig, source: str, rank: Rank | None) -> dict[str, str]:
    """What every part of a recording says of its run; the config with defaults filled in.

    Raises:
        ConfigError: the config can't be used.
    """
    config_json = None
    if config is not None:
        data, path = (config, None) if isinstance(config, Mapping) else (None, Path(config))
        settings = load_settings(config_path=path, log_config=data, working_dir=Path.cwd(), isolated=True)
        config_json = json.dumps(resolved(settings.config))
    return log_metadata(config_json, source) | (rank.metadata if rank else {})


@cache
def load_writer() -> None:
    """Load whatever sealing a part needs: what Python or pyarrow import at first use can't be when a process ends."""
    lists = {name: [1] for name in TOKEN_COLUMNS}
    rows = put_rows([{"rollout_id": 1, "reward": 1.0} | lists], group_id=1, train_step=1)
    for token_columns in (False, True):
        write_parquet(log_table(rows, token_columns=token_columns, metadata={}), io.BytesIO())


class Resumed(NamedTuple):
    """Where the parts end behind which a recorder goes on.

    Attributes:
        event_id: their last event; 0 without any.
        time_us: its time, at least 0; 0 where it has none.
        clock_origin_us: microseconds of the Unix epoch at which their time is 0, if they say.
    """

    event_id: int = 0
    time_us: int = 0
    clock_origin_us: int | None = None


class PartFolder:
    """Seals tables as `part-000001.parquet`, `part-000002.parquet`, … in one folder.

    A rank's are `part-rank0003-000001.parquet`, …, beside those of the other ranks, which are never touched.

    Args:
        path: the folder; it is made if it isn't there.
        rank: the rank whose parts these are.
        append: go on behind the parts that are there.
        overwrite: remove the parts that are there.

    Raises:
        UsageError: both `append` and `overwrite`.
        RecordError: the folder can't be used, another recorder writes to it, or it holds Parquet files and neither
            `append` nor `overwrite` is set; with ranks and without, and under two world sizes, nothing goes on.
    """

    def __init__(self, path: Path, rank: Rank | None = None, *, append: bool = False, overwrite: bool = False) -> None:
        if append and overwrite:
            raise UsageError(Problem("append and overwrite exclude each other", str(path), "choose one of them"))
        self.path = path
        self._rank = rank
        try:
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
            self._lock = FolderLock(path, rank)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            self._prepare(append=append, overwrite=overwrite)
        except BaseException:
            self.close()
            raise

    def _prepare(self, *, append: bool, overwrite: bool) -> None:
        """Look at what is there, and remove what may be removed."""
        path = self.path
        own_rank = self._rank.number if self._rank else None
        try:
            names = {part: PART_NAME.fullmatch(part.name) for part in sorted(path.glob("*.parquet"))}
            for leftover in path.iterdir():
                if (name := _UNSEALED.fullmatch(leftover.name)) and _rank_of(name) == own_rank:
                    leftover.unlink()
            numbers: dict[Path, int] = {}
            others: dict[Path, int | None] = {}
            for part, name in names.items():
                if name is None:
                    what = f"the folder holds {part.name}, which is no part file"
                    raise RecordError(Problem(what, str(path), "choose another folder"))
                if _rank_of(name) == own_rank:
                    numbers[part] = int(name["number"])
                else:
                    others[part] = _rank_of(name)
            parts = sorted(numbers, key=lambda part: numbers[part])
            self._check_others(others)
            self._check_world_size([*others, *([] if overwrite else parts)])
            if parts and not append and not overwrite:
                hint = "choose another folder; --append (append=True) goes on behind them, --overwrite removes them"
                raise RecordError(
                    Problem(f"the folder already holds {plural(len(parts), 'Parquet file')}", str(path), hint)
                )
            if overwrite:
                for part in parts:
                    part.unlink()
                parts = []
        except OSError as error:
            raise _unusable(path, error) from error
        self.resumed = _resumed(parts)
        self._number = numbers[parts[-1]] if parts else 0

    def _check_others(self, others: Mapping[Path, int | None]) -> None:
        """Refuse parts that can't be one log with this recorder's: either all of a folder have ranks, or none."""
        for part, rank in others.items():
            if rank is None or self._rank is None:
                what = f"the folder holds {part.name}, from a recorder {'without' if rank is None else 'with'} a rank"
                raise RecordError(Problem(what, str(self.path), MIXED_HINT))

    def _check_world_size(self, parts: Iterable[Path]) -> None:
        """Refuse parts of another world size. Every rank does so, hence the first one that says it speaks for all."""
        if self._rank is None:
            return
        found = next((size for part in parts if (size := _world_size(part)) is not None), self._rank.world_size)
        if found != self._rank.world_size:
            what = f"the parts that are there have a world_size of {found}, not {self._rank.world_size}"
            hint = "record into another folder, or remove the parts of all ranks first"
            raise RecordError(Problem(what, str(self.path), hint))

    def seal(self, table: pa.Table) -> Path:
        """Write the next part.

        Raises:
            OSError: it can't be written, and the number stays free; RecordError: the folder was removed, and another
                recorder writes to one in its place.
        """
        if not self._lock.is_valid:
            self._lock.release()
            self._lock = FolderLock(self.path, self._rank)
        of_rank = f"{self._rank.label}-" if self._rank else ""
        path = self.path / f"part-{of_rank}{self._number + 1:06}.parquet"
        try:
            seal(table, path)
        except FileExistsError as error:
            what = f"{path.name} is there already: another recorder writes to this folder"
            raise FileExistsError(what) from error
        self._number += 1
        return path

    @property
    def has_parts(self) -> bool:
        """Whether there is a part, of the rank if there is one."""
        return self._number > 0

    @property
    def lacks_rank(self) -> bool:
        """Whether there is a rank and no part of it."""
        return self._rank is not None and not self.has_parts

    def close(self) -> None:
        """Give the folder free."""
        self._lock.release()


def _unusable(path: Path, error: OSError) -> RecordError:
    return RecordError(Problem(f"can't write here: {error.strerror or error}", str(path), "choose another folder"))


def _rank_of(name: re.Match[str]) -> int | None:
    """The rank in the name of a part."""
    return None if name["rank"] is None else int(name["rank"])


def _world_size(part: Path) -> int | None:
    """The world size that a part says; None where it says none, was removed by its own rank, or can't be read."""
    with suppress(pa.ArrowException, OSError, ValueError, TypeError):
        return int((pq.read_metadata(part).metadata or {})[META_WORLD_SIZE.encode()])
    return None


def _resumed(parts: Sequence[Path]) -> Resumed:
    """The last event of the last part that has one, ids never fall, and the clock of the last part."""
    origin: int | None = None
    for part in reversed(parts):
        try:
            with pq.ParquetFile(part) as file:
                metadata = file.schema_arrow.metadata or {}
                table = file.read(columns=["event_id", "time_us"])
            if origin is None and META_CLOCK_ORIGIN.encode() in metadata:
                origin = int(metadata[META_CLOCK_ORIGIN.encode()])
            if len(table):
                time_us = table["time_us"][-1].as_py() if "time_us" in table.column_names else None
                return Resumed(int(table["event_id"][-1].as_py()), max(0, int(time_us or 0)), origin)
        except (pa.ArrowException, OSError, TypeError, ValueError, KeyError) as error:
            what = "can't go on behind this part: it isn't a readable log"
            raise RecordError(Problem(what, str(part), "record into another folder")) from error
    return Resumed(clock_origin_us=origin)
