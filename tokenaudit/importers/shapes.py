"""What comes through from a source, in words that every importer uses: what it declares, and what was really there."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Gives(StrEnum):
    """What a log can hold of a source."""

    EXACT = "versions per token"
    SEGMENT = "versions per call"
    SPAN = "oldest and newest version"
    START = "version at the start"
    LENGTHS = "token counts"
    MASKS = "masks"
    TRAINED_MASKS = "masks the trainer used"
    REWARDS = "rewards"
    TASKS = "tasks"
    TAKES = "takes"
    TOKEN_IDS = "token ids"
    LOGPROBS = "log-probabilities"
    TRAIN_LOGPROBS = "log-probabilities of the trainer"


class Shape(NamedTuple):
    """One kind of file that a trainer writes; `tests/importers/shapes.py` has a file of each.

    Attributes:
        trainer: whose file it is.
        version: from which version on, or in which version or commit it was read, for people.
        file: what the file is called.
        gives: what comes through from it.
    """

    trainer: str
    version: str
    file: str
    gives: tuple[Gives, ...]


COLUMN_OF = {
    Gives.LENGTHS: "response_len",
    Gives.MASKS: "response_mask",
    Gives.TRAINED_MASKS: "trained_mask",
    Gives.REWARDS: "reward",
    Gives.TASKS: "task_name",
    Gives.TOKEN_IDS: "response_ids",
    Gives.LOGPROBS: "logprobs",
    Gives.TRAIN_LOGPROBS: "train_logprobs",
}
"""The column of a log that holds what comes through, where it is one."""
