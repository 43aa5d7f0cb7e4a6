"""The fast replay buffer against the slow one, on random histories."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import examples
from tests.oracles.slow_buffer import SlowBuffer
from tokenaudit.lifecycle.buffer import HELD_STATUSES, ReplayBuffer, ReplayPolicy
from tokenaudit.lifecycle.members import Group, MadeMembers
from tokenaudit.lifecycle.staleness import ExpiryPolicy
from tokenaudit.lifecycle.types import Response, Status

TASKS = ("math", "code")
GROUP_IDS = range(6)

# Statuses that a group can be held with more often than those that only discard it.
statuses = st.sampled_from((Status.COMPLETED,) * 6 + (Status.ABORTED,) * 3 + tuple(Status))
runs = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 3), st.sampled_from((True, True, False))),
    max_size=3,
).map(lambda drawn: tuple((version, tokens, tokens * trainable) for version, tokens, trainable in drawn))


@dataclass(frozen=True)
class Put:
    task: str
    group_id: int
    members: tuple[tuple[Status, tuple[tuple[int, int, int], ...], bool], ...]
    later: int

    def group(self) -> Group:
        """A group of its own for each buffer, since a buffer changes what it is given."""
        responses = tuple(
            Response(10 * self.group_id + number, status, own_runs, agentic=agentic, reward=0.5)
            for number, (status, own_runs, agentic) in enumerate(self.members)
        )
        return Group(self.task, self.group_id, MadeMembers(responses))


@dataclass(frozen=True)
class Move:
    """The clock moves, and mostly the buffer is refreshed at once."""

    by: int
    refresh: bool


@dataclass(frozen=True)
class Take:
    sizes: tuple[tuple[str, int], ...]
    later: int


@dataclass(frozen=True)
class Sample:
    task: str
    status: Status


@dataclass(frozen=True)
class Withdraw:
    task: str
    group_id: int


tasks, group_ids = st.sampled_from(TASKS), st.sampled_from(GROUP_IDS)
later = st.sampled_from((0, 0, 0, 1, -1, 3))
members = st.lists(st.tuples(statuses, runs, st.sampled_from((False,) * 9 + (True,))), min_size=1, max_size=3)
puts = st.builds(Put, tasks, group_ids, members.map(tuple), later)
moves = st.builds(Move, st.sampled_from((1, 1, 1, 0, 2, 5, -1, -3)), st.sampled_from((True, True, False)))
takes = st.builds(Take, st.lists(st.tuples(tasks, st.integers(0, 3)), max_size=2).map(tuple), later)
samples = st.builds(Sample, tasks, st.sampled_from(HELD_STATUSES))
withdrawals = st.builds(Withdraw, tasks, group_ids)
operations = st.one_of(puts, puts, puts, moves, moves, takes, samples, withdrawals)
histories = st.lists(st.lists(operations, min_size=1, max_size=12), min_size=1, max_size=4).map(
    lambda parts: [operation for part in parts for operation in part]
)
policies = st.builds(
    ExpiryPolicy,
    stale_threshold=st.integers(1, 8),
    token_stale_threshold=st.sampled_from((None, 1, 1, 2, 4)),
    tail_batch_trigger_size=st.sampled_from((-1, 0, 1, 4)),
)


def step(buffer: Any, operation: Any, clock: int) -> list[Any]:
    """What one operation does to a buffer, in events."""
    match operation:
        case Put(task, group_id, _, by):
            # A buffer holds a group at most once.
            return buffer.withdraw(task, group_id) + buffer.put(operation.group(), clock + by)
        case Move():
            return buffer.refresh_staleness(clock) if operation.refresh else []
        case Take(sizes, by):
            return buffer.take_batch(clock + by, dict(sizes))
        case Sample(task, status):
            return buffer.sample(task, status)
        case Withdraw(task, group_id):
            return buffer.withdraw(task, group_id)
    raise AssertionError(operation)


def held(buffer: Any) -> Any:
    return {
        "groups": [(group.key, group.responses) for group in buffer.held_groups()],
        "counts": {(task, status): buffer.count(task, status) for task in TASKS for status in HELD_STATUSES},
        "held": {(task, group_id): buffer.held(task, group_id) for task in TASKS for group_id in GROUP_IDS},
    }


@pytest.mark.parametrize("replay_policy", list(ReplayPolicy))
@examples(7)
@given(history=histories, own=st.fixed_dictionaries(dict.fromkeys(TASKS, policies)))
def test_the_fast_buffer_is_the_slow_one(replay_policy, history, own):
    fast, slow = ReplayBuffer(own, replay_policy), SlowBuffer(own, replay_policy)
    clock = 3
    for operation in history:
        if isinstance(operation, Move):
            clock += operation.by
        assert step(fast, operation, clock) == step(slow, operation, clock), operation
        assert held(fast) == held(slow), operation
    # Empty every pool, so that the whole order counts.
    for task in TASKS:
        for status in HELD_STATUSES:
            for _ in range(fast.count(task, status)):
                assert fast.sample(task, status) == slow.sample(task, status)
    assert held(fast) == held(slow)
