"""The archives that `torch.save` writes: where their entries lie in a file, and their tensors; without torch.

The pickle of an archive runs in `machine.py`: names are never looked up. An archive may be all of a file or lie in one.
"""

from __future__ import annotations

import os
import struct
import zipfile
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple, cast

from tokenaudit.importers.pickles.arrays import (
    BFLOAT16,
    LazyArray,
    element_bytes,
    jagged_array,
    last_element,
    tensor_shape,
)
from tokenaudit.importers.pickles.machine import run_pickle
from tokenaudit.importers.pickles.source import Source
from tokenaudit.importers.pickles.values import GlobalName, Limits, OpaqueObject, PickleFault

_MAX_ENTRIES = 250_000
"""Entries that an archive may have; reading them takes seconds."""
_ENTRY_BYTES = 256
"""Bytes that an entry may take in the list of the entries."""
_ENTRY = b"PK\x01\x02"
"""How an entry of that list begins."""
_MAX_NAME = 4096

_WITH_ATTRIBUTES = "torch._tensor._rebuild_from_type_v2"
_JAGGED = "torch.nested._internal.nested_tensor._rebuild_njt"
_NESTED = "torch._utils._rebuild_nested_tensor"
"""What rebuilds a tensor with attributes, a nested tensor with the layout `torch.jagged`, and one with strides."""

_KINDS: dict[str, str] = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": BFLOAT16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}


class _Storage(NamedTuple):
    """Where the numbers of a tensor lie; they are looked at when a tensor is rebuilt from them."""

    kind: str
    key: str
    elements: int


class _Entry(NamedTuple):
    """An entry of the archive: where its header lies, its bytes, and whether they are stored as they are."""

    header: int
    size: int
    is_plain: bool


class _Window:
    """The bytes of an archive, for `zipfile`: its list of entries, which is read in one piece, is bounded before use.

    Args:
        source: the file.
        start: where the archive begins.
        size: its bytes.
        most: entries that it may list.
    """

    def __init__(self, source: Source, start: int, size: int, most: int) -> None:
        self._source = source
        self._start = start
        self._size = size
        self._most = most
        self._at = 0

    def seekable(self) -> bool:
        """Like `BinaryIO.seekable`."""
        return True

    def tell(self) -> int:
        """Like `BinaryIO.tell`."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Like `BinaryIO.seek`."""
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError("a place before the archive")
        self._at = at
        return at

    def read(self, size: int = -1) -> bytes:
        """Like `BinaryIO.read`. Raises a `SourceError` for more than an archive may list."""
        left = max(self._size - self._at, 0)
        if size > _ENTRY_BYTES * self._most:
            raise self._source.fault(f"a list of entries of {size} bytes in the archive")
        data = self._source.read(self._start + self._at, left if size < 0 else min(size, left))
        self._at += len(data)
        entries = data.count(_ENTRY)
        if entries > self._most:
            raise self._source.fault(f"{entries} entries in the archive, where up to {self._most} are read")
        return data


