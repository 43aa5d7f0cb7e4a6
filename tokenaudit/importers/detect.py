"""The formats, found by name or by looking at the files, and the files of a format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq

from tokenaudit.contracts.errors import Problem, SourceError, nearest_hint, shown
from tokenaudit.contracts.files import named_twice
from tokenaudit.importers import (
    areal,
    generic,
    nemo_rl,
    nemo_train,
    prime_rl,
    roll,
    skyrl,
    slime,
    tinker,
    trl,
    verl,
    xtuner,
)
from tokenaudit.importers.base import Importer
from tokenaudit.importers.csv_files import csv_names
from tokenaudit.importers.dumps import first_texts
from tokenaudit.importers.files import source_files
from tokenaudit.importers.left_out import Problems
from tokenaudit.importers.packed import CSV_SUFFIXES, LINE_SUFFIXES, first_unreadable, opened, plain_name, plain_suffix
from tokenaudit.importers.table_columns import ColumnPlaces
from tokenaudit.record import json_lines as lines

_IMPORTERS = (
    xtuner.BATCHES, xtuner.BUFFER, xtuner.TRAJECTORIES, areal.IMPORTER, prime_rl.IMPORTER, slime.IMPORTER, verl.TEXTS,
    verl.QUEUE, nemo_rl.IMPORTER, nemo_train.IMPORTER, skyrl.IMPORTER, roll.IMPORTER, tinker.IMPORTER, trl.IMPORTER,
    generic.IMPORTER,
)  # fmt: skip
IMPORTERS: dict[str, Importer] = {importer.name: importer for importer in _IMPORTERS}
"""Formats by name, in the order in which files are matched with them."""

_ALIASES = {"miles": "slime"}
"""Other names of formats: miles writes what slime does."""

_LOOKED_AT = 1000
"""Files of a folder that are opened to detect its format."""


def importer_named(name: str) -> Importer:
    """The importer of a format. Raises a `SourceError` if there is none."""
    importer = IMPORTERS.get(_ALIASES.get(name, name))
    if importer is None:
        raise SourceError(Problem(f"unknown format {shown(name)}", None, nearest_hint(name, IMPORTERS, "formats")))
    return importer


def files_of(
    importer: Importer, paths: Sequence[Path], renamed: Mapping[str, str] | None = None
) -> tuple[list[Path], list[Path]]:
    """The files of a format behind paths, in order, and the files of folders that are something else.

    Files that were named are taken at their word.

    Args:
        importer: the format.
        paths: files and folders.
        renamed: their names of columns by ours, for generic tables.

    Raises:
        SourceError: a path that isn't there, a file that is named twice, or nothing to import.
    """
    kept: list[Path] = []
    passed_over: list[Path] = []
    places = ColumnPlaces(renamed or {})
    for path in paths:
        for file in source_files([path], importer.suffixes, passed_over if importer.is_generic else None):
            keys = first_keys(file) if path.is_dir() else frozenset[str]()
            is_table = importer.is_generic and (not keys or places.has_needed(keys))
            fits = not path.is_dir() or is_table or importer.looks_like(plain_name(file), keys)
            (kept if fits else passed_over).append(file)
    if not kept and importer.is_generic:
        # what their columns are and what they lack is said when they are read
        suffixes = {*importer.suffixes}
        kept = [file for file in passed_over if plain_suffix(file) in suffixes]
        passed_over = [file for file in passed_over if plain_suffix(file) not in suffixes]
    if not kept:
        what = f"no file looks like {importer.title}"
        nothing = Problem(what, ", ".join(map(str, paths)), f"its files are {importer.files}")
        raise SourceError(first_unreadable(passed_over[:_LOOKED_AT], importer.suffixes) or nothing)
    unreadable = first_unreadable(kept, importer.suffixes) if importer.is_generic else None
    if unreadable is not None:
        raise SourceError(unreadable)
    twice = Problems()
    for problem in (*named_twice(kept, "dump"), *_packed_twins(kept)):
        twice.add(problem)
    if twice.count:
        raise SourceError(twice.all())
    return kept, passed_over


def _packed_twins(files: Sequence[Path]) -> Iterator[Problem]:
    """Compressed files that stand beside what they unpack to: their rows would count twice."""
    there = set(files)
    for file in files:
        plain = plain_name(file)
        if plain != file and plain in there:
            what = f"the file is there unpacked too, as {shown(plain.name)}"
            yield Problem(what, str(file), "move one of them away, or name the files that count")


def detected(paths: Sequence[Path]) -> Importer:
    """The format that files look like.

    Raises:
        SourceError: none, or more than one.
    """
    suffixes = sorted({suffix for importer in IMPORTERS.values() for suffix in importer.suffixes})
    found: Counter[str] = Counter()
    looked_at = source_files(paths, suffixes)[:_LOOKED_AT]
    for path in looked_at:
        keys = first_keys(path)
        name = next((name for name, importer in IMPORTERS.items() if importer.looks_like(plain_name(path), keys)), None)
        if name is not None:
            found[name] += 1
    where = ", ".join(map(str, paths))
    if not found:
        hint = "tokenaudit import --list names the formats; --from generic reads any table with --map theirs=ours"
        unknown = Problem("the files look like no known format", where, hint)
        raise SourceError(first_unreadable(looked_at, suffixes) or unknown)
    if len(found) > 1:
        counts = ", ".join(f"{name} ({count} file{'s' * (count > 1)})" for name, count in found.most_common())
        raise SourceError(Problem(f"the files look like several formats: {counts}", where, "choose one with --from"))
    return IMPORTERS[next(iter(found))]


def first_keys(path: Path) -> frozenset[str]:
    """The keys of the first object of a JSON file, columns of a CSV or Parquet file, first texts of a dump."""
    suffix = plain_suffix(path)
    if suffix in (".pt", ".pth", ".pkl"):
        return first_texts(path)
    try:
        if suffix == ".parquet":
            return frozenset(pq.read_schema(path).names)
        if suffix in LINE_SUFFIXES:
            with opened(path) as stream:
                return frozenset(_first_keys_of_lines(stream, suffix))
    except (OSError, EOFError, ValueError, RecursionError, NotImplementedError, SourceError):
        pass
    return frozenset()


def _first_keys_of_lines(stream: IO[bytes], suffix: str) -> Iterable[str]:
    head = stream.readline(lines.MAX_LINE_BYTES)
    if suffix in CSV_SUFFIXES:
        return csv_names(head)
    data = json.loads(head if head.strip() != b"{" else head + _rest_of_object(stream))
    return data if isinstance(data, dict) else ()


def _rest_of_object(stream: IO[bytes]) -> bytearray:
    rest = bytearray()
    while line := stream.readline(1 << 20):
        rest += line
        if line.startswith(b"}") or len(rest) > 1 << 24:
            break
    return rest
