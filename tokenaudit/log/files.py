"""Rollout logs and workloads on disk: which files make one, and what they hold."""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import LogError, Problem, plural
from tokenaudit.contracts.files import OTHER_TABLES, import_hint, named_twice, read_bounded
from tokenaudit.contracts.schema import (
    COLUMNS,
    META_CONFIG,
    META_DROPPED,
    META_LIMITS,
    META_MISSING_PARTS,
    META_MISSING_RANKS,
    META_REJECTED,
    META_SOURCE,
    WORKLOAD_COLUMNS,
    Column,
)
from tokenaudit.log.absent_columns import (
    MOST_NAMED,
    has_workload_columns,
    lacking_files,
    missing_columns,
    short_name,
    suggested_columns,
)
from tokenaudit.log.columns import Int64s
from tokenaudit.log.log_file import LogFile, open_file
from tokenaudit.log.losses import Loss, loss_text, lost_parts, lost_ranks, missing_parts
from tokenaudit.log.merged_order import MergedOrder, merged_order
from tokenaudit.log.ranks import (
    RANK_METADATA,
    file_rank,
    last_step_notes,
    missing_ranks,
    present_ranks,
    rank_problems,
    ranks_text,
    whole_number,
)

MAX_LIMITS = 50
"""Sentences about what a log's source leaves out that are repeated; a crafted file could hold any number."""


@dataclass(frozen=True, slots=True)
class Log:
    """A log whose files were found and whose footers were read.

    Attributes:
        name: name for reports, without folders.
        files: its files in reading order.
        rows: rows in all files.
        columns: columns of the schema that at least one file has, in schema order.
        metadata: what the files say of the whole, by key.
        notes: what a person should know about it: columns that another name would make count, configs that differ
            between files.
        limits: what its source leaves out, and which questions it therefore can't answer.
        unread: its columns that the schema doesn't know, but for those in the notes. They change no result, so that
            none says so; who reads a log for the first time should see them.
        lost_events: events of the run that its recorder didn't write, by the metadata key that counts them.
        missing_ranks: ranks of the run that wrote no part, in words.
        missing_parts: parts of a recording that are gone, in words.
        order: the order of its rows, where its files are those of several ranks.
    """

    name: str
    files: tuple[LogFile, ...]
    rows: int
    columns: tuple[str, ...]
    metadata: Mapping[str, str]
    notes: tuple[str, ...]
    limits: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    lost_events: Mapping[str, int] = field(default_factory=dict)
    missing_ranks: tuple[str, ...] = ()
    missing_parts: tuple[str, ...] = ()
    order: MergedOrder | None = None

    def __repr__(self) -> str:
        return f"Log({self.name}: {plural(self.rows, 'row')}, files: {len(self.files)}, columns: {len(self.columns)})"

    @property
    def config_json(self) -> str | None:
        """The run's own config; None if there is none."""
        return self.metadata.get(META_CONFIG)

    @property
    def unread_notes(self) -> tuple[str, ...]:
        """A sentence that names the columns `unread`, if there are any."""
        if not self.unread:
            return ()
        names = ", ".join(map(short_name, self.unread[:MOST_NAMED]))
        more = len(self.unread) - MOST_NAMED
        return (f"columns not read, since the schema doesn't know them: {names}" + f" and {more} more" * (more > 0),)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What it lacks of its run."""
        events = (Loss(key, count, loss_text(key, count)) for key, count in self.lost_events.items())
        return (*events, *map(lost_ranks, self.missing_ranks), *map(lost_parts, self.missing_parts))

    @property
    def loss_texts(self) -> tuple[str, ...]:
        """The same in sentences."""
        return tuple(loss.text for loss in self.losses)

    @property
    def rank_notes(self) -> tuple[str, ...]:
        """Which ranks' parts are merged, where each ends, and how well their clocks agree; nothing without ranks."""
        if self.order is None:
            return ()
        ranks = present_ranks(file.rank for file in self.files if file.rank is not None)
        merged = f"parts of {plural(len(ranks), 'rank')} are merged: {ranks_text(ranks)}"
        return (merged, *last_step_notes(self.order.last_steps), *self.order.notes)

    @property
    def row_ranks(self) -> Int64s | None:
        """The rank that recorded each row, of shape [rows]; None for a log of one recorder."""
        if self.order is None:
            return None
        return np.array([file.rank.rank if file.rank else 0 for file in self.files], dtype=np.int64)[self.order.file]

    def with_files(self, files: Sequence[LogFile]) -> Log:
        """The same log without its other files.

        Raises:
            LogError: the files that are left can't be merged.
        """
        order = None if self.order is None else merged_order(files)
        present = {name for file in files for name in file.columns}
        return replace(
            self,
            files=tuple(files),
            rows=sum(file.rows for file in files) if order is None else len(order.row),
            columns=tuple(name for name in self.columns if name in present),
            order=order,
        )

    @property
    def source(self) -> str | None:
        """What wrote it, if it says so."""
        return self.metadata.get(META_SOURCE)


