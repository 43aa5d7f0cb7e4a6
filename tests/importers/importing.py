"""Files of other frameworks, written by hand from their documented fields, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from tokenaudit import replay_log
from tokenaudit.importers.answers import Imports
from tokenaudit.importers.base import Context, VersionScale
from tokenaudit.importers.detect import files_of, importer_named
from tokenaudit.importers.repeats import Keep
from tokenaudit.importers.write import import_log
from tokenaudit.replay.result import Result

ROW = {"group_id": 1, "train_step": 1, "response_len": 5, "model_step": 0}
"""A response of a table of one's own."""


class Imported(NamedTuple):
    """A log that was imported: its path, what was read, and its rows."""

    path: Path
    imports: Imports
    rows: list[dict[str, Any]]

    def column(self, name: str) -> list[Any]:
        """Values of the put rows."""
        return [row[name] for row in self.rows if row["event"] == "put"]

    def replayed(self, *overrides: str) -> Result:
        return replay_log(self.path, overrides=overrides, isolated=True, with_groups=True).result


def jsonl(path: Path, *records: Mapping[str, Any] | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    return path


def imported(
    name: str,
    source: Path,
    renamed: dict[str, str] | None = None,
    offset: int | None = None,
    interval: int = 1,
    keep: Keep = Keep.LAST,
    is_strict: bool = False,
) -> Imported:
    """Import a folder or file into `log.parquet` beside it."""
    importer = importer_named(name)
    scale = VersionScale(importer.version_offset if offset is None else offset, interval)
    context = Context(scale, None, renamed or {}, keep, is_strict)
    files, _ = files_of(importer, [source], renamed)
    path = source.parent / "log.parquet"
    imports = import_log(importer, files, context, path)
    return Imported(path, imports, pq.read_table(path).to_pylist())


def total(result: Result, *names: str) -> list[Any]:
    return [result.totals[name] for name in names]


def trained(log: Imported) -> list[int | None]:
    """Tokens of each response that the trainer's mask keeps; None where there is no mask."""
    return [None if mask is None else sum(mask) for mask in log.column("trained_mask")]
