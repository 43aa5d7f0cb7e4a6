"""Which backend computes masks: the device asked for, or the best there is."""

from __future__ import annotations

import re
from importlib.util import find_spec

from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.masks.batch import Backend
from tokenaudit.masks.numpy_backend import NumpyBackend

DEVICES = "auto|cpu|cuda|cuda:N|mps"
"""The devices that can be asked for."""

_INSTALL = "pip install torch into the same environment, or use --device cpu, which needs no torch"


def choose_backend(device: str) -> Backend:
    """The backend of a device, with equal bits on all.

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
        return NumpyBackend()
    import torch

    from tokenaudit.masks.torch_backend import CudaBackend, TorchBackend

    if kind == "cuda" or (kind == "auto" and torch.cuda.is_available()):
        return CudaBackend(torch.device("cuda", _cuda_index(device, index)))
    if kind == "mps" or (kind == "auto" and torch.backends.mps.is_available()):
        if not torch.backends.mps.is_available():
            raise UsageError(Problem("--device mps: there is no MPS device", None, "use --device auto or cpu"))
        return TorchBackend(torch.device("mps"))
    # torch on a CPU gives equal bits, and takes longer
    return NumpyBackend() if kind == "auto" else TorchBackend(torch.device("cpu"))


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
