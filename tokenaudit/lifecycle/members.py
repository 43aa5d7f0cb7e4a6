"""The members of a group: the few numbers the lifecycle decides by, and responses only where somebody looks at one.

A run puts, expires and takes far more responses than anybody looks at, and making objects of them costs more than all
decisions about them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

from tokenaudit.lifecycle.staleness import ExpiryPolicy, staleness, too_old_from
from tokenaudit.lifecycle.types import Response, Status

MemberFacts = tuple[Status, int, int, int, bool, int | None, int | None]
"""`status`, `tokens`, `trainable_tokens`, `prior_len`, `agentic`, `oldest` and `newest_trainable` of a response; plain
for speed."""


# Python 3.11 looks an enum's member up ten times as slowly as a global name, and these are asked for all the time.
_COMPLETED = Status.COMPLETED
_EXPIRED = Status.EXPIRED


class GroupMeasures(NamedTuple):
    """What follows from the members of a group together.

    Attributes:
        samples: members.
        tokens: of all members.
        new_tokens: tokens that no earlier put produced.
        trainable_tokens: tokens whose semantic mask is not 0.
        status: the group's.
        is_completed: whether every member is completed.
        is_agentic: whether any member is agentic, so that the token rule applies to none.
        has_expired: whether any member's status is expired.
        without_tokens: members without a token.
        oldest_sum: sum of the other members' smallest versions.
        oldest: smallest version of all tokens; None without tokens.
        oldest_alive: the same of members that can still expire: with tokens, and not expired.
        newest_trainable: of those members' newest trainable versions the smallest; None without any.
    """

    samples: int
    tokens: int
    new_tokens: int
    trainable_tokens: int
    status: Status
    is_completed: bool
    is_agentic: bool
    has_expired: bool
    without_tokens: int
    oldest_sum: int
    oldest: int | None
    oldest_alive: int | None
    newest_trainable: int | None

    def staleness_sum(self, train_step: int) -> int:
        """Staleness of all members, where one without tokens counts as 0."""
        return (self.samples - self.without_tokens) * staleness(0, train_step) - self.oldest_sum

    def staleness_max(self, train_step: int) -> int:
        """The largest staleness of a member, where one without tokens counts as 0."""
        if self.oldest is None:
            return 0
        age = staleness(self.oldest, train_step)
        return 0 if age < 0 and self.without_tokens else age

    def expires_at(self, policy: ExpiryPolicy) -> int | None:
        """The train step at which the next member expires if nothing happens before; None if none ever does."""
        if self.oldest_alive is None:
            return None
        step = too_old_from(self.oldest_alive, policy.stale_threshold)
        threshold = policy.token_threshold(self.is_agentic)
        if threshold is None or self.newest_trainable is None:
            return step
        return min(step, too_old_from(self.newest_trainable, threshold))


class _Responses(Sequence[Response]):
    """Responses that are made when somebody looks at one; equal to any sequence of equal ones."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Response]:
        return iter(self.made())

    def __len__(self) -> int:
        return len(self.made())

    def __getitem__(self, place: Any) -> Any:
        return self.made()[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Responses | tuple) and self.made() == tuple(other)

    def __hash__(self) -> int:
        return hash(self.made())

    def __repr__(self) -> str:
        return repr(self.made())

    def made(self) -> tuple[Response, ...]:
        """All of them."""
        raise NotImplementedError


class GroupMembers(_Responses):
    """The responses of a group. They never change: a reset makes new ones.

    Attributes:
        measures: what follows from all of them together.
    """

    __slots__ = ("measures",)

    measures: GroupMeasures

    def __len__(self) -> int:
        return self.measures.samples

    @property
    def facts(self) -> Sequence[MemberFacts]:
        """What the lifecycle asks of every member, in order."""
        raise NotImplementedError

    def reset(self, lost: Sequence[bool]) -> GroupMembers:
        """The members that are left when some lose their tokens; every expired one is among these."""
        raise NotImplementedError

    def tokens_by_key(self) -> dict[tuple[int, int], int]:
        """Tokens of every response, by rollout and segment."""
        return {(response.rollout_id, response.segment): response.tokens for response in self.made()}

    def rewards(self) -> Iterable[float]:
        """Rewards of the scored ones, in order."""
        return [response.reward for response in self.made() if response.reward is not None]

    def trainable_by_version(self) -> Iterable[tuple[int, int]]:
        """(version, trainable tokens), where there are any; a version may come more than once."""
        runs = (run for response in self.made() for run in response.runs)
        return [(version, trainable) for version, _, trainable in runs if trainable]


