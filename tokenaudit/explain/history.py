"""What is known of a group: what happened to it in order, and its members at every moment of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tokenaudit.explain.losses import GroupLoss
from tokenaudit.lifecycle.buffer import ReplayPolicy
from tokenaudit.lifecycle.types import Status, VersionRun


class EntryKind(StrEnum):
    """What happened to a group."""

    PUT = "put"
    """It was handed to the buffer."""
    SKIPPED = "put skipped"
    """The log puts it, but under this config it is here as completed, or was taken."""
    REJECTED = "rejected"
    """It was discarded because it failed or was filtered."""
    WAITED = "waits"
    """Its ages were counted and nothing changed."""
    EXPIRED = "expired"
    """A member became too old."""
    MORE_EXPIRED = "more expired"
    """It waited as expired already, and further members became too old."""
    SAMPLED = "sampled"
    """It left its pool to be generated again."""
    NOT_SAMPLED = "sample ignored"
    """The log samples it, but under this config it does not wait for that."""
    TAKEN = "taken"
    """It left with a batch."""


class MemberOutcome(StrEnum):
    """What became of a member of a group that expired or was taken."""

    KEPT = "kept"
    """It is fresh and keeps its tokens."""
    RESET = "reset"
    """It was too old and lost its tokens; it is generated again."""
    STALE_LOST = "discarded as stale"
    """It was too old, and the group was discarded."""
    FRESH_LOST = "discarded though fresh"
    """It was fresh, and lost with the group."""
    TRAINED = "trained"
    """At least one of its tokens is trained."""
    MASKED = "masked"
    """It fills a place in the batch, and none of its tokens is trained."""


@dataclass(frozen=True, slots=True)
class Member:
    """A response as it was when something happened.

    Attributes:
        rollout_id: identity inside the task.
        segment: position among the parts of a split rollout.
        status: how its generation ended.
        runs: (version, tokens, trainable tokens), in order.
        age: staleness of its oldest version; None without tokens.
        outcome: what became of it; None where nothing was decided.
    """

    rollout_id: int
    segment: int
    status: Status
    runs: tuple[VersionRun, ...]
    age: int | None
    outcome: MemberOutcome | None = None

    @property
    def tokens(self) -> int:
        """Length of the response."""
        return sum(tokens for _, tokens, _ in self.runs)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One thing that happened to a group.

    Attributes:
        kind: what.
        train_step: when; None where the log doesn't say.
        members: the group right before what happened.
        expires_at: the step at which its next member expires if nothing happens before; None if none ever does.
        detail: why or where it happened, in a few words.
        restarted_tokens: tokens held of it that a put did not go on from.
        fixed_at: on expiry, the step of the put since which it was bound to expire at this step.
        last_chance: on expiry, the last take before it that it waited for as completed.
    """

    kind: EntryKind
    train_step: int | None
    members: tuple[Member, ...] = ()
    expires_at: int | None = None
    detail: str = ""
    restarted_tokens: int = 0
    fixed_at: int | None = None
    last_chance: int | None = None


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """What happened to a group under a config.

    Attributes:
        task: its task.
        group_id: its id.
        stale_threshold: staleness at which a response is too old.
        token_stale_threshold: staleness at which a token is no longer fresh; None: no token rule.
        retryable: whether an expired group is generated again.
        order: the order in which groups leave a pool.
        loss: what it lost to settings and how often it expired; None where it lost nothing.
        trained_tokens: tokens of it that were trained.
        entries: what happened, in order.
        ending: where it is at the end of the log.
    """

    task: str
    group_id: int
    stale_threshold: int
    token_stale_threshold: int | None
    retryable: bool
    order: ReplayPolicy
    loss: GroupLoss | None
    trained_tokens: int
    entries: tuple[HistoryEntry, ...]
    ending: str