class TorchArchive:
    """What `torch.save` wrote: `size` bytes of a file from `start` on, with up to `most` entries.

    Raises:
        SourceError: it isn't such an archive, or is damaged.
    """

    def __init__(self, source: Source, start: int, size: int, limits: Limits, most: int = _MAX_ENTRIES) -> None:
        self.source = source
        self._start = start
        self._size = size
        self._limits = limits
        self._entries = self._read_entries(most)

    def load(self) -> Any:
        """The object in it: plain values, `LazyList`s, arrays, `OpaqueObject`s, and what is lazy beside.

        Raises:
            SourceError: the pickle is damaged, uses what a data file has no need of, or exceeds the limits.
        """
        start, size = self._pickle_span()
        return run_pickle(self.source, start, size, self._limits, self._persistent, self._rebuild)

    def head(self, size: int) -> bytes:
        """The beginning of the pickle. Raises a `SourceError` if the file is damaged."""
        start, length = self._pickle_span()
        return self.source.read(start, min(size, length))

    def _pickle_span(self) -> tuple[int, int]:
        try:
            return self._span(self._prefix + "data.pkl")
        except PickleFault as fault:
            raise self.source.fault(str(fault)) from fault

    def _read_entries(self, most: int) -> dict[str, _Entry]:
        """The entries by name."""
        window = _Window(self.source, self._start, self._size, most)
        try:
            with zipfile.ZipFile(cast(BinaryIO, window)) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
            raise self.source.fault(f"not a file of torch.save: {error}") from error
        names = [info.filename for info in infos if len(info.filename) < _MAX_NAME]
        pickles = [name for name in names if name.endswith("data.pkl")]
        if len(pickles) != 1:
            raise self.source.fault(f"not a file of torch.save: {len(pickles)} entries named data.pkl")
        self._prefix = pickles[0].removesuffix("data.pkl")
        return {info.filename: _Entry(info.header_offset, info.file_size, _is_plain(info)) for info in infos}

    def _span(self, name: str) -> tuple[int, int]:
        """Where the bytes of an entry lie in the file; only uncompressed ones, so that none is larger than the file."""
        entry = self._entries.get(name)
        if entry is None:
            raise PickleFault(f"the archive has no entry {name!r:.80}")
        if not entry.is_plain:
            raise PickleFault(f"the entry {name!r:.80} is compressed, which torch.save never does")
        if not 0 <= entry.header <= self._size - 30:
            raise PickleFault(f"the entry {name!r:.80} is damaged")
        header = self.source.read(self._start + entry.header, 30)
        if header[:4] != b"PK\x03\x04":
            raise PickleFault(f"the entry {name!r:.80} is damaged")
        name_size, extra_size = struct.unpack("<HH", header[26:30])
        start = entry.header + 30 + name_size + extra_size
        if start + entry.size > self._size:
            raise PickleFault(f"the entry {name!r:.80} reaches behind the end of the file")
        return self._start + start, entry.size

    def _persistent(self, reference: Any) -> Any:
        """A storage: ("storage", kind, key, device, number of elements)."""
        if not isinstance(reference, tuple) or len(reference) != 5 or reference[0] != "storage":
            raise PickleFault("a persistent id that is no storage")
        _, kind, key, _, count = reference
        name = getattr(kind, "name", "").rpartition(".")[2]
        if not isinstance(key, str) or isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise PickleFault("a storage without key and size")
        return _Storage(name, key, count)

    def _rebuild(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """A tensor from its storage, offset, size and stride; `NotImplemented` for any other name."""
        if name == "torch._utils._rebuild_parameter" and arguments:
            return arguments[0]
        if name == _WITH_ATTRIBUTES and len(arguments) == 4 and isinstance(arguments[2], tuple):
            # a tensor with attributes, or of a subclass: what rebuilds it, its class, the arguments, the attributes
            function, _, arguments, _ = arguments
            name = function.name if isinstance(function, GlobalName) else ""
        if name == _JAGGED and len(arguments) == 1 and isinstance(arguments[0], dict):
            parts = arguments[0]
            if parts.get("_ragged_idx", 1) != 1:
                return OpaqueObject("torch.nested")
            return jagged_array(*(parts.get(part) for part in ("values", "offsets", "lengths")))
        if name == _NESTED and len(arguments) == 4:
            values, sizes, _, offsets = arguments
            if not isinstance(sizes, LazyArray) or sizes.ndim != 2 or sizes.shape[1] != 1:
                return OpaqueObject("torch.nested")
            return jagged_array(values, offsets, replace(sizes, shape=sizes.shape[:1], strides=sizes.strides[:1]))
        if name not in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"):
            return NotImplemented
        if len(arguments) < 4 or not isinstance(arguments[0], _Storage):
            raise PickleFault("a tensor without a storage")
        return self._tensor(*arguments[:4])

    def _tensor(self, storage: _Storage, offset: Any, size: Any, stride: Any) -> LazyArray | OpaqueObject:
        """The tensor; one of complex numbers, say, is opaque: nothing can be read from it."""
        kind = _KINDS.get(storage.kind)
        if kind is None:
            return OpaqueObject(f"torch.{storage.kind}")
        shape, strides = tensor_shape(size, stride)
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise PickleFault("a tensor whose shape makes no sense")
        start, length = self._span(f"{self._prefix}data/{storage.key}")
        width = element_bytes(kind)
        if offset < 0 or (0 not in shape and offset + last_element(shape, strides) >= length // width):
            raise PickleFault("a tensor that reaches behind its storage")
        return LazyArray(self.source, start + offset * width, kind, shape, strides)


def _is_plain(info: zipfile.ZipInfo) -> bool:
    return info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
