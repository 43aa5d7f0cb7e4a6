"""Digests kept on disk by the content of their log, so that the next command on a big log starts at once.

An entry is never trusted: it is checked before it is used, and one that is damaged, of another version or not an
entry at all is passed over with a note and written anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit import __version__
from tokenaudit.contracts.errors import LogError, Problem, UsageError
from tokenaudit.contracts.files import replacing
from tokenaudit.log.batches import worker_count
from tokenaudit.log.digest import KINDS, STATUSES, Digest, Events, Responses, VersionRuns
from tokenaudit.log.files import Log
from tokenaudit.log.reading import read_digest
from tokenaudit.log.version_runs import MISSING_VERSION

CACHE_VERSION = 1
"""Version of the entries; others are passed over."""

_META = b"tokenaudit.cache"
_SUFFIX = ".digest"
"""Not that of Parquet, though entries are: a folder of them may lie inside that of a log, and is no part of it."""
_PIECE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_TABLES: dict[str, Any] = {"events": Events, "responses": Responses, "runs": VersionRuns}
_PLAIN = tuple(field.name for field in fields(Digest) if field.name not in (*_TABLES, "log_row"))
_OFFSETS = ("first_response", "first_run")
_SCHEMA = pa.schema({"name": pa.string(), "dtype": pa.string(), "data": pa.binary()})
_OTHER_TYPES = {"reward": "<f8", "agentic": "|b1", "is_first_put": "|b1", "continues_ids": "|i1"}


class DigestCache:
    """A folder of digests.

    Args:
        folder: where they are kept; it is made when it isn't there.
        on_note: called with what a person should know, such as an entry that is passed over.
    """

    def __init__(self, folder: Path, on_note: Callable[[str], None]) -> None:
        self._folder = folder
        self._on_note = on_note

    def read_digest(
        self,
        log: Log,
        *,
        quarantine: bool = False,
        allow_missing_versions: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> Digest:
        """The digest of a log, from the cache or made and kept; arguments and errors as for `reading.read_digest`."""
        try:
            content = _content_hash(log)
        except OSError as error:
            what = f"can't read the file again: {error.strerror or error}"
            raise LogError(Problem(what, str(error.filename), "don't change a log while it is read")) from error
        strict = self._entry(content, False, False)
        own = self._entry(content, quarantine, allow_missing_versions)
        for path in dict.fromkeys((strict, own)):
            digest = self._load(path)
            if digest is not None:
                return replace(digest, name=log.name)
        digest = read_digest(
            log, quarantine=quarantine, allow_missing_versions=allow_missing_versions, on_progress=on_progress
        )
        # a log that is whole without the options has the same digest with them
        is_whole = not digest.faults and not (digest.runs.model_step == MISSING_VERSION).any()
        self._keep(strict if is_whole else own, digest)
        return digest

    def _entry(self, content: str, quarantine: bool, allow_missing_versions: bool) -> Path:
        key = f"{CACHE_VERSION} {__version__} {content} {quarantine} {allow_missing_versions}"
        return self._folder / f"{hashlib.blake2b(key.encode(), digest_size=20).hexdigest()}{_SUFFIX}"

    def _load(self, path: Path) -> Digest | None:
        try:
            if not path.exists():
                return None
            return _decoded(pq.read_table(path, use_threads=False))
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
            self._on_note(f"note: {path} is passed over and made anew: {str(error).splitlines()[0]}")
            return None

    def _keep(self, path: Path, digest: Digest) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                pq.write_table(_encoded(digest), file, compression="zstd", use_dictionary=False)
        except OSError as error:
            self._on_note(f"note: the digest isn't kept in {self._folder}: {error.strerror or error}")
        except UsageError as error:
            self._on_note(f"note: the digest isn't kept in {self._folder}: {error.summary}")


def _content_hash(log: Log) -> str:
    """Hash of the bytes of all files, in order: of the hashes of their pieces, which threads make."""
    pieces = [(file.path, begin) for file in log.files for begin in range(0, file.path.stat().st_size, _PIECE_BYTES)]
    with ThreadPoolExecutor(worker_count()) as pool:
        return hashlib.sha256(b"".join(pool.map(_piece_hash, pieces))).hexdigest()


def _piece_hash(piece: tuple[Path, int]) -> bytes:
    """Hash of a piece of a file and its length."""
    path, begin = piece
    made = hashlib.sha256()
    left = _PIECE_BYTES
    with path.open("rb") as file:
        file.seek(begin)
        while left and (chunk := file.read(min(_CHUNK_BYTES, left))):
            made.update(chunk)
            left -= len(chunk)
    return made.digest() + (_PIECE_BYTES - left).to_bytes(8, "little")


def _arrays(digest: Digest) -> dict[str, np.ndarray[Any, Any]]:
    named = {
        f"{table}.{name}": getattr(getattr(digest, table), name)
        for table, kind in _TABLES.items()
        for name in kind._fields
    }
    return named | {"log_row": digest.log_row}


def _dtype(name: str) -> str:
    """The type an array has on disk and in memory."""
    table, _, column = name.rpartition(".")
    return "<i4" if table == "runs" else _OTHER_TYPES.get(column, "<i8")


def _encoded(digest: Digest) -> pa.Table:
    arrays = {name: np.ascontiguousarray(array, dtype=_dtype(name)) for name, array in _arrays(digest).items()}
    data = [array.tobytes() for array in arrays.values()]
    plain = json.dumps({name: getattr(digest, name) for name in _PLAIN})
    table = pa.table({"name": list(arrays), "dtype": [_dtype(name) for name in arrays], "data": data}, schema=_SCHEMA)
    meta = {"version": CACHE_VERSION, "plain": plain, "checksum": _checksum(plain, list(arrays), data)}
    return table.replace_schema_metadata({_META: json.dumps(meta)})


def _checksum(plain: str, names: list[str], data: list[bytes]) -> str:
    checksum = hashlib.blake2b(plain.encode(), digest_size=32)
    for name, content in zip(names, data, strict=True):
        checksum.update(f"\n{name} {len(content)}\n".encode())
        checksum.update(content)
    return checksum.hexdigest()


def _decoded(table: pa.Table) -> Digest:
    """The digest in an entry.

    Raises:
        ValueError, TypeError, KeyError: it is no entry of this version, or damaged.
    """
    meta = json.loads((table.schema.metadata or {}).get(_META, b"null"))
    if not isinstance(meta, dict) or meta.get("version") != CACHE_VERSION:
        raise ValueError("not a digest of this version")
    if table.schema.remove_metadata() != _SCHEMA:
        raise ValueError("other columns than a digest has")
    names, data = table["name"].to_pylist(), table["data"].to_pylist()
    if meta["checksum"] != _checksum(meta["plain"], names, data):
        raise ValueError("the checksum differs")
    arrays = {name: np.frombuffer(content, _dtype(name)) for name, content in zip(names, data, strict=True)}
    parts = {
        table_name: kind(**{name: arrays[f"{table_name}.{name}"] for name in kind._fields})
        for table_name, kind in _TABLES.items()
    }
    plain = json.loads(meta["plain"])
    digest = Digest(**{**plain, "tasks": tuple(plain["tasks"])}, **parts, log_row=arrays["log_row"])
    _check(digest)
    return digest


def _check(digest: Digest) -> None:
    """Refuse arrays that don't fit together, so that no index leads nowhere."""
    events, responses, runs = digest.events, digest.responses, digest.runs
    for table in (events, responses, runs):
        lengths = {len(getattr(table, name)) for name in table._fields if name not in _OFFSETS}
        if len(lengths) != 1:
            raise ValueError("arrays of different lengths")
    for offsets, entries, total in (
        (events.first_response, len(events.kind), len(responses.tokens)),
        (responses.first_run, len(responses.tokens), len(runs.tokens)),
    ):
        rises = len(offsets) == entries + 1 and bool((np.diff(offsets) >= 0).all())
        if not rises or offsets[0] != 0 or offsets[-1] != total:
            raise ValueError("offsets that lead nowhere")
    for codes, limit in (
        (events.kind, len(KINDS)),
        (events.task, len(digest.tasks)),
        (responses.status, len(STATUSES)),
        (responses.previous, len(responses.tokens)),
    ):
        if len(codes) and (codes.min() < -1 or codes.max() >= limit):
            raise ValueError("a code that stands for nothing")
    if len(digest.log_row) != len(responses.tokens):
        raise ValueError("arrays of different lengths")
