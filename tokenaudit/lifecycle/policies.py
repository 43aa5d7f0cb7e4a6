"""What decides over a record: the thresholds and retry rule of its task, and the order of its pool."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReplayPolicy(StrEnum):
    """The order in which records leave a pool."""

    STALENESS = "staleness"
    """Largest record staleness first, then the order of the puts: uses old data before it expires."""
    FIFO = "fifo"
    """The order of the puts."""


@dataclass(frozen=True, slots=True)
class ExpiryPolicy:
    """When the responses of a task expire and what becomes of their group.

    Attributes:
        stale_threshold: staleness in train steps at which a response is too old.
        token_stale_threshold: staleness in train steps at which a token is no longer fresh; None: no token rule.
        tail_batch_trigger_size: -1 discards an expired group; 0 or more keeps it to be generated again.
    """

    stale_threshold: int
    token_stale_threshold: int | None = None
    tail_batch_trigger_size: int = -1

    @property
    def retryable(self) -> bool:
        """Whether an expired group is kept to be generated again."""
        return self.tail_batch_trigger_size >= 0
