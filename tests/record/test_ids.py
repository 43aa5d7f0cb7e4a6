"""Ids that hooks give: the trainer's own where they can stand, others where a name comes again."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
import torch

from tokenaudit import Recorder
from tokenaudit.record.ids import GroupIds, log_id, rollout_id


def test_ids_are_numbers_as_they_are_and_texts_by_their_hash():
    assert [log_id(7), log_id("7"), log_id(2**63 - 1)] == [7, 7, 2**63 - 1]
    assert log_id("a") == log_id("a") != log_id("b")
    assert 0 <= log_id("a") < 2**53
    for value in (-1, 2**63, True, None, 1.0):
        with pytest.raises(ValueError, match="is no id"):
            log_id(value)


def test_members_of_groups_have_ids_of_their_own():
    ids = [rollout_id(group_id, member) for group_id in range(30) for member in range(30)]
    assert len(set(ids)) == 900


def test_a_group_whose_name_comes_again_is_another_group(tmp_path: Path):
    with Recorder(tmp_path) as recorder:
        ids = GroupIds(recorder)
        assert [ids.new(4), ids.new("5")] == [4, 5]
        again = [ids.new(4), ids.new(4), ids.new("5")]
        assert len({4, 5, *again}) == 5
        recorder.put([{"rollout_id": 1, "response_len": 1}], group_id=4, train_step=1, model_step=0)
    with Recorder(tmp_path, append=True) as resumed:
        assert resumed.first_event_id == 2
        behind = GroupIds(resumed)
        assert len({4, 5, *again, behind.new(4), behind.new(4), behind.new("5")}) == 8


def test_numbers_of_numpy_and_tensors_and_uuids_are_ids():
    name = UUID(int=5)
    assert [log_id(np.int64(7)), log_id(np.uint8(8)), log_id(torch.tensor(9))] == [7, 8, 9]
    assert log_id(name) == log_id(str(name))
    for value in (np.int64(-1), np.bool_(True), np.float64(1), torch.tensor([1, 2])):
        with pytest.raises((ValueError, TypeError)):
            log_id(value)
