"""What takes further tokens out of the loss of a file of masks, and weighs those that are left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from tokenaudit.config.model import Config
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import Log
from tokenaudit.masks.plan import MaskPlan, Selection
from tokenaudit.replay.request import TimelineKind


class Filtered(NamedTuple):
    """What a filter does to R responses with N tokens.

    Attributes:
        keep: tokens that it leaves in the loss, bool of shape [N].
        weights: what their loss is multiplied with, shape [N]; 1 where the filter weighs nothing.
        is_judged: whether it could judge each token, bool of shape [N]; others are kept and have no weight.
        loss_tokens: tokens that the loss of each response's step divides by, shape [R].
    """

    keep: Bools
    weights: np.ndarray[Any, Any]
    is_judged: Bools
    loss_tokens: Int64s


class TokenFilter(Protocol):
    """What a filter does to the responses of a plan, in their order.

    Attributes:
        judged_tokens: tokens in the loss, of those that were looked at so far, that it judges.
        unjudged_tokens: those that it can't judge.
    """

    judged_tokens: int
    unjudged_tokens: int

    def of(self, entries: slice) -> Filtered:
        """What it does to some responses of the plan; each can be asked for once."""
        ...


class Masking(Protocol):
    """A filter before it knows a log.

    Attributes:
        description: what it is, for the metadata of results.
        weight_type: float32 or float64.
    """

    description: str
    weight_type: str

    def plan(
        self,
        digest: Digest,
        config: Config,
        timeline: TimelineKind | None,
        selection: Selection | None,
        on_progress: Callable[[int], None] | None,
    ) -> MaskPlan:
        """The responses that it looks at."""
        ...

    def begin(self, log: Log, plan: MaskPlan) -> TokenFilter:
        """Begin with the responses of a plan."""
        ...
