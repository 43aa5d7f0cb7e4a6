"""What importers share: the events they make, how well versions are known, faults, and what a source leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenaudit.contracts.errors import Problem, SourceError
from tokenaudit.contracts.schema import DEFAULT_TASK, Precision
from tokenaudit.importers.left_out import Problems, TooOld
from tokenaudit.importers.repeats import Keep, Repeats, Writing
from tokenaudit.importers.shapes import Shape
from tokenaudit.log.writer import Row
from tokenaudit.record.limits import LACK_OF, Lack

if TYPE_CHECKING:
    from _collections_abc import dict_items


@dataclass(frozen=True, slots=True)
class ImportedPut:
    """A group as the source records it.

    Attributes:
        train_step: the step it was put in, or trained in where the source records nothing else.
        task_name: its task.
        group_id: its group.
        rows: its responses, as log columns; each may name its own `model_step`.
        where: file and line it begins with.
        writing: which writing of what it belongs to, so that what is written twice counts once; None: it can't be told.
    """

    train_step: int
    task_name: str
    group_id: int
    rows: list[Row]
    where: str
    writing: Writing | None = None


@dataclass(frozen=True, slots=True)
class ImportedEvent:
    """An event other than a put, as log columns, the file and line it comes from, and its writing like a put's."""

    values: Row
    where: str
    writing: Writing | None = None


Imported = ImportedPut | ImportedEvent


class FieldFault(ValueError):
    """A record that can't be read: what is wrong with it, and what to do."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        self.what = what
        self.hint = hint
        super().__init__(what)

    def problem(self, where: str) -> Problem:
        """The same for a person, with the place of the record."""
        return Problem(self.what, where, self.hint)


class TooOldFault(FieldFault):
    """A record with a version that lies before the initial weights.

    Attributes:
        version: that version, as the source counts.
    """

    def __init__(self, version: int, initial: int) -> None:
        self.version = version
        hint = f"version {initial} stands for the initial weights; see --version-offset"
        super().__init__(f"version {version} lies outside the run", hint)


class SenselessFile(SourceError):
    """A file that can be read, but whose records can't be told from each other: it is left out as a whole."""


