"""Corrections applied to the batch of a step, chunk by chunk: which tokens they keep, and with which weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tokenaudit.corrections.arrays import Arrays
from tokenaudit.corrections.batches import TakenBatch
from tokenaudit.corrections.correction import Applied, Correction
from tokenaudit.corrections.tokens import Tokens
from tokenaudit.log.columns import Floats, bounded_spans


class Asked(NamedTuple):
    """A correction, and the floating type to compute it in."""

    correction: Correction
    dtype: str


class Chunk(NamedTuple):
    """Consecutive responses of a batch, and what each correction does to them.

    Attributes:
        responses: which responses of the batch.
        tokens: which of its tokens, those of these responses.
        of: the tokens as each correction sees them, in the order of the corrections.
        applied: what each does to them.
    """

    responses: slice
    tokens: slice
    of: list[Tokens]
    applied: list[Applied]


def applied_chunks(batch: TakenBatch, advantage: Floats, asked: Sequence[Asked], xp: Arrays) -> Iterator[Chunk]:
    """Apply corrections to a batch, all of them to some of its responses before the next ones are looked at.

    Corrections over a batch are applied to all of it first. Responses whose advantage isn't known are out of the loss
    for corrections that need it.

    Args:
        batch: the batch.
        advantage: of each response, NaN where it isn't known.
        asked: the corrections.
        xp: the functions on arrays.
    """
    spans = _spans(batch, xp.chunk_tokens)
    every = slice(0, len(batch.lengths)), slice(0, int(batch.lengths.sum()))
    made_of_all: _Made | None = None
    whole: dict[int, Applied] = {}
    means: dict[int, float] = {}
    for index, one in enumerate(asked):
        if not one.correction.over_batch:
            continue
        parts = (_Made(batch, advantage, xp, *span).tokens(one) for span in spans)
        mean = one.correction.mean_weight(parts)
        if mean is not None:
            means[index] = mean
        else:
            made_of_all = made_of_all or _Made(batch, advantage, xp, *every)
            whole[index] = one.correction.apply(made_of_all.tokens(one))
    for responses, span in spans:
        made = _Made(batch, advantage, xp, responses, span)
        pairs: list[tuple[Tokens, Applied]] = []
        for index, one in enumerate(asked):
            tokens = made.tokens(one)
            if index in whole:
                applied = _part(whole[index], responses, span)
            elif index in means:
                applied = one.correction.apply_part(tokens, means[index])
            else:
                applied = one.correction.apply(tokens)
            pairs.append((tokens, applied))
        yield Chunk(responses, span, [tokens for tokens, _ in pairs], [applied for _, applied in pairs])


def _spans(batch: TakenBatch, most: int) -> list[tuple[slice, slice]]:
    """Consecutive responses of a batch with up to `most` tokens, or one with more; and which tokens are theirs."""
    ends = np.cumsum(batch.lengths)
    found = []
    for low, high in bounded_spans(batch.lengths, max(len(batch.lengths), 1), most):
        stop = int(ends[high - 1])
        found.append((slice(low, high), slice(stop - int(batch.lengths[low:high].sum()), stop)))
    return found


def _part(applied: Applied, responses: slice, tokens: slice) -> Applied:
    per_token = {
        name: None if (values := getattr(applied, name)) is None else values[tokens]
        for name in ("keep", "mask", "weight", "at_low", "at_high", "counted")
    }
    return Applied(stats={name: values[responses] for name, values in applied.stats.items()}, **per_token)


class _Made:
    """The tokens of some responses, made once for each floating type."""

    def __init__(self, batch: TakenBatch, advantage: Floats, xp: Arrays, responses: slice, span: slice) -> None:
        self._xp = xp
        self._lengths = batch.lengths[responses]
        self._advantage = advantage[responses]
        start, stop = span.start, span.stop
        self._rollout, self._trained = batch.rollout.part(start, stop), batch.trained.part(start, stop)
        self._mask = batch.mask.part(start, stop)
        self._of_type: dict[str, Tokens] = {}
        self._known: dict[str, Tokens] = {}

    def tokens(self, asked: Asked) -> Tokens:
        """The tokens as a correction sees them."""
        dtype = asked.dtype
        if dtype not in self._of_type:
            self._of_type[dtype] = Tokens(
                self._xp, dtype, self._lengths, self._rollout, self._trained, self._mask, self._advantage
            )
        tokens = self._of_type[dtype]
        if not asked.correction.needs_advantage or not np.isnan(self._advantage).any():
            return tokens
        if dtype not in self._known:
            is_known = tokens.spread(self._xp.of(~np.isnan(self._advantage), "bool"))
            self._known[dtype] = tokens.with_mask(tokens.mask & is_known)
        return self._known[dtype]
