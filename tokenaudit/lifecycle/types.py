"""What the buffer holds: responses made of version runs, gathered in groups."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

VersionRun = tuple[int, int, int]
"""(model_step, tokens, trainable tokens) of consecutive tokens made by one version; plain for speed."""
Measures = tuple[int, int, int | None, int | None]
"""`tokens`, `trainable_tokens`, `oldest` and `newest_trainable` of a response."""


class Status(StrEnum):
    """State of a response, and of a group."""

    INIT = "init"
    """Generation has not begun."""
    COMPLETED = "completed"
    """Generation ended by itself."""
    ABORTED = "aborted"
    """Generation was cut off, for instance by a weight sync."""
    EXPIRED = "expired"
    """Too old; its tokens are gone and it waits to be generated again."""
    FAILED = "failed"
    """Generation went wrong; the group is discarded."""
    FILTERED = "filtered"
    """The run's own filter rejected the group; it is discarded."""


_MEASURES_OF_NOTHING: Measures = (0, 0, None, None)


def measured(runs: Iterable[VersionRun]) -> Measures:
    """What the lifecycle asks of a response's tokens."""
    oldest = newest_trainable = None
    tokens = trainable_tokens = 0
    for model_step, run_tokens, run_trainable in runs:
        if run_tokens and (oldest is None or model_step < oldest):
            oldest = model_step
        tokens += run_tokens
        if run_trainable:
            trainable_tokens += run_trainable
            if newest_trainable is None or model_step > newest_trainable:
                newest_trainable = model_step
    return tokens, trainable_tokens, oldest, newest_trainable


class Response:
    """One sampled completion. It never changes: a reset makes a new one.

    Attributes:
        rollout_id: identity inside the task.
        segment: position among the parts of a split rollout; 0 for a whole one.
        status: how generation ended.
        runs: its tokens as version runs, in order.
        tokens: length.
        trainable_tokens: tokens whose semantic mask is not 0.
        oldest: smallest version; None without tokens.
        newest_trainable: largest version among trainable tokens; None without any.
        prior_len: leading tokens that earlier puts already produced.
        agentic: whether it exempts its group from the token rule.
        reward: None when unscored.
        row: index of what it was made from, for whoever put it; no part of what makes responses equal.
    """

    __slots__ = (
        "agentic",
        "newest_trainable",
        "oldest",
        "prior_len",
        "reward",
        "rollout_id",
        "row",
        "runs",
        "segment",
        "status",
        "tokens",
        "trainable_tokens",
    )

    def __init__(
        self,
        rollout_id: int,
        status: Status,
        runs: tuple[VersionRun, ...],
        prior_len: int = 0,
        segment: int = 0,
        agentic: bool = False,
        reward: float | None = None,
        row: int = -1,
        measures: Measures | None = None,
    ) -> None:
        """`measures` are those of `runs`, for callers that know them already."""
        self.rollout_id = rollout_id
        self.status = status
        self.runs = runs
        self.prior_len = prior_len
        self.segment = segment
        self.agentic = agentic
        self.reward = reward
        self.row = row
        self.tokens, self.trainable_tokens, self.oldest, self.newest_trainable = measures or measured(runs)

    def __repr__(self) -> str:
        return f"Response({self.rollout_id}.{self.segment} {self.status} {self.runs})"

    def _identity(self) -> tuple[object, ...]:
        return (
            self.rollout_id,
            self.segment,
            self.status,
            self.runs,
            self.prior_len,
            self.agentic,
            self.reward,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Response) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self.rollout_id, self.segment))

    @property
    def key(self) -> tuple[int, int]:
        """Identity inside the task: rollout and segment."""
        return (self.rollout_id, self.segment)

    def changed(
        self,
        *,
        status: Status | None = None,
        prior_len: int | None = None,
        runs: tuple[VersionRun, ...] | None = None,
    ) -> Response:
        """The same response with another status, other tokens, or other tokens of earlier puts."""
        return Response(
            self.rollout_id,
            self.status if status is None else status,
            self.runs if runs is None else runs,
            self.prior_len if prior_len is None else prior_len,
            self.segment,
            self.agentic,
            self.reward,
            self.row,
        )

    def reset(self) -> Response:
        """What is left after expiry: no tokens, no versions, no mask, no reward; `agentic` stays."""
        return Response(
            self.rollout_id, Status.EXPIRED, (), 0, self.segment, self.agentic, None, self.row, _MEASURES_OF_NOTHING
        )


def token_count(responses: Iterable[Response]) -> int:
    """Tokens of all the responses."""
    return sum([response.tokens for response in responses])
