"""What a change of the buffer's state reports. Counting is a fold over these, done elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from tokenaudit.lifecycle.members import GroupMembers, MembersPart
from tokenaudit.lifecycle.staleness import ExpiryReason, count_fresh
from tokenaudit.lifecycle.types import Status


class Where(StrEnum):
    """The operation in which a group expired."""

    PUT = "put"
    """It was already too old when it came in."""
    REFRESH = "refresh"
    """It became too old while it waited."""


class Fate(StrEnum):
    """What becomes of an expired group."""

    RESET = "reset"
    """Its expired members lose their tokens and it waits to be generated again."""
    DISCARDED = "discarded"
    """It is lost, fresh members included."""


class GroupPut(NamedTuple):
    """A group was handed to the buffer, whatever becomes of it."""

    task_name: str
    group_id: int
    train_step: int
    status: Status
    responses: GroupMembers


class GroupRejected(NamedTuple):
    """A group was discarded at put because it failed or was filtered; `status` says which."""

    task_name: str
    group_id: int
    status: Status
    responses: GroupMembers


class GroupExpired(NamedTuple):
    """A group became expired.

    Attributes:
        expired: the members that are expired, as they were before.
        fresh: the other members; a reset keeps them, a discard loses them.
        reasons: why each of the expired members is, in their order; `reason` is that of the group.
    """

    task_name: str
    group_id: int
    train_step: int
    where: Where
    reason: ExpiryReason
    fate: Fate
    expired: MembersPart
    fresh: MembersPart
    reasons: Sequence[ExpiryReason]

    @property
    def lost_tokens(self) -> int:
        """Tokens that are reset or discarded."""
        return self.expired.tokens + (self.fresh.tokens if self.fate is Fate.DISCARDED else 0)


class MembersExpired(NamedTuple):
    """More members of a group that already waits as expired became too old and were reset.

    Attributes:
        expired: those members, as they were before.
        reasons: why each of them is expired, in their order.
    """

    task_name: str
    group_id: int
    train_step: int
    expired: MembersPart
    reasons: Sequence[ExpiryReason]


class GroupTaken(NamedTuple):
    """A group left the buffer with the batch of `train_step`.

    Attributes:
        token_stale_threshold: the staleness at which its tokens are masked; None where no token rule applies.
    """

    task_name: str
    group_id: int
    train_step: int
    token_stale_threshold: int | None
    responses: GroupMembers

    def stale_tokens(self) -> int:
        """Trainable tokens that the mask leaves out because they are stale."""
        if self.token_stale_threshold is None:
            return 0
        return count_fresh(self.responses.trainable_by_version(), self.train_step, self.token_stale_threshold, {})


class GroupSampled(NamedTuple):
    """A group left its pool to be generated again; `status` is the pool's."""

    task_name: str
    group_id: int
    status: Status
    responses: GroupMembers


LifecycleEvent = GroupPut | GroupRejected | GroupExpired | MembersExpired | GroupTaken | GroupSampled
