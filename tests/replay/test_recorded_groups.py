"""Members known by their sums against the same members made one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Row, make_digest
from tests.strategies import logs
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.members import GroupMembers, MadeMembers, MembersPart
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.digest import KIND_CODE
from tokenaudit.replay import recorded_groups
from tokenaudit.replay.recorded_groups import RecordedGroups


def added_up(members: GroupMembers) -> dict[int, int]:
    trained: dict[int, int] = {}
    for version, tokens in members.trainable_by_version():
        trained[version] = trained.get(version, 0) + tokens
    return trained


def assert_alike(members: GroupMembers) -> None:
    """All that is told without looking at a response is what the responses tell."""
    made = MadeMembers(tuple(members))
    assert members.measures == made.measures
    assert list(members.facts) == list(made.facts)
    assert len(members) == len(tuple(made))
    assert members.tokens_by_key() == made.tokens_by_key()
    assert list(members.rewards()) == list(made.rewards())
    assert added_up(members) == added_up(made)
    measures = made.measures
    for train_step in (1, 5):
        ages = [0 if one.oldest is None else train_step - 1 - one.oldest for one in made]
        assert (measures.staleness_sum(train_step), measures.staleness_max(train_step)) == (sum(ages), max(ages))


@given(rows=logs(max_events=25), data=st.data())
def test_sums_are_those_of_the_responses_before_and_after_resets(rows: list[Row], data: st.DataObject):
    digest = make_digest(rows)
    puts = np.flatnonzero(digest.events.kind == KIND_CODE[EventKind.PUT])
    puts = puts[np.argsort(digest.events.train_step[puts], kind="stable")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded_groups, "_BLOCK", 3)
        groups = list(RecordedGroups(digest, digest.runs.model_step).in_order(puts))
    assert len(groups) == len(puts)
    for put, members in zip(puts.tolist(), groups, strict=True):
        first, last = digest.events.first_response[put : put + 2].tolist()
        assert [response.row for response in members] == list(range(first, last))
        assert_alike(members)
        for _ in range(2):
            is_expired = [response.status is Status.EXPIRED for response in members]
            lost = [expired or data.draw(st.booleans()) for expired in is_expired]
            after = members.reset(lost)
            assert after == MadeMembers(tuple(members)).reset(lost)
            assert_alike(after)
            part = MembersPart(members, lost)
            assert part == tuple(response for response, is_lost in zip(members, lost, strict=True) if is_lost)
            assert (part.tokens, len(part)) == (sum(response.tokens for response in part), sum(lost))
            members = after
