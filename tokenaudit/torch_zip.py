"""Read what `torch.save` wrote without torch, and without ever running or importing what a file asks for.

A pickle is a program, so it is interpreted here by an interpreter of our own that knows the few instructions a plain
data file needs. Names of classes and functions are never looked up: a handful that rebuild tensors, arrays and
containers are recognised by name and done here, all others become inert `Record`s. Tensors are numpy views of the
mapped file. Everything is bounded: instructions, nesting, tables, and sizes by what the file really holds.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from tokenaudit.errors import Problem, SourceError
from tokenaudit.pickle_machine import Machine
from tokenaudit.pickled import Limits, PickleFault

MAX_ENTRIES = 1_000_000
"""Entries that an archive may have."""
MAX_NAME = 4096

_HINT = "tokenaudit reads what torch.save writes by default (torch 1.6 or later), and runs none of it"
_DTYPES: dict[str, str] = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": "bf16",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}


class _Storage(NamedTuple):
    """Where the numbers of a tensor lie; they are looked at when a tensor is rebuilt from them."""

    kind: str
    key: str
    elements: int


class TorchFile:
    """A file of `torch.save`, mapped into memory; use it as a context manager. Arrays from it are copies.

    Args:
        path: the file.
        limits: bounds of its pickle.

    Raises:
        SourceError: it isn't such a file, or is damaged.
    """

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self._path = path
        self._limits = limits or Limits()
        self._elements = 0
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise self._fault(f"can't read: {error.strerror or error}") from error
        try:
            self._entries = self._read_entries()
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._map.close()
        self._file.close()

    def load(self) -> Any:
        """The object in the file: plain values, `Numbers`, numpy arrays and `Record`s.

        Raises:
            SourceError: the pickle is damaged, uses what a data file has no need of, or exceeds the limits.
        """
        start, size = self._pickle_span()
        with memoryview(self._map)[start : start + size] as view:
            try:
                return Machine(view, self._limits, self._persistent, self._rebuild).run()
            except PickleFault as fault:
                raise self._fault(str(fault)) from fault
            except (ValueError, TypeError, OverflowError) as error:
                raise self._fault(f"the pickle is damaged: {error}"[:200]) from error
            except (MemoryError, RecursionError) as error:
                raise self._fault("the file asks for more memory than it should") from error

    def head(self, size: int) -> bytes:
        """The beginning of the pickle.

        Raises:
            SourceError: the file is damaged.
        """
        start, length = self._pickle_span()
        return self._map[start : start + min(size, length)]

    def _pickle_span(self) -> tuple[int, int]:
        try:
            return self._span(self._prefix + "data.pkl")
        except PickleFault as fault:
            raise self._fault(str(fault)) from fault

    def _fault(self, what: str) -> SourceError:
        return SourceError(Problem(what, str(self._path), _HINT))

    def _read_entries(self) -> dict[str, zipfile.ZipInfo]:
        """The entries by name; only uncompressed ones, so that none is larger than the file."""
        try:
            with zipfile.ZipFile(self._file) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
            raise self._fault(f"not a file of torch.save: {error}") from error
        if len(infos) > MAX_ENTRIES:
            raise self._fault(f"{len(infos)} entries in the archive")
        pickles = [
            info.filename for info in infos if info.filename.endswith("data.pkl") and len(info.filename) < MAX_NAME
        ]
        if len(pickles) != 1:
            raise self._fault(f"not a file of torch.save: {len(pickles)} entries named data.pkl")
        self._prefix = pickles[0].removesuffix("data.pkl")
        return {info.filename: info for info in infos}

    def _span(self, name: str) -> tuple[int, int]:
        """Where the bytes of an entry lie in the file."""
        info = self._entries.get(name)
        if info is None:
            raise PickleFault(f"the archive has no entry {name!r:.80}")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise self._fault(f"the entry {name!r:.80} is compressed, which torch.save never does")
        header = self._map[info.header_offset : info.header_offset + 30]
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise self._fault(f"the entry {name!r:.80} is damaged")
        name_size, extra_size = struct.unpack("<HH", header[26:30])
        start = info.header_offset + 30 + name_size + extra_size
        if start + info.file_size > len(self._map):
            raise self._fault(f"the entry {name!r:.80} reaches behind the end of the file")
        return start, info.file_size

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
        if name not in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"):
            return NotImplemented
        if len(arguments) < 4 or not isinstance(arguments[0], _Storage):
            raise PickleFault("a tensor without a storage")
        storage, offset, size, stride = arguments[:4]
        return self._tensor(storage, offset, _whole(size), _whole(stride))

    def _tensor(
        self, storage: _Storage, offset: Any, size: tuple[int, ...], stride: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        kind = _DTYPES.get(storage.kind)
        if kind is None:
            raise PickleFault(f"a tensor of {storage.kind!r:.40}")
        dtype = np.dtype("<u2" if kind == "bf16" else kind)
        start, length = self._span(f"{self._prefix}data/{storage.key}")
        count = length // dtype.itemsize
        if len(size) != len(stride) or len(size) > 8 or isinstance(offset, bool) or not isinstance(offset, int):
            raise PickleFault("a tensor whose shape makes no sense")
        last = offset + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
        if offset < 0 or (0 not in size and last >= count):
            raise PickleFault("a tensor that reaches behind its storage")
        # many tensors may share one storage, and an expanded one is larger than its own
        self._elements += int(np.prod(size, dtype=object))
        if self._elements > self._limits.elements:
            raise PickleFault(f"tensors of more than {self._limits.elements} elements")
        if 0 in size:
            return np.zeros(size, dtype=dtype)
        # only the tensor's part of its storage: thousands of tensors may be pieces of one
        piece = self._map[start + offset * dtype.itemsize : start + (last + 1) * dtype.itemsize]
        flat = np.frombuffer(piece, dtype=dtype)
        view = np.lib.stride_tricks.as_strided(flat, size, [step * dtype.itemsize for step in stride])
        array = view.copy()
        return (array.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else array


def _whole(values: Any) -> tuple[int, ...]:
    """Sizes or strides: whole numbers of at least 0."""
    if not isinstance(values, tuple) or any(
        isinstance(v, bool) or not isinstance(v, int) or not 0 <= v < 2**40 for v in values
    ):
        raise PickleFault("a tensor whose shape makes no sense")
    return values
