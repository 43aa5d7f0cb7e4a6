"""The array functions of corrections on torch, on a CPU, CUDA or MPS; sums of a response are made in one order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tokenaudit.log.columns import Int64s

_TYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "bool": torch.bool}


class TorchArrays:
    """The functions on a device.

    Args:
        device: the device. MPS has no float64: sums are made in float32 there.
    """

    chunk_tokens = 8_000_000

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.description = f"torch on {device}"
        self.dtypes: Sequence[str] = ("float32",) if device.type == "mps" else ("float32", "float64")
        self._sum_type = torch.float32 if device.type == "mps" else torch.float64

    def of(self, values: np.ndarray, dtype: str) -> Tensor:  # noqa: D102 - see the protocol
        # what Arrow decoded can't be written to, and torch has no tensors of such memory
        plain = np.ascontiguousarray(values) if values.flags.writeable else values.copy()
        return torch.from_numpy(plain).to(self._device, _TYPES[dtype])

    def host(self, values: Tensor) -> np.ndarray:  # noqa: D102
        return values.cpu().numpy()

    def cast(self, values: Tensor, dtype: str) -> Tensor:  # noqa: D102
        return values.to(_TYPES[dtype])

    def exp(self, values: Tensor) -> Tensor:  # noqa: D102
        return torch.exp(values)

    def exp32(self, values: Tensor) -> Tensor:  # noqa: D102
        return torch.exp(values)

    def absolute(self, values: Tensor) -> Tensor:  # noqa: D102
        return torch.abs(values)

    def clip(self, values: Tensor, low: float | None, high: float | None) -> Tensor:  # noqa: D102
        return values if low is None and high is None else torch.clamp(values, low, high)

    def where(self, condition: Tensor, values: Tensor, other: Tensor | float) -> Tensor:  # noqa: D102
        return torch.where(condition, values, other)

    def finite(self, values: Tensor) -> Tensor:  # noqa: D102
        return torch.isfinite(values)

    def spread(self, values: Tensor, lengths: Int64s) -> Tensor:  # noqa: D102
        return torch.repeat_interleave(values, self._lengths(lengths), output_size=int(lengths.sum()))

    def sums(self, values: Tensor, lengths: Int64s) -> Tensor:  # noqa: D102
        return self._reduced("sum", values.to(self._sum_type), lengths, 0).to(values.dtype)

    def counts(self, flags: Tensor, lengths: Int64s) -> Tensor:  # noqa: D102
        sums = torch.zeros(len(flags) + 1, dtype=torch.int64, device=self._device)
        torch.cumsum(flags, 0, dtype=torch.int64, out=sums[1:])
        ends = torch.cumsum(self._lengths(lengths), 0)
        return sums[ends] - sums[ends - self._lengths(lengths)]

    def largest(self, values: Tensor, lengths: Int64s, empty: float) -> Tensor:  # noqa: D102
        return self._reduced("max", values, lengths, empty)

    def smallest(self, values: Tensor, lengths: Int64s, empty: float) -> Tensor:  # noqa: D102
        return self._reduced("min", values, lengths, empty)

    def sorted(self, values: Tensor) -> Tensor:  # noqa: D102
        return torch.sort(values).values

    def total(self, flags: Tensor) -> int:  # noqa: D102
        return int(torch.count_nonzero(flags))

    def histogram(self, values: Tensor) -> tuple[int, Int64s]:  # noqa: D102
        codes = values.to(torch.float32).view(torch.int32) >> 15
        first = codes.min()
        return int(first), torch.bincount(codes - first).cpu().numpy()

    def _lengths(self, lengths: Int64s) -> Tensor:
        return torch.from_numpy(lengths).to(self._device)

    def _reduced(self, name: str, values: Tensor, lengths: Int64s, empty: float) -> Tensor:
        if len(values) == 0:
            return torch.full((len(lengths),), empty, dtype=values.dtype, device=self._device)
        start = None if name == "sum" else empty
        return torch.segment_reduce(values, name, lengths=self._lengths(lengths), initial=start)