@dataclass(frozen=True, slots=True)
class VersionScale:
    """How the source counts versions.

    Attributes:
        offset: the source's number for the initial weights.
        train_steps: train steps per unit: 1 where the source counts steps, the sync interval where it counts pushes.
    """

    offset: int
    train_steps: int

    def model_step(self, version: int) -> int:
        """Train steps in the weights that the source calls `version`.

        Raises:
            TooOldFault: the version lies before the initial weights.
            FieldFault: it is no number of a version.
        """
        if version < self.offset:
            raise TooOldFault(version, self.offset)
        model_step = (version - self.offset) * self.train_steps
        if model_step >= 2**31:
            raise FieldFault(f"version {version} lies outside the run", f"train steps are below {2**31}")
        return model_step

    def model_steps(self, versions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Like `model_step`, of many versions at once."""
        distinct, places = np.unique(versions, return_inverse=True)
        return np.array([self.model_step(int(version)) for version in distinct], dtype=np.int64)[places]


_MOST_NAMES = 1000
"""Names of columns that are remembered; a crafted file could have any number."""


class Fields(dict[str, Any]):
    """The fields of one record, which note what an importer looks at: all others are left out of the log.

    Args:
        values: the fields.
        used: where names that are looked at are noted.
    """

    __slots__ = ("_used",)

    def __init__(self, values: Mapping[str, Any], used: set[str]) -> None:
        super().__init__(values)
        self._used = used

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field."""
        self._used.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self._used.add(name)
        return super().__getitem__(name)

    def items(self) -> dict_items[str, Any]:
        """All fields: each counts as looked at."""
        self._used.update(self)
        return super().items()


@dataclass(slots=True)
class Context:
    """What an importer is given, and where it collects what it finds.

    Attributes:
        versions: how to read versions.
        task_name: the task of everything, where a person named it.
        renamed: their names by ours, for sources without names of their own.
        keep: which writing is kept of what the source holds more than once.
        is_strict: refuse the import for any record that can't be read, instead of leaving the record out.
        problems: records that can't be read.
        too_old: those of them with versions before the initial weights.
        damaged: files that can't be read, which refuse the import in any case.
        limits: what turned out to be left out, as keys in order.
        names: the columns of the source, in order, as far as they were seen.
        used: the columns that were looked at.
        repeats: what is written more than once.
        left_out_writings: the writings that are passed over when the source is read again.
        advance: called with the number of bytes that were read.
    """

    versions: VersionScale
    task_name: str | None = None
    renamed: dict[str, str] = field(default_factory=dict)
    keep: Keep = Keep.LAST
    is_strict: bool = False
    problems: Problems = field(default_factory=Problems)
    too_old: TooOld = field(default_factory=TooOld)
    damaged: Problems = field(default_factory=Problems)
    limits: dict[str, None] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    repeats: Repeats = field(default_factory=Repeats)
    left_out_writings: frozenset[int] = frozenset()
    advance: Callable[[int], None] = lambda _: None

    def begin_again(self, without: frozenset[int]) -> None:
        """The source is read once more, without some of its writings: what was found before counts no more."""
        self.problems, self.too_old, self.repeats, self.left_out_writings = Problems(), TooOld(), Repeats(), without
        for found in (self.limits, self.names, self.used):
            found.clear()

    def fields(self, values: Mapping[str, Any]) -> Fields:
        """A record of the source, of which it is noted what is looked at."""
        self.note_names(values)
        return Fields(values, self.used)

    def note_names(self, names: Iterable[str]) -> None:
        """Note columns of the source, whether they are read or not."""
        for name in names:
            if name not in self.names and len(self.names) < _MOST_NAMES:
                self.names[name] = None

    @property
    def left_out(self) -> list[str]:
        """The columns of the source that nothing looked at."""
        return [name for name in self.names if name not in self.used]

    def task(self, name: object) -> str:
        """The task that a person named, else the source's, else the default."""
        return self.task_name or (name if isinstance(name, str) and name else DEFAULT_TASK)

    @contextmanager
    def noting(self, where: str) -> Iterator[None]:
        """A record that can't be read is noted with its place, and what is left of the block is passed over."""
        try:
            yield
        except FieldFault as fault:
            self.problems.add(fault.problem(where))
            if isinstance(fault, TooOldFault):
                self.too_old.add(fault.version)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A file that can't be read is noted, and what is left of the block is passed over.

        One that makes no sense as a whole is left out like a record. One that can't be read at all refuses the import,
        but only behind the last file, so that all such files are told at once.
        """
        try:
            yield
        except SenselessFile as error:
            self.problems.add(*error.problems)
        except SourceError as error:
            self.damaged.add(*error.problems)

    def limit(self, what: str) -> None:
        """Note what turned out to be left out."""
        self.limits[what] = None

    def limit_of(self, precision: Precision) -> None:
        """Note what versions of this precision leave out, if anything."""
        if precision in LACK_OF:
            self.limit(LACK_OF[precision])


Reader = Callable[[Sequence[Path], Context], Iterator[Imported]]


def each_file(read: Callable[[Path, Context], Iterator[Imported]]) -> Reader:
    """Reads files one after the other; one that can't be read is noted."""

    def read_all(files: Sequence[Path], context: Context) -> Iterator[Imported]:
        for path in files:
            with context.reading():
                yield from read(path, context)

    return read_all


USUAL_READS = ("group_id", "rollout_id", "status", "response_len", "prompt_len")
"""Columns that most importers fill."""


@dataclass(frozen=True, slots=True)
class Importer:
    """One format.

    Attributes:
        name: as `--from` takes it.
        title: in words.
        files: what its files are called, for people.
        looks_like: whether a file, given with the keys of its first record, is of this format.
        read: reads files into events.
        suffixes: extensions of its files, for folders.
        precisions: how well versions are known from it.
        reads: log columns it fills.
        lacks: what it always leaves out.
        shapes: the files it reads, by trainer and version.
        counts_pushes: whether its versions count weight pushes rather than train steps.
        version_offset: its number for the initial weights.
        is_generic: whether it has no names and units of its own, so that a person may give them.
    """

    name: str
    title: str
    files: str
    looks_like: Callable[[Path, frozenset[str]], bool]
    read: Reader
    suffixes: tuple[str, ...]
    precisions: tuple[Precision, ...]
    reads: tuple[str, ...]
    lacks: tuple[Lack, ...]
    shapes: tuple[Shape, ...] = ()
    counts_pushes: bool = False
    version_offset: int = 0
    is_generic: bool = False
