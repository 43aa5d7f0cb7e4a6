"""Read what `torch.save` wrote without torch, and without ever running or importing what a file asks for.

Its pickle runs in `machine.py`: names are never looked up. Long lists, long texts and tensors are lazy: they stay in
the file until they are asked for. Everything is bounded: objects, nesting, and what is read by what the file can hold.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, cast

from tokenaudit.importers.pickles.arrays import (
    BFLOAT16,
    LazyArray,
    element_bytes,
    jagged_array,
    last_element,
    tensor_shape,
)
from tokenaudit.importers.pickles.machine import Machine
from tokenaudit.importers.pickles.source import Source, unreadable
from tokenaudit.importers.pickles.values import GlobalName, Limits, OpaqueObject, PickleFault

_MAX_ENTRIES = 250_000
"""Entries that an archive may have; reading them takes seconds."""
_MAX_DIRECTORY = 256 * _MAX_ENTRIES
"""Bytes that the list of the entries may take."""
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


class _BoundedDirectory:
    """The file of an archive, for `zipfile`: its list of entries, which is read in one piece, is bounded before use.

    Args:
        file: the file.
        fault: makes an error of what is wrong.
    """

    def __init__(self, file: BinaryIO, fault: Callable[[str], Exception]) -> None:
        self._file = file
        self._fault = fault
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Like `BinaryIO.read`. Raises the fault for more than an archive may list."""
        if size > _MAX_DIRECTORY:
            raise self._fault(f"a list of entries of {size} bytes in the archive")
        data = self._file.read(size)
        entries = data.count(_ENTRY)
        if entries > _MAX_ENTRIES:
            raise self._fault(f"{entries} entries in the archive, where up to {_MAX_ENTRIES} are read")
        return data


class TorchFile:
    """A file of `torch.save`; use it as a context manager, and as long as values from it are wanted.

    Raises:
        SourceError: it isn't such a file, or is damaged.
    """

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            self.source = Source(path, self._file)
            self._entries = self._read_entries()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def load(self) -> Any:
        """The object in the file: plain values, `LazyList`s, arrays, `OpaqueObject`s, and what is lazy beside.

        Raises:
            SourceError: the pickle is damaged, uses what a data file has no need of, or exceeds the limits.
        """
        start, size = self._pickle_span()
        try:
            return Machine(self.source, start, size, self._limits, self._persistent, self._rebuild).run()
        except PickleFault as fault:
            raise self.source.fault(str(fault)) from fault
        except (ValueError, TypeError, OverflowError) as error:
            raise self.source.fault(f"the pickle is damaged: {error}"[:200]) from error
        except (MemoryError, RecursionError) as error:
            raise self.source.fault("the file asks for more memory than it should") from error

    def head(self, size: int) -> bytes:
        """The beginning of the pickle. Raises a `SourceError` if the file is damaged."""
        start, length = self._pickle_span()
        return self.source.read(start, min(size, length))

    def _pickle_span(self) -> tuple[int, int]:
        try:
            return self._span(self._prefix + "data.pkl")
        except PickleFault as fault:
            raise self.source.fault(str(fault)) from fault

    def _read_entries(self) -> dict[str, _Entry]:
        """The entries by name."""
        try:
            with zipfile.ZipFile(cast(BinaryIO, _BoundedDirectory(self._file, self.source.fault))) as archive:
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
        if not 0 <= entry.header <= self.source.size - 30:
            raise PickleFault(f"the entry {name!r:.80} is damaged")
        header = self.source.read(entry.header, 30)
        if header[:4] != b"PK\x03\x04":
            raise PickleFault(f"the entry {name!r:.80} is damaged")
        name_size, extra_size = struct.unpack("<HH", header[26:30])
        start = entry.header + 30 + name_size + extra_size
        if start + entry.size > self.source.size:
            raise PickleFault(f"the entry {name!r:.80} reaches behind the end of the file")
        return start, entry.size

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
