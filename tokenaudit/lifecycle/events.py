"""What a change of the buffer's state reports. Counting is a fold over these, done elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from tokenaudit.lifecycle.members import GroupMembers, MemberFacts, MembersPart
from tokenaudit.lifecycle.staleness import count_fresh, expires_by_token, is_too_old
from tokenaudit.lifecycle.types import Status


class Where(StrEnum):
    """The operation in which a group expired."""

    PUT = "put"
    """It was already too old when it came in."""
    REFRESH = "refresh"
    """It became too old while it waited."""


class ExpiryReason(StrEnum):
    """Why a group expired."""

    SEQUENCE = "sequence"
    """A whole response was too old."""
    TOKEN = "token"
    """A response had no fresh token left to train."""
    ARRIVED_EXPIRED = "arrived_expired"
    """A member was put with the status expired."""


# Python 3.11 looks an enum's member up ten times as slowly as a global name, and these are asked for all the time.
_EXPIRED = Status.EXPIRED
_ARRIVED_EXPIRED = ExpiryReason.ARRIVED_EXPIRED
_SEQUENCE = ExpiryReason.SEQUENCE
_TOKEN = ExpiryReason.TOKEN


def expiry_reason(facts: MemberFacts, newest_stale: int, oldest_fresh: int) -> ExpiryReason | None:
    """Why a response is expired, given the newest version too old for a response and the oldest fresh for a token."""
    status, _, _, _, _, oldest, newest_trainable = facts
    if status is _EXPIRED:
        return _ARRIVED_EXPIRED
    if oldest is None:
        return None
    if is_too_old(oldest, newest_stale):
        return _SEQUENCE
    return _TOKEN if expires_by_token(newest_trainable, oldest_fresh) else None


def group_reason(reasons: Collection[ExpiryReason | None]) -> ExpiryReason:
    """The reason of a group with an expired member: the first present of arrived expired, sequence, token."""
    for reason in (_ARRIVED_EXPIRED, _SEQUENCE):
        if reason in reasons:
            return reason
    return _TOKEN


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
    """

    task_name: str
    group_id: int
    train_step: int
    where: Where
    reason: ExpiryReason
    fate: Fate
    expired: MembersPart
    fresh: MembersPart


class MembersExpired(NamedTuple):
    """More members of a group that already waits as expired became too old and were reset."""

    task_name: str
    group_id: int
    train_step: int
    expired: MembersPart


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
