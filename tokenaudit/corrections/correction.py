"""What a correction is: the trainer's own options, and what they do to tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.tokens import Tokens

Dtype = Literal["float32", "float64"]
"""What log-probabilities are computed in."""
Stats = Mapping[str, np.ndarray]
"""Figures of each response of a batch, by name, of shape [R] in numpy."""


class Applied(NamedTuple):
    """What a correction does to the N tokens of R responses.

    Attributes:
        keep: tokens in the loss that no filter drops, bool of shape [N].
        mask: the mask handed on to the loss, bool of shape [N]; a filter that drops by a weight of 0 leaves it alone.
        weight: what the loss of every token is multiplied with, shape [N]; None: nothing.
        stats: what `metrics` needs, by name, each of shape [R].
        at_low: whether each weight was raised to the lower bound, bool of shape [N]; None: there is no such bound.
        at_high: whether each weight was cut to the upper bound; None: there is no such bound.
        counted: tokens that the loss divides by, bool of shape [N]; None: those of `mask`.
    """

    keep: Array
    mask: Array
    weight: Array | None
    stats: dict[str, Array]
    at_low: Array | None = None
    at_high: Array | None = None
    counted: Array | None = None

    @property
    def divides(self) -> Array:
        """Which tokens the loss divides by, bool of shape [N]."""
        return self.mask if self.counted is None else self.counted


class Correction(BaseModel):
    """One trainer's correction; the fields of a subclass are the trainer's options, with its names and defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    TRAINER: ClassVar[str]
    """Its name, as a preset has it."""
    SOURCE: ClassVar[str]
    """Repository, commit and file that the formulas were read in."""
    DIVIDES_BY: ClassVar[str]
    """What the loss divides by, in words."""
    DTYPE: ClassVar[Dtype] = "float32"
    """The type in which the trainer computes."""

    @property
    def needs_advantage(self) -> bool:
        """Whether these options look at the sign of the advantage."""
        return False

    @property
    def over_batch(self) -> bool:
        """Whether a token's fate or weight depends on other responses of its batch."""
        return False

    def notes(self) -> tuple[str, ...]:
        """What the trainer silently does with these options that people don't expect."""
        return ()

    @abstractmethod
    def apply(self, tokens: Tokens) -> Applied:
        """What it does to responses: a whole batch where `over_batch`, else any part of one."""

    def mean_weight(self, parts: Iterable[Tokens]) -> float | None:
        """What the weights of a batch are divided by, where that is all of `over_batch`; None: it isn't.

        Args:
            parts: all of the batch, some responses after the others.
        """
        return None

    def apply_part(self, tokens: Tokens, mean_weight: float) -> Applied:
        """What it does to a part of a batch whose `mean_weight` is known."""
        raise NotImplementedError

    @abstractmethod
    def metrics(self, stats: Stats) -> dict[str, float]:
        """The figures that the trainer logs for a batch, under its names, from the `stats` of all of its responses."""

    def per_response(self, stats: Stats) -> dict[str, np.ndarray]:
        """Figures of which the trainer logs one per response, each of shape [R]; `metrics` holds their means."""
        return {}
