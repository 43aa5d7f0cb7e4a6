"""What a mask backend takes and gives: responses of different lengths, one after the other, in numpy arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

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
