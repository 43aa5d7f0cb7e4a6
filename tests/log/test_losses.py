"""What is gone from a recording is noticed when it is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import put, take, write_log
from tests.log.ranked_logs import write_ranks
from tests.oracles.slow_ranks import RankRows
from tokenaudit import Recorder
from tokenaudit.log.files import open_log
from tokenaudit.log.losses import Loss, lost_parts, lost_ranks, missing_parts

RULE = ("--isolated", "--rule", "failed_tokens <= 0")


def recording(folder: Path, parts: int) -> Path:
    """A recording whose parts hold one put each."""
    for number in range(parts):
        with Recorder(folder, append=True) as recorder:
            response = {"rollout_id": number, "response_len": 4}
            recorder.put([response], group_id=number, train_step=1, model_step=0)
            recorder.take(1, 1)
    assert len(list(folder.iterdir())) >= parts
    return folder


@pytest.mark.parametrize("number", [1, 2])
def test_a_part_that_is_gone_is_told_and_the_gate_does_not_judge(number: int, tmp_path: Path, run_cli):
    folder = recording(tmp_path / "log", 3)
    assert open_log([folder]).losses == ()
    (folder / f"part-00000{number}.parquet").unlink()
    text = f"parts of the recording are missing: part-00000{number}.parquet"
    assert open_log([folder]).losses == (Loss("parts", 1, text),)
    assert text in run_cli("inspect", "log").out
    warnings = json.loads(run_cli("replay", "log", "--isolated", "--format", "json").out)["warnings"]
    assert [notice["message"] for notice in warnings if notice["code"] == "lost-events"] == [text]
    assert f"error: {text}" in run_cli("gate", "log", *RULE).err
    assert run_cli("gate", "log", *RULE).code == 2
    assert run_cli("gate", "log", *RULE, "--allow-lost-events").code == 0
    audit = json.loads(run_cli("audit", "log", "--isolated", "--format", "json").out)
    (finding,) = (finding for finding in audit["findings"] if finding["code"] == "S023")
    assert (finding["message"], finding["lost"]) == (text, {"kind": "parts", "size": 1})
    # and it stays known when the log is made small
    assert run_cli("compact", "log", "-o", "small.parquet").code == 0
    assert open_log([tmp_path / "small.parquet"]).loss_texts == (text,)
    # a pattern stands for a folder; files named one by one are a choice, and so are the ends
    assert open_log([folder / "part-*.parquet"]).loss_texts == (text,)
    assert open_log(sorted(folder.glob("*.parquet"))).loss_texts == ((text,) if number == 2 else ())


def test_parts_of_one_folder_belong_together_however_it_is_named(tmp_path: Path):
    folder = recording(tmp_path / "log", 3)
    (folder / "part-000002.parquet").unlink()
    (tmp_path / "link").symlink_to(folder)
    for other in (tmp_path / "link", folder / ".." / "log"):
        (loss,) = open_log([folder / "part-000001.parquet", other / "part-000003.parquet"]).losses
        assert (loss.kind, loss.size) == ("parts", 1)


def test_a_part_that_cannot_be_read_is_not_one_that_is_gone(tmp_path: Path, run_cli):
    folder = recording(tmp_path / "log", 4)
    (folder / "part-000002.parquet").write_bytes(b"PAR1")
    (folder / "part-000003.parquet").unlink()
    audit = json.loads(run_cli("audit", "log", "--isolated", "--format", "json").out)
    found = [finding["message"] for finding in audit["findings"] if finding["code"] == "S023"]
    assert found == ["parts of the recording are missing: part-000003.parquet"]


def test_every_rank_has_numbers_of_its_own(tmp_path: Path):
    rows = [put(n, n, time_us=n) for n in range(1, 7)]
    folder = write_ranks(tmp_path / "log", [RankRows(rank, 0, rows) for rank in range(2)], files=6)
    assert open_log([folder]).losses == ()
    for number in (2, 3, 5, 6):
        (folder / f"part-rank0001-00000{number}.parquet").unlink()
    (folder / "part-rank0000-000001.parquet").unlink()
    names = "part-rank0000-000001.parquet, part-rank0001-000002.parquet to part-rank0001-000003.parquet"
    # the last two can't be missed
    assert open_log([folder]).losses == (Loss("parts", 3, f"parts of the recording are missing: {names}"),)


def test_folders_below_a_folder_have_numbers_of_their_own(tmp_path: Path):
    for name in ("a/part-000001", "a/part-000002", "b/part-000001", "b/part-000003", "b/other-000009"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_log(tmp_path / f"{name}.parquet", [put(1, 1), take(2)])
    assert [loss.size for loss in open_log([tmp_path]).losses] == [1]


def test_many_gaps_are_counted():
    paths = [Path(f"part-{number:06}.parquet") for number in range(0, 100, 4)]
    names = missing_parts([(Path(), paths)])
    assert names.startswith("part-000001.parquet to part-000003.parquet, part-000005.parquet to ")
    assert names.endswith("part-000079.parquet and 12 others")
    assert lost_parts(names).size == 3 * 24
    assert len(lost_parts("part-000001.parquet, " * 1000).text) < 600


@pytest.mark.parametrize(
    ("ranks", "size"),
    [("1 of 2", 1), ("1, 4 to 6, 8 to 999999 of 1000000", 999996), ("0, 2, 5 to 7 and 13 others of 900", 18), ("", 0)],
)
def test_ranks_without_a_part_are_counted(ranks: str, size: int):
    assert lost_ranks(ranks) == Loss("ranks", size, f"there is no part of ranks {ranks}")
