"""What is held at a moment of a replay, followed from its events alone: whoever asks what waits, asks here."""

from __future__ import annotations

from typing import NamedTuple

from tokenaudit.lifecycle.events import (
    Fate,
    GroupExpired,
    GroupPut,
    GroupRejected,
    GroupSampled,
    GroupTaken,
    MembersExpired,
)
from tokenaudit.lifecycle.members import GroupMembers
from tokenaudit.lifecycle.types import Status
from tokenaudit.replay.events import RunEvent

Key = tuple[str, int]
"""(task name, group id)"""


class HeldGroup(NamedTuple):
    """A group in the buffer: its pool and its members."""

    status: Status
    responses: GroupMembers


class HeldGroups(dict[Key, HeldGroup]):
    """The groups in the buffer after the events observed so far."""

    def observe(self, event: RunEvent) -> None:
        """Follow one event."""
        if isinstance(event, GroupPut):
            self[event.task_name, event.group_id] = HeldGroup(event.status, event.responses)
        elif isinstance(event, GroupRejected | GroupTaken | GroupSampled):
            self.pop((event.task_name, event.group_id), None)
        elif isinstance(event, GroupExpired | MembersExpired):
            key = (event.task_name, event.group_id)
            if isinstance(event, GroupExpired) and event.fate is Fate.DISCARDED:
                self.pop(key, None)
            else:
                self[key] = HeldGroup(Status.EXPIRED, self[key].responses.reset(event.expired.is_part))

    def status(self, key: Key) -> Status | None:
        """The pool a group is in; None when it isn't held."""
        held = self.get(key)
        return None if held is None else held.status
