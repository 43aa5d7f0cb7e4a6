"""What a replay holds, followed from its events alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokenaudit.config.sections import Config
from tokenaudit.lifecycle.events import (
    Fate,
    GroupExpired,
    GroupPut,
    GroupRejected,
    GroupSampled,
    GroupTaken,
    MembersExpired,
)
from tokenaudit.lifecycle.staleness import too_old_from
from tokenaudit.lifecycle.types import Response, Status
from tokenaudit.replay.events import RunEvent

Key = tuple[str, int]
"""(task name, group id)"""


class HeldGroup(NamedTuple):
    """A group in the buffer: its pool and its members."""

    status: Status
    responses: Sequence[Response]


class Holding:
    """The groups in the buffer after the events heard so far.

    Args:
        config: the config of the replay.
    """

    def __init__(self, config: Config) -> None:
        self.held: dict[Key, HeldGroup] = {}
        self._config = config

    def hear(self, event: RunEvent) -> None:
        """Follow one event."""
        if isinstance(event, GroupPut):
            self.held[event.task_name, event.group_id] = HeldGroup(event.status, event.responses)
        elif isinstance(event, GroupExpired | MembersExpired):
            self._expire(event)
        elif isinstance(event, GroupRejected | GroupTaken | GroupSampled):
            self.held.pop((event.task_name, event.group_id), None)

    def status(self, key: Key) -> Status | None:
        """The pool a group is in; None when it isn't held."""
        held = self.held.get(key)
        return None if held is None else held.status

    def expires_at(self, task: str, responses: Iterable[Response]) -> int | None:
        """The step at which the next member expires if nothing happens before; None if none ever does."""
        members = tuple(responses)
        policy = self._config.expiry_policy(task)
        token_limit = None if any(member.agentic for member in members) else policy.token_stale_threshold
        steps: list[int] = []
        for member in members:
            if member.oldest is None or member.status is Status.EXPIRED:
                continue
            steps.append(too_old_from(member.oldest, policy.stale_threshold))
            if token_limit is not None and member.newest_trainable is not None:
                steps.append(too_old_from(member.newest_trainable, token_limit))
        return min(steps, default=None)

    def _expire(self, event: GroupExpired | MembersExpired) -> None:
        key = (event.task_name, event.group_id)
        if isinstance(event, GroupExpired) and event.fate is Fate.DISCARDED:
            self.held.pop(key, None)
            return
        lost = {response.key for response in event.expired}
        members = tuple(member.reset() if member.key in lost else member for member in self.held[key].responses)
        self.held[key] = HeldGroup(Status.EXPIRED, members)
