"""Prompts of several lengths in a group: mixed up, or turns of a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.audit.model import changed, log_of
from tests.audit.test_contents import BIG, found, members, without
from tests.builders import Row

ROWS = log_of(BIG)
LONGEST = {row["rollout_id"]: row["response_len"] for row in ROWS if row["event"] == "put"}


def test_groups_with_prompts_of_several_lengths_are_named_with_all_members(tmp_path: Path):
    rows = changed(
        ROWS,
        lambda row: {"prompt_len": 500} if row["group_id"] % 5 == 0 and row["rollout_id"] % 100 > 4 else None,
    )
    (finding,) = found(tmp_path / "log", without(rows, "response_ids"), "prompts-mixed")
    assert {rollout_id // 100 % 5 for rollout_id in members(finding)} == {0}
    assert {rollout_id % 100 for rollout_id in members(finding)} == set(range(8))


def turns_apart(row: Row) -> dict[str, Any]:
    """Every second rollout is the second turn of the one before: it has that one in its prompt."""
    first = row["rollout_id"] - row["rollout_id"] % 2
    return {"prompt_len": 40 if row["rollout_id"] == first else 49 + LONGEST[first]}


@pytest.mark.parametrize("summarized", [0, 35])
def test_turns_of_a_conversation_that_are_rollouts_of_their_own_have_prompts_of_their_own(
    summarized: int, tmp_path: Path
):
    """Where earlier turns were summarized, only agentic members tell."""
    rows = changed(ROWS, turns_apart)
    for row in rows:
        if row.get("prompt_len", 40) > 40:
            row["prompt_len"] = max(41, row["prompt_len"] - summarized)
    agentic = changed(rows, lambda _: {"agentic": True})
    assert found(tmp_path / "agentic", agentic, "prompts-mixed") == []
    assert (found(tmp_path / "plain", rows, "prompts-mixed") == []) is (summarized == 0)


def test_mixed_prompts_among_conversations_and_agentic_groups_are_found(tmp_path: Path):
    mixed = {row["group_id"] for row in ROWS if row["event"] == "put" and row["group_id"] % 8 == 3}
    rows = changed(ROWS, lambda row: {"agentic": True, "prompt_len": 40})
    for row in rows:
        if row.get("group_id") in mixed and row.get("rollout_id", 0) % 8 > 3:
            row["prompt_len"] = 47
    (finding,) = found(tmp_path / "agentic", rows, "prompts-mixed")
    assert finding.severity == "error"
    assert f"in {len(mixed)} groups" in finding.message
    talks = changed(ROWS, turns_apart)
    for row in talks:
        if row.get("group_id") == 11 and row.get("rollout_id", 0) % 2:
            row["prompt_len"] = 41
    assert [one.severity for one in found(tmp_path / "talks", talks, "prompts-mixed")] == ["error"]