class MadeMembers(GroupMembers):
    """Members whose responses are made already."""

    __slots__ = ("_facts", "_made")

    def __init__(self, responses: tuple[Response, ...]) -> None:
        self._made = responses
        self._facts = [
            (one.status, one.tokens, one.trainable_tokens, one.prior_len, one.agentic, one.oldest, one.newest_trainable)
            for one in responses
        ]
        self.measures = measured_together(self._facts)

    @property
    def facts(self) -> Sequence[MemberFacts]:
        """See `GroupMembers`."""
        return self._facts

    def made(self) -> tuple[Response, ...]:
        """All of them."""
        return self._made

    def reset(self, lost: Sequence[bool]) -> GroupMembers:
        """See `GroupMembers`."""
        pairs = zip(self._made, lost, strict=True)
        return MadeMembers(tuple([response.reset() if is_lost else response for response, is_lost in pairs]))


class MembersPart(_Responses):
    """Some of the members of a group.

    Args:
        members: all of them.

    Attributes:
        is_part: which of them belong to the part.
        tokens: of the part.
    """

    __slots__ = ("_members", "is_part", "tokens")

    def __init__(self, members: GroupMembers, is_part: Sequence[bool]) -> None:
        self._members = members
        self.is_part = is_part
        self.tokens = sum([tokens for _, tokens, _, _, _, _, _ in self.facts()])

    def __len__(self) -> int:
        return sum(self.is_part)

    def facts(self) -> Iterator[MemberFacts]:
        """What the lifecycle asks of every response of the part."""
        return compress(self._members.facts, self.is_part)

    def made(self) -> tuple[Response, ...]:
        """All of the part."""
        return tuple(compress(self._members.made(), self.is_part))


class Group:
    """The responses to one prompt.

    Attributes:
        task_name: the task.
        group_id: identity inside the task.
        responses: the members; a reset replaces them by members with the same `agentic`.
    """

    __slots__ = ("group_id", "responses", "task_name")

    def __init__(self, task_name: str, group_id: int, responses: GroupMembers) -> None:
        self.task_name = task_name
        self.group_id = group_id
        self.responses = responses

    @property
    def key(self) -> tuple[str, int]:
        """Identity in the log: task and group id."""
        return (self.task_name, self.group_id)


def facts_after_reset(facts: MemberFacts) -> MemberFacts:
    """Those of what is left of a response that lost its tokens."""
    _, _, _, _, agentic, _, _ = facts
    return (_EXPIRED, 0, 0, 0, agentic, None, None)


def measured_together(members: Sequence[MemberFacts]) -> GroupMeasures:
    """What follows from the members of a group together."""
    tokens = prior_tokens = trainable_tokens = without_tokens = oldest_sum = 0
    is_agentic = False
    oldest: int | None = None
    # Of the members that can still expire, the one with the smallest version does so first.
    oldest_alive: int | None = None
    newest_trainable: int | None = None
    for status, own_tokens, own_trainable, prior_len, agentic, own_oldest, own_newest in members:
        if agentic:
            is_agentic = True
        prior_tokens += prior_len
        if own_oldest is None:
            without_tokens += 1
            continue
        tokens += own_tokens
        trainable_tokens += own_trainable
        oldest_sum += own_oldest
        if oldest is None or own_oldest < oldest:
            oldest = own_oldest
        if status is _EXPIRED:
            continue
        if oldest_alive is None or own_oldest < oldest_alive:
            oldest_alive = own_oldest
        if own_newest is not None and (newest_trainable is None or own_newest < newest_trainable):
            newest_trainable = own_newest
    statuses = {status for status, _, _, _, _, _, _ in members}
    return GroupMeasures(
        len(members),
        tokens,
        tokens - prior_tokens,
        trainable_tokens,
        group_status(statuses),
        statuses <= {_COMPLETED},
        is_agentic,
        _EXPIRED in statuses,
        without_tokens,
        oldest_sum,
        oldest,
        oldest_alive,
        newest_trainable,
    )


_PRECEDENCE = (Status.FAILED, Status.ABORTED, Status.EXPIRED, Status.FILTERED)


def group_status(present: Collection[Status]) -> Status:
    """Status of a group whose members have these: the first of failed, aborted, expired, filtered, else completed."""
    for status in _PRECEDENCE:
        if status in present:
            return status
    return Status.COMPLETED
