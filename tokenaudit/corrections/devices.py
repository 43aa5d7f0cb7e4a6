"""What computes corrections on a device."""

from __future__ import annotations

from tokenaudit.corrections.arrays import Arrays, NumpyArrays
from tokenaudit.masks.backends import Chosen, choose_device


def choose_arrays(device: str) -> Arrays:
    """The array functions of a device; see `backends.choose_device`.

    Raises:
        UsageError: the device is unknown, or not there.
    """
    chosen, index = choose_device(device)
    if chosen is Chosen.NUMPY:
        return NumpyArrays()
    import torch

    from tokenaudit.corrections.torch_arrays import TorchArrays

    return TorchArrays(torch.device(chosen) if index is None else torch.device("cuda", index))
