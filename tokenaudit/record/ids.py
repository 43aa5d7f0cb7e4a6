"""Ids of groups and rollouts, where a trainer names them by texts, or uses a name again."""

from __future__ import annotations

import hashlib
import operator
import re
from collections import Counter
from typing import SupportsIndex
from uuid import UUID

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.record.recorder import Recorder


def log_id(value: object) -> int:
    """An id as a log holds it: a number as it is, any other text by a hash of 53 bits, which JSON and floats keep.

    Raises:
        ValueError: neither a text or UUID nor a number of at least 0 that fits 63 bits.
    """
    if isinstance(value, UUID):
        value = str(value)
    if isinstance(value, str):
        # 007 and 7 are two texts, so one of them is no number
        if re.fullmatch("0|[1-9][0-9]{0,18}", value) and int(value) < 2**63 - 1:
            return int(value)
        digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 11
    if isinstance(value, SupportsIndex) and not isinstance(value, bool | np.bool_):
        # numbers of numpy, and tensors of one
        number = operator.index(value)
        if 0 <= number < 2**63:
            return number
    raise ValueError(f"{shown(value)} is no id")


def rollout_id(group_id: int, member: int | str) -> int:
    """The id of a member of a group, for trainers that number responses inside of their group."""
    return log_id(f"member {member} of group {group_id}")


class GroupIds:
    """Ids of groups: the trainer's own where it comes for the first time in a run, another one each time after that.

    A log tells groups by their ids, but a prompt comes again in every epoch, what is trained in parts is a group for
    each part, and a resumed run may count its groups from 0 once more.

    Args:
        recorder: where the groups are recorded, which tells a resumed run.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._first_event_id = recorder.first_event_id
        self._times = Counter[str | int]()

    def new(self, name: str | int) -> int:
        """The id of the next group of this name. Raises like `log_id`."""
        self._times[name] += 1
        times = self._times[name]
        if times == 1 and self._first_event_id == 1:
            return log_id(name)
        return log_id(f"group {name}, time {times} from event {self._first_event_id}")
