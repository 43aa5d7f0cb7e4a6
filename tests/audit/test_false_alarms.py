"""What is meant, said once: masks of responses cut at their length, prompts of several epochs, another staleness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.audit.audit_cases import audited, findings_of
from tests.audit.model import Run, changed, events_of, log_of, renumbered
from tests.builders import Row, put
from tokenaudit.audit.findings import Finding

RUN = Run(steps=12)
HEALTHY = log_of(RUN)


def found(path: Path, rows: list[Row], *names: str) -> list[Finding]:
    report = audited(path, rows, RUN.config)
    return [finding for name in names for finding in findings_of(report, name)]


def test_masks_of_responses_cut_at_their_length_are_one_line(tmp_path: Path):
    names = ("fully-masked-row", "mask-retracted", "untrained-response-taken")
    cut = {row["rollout_id"] for row in HEALTHY if row.get("finish_reason") == "length"}
    assert any(row["prior_len"] for row in HEALTHY if row.get("finish_reason") == "length")

    def masked(row: Row) -> dict[str, Any]:
        is_cut = row["finish_reason"] == "length"
        return {"response_mask": [0 if is_cut else 1] * row["response_len"]}

    rows = changed(HEALTHY, masked)
    (finding,) = found(tmp_path / "meant", rows, *names)
    assert (finding.severity, finding.name) == ("info", "fully-masked-row")
    assert finding.extent is not None
    assert {rollout for _, rollout in finding.extent.members} == cut
    rows[next(n for n, row in enumerate(rows) if row.get("finish_reason") == "length")]["finish_reason"] = "stop"
    assert {one.severity for one in found(tmp_path / "not all", rows, *names)} == {"warning"}


def epochs(rows: list[Row], prompts: int) -> list[Row]:
    """The rows with the numbers of prompts, which come again, as group ids."""
    return [row | {"group_id": row["group_id"] % prompts} if "group_id" in row else row for row in rows]


def test_prompts_of_several_epochs_are_one_finding(tmp_path: Path):
    rows = changed(HEALTHY, lambda row: {"prompt_len": 20 + row["group_id"] % 30})
    names = ("group-members-changed", "id-reused")
    assert found(tmp_path / "ids", rows, *names) == []
    (finding,) = found(tmp_path / "prompts", epochs(rows, 30), *names)
    groups = {row["group_id"] for row in HEALTHY if row["event"] == "put"}
    again = {group % 30 for group in groups if group >= 30}
    assert f"{len(again)} groups that had been finished come again with other rollouts" in finding.message
    assert "group ids seem to be those of prompts, over several epochs" in finding.message
    assert finding.extent is not None
    assert {rollout // 100 for _, rollout in finding.extent.members} == {group for group in groups if group >= 30}


def test_an_id_of_another_prompt_is_no_epoch(tmp_path: Path):
    """Prompts have other lengths the second time: a clash of ids, one by one."""
    messages = [one.message for one in found(tmp_path / "log", epochs(HEALTHY, 30), "group-members-changed")]
    assert any("rollouts missing" in text for text in messages)


def oldest(row: Row) -> int:
    return row["train_step"] - min(row["response_model_steps"]) - 1


def mean(row: Row) -> float:
    return row["train_step"] - float(np.mean(row["response_model_steps"])) - 1


DEFINITIONS: dict[str, Callable[[Row], int]] = {
    "that of the newest token": lambda row: row["train_step"] - max(row["response_model_steps"]) - 1,
    "that of the version at the start of the round": lambda row: row["train_step"] - row["start_model_step"] - 1,
    "that of the mean version": lambda row: round(mean(row)),
    "the train step less the oldest version, without the - 1": lambda row: oldest(row) + 1,
}


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_another_definition_of_staleness_is_named(definition: str, tmp_path: Path):
    """Rounds began a step before their put, so that their start tells from the newest token."""
    earlier = changed(HEALTHY, lambda row: {"start_model_step": max(0, row["model_step"] - 1)})
    rows = changed(earlier, lambda row: {"seq_staleness": DEFINITIONS[definition](row)})
    right = changed(earlier, lambda row: {"seq_staleness": oldest(row)})
    assert found(tmp_path / "right", right, "recorded-staleness-mismatch") == []
    (finding,) = found(tmp_path / "other", rows, "recorded-staleness-mismatch")
    assert f"seq_staleness is {definition}, not that of the oldest token" in finding.message
    wrong = {row["rollout_id"] for row in rows if row["event"] == "put" and row["seq_staleness"] != oldest(row)}
    assert finding.extent is not None
    assert {rollout for _, rollout in finding.extent.members} == wrong


def test_staleness_in_syncs_is_named(tmp_path: Path):
    """Weights move every third step."""
    third = [event for event in events_of(HEALTHY) if event[0]["event"] != "sync"]
    rows = changed(
        renumbered(third),
        lambda row: {"response_model_steps": [step // 3 * 3 for step in row["response_model_steps"]],
                     "model_step": row["model_step"] // 3 * 3, "start_model_step": row["model_step"] // 3 * 3},
    )  # fmt: skip
    rows = changed(rows, lambda row: {"seq_staleness": oldest(row) // 3})
    report = audited(tmp_path / "log", rows, (*RUN.config, "timeline.sync_weights_interval=3"))
    (finding,) = findings_of(report, "recorded-staleness-mismatch")
    assert "counted in syncs, not in steps" in finding.message


def test_staleness_that_is_no_definition_stays_a_mismatch(tmp_path: Path):
    rows = changed(HEALTHY, lambda row: {"seq_staleness": oldest(row) + 7 + row["rollout_id"] % 2})
    (finding,) = found(tmp_path / "log", rows, "recorded-staleness-mismatch")
    assert "seq_staleness is" not in finding.message
    assert "recorded " in finding.message


def test_tool_output_of_a_rollout_with_several_rows_is_in_the_next_prompt(tmp_path: Path):
    calls = {"task_name": "math", "tool_turns": 2}
    rows = [put(1, 7, 70, prompt_len=9, **calls), put(1, 7, 70, prompt_len=20, **calls)]
    assert found(tmp_path / "turns", rows, "observation-tokens-trained") == []
    (finding,) = found(tmp_path / "whole", [*rows, put(2, 8, 80, **calls)], "observation-tokens-trained")
    assert finding.subject.rollout_id == 80
