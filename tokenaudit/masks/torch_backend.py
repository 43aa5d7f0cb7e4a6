"""Masks on torch: a function for trainers, and backends that mask batches of a log on CPU, CUDA or MPS.

This is the only module that imports torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokenaudit.lifecycle.staleness import ALWAYS_FRESH, is_fresh, oldest_fresh
from tokenaudit.log.columns import Int64s
from tokenaudit.masks.backends import MaskBatch, Masks

MEMORY_SHARE = 0.25
"""Share of the device's memory that masking may take."""
MAX_CHUNK_TOKENS = 8_000_000
"""Tokens masked at a time, however much memory there is."""

_BYTES_PER_TOKEN = 48
"""Upper bound of what a token takes on the device: two slots of inputs and outputs, and 64-bit running sums."""
_SLOTS = 2


def effective_mask(
    model_steps: Tensor,
    train_step: int | Tensor,
    token_stale_threshold: int | Tensor | None,
    *,
    response_mask: Tensor | None = None,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    exempt: Tensor | None = None,
) -> Tensor:
    """The effective masks of R responses: 1 where a token is trained, else 0.

    Everything stays on the device of `model_steps` and nothing waits for it, so a trainer can call this between
    its own launches.

    Args:
        model_steps: version of each token, any integer type: padded, of shape [R, L], or flat, of shape [N] with
            one response after the other.
        train_step: the step that trains, the same for all or an integer tensor of shape [R].
        token_stale_threshold: staleness in train steps at which a token is no longer fresh,
            `(max_token_staleness + 1) * sync_weights_interval`; the same for all or an integer tensor of shape
            [R]; None: no token rule.
        response_mask: semantic mask, of the shape of `model_steps`, bool or integer, non-zero = in the loss;
            None: all tokens are.
        lengths: tokens per response where padded, integer of shape [R]; None: all have L.
        offsets: first token of each response, and N, where flat, integer of shape [R + 1].
        exempt: responses the token rule doesn't apply to because a member of their group is agentic, bool of
            shape [R]; see `exempt_responses`.

    Returns:
        int8 of the shape of `model_steps`, on its device; 0 on padding.

    Raises:
        ValueError: shapes that don't fit together.
    """
    is_flat = model_steps.dim() == 1
    if model_steps.dim() not in (1, 2) or (offsets is None) == is_flat or (is_flat and lengths is not None):
        raise ValueError("model_steps is [R, L], with lengths or without, or [N] with offsets")
    if response_mask is not None and response_mask.shape != model_steps.shape:
        raise ValueError(f"response_mask is {tuple(response_mask.shape)}, model_steps {tuple(model_steps.shape)}")
    responses = len(model_steps) if offsets is None else len(offsets) - 1
    for name, per_response in (
        ("train_step", train_step),
        ("token_stale_threshold", token_stale_threshold),
        ("exempt", exempt),
        ("lengths", lengths),
    ):
        if isinstance(per_response, Tensor) and per_response.dim() and per_response.shape != (responses,):
            raise ValueError(f"{name} is {tuple(per_response.shape)} for {responses} responses")
    kept = torch.ones_like(model_steps, dtype=torch.bool) if response_mask is None else response_mask != 0
    if lengths is not None:
        kept &= torch.arange(model_steps.shape[1], device=model_steps.device) < lengths.unsqueeze(1)
    if token_stale_threshold is not None:
        steps = torch.zeros(responses, dtype=torch.int64, device=model_steps.device) + train_step
        oldest = oldest_fresh(steps, token_stale_threshold)
        if exempt is not None:
            oldest = oldest.masked_fill(exempt, ALWAYS_FRESH)
        kept &= is_fresh(model_steps, _per_token(oldest, model_steps, offsets))
    return kept.to(torch.int8)