def open_log(paths: Sequence[Path], *, without: Set[Path] = frozenset()) -> Log:
    """Find the files of a log and read their footers.

    Args:
        paths: files, folders (every `*.parquet` below them) or glob patterns; folders and patterns in name order.
        without: files among them that are left out, as they can't be read.

    Raises:
        LogError: nothing found, a file that can't be read, columns that are missing or of an unknown type, or no
            row at all; all such problems at once.
    """
    return _open(paths, COLUMNS, without)


def open_workload(paths: Sequence[Path]) -> Log:
    """Find the files of a workload and read their footers; see `open_log`."""
    return _open(paths, WORKLOAD_COLUMNS)


def is_workload(paths: Sequence[Path]) -> bool:
    """Whether the first file that can be read has the columns of a workload and not those of a log."""
    for path in log_files(paths):
        try:
            # Opening a pipe would wait for somebody to write to it.
            if not path.is_file():
                continue
            names = pq.read_schema(path).names
        except (pa.ArrowException, OSError):
            continue
        return has_workload_columns(names)
    return False


def looks_like_log(path: Path) -> bool:
    """Whether a path names Parquet, by its name or by how the file begins, or a folder with Parquet files."""
    try:
        if path.is_dir():
            return bool(log_files([path]))
        return path.suffix.lower() == ".parquet" or read_bounded(path, 4) == b"PAR1"
    except OSError:
        return False


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The files that paths name, in reading order; paths that name none are passed over."""
    return [file for path in paths for file in _expand(path)[0]]


def _expand(path: Path) -> tuple[list[Path], Problem | None]:
    """The files behind one path argument, or why there are none."""
    try:
        return _found(path)
    except (OSError, RuntimeError, ValueError) as error:
        # Names too long or not encodable, loops of links, folders that may not be entered.
        what = f"can't look there: {getattr(error, 'strerror', None) or error}"
        return [], Problem(what, str(path), "check the path and its permissions")


def _found(path: Path) -> tuple[list[Path], Problem | None]:
    text = str(path)
    if path.is_dir():
        below = (file for file in path.rglob("*.parquet") if file.is_file())
        hidden = (".", "_")
        files = [file for file in below if not any(part.startswith(hidden) for part in file.relative_to(path).parts)]
        files.sort(key=lambda file: file.relative_to(path).parts)
        if files:
            return files, None
        others = any(file.suffix.lower() in OTHER_TABLES for file in path.rglob("*"))
        hint = import_hint(path) if others else "name the folder the log was written to"
        return [], Problem("the folder holds no *.parquet file", text, hint)
    if path.exists():
        return [path], None
    if glob.has_magic(text):
        matches = sorted(Path(match) for match in glob.glob(text, recursive=True))  # noqa: PTH207 - may be absolute
        files = [match for match in matches if match.is_file()]
        if files:
            return files, None
        return [], Problem("the pattern matches no file", text, "quote it, and check it with ls")
    parent = path.parent
    try:
        neighbours = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    except OSError:
        neighbours = []
    close = get_close_matches(path.name, neighbours, n=1)
    hint = f"did you mean {parent / close[0]}?" if close else "give a Parquet file, a folder or a glob pattern"
    return [], Problem("there is no such file or folder", text, hint)


def _open(paths: Sequence[Path], table: Sequence[Column], without: Set[Path] = frozenset()) -> Log:
    found = [_expand(path) for path in paths]
    problems = [problem for _, problem in found if problem is not None]
    known = {column.name: column for column in table}
    files: list[LogFile] = []
    notes: list[str] = []
    metadata: dict[str, str] = {}
    limits: dict[str, None] = {}
    lost: Counter[str] = Counter()
    missing: dict[str, None] = {}
    gone = dict.fromkeys([missing_parts((path, group) for path, (group, _) in zip(paths, found, strict=True))])
    unknown: dict[str, None] = {}
    listed = [path for group, _ in found for path in group if path not in without]
    problems.extend(named_twice(listed, "log"))
    for path in listed:
        opened = open_file(path, known, problems)
        if opened is None:
            continue
        file, names, file_metadata = opened
        rank = file_rank(path, file_metadata, problems) if table is COLUMNS else None
        for key in RANK_METADATA:
            file_metadata.pop(key, None)
        files.append(file._replace(rank=rank))
        unknown.update(dict.fromkeys(name for name in names if name not in known))
        limits.update(dict.fromkeys(_limits(file_metadata.pop(META_LIMITS, "[]"))))
        missing.update(dict.fromkeys(filter(None, [file_metadata.pop(META_MISSING_RANKS, "")])))
        gone.update(dict.fromkeys([file_metadata.pop(META_MISSING_PARTS, "")]))
        for key in (META_DROPPED, META_REJECTED):
            lost[key] += whole_number(key, file_metadata.pop(key, "0"), path, problems)
        for key, value in file_metadata.items():
            if metadata.setdefault(key, value) != value:
                notes.append(f"{path.name}: {key} differs from the files before it; the first one counts")
    present = {name for file in files for name in file.columns}
    if not problems:
        problems.extend(missing_columns(files[0].path, table, present, unknown))
        problems.extend(lacking_files(files, table, present))
    if not problems:
        problems.extend(rank_problems([(file.path, file.rank) for file in files]))
    ranks = [file.rank for file in files if file.rank is not None]
    order = merged_order(files) if ranks and not problems else None
    rows = sum(file.rows for file in files) if order is None else len(order.row)
    if not problems and rows == 0:
        empty, hint = ("workload", "a response") if table is WORKLOAD_COLUMNS else ("log", "record at least one put")
        problems.append(Problem(f"the {empty} has no row", str(files[0].path), hint))
    if problems:
        raise LogError(problems)
    suggestions = suggested_columns(known, present, unknown)
    suggested = [
        f"column {short_name(name)!r} is not read; did you mean {likely!r}?" for name, likely in suggestions.items()
    ]
    return Log(
        name=", ".join(path.name or str(path) for path in paths),
        files=tuple(files),
        rows=rows,
        columns=tuple(column.name for column in table if column.name in present),
        metadata=metadata,
        notes=(*suggested, *notes),
        limits=(*(order.notes if order else ()), *limits)[:MAX_LIMITS],
        unread=tuple(name for name in unknown if name not in suggestions),
        lost_events={key: count for key, count in lost.items() if count},
        missing_ranks=tuple(dict.fromkeys(filter(None, [missing_ranks(ranks), *missing])))[:MAX_LIMITS],
        missing_parts=tuple(filter(None, gone))[:MAX_LIMITS] if table is COLUMNS else (),
        order=order,
    )


def _limits(text: str) -> list[str]:
    """The sentences in the metadata; nothing if it isn't a JSON list of texts."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
