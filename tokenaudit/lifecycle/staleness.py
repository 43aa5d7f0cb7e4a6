"""How old a token is, and what is fresh, too old or exempt: every other module asks here.

Source: InternLM/xtuner pull request 2003. `train_step` counts trainer steps from 1, `model_step` is the number
of train steps in the weights that made a token, so fully synchronous training has a staleness of 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, overload

from tokenaudit.lifecycle.types import Status

ALWAYS_FRESH = -(2**31)
"""The oldest fresh version where no token rule applies: every version is fresh, in 32 bits too."""


@overload
def staleness(model_step: int, train_step: int) -> int: ...
@overload
def staleness(model_step: Any, train_step: Any) -> Any: ...
def staleness(model_step: Any, train_step: Any) -> Any:
    """Age in train steps of a token of version `model_step` at `train_step`; negative for a future version.

    Of integers, or of arrays and tensors of them, like all with two signatures here.
    """
    return train_step - model_step - 1


def stale_threshold(max_staleness: int, sync_weights_interval: int) -> int:
    """The staleness, in train steps, at which a response is too old."""
    return (max_staleness + 1) * sync_weights_interval


def token_stale_threshold(max_token_staleness: int | None, sync_weights_interval: int) -> int | None:
    """The staleness, in train steps, at which a token is no longer fresh; None when the token rule is off."""
    if max_token_staleness is None:
        return None
    return (max_token_staleness + 1) * sync_weights_interval


@overload
def newest_too_old(train_step: int, threshold: int) -> int: ...
@overload
def newest_too_old(train_step: Any, threshold: Any) -> Any: ...
def newest_too_old(train_step: Any, threshold: Any) -> Any:
    """The largest version whose tokens have a staleness of `threshold` or more at `train_step`."""
    return train_step - threshold - 1


@overload
def is_too_old(model_step: int, newest_stale: int) -> bool: ...
@overload
def is_too_old(model_step: Any, newest_stale: Any) -> Any: ...
def is_too_old(model_step: Any, newest_stale: Any) -> Any:
    """Whether a response whose oldest version is `model_step` is too old, given `newest_too_old` at the step."""
    return model_step <= newest_stale


@overload
def oldest_fresh(train_step: int, threshold: int) -> int: ...
@overload
def oldest_fresh(train_step: Any, threshold: Any) -> Any: ...
def oldest_fresh(train_step: Any, threshold: Any) -> Any:
    """The smallest version whose tokens have a staleness below `threshold` at `train_step`."""
    return train_step - threshold


def oldest_fresh_version(train_step: int, token_threshold: int | None) -> int:
    """The oldest version that is fresh at a step, in 32 bits; `ALWAYS_FRESH` where no token rule applies."""
    return ALWAYS_FRESH if token_threshold is None else max(oldest_fresh(train_step, token_threshold), ALWAYS_FRESH)


@overload
def is_fresh(model_step: int, oldest: int) -> bool: ...
@overload
def is_fresh(model_step: Any, oldest: Any) -> Any: ...
def is_fresh(model_step: Any, oldest: Any) -> Any:
    """Whether tokens of a version are fresh, given the oldest version that is; see `oldest_fresh_version`."""
    return model_step >= oldest


def count_fresh(
    tokens_by_version: Iterable[tuple[int, int]], train_step: int, token_threshold: int | None, ages: dict[int, int]
) -> int:
    """Add the fresh tokens of (version, tokens) to `ages`, by staleness at `train_step`; returns the stale ones."""
    oldest = oldest_fresh_version(train_step, token_threshold)
    newest_age = staleness(0, train_step)
    stale = 0
    for model_step, tokens in tokens_by_version:
        if model_step >= oldest:
            age = newest_age - model_step
            ages[age] = ages.get(age, 0) + tokens
        else:
            stale += tokens
    return stale


def has_fresh_token(newest_trainable: int | None, oldest: int) -> bool:
    """Whether a response has a token to train, given its newest trainable version and the oldest that is fresh."""
    return newest_trainable is not None and newest_trainable >= oldest


def too_old_from(model_step: int, threshold: int) -> int:
    """The first train step at which a token of version `model_step` has a staleness of `threshold` or more."""
    return model_step + threshold + 1


@overload
def live_version(model_step: int, sync_weights_interval: int) -> int: ...
@overload
def live_version(model_step: Any, sync_weights_interval: int) -> Any: ...
def live_version(model_step: Any, sync_weights_interval: int) -> Any:
    """The version that would have been live at `model_step` had weights been synced every interval."""
    return model_step // sync_weights_interval * sync_weights_interval


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

    def token_threshold(self, is_agentic: bool) -> int | None:
        """The token threshold of a group; None where no token rule applies: an agentic member exempts its group."""
        return None if is_agentic else self.token_stale_threshold


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


def expiry_reason(
    status: Status, oldest: int | None, newest_trainable: int | None, newest_stale: int, fresh_from: int
) -> ExpiryReason | None:
    """Why a response is expired; None for one that isn't.

    By its tokens it expires when it has trainable tokens and none of them is fresh: never so where its semantic mask is
    all zero. Asked of every member of every group that expires, so no other rule is called from here.

    Args:
        status: its status.
        oldest: its smallest version; None without tokens.
        newest_trainable: its largest version among trainable tokens; None without any.
        newest_stale: see `newest_too_old`.
        fresh_from: see `oldest_fresh_version`.
    """
    if status is _EXPIRED:
        return _ARRIVED_EXPIRED
    if oldest is None:
        return None
    if oldest <= newest_stale:
        return _SEQUENCE
    return _TOKEN if newest_trainable is not None and newest_trainable < fresh_from else None


def group_reason(reasons: Collection[ExpiryReason | None]) -> ExpiryReason:
    """The reason of a group with an expired member: the first present of arrived expired, sequence, token."""
    for reason in (_ARRIVED_EXPIRED, _SEQUENCE):
        if reason in reasons:
            return reason
    return _TOKEN