def exempt_responses(agentic: Tensor, group: Tensor, groups: int) -> Tensor:
    """Which responses the token rule doesn't apply to: those with an agentic member in their group.

    Args:
        agentic: bool of shape [R].
        group: index of the group of each response, int64 of shape [R], below `groups`.
        groups: number of groups.

    Returns:
        bool of shape [R], on the same device, without waiting for it.
    """
    members = torch.zeros(groups, dtype=torch.int32, device=agentic.device).index_add_(0, group, agentic.int())
    return members[group] > 0


def _per_token(values: Tensor, model_steps: Tensor, offsets: Tensor | None) -> Tensor:
    """Values of shape [R] for every token; without `output_size` the host would have to wait for N."""
    if offsets is None:
        return values.unsqueeze(1)
    return torch.repeat_interleave(values, offsets.diff(), output_size=len(model_steps))


class _Counted(NamedTuple):
    """Masks of a ragged batch on the device: int8 [N], and int64 [2, R] of trained and trainable tokens."""

    effective: Tensor
    counts: Tensor


def _ragged(versions: Tensor, semantic: Tensor | None, offsets: Tensor, oldest: Tensor) -> _Counted:
    kept = is_fresh(versions, _per_token(oldest, versions, offsets))
    if semantic is not None:
        kept &= semantic
    trained = _segment_counts(kept, offsets)
    trainable = offsets.diff() if semantic is None else _segment_counts(semantic, offsets)
    return _Counted(kept.view(torch.int8), torch.stack((trained, trainable)))


def _segment_counts(flags: Tensor, offsets: Tensor) -> Tensor:
    """Flags set in each response, from 64-bit running sums: exact, and the same in whatever order they are made."""
    sums = torch.zeros(len(flags) + 1, dtype=torch.int64, device=flags.device)
    torch.cumsum(flags, 0, dtype=torch.int64, out=sums[1:])
    return sums[offsets].diff()


class _Result:
    """Masks of a batch, filled chunk by chunk."""

    def __init__(self, batch: MaskBatch) -> None:
        self.effective = np.empty(len(batch.versions), dtype=np.int8)
        self.counts = np.zeros((2, len(batch.oldest_fresh)), dtype=np.int64)
        self.lengths = np.diff(batch.offsets)
        self.slots: list[_CudaSlot] = []

    def fill(self, chunk: _Chunk, effective: Tensor, counts: Tensor) -> None:
        """Take over what was computed for a chunk."""
        self.effective[chunk.tokens] = effective.numpy()
        self.counts[:, chunk.responses] += counts.numpy()

    def result(self) -> Masks:
        """Wait for the masks."""
        for slot in self.slots:
            slot.collect(self)
        trained, trainable = self.counts
        return Masks(self.effective, trained, trainable - trained, self.lengths - trainable)


class _Chunk(NamedTuple):
    """A part of a batch that fits the device: its tokens, and the responses they belong to."""

    tokens: slice
    responses: slice
    offsets: Int64s


def _chunks(offsets: Int64s, size: int) -> list[_Chunk]:
    """Cut a batch into chunks of up to `size` tokens; a response may lie in several of them."""
    chunks: list[_Chunk] = []
    for begin in range(0, int(offsets[-1]), size):
        end = min(begin + size, int(offsets[-1]))
        first = int(np.searchsorted(offsets, begin, side="right")) - 1
        last = int(np.searchsorted(offsets, end, side="left"))
        inside = np.clip(offsets[first : last + 1], begin, end) - begin
        chunks.append(_Chunk(slice(begin, end), slice(first, last), inside))
    return chunks


