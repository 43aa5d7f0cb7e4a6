"""What a mask backend takes and gives, its form on numpy, and which one computes on a device.

Responses of different lengths stand one after the other, in numpy arrays.
"""

from __future__ import annotations

import re
from enum import StrEnum
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import numpy as np

from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.lifecycle.staleness import is_fresh
from tokenaudit.log.columns import Bools, Int64s

Int8s = np.ndarray[Any, np.dtype[np.int8]]
Int32s = np.ndarray[Any, np.dtype[np.int32]]


class MaskBatch(NamedTuple):
    """R responses with N tokens in all.

    Attributes:
        versions: version of each token, int32 of shape [N].
        semantic: whether each token is in the loss, bool of shape [N]; None: all are.
        offsets: first token of each response, and N, int64 of shape [R + 1].
        oldest_fresh: the oldest version that is still fresh for each response, int32 of shape [R]; see
            `staleness.oldest_fresh_version`.
    """

    versions: Int32s
    semantic: Bools | None
    offsets: Int64s
    oldest_fresh: Int32s


class Masks(NamedTuple):
    """The masks of a batch.

    Attributes:
        effective: 1 where a token is trained, else 0, int8 of shape [N].
        trained: tokens trained per response, int64 of shape [R].
        masked_stale: tokens whose semantic mask is not 0 and that are stale, int64 of shape [R].
        masked_semantic: tokens whose semantic mask is 0, int64 of shape [R].
    """

    effective: Int8s
    trained: Int64s
    masked_stale: Int64s
    masked_semantic: Int64s


class Pending(Protocol):
    """Masks that are being computed."""

    def result(self) -> Masks:
        """Wait for them."""
        ...


class Backend(Protocol):
    """Computes masks; equal bits whatever computes them.

    Attributes:
        description: what computes, for people and for the metadata of results.
    """

    @property
    def description(self) -> str: ...  # noqa: D102 - see the attribute

    def submit(self, batch: MaskBatch) -> Pending:
        """Begin to compute the masks of a batch; its arrays may be changed once this returns."""
        ...


class _Computed(NamedTuple):
    masks: Masks

    def result(self) -> Masks:
        """The masks."""
        return self.masks


class NumpyBackend:
    """Computes at once, in the calling thread."""

    description = "numpy"

    def submit(self, batch: MaskBatch) -> _Computed:
        """Compute the masks of a batch."""
        return _Computed(compute_masks(batch))


def compute_masks(batch: MaskBatch) -> Masks:
    """The masks of a batch, in passes over all of its tokens."""
    lengths = np.diff(batch.offsets)
    fresh = is_fresh(batch.versions, np.repeat(batch.oldest_fresh, lengths))
    effective = fresh if batch.semantic is None else fresh & batch.semantic
    trained = segment_counts(effective.view(np.uint8), batch.offsets)
    trainable = lengths if batch.semantic is None else segment_counts(batch.semantic.view(np.uint8), batch.offsets)
    return Masks(effective.view(np.int8), trained, trainable - trained, lengths - trainable)


def segment_counts(flags: np.ndarray[Any, np.dtype[np.uint8]], offsets: Int64s | Int32s) -> Int64s:
    """Sum of the flags of each response; reduceat alone would give an empty one the flag behind it."""
    counts = np.zeros(len(offsets) - 1, dtype=np.int64)
    with_tokens = np.flatnonzero(offsets[1:] > offsets[:-1])
    if len(with_tokens):
        counts[with_tokens] = np.add.reduceat(flags, offsets[:-1][with_tokens], dtype=np.int64)
    return counts


DEVICES = "auto|cpu|cuda|cuda:N|mps"
"""The devices that can be asked for."""

_INSTALL = "pip install torch into the same environment, or use --device cpu, which needs no torch"


class Chosen(StrEnum):
    """What computes."""

    NUMPY = "numpy"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


def choose_backend(device: str) -> Backend:
    """The backend of a device, with equal bits on all; see `choose_device`."""
    chosen, index = choose_device(device)
    if chosen is Chosen.NUMPY:
        return NumpyBackend()
    import torch

    from tokenaudit.masks.torch_backend import CudaBackend, TorchBackend

    if chosen is Chosen.CUDA:
        return CudaBackend(torch.device("cuda", index or 0))
    return TorchBackend(torch.device(chosen))


def choose_device(device: str) -> tuple[Chosen, int | None]:
    """What computes on a device, and the number of the CUDA device.

    `auto` is CUDA, MPS or numpy, the first there is; `cpu` is torch, or numpy where torch isn't installed.

    Args:
        device: one of `DEVICES`.

    Raises:
        UsageError: the device is unknown, or not there.
    """
    match = re.fullmatch(r"(auto|cpu|mps|cuda)(?::(\d{1,3}))?", device, flags=re.ASCII)
    if match is None or (match[2] is not None and match[1] != "cuda"):
        raise UsageError(Problem(f"--device {device!r} is unknown", None, f"it is {DEVICES.replace('|', ', ')}"))
    kind, index = match[1], None if match[2] is None else int(match[2])
    if find_spec("torch") is None:
        if kind in ("cuda", "mps"):
            raise UsageError(Problem(f"--device {device} needs torch, which isn't installed", None, _INSTALL))
        return Chosen.NUMPY, None
    import torch

    if kind == "cuda" or (kind == "auto" and torch.cuda.is_available()):
        return Chosen.CUDA, _cuda_index(device, index)
    if kind == "mps" or (kind == "auto" and torch.backends.mps.is_available()):
        if not torch.backends.mps.is_available():
            raise UsageError(Problem("--device mps: there is no MPS device", None, "use --device auto or cpu"))
        return Chosen.MPS, None
    # torch on a CPU gives the same, and takes longer
    return (Chosen.NUMPY if kind == "auto" else Chosen.CPU), None


def _cuda_index(device: str, index: int | None) -> int:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        hint = "use --device auto or cpu, or install a torch built for CUDA and check nvidia-smi"
        raise UsageError(Problem(f"--device {device}: there is no CUDA device", None, hint))
    if index is not None and index >= count:
        what = f"--device {device}: there {'is one CUDA device' if count == 1 else f'are {count} CUDA devices'}"
        raise UsageError(Problem(what, None, f"use cuda:0 to cuda:{count - 1}" if count > 1 else "use cuda:0"))
    return torch.cuda.current_device() if index is None else index