class TorchBackend:
    """Masks batches on a device without streams of its own: CPU or MPS."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.description = f"torch on {device}"

    def submit(self, batch: MaskBatch) -> _Result:
        """Compute the masks of a batch."""
        result = _Result(batch)
        for chunk in _chunks(batch.offsets, MAX_CHUNK_TOKENS):
            computed = _ragged(
                self._moved(batch.versions[chunk.tokens]),
                None if batch.semantic is None else self._moved(batch.semantic[chunk.tokens]),
                self._moved(chunk.offsets),
                self._moved(batch.oldest_fresh[chunk.responses]),
            )
            result.fill(chunk, computed.effective.cpu(), computed.counts.cpu())
        return result

    def _moved(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)


class CudaBackend:
    """Masks batches on a CUDA device: copies and launches run on a stream of their own, while the log is read.

    Args:
        device: the device.
        memory_share: share of its memory to take at most, whatever the batches.
    """

    def __init__(self, device: torch.device, memory_share: float = MEMORY_SHARE) -> None:
        self.description = f"torch on {device} ({torch.cuda.get_device_name(device)})"
        memory = torch.cuda.get_device_properties(device).total_memory
        self._chunk_tokens = max(1, min(MAX_CHUNK_TOKENS, int(memory * memory_share) // _BYTES_PER_TOKEN))
        stream = torch.cuda.Stream(device)
        self._slots = [_CudaSlot(device, stream, self._chunk_tokens) for _ in range(_SLOTS)]
        self._next = 0

    def submit(self, batch: MaskBatch) -> _Result:
        """Begin to compute the masks of a batch."""
        result = _Result(batch)
        for chunk in _chunks(batch.offsets, self._chunk_tokens):
            slot = self._slots[self._next]
            self._next = (self._next + 1) % _SLOTS
            slot.launch(batch, chunk, result)
            if slot not in result.slots:
                result.slots.append(slot)
        return result


class _CudaSlot:
    """Pinned buffers for one chunk on its way to the device and back."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream, tokens: int) -> None:
        self._device = device
        self._stream = stream
        self._done = torch.cuda.Event()
        self._versions = torch.empty(tokens, dtype=torch.int32, pin_memory=True)
        self._semantic = torch.empty(tokens, dtype=torch.bool, pin_memory=True)
        self._effective = torch.empty(tokens, dtype=torch.int8, pin_memory=True)
        self._counts: Tensor | None = None
        self._inputs: list[Tensor] = []
        self._owner: tuple[_Chunk, _Result] | None = None

    def launch(self, batch: MaskBatch, chunk: _Chunk, result: _Result) -> None:
        """Copy a chunk to the device, compute, and copy back; returns before that is done."""
        if self._owner is not None:
            self.collect(self._owner[1])
        tokens = chunk.tokens.stop - chunk.tokens.start
        self._versions[:tokens].copy_(torch.from_numpy(batch.versions[chunk.tokens]))
        semantic = None
        if batch.semantic is not None:
            semantic = self._semantic[:tokens]
            semantic.copy_(torch.from_numpy(batch.semantic[chunk.tokens]))
        # kept until the copies are done: pinned memory that is freed earlier may be handed out again
        self._inputs = [
            torch.from_numpy(chunk.offsets).pin_memory(),
            torch.from_numpy(batch.oldest_fresh[chunk.responses]).pin_memory(),
        ]
        with torch.cuda.stream(self._stream):
            offsets, oldest_fresh = (part.to(self._device, non_blocking=True) for part in self._inputs)
            computed = _ragged(
                self._versions[:tokens].to(self._device, non_blocking=True),
                None if semantic is None else semantic.to(self._device, non_blocking=True),
                offsets,
                oldest_fresh,
            )
            self._effective[:tokens].copy_(computed.effective, non_blocking=True)
            self._counts = torch.empty(computed.counts.shape, dtype=torch.int64, pin_memory=True)
            self._counts.copy_(computed.counts, non_blocking=True)
            self._done.record(self._stream)
        self._owner = (chunk, result)

    def collect(self, result: _Result) -> None:
        """Wait for the chunk and hand it over, if it is one of `result`."""
        if self._owner is None or self._owner[1] is not result or self._counts is None:
            return
        self._done.synchronize()
        chunk = self._owner[0]
        tokens = chunk.tokens.stop - chunk.tokens.start
        result.fill(chunk, self._effective[:tokens], self._counts)
        self._owner = None
