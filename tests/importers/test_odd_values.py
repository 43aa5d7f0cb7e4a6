"""A record that can't be read is left out, counted and named; a file that can't be read refuses the import."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.importers.importing import ROW, imported, jsonl
from tests.importers.test_import_dumps import nemo_group, queue_batch, sample, state
from tests.importers.test_import_texts import areal, episode, summary
from tests.importers.test_repeats import buffers
from tokenaudit import replay_log
from tokenaudit.contracts.errors import SourceError


def slime(folder: Path) -> None:
    samples = [sample(index, index // 4, 2, ["1"]) for index in range(12)]
    samples[5]["reward"] = "good"
    torch.save({"rollout_id": 0, "samples": samples}, folder / "0.pt")


def xtuner(folder: Path) -> None:
    # a group is read as a whole
    groups = [[state(10 * group + index, group, [0, 0]) for index in range(4)] for group in range(3)]
    groups[1][1].fields["status"] = "lost"
    torch.save(groups, folder / "debug_rollout_1.pt")


def verl_queue(folder: Path) -> None:
    responses = [(f"g{index // 4}_{index}_0", [1, 1], 0, 0) for index in range(12)]
    responses[5] = (responses[5][0], [1, 1], 3, 1)
    queue_batch(folder / "1" / "tq_batch.pt", 1, responses)


def nemo(folder: Path) -> None:
    groups = [nemo_group(1, 1, 3, name, *[[0, 1, 1]] * 4) for name in "abc"]
    groups[1]["end_weight"] = 0
    buffers(folder, groups)


def verl(folder: Path) -> None:
    rows = [{"input": index // 4, "output": "a", "score": 1, "step": 1} for index in range(12)]
    rows[5]["score"] = "good"
    jsonl(folder / "1.jsonl", *rows)


def tinker(folder: Path) -> None:
    rows = [summary(0, index // 4, index % 4, 0, (1, 2)) for index in range(12)]
    rows[5]["sampling_client_step"] = "late"
    jsonl(folder / "iteration_0" / "train_rollout_summaries.jsonl", *rows)


def areal_tasks(folder: Path) -> None:
    rows = [areal(index // 4, index % 4) for index in range(12)]
    rows[5]["prompt_len"] = 99
    for task in range(3):
        jsonl(folder / "2" / f"{task}.jsonl", *rows[4 * task : 4 * task + 4])


def prime(folder: Path) -> None:
    rows = [episode(f"e{index}", f"g{index // 4}", 1, 1) for index in range(12)]
    rows[5]["traces"] = 3
    jsonl(folder / "step_4" / "train" / "effective" / "traces.jsonl", *rows)


def trl(folder: Path) -> None:
    columns = {
        "step": [1] * 5 + [-1] + [1] * 6,
        "prompt": ["a"] * 4 + ["b"] * 4 + ["c"] * 4,
        "completion": [str(index) for index in range(12)],
        "reward": [1.0] * 12,
        "advantage": [0.0] * 12,
    }
    pq.write_table(pa.table(columns), folder / "completions_00001.parquet")


def xtuner_trajectories(folder: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": index // 4, "response_len": 2, "reward": 1} for index in range(12)]
    rows[5]["response_len"] = -1
    jsonl(folder / "train_rollout_1.jsonl", {"reward_mean": 1, "response_len_mean": 2}, *rows)


def table(folder: Path) -> None:
    rows = [ROW | {"group_id": index // 4} for index in range(12)]
    rows[5]["response_len"] = "long"
    jsonl(folder / "mine.jsonl", *rows)


# formats that read a group as a whole lose it with its odd member
SOURCES: dict[str, tuple[Callable[[Path], None], list[int]]] = {
    "slime": (slime, [4, 3, 4]),
    "xtuner": (xtuner, [4, 4]),
    "verl-queue": (verl_queue, [4, 3, 4]),
    "nemo-rl": (nemo, [4, 4]),
    "verl": (verl, [4, 3, 4]),
    "tinker": (tinker, [4, 3, 4]),
    "areal": (areal_tasks, [4, 3, 4]),
    "prime-rl": (prime, [4, 3, 4]),
    "trl": (trl, [4, 3, 4]),
    "xtuner-trajectories": (xtuner_trajectories, [4, 3, 4]),
    "generic": (table, [4, 3, 4]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_one_odd_value_leaves_out_its_record_alone(name: str, tmp_path: Path):
    write, sizes = SOURCES[name]
    (tmp_path / "dump").mkdir()
    write(tmp_path / "dump")
    log = imported(name, tmp_path / "dump")
    # a rollout may be trained as several rows
    rollouts = dict.fromkeys(zip(log.column("group_id"), log.column("rollout_id"), strict=True))
    assert list(Counter(group for group, _ in rollouts).values()) == sizes
    (left_out,) = [limit for limit in log.imports.limits if limit.startswith("left out: 1 record that can't be read")]
    assert str(tmp_path / "dump") in left_out
    smaller = [limit for limit in log.imports.limits if limit.startswith("members may be missing of 1 group")]
    assert len(smaller) == (3 in sizes)
    assert all("(3 of 4 responses)" in limit for limit in smaller)
    with pytest.raises(SourceError):
        imported(name, tmp_path / "dump", is_strict=True)


def test_what_is_left_out_is_warned_of_and_told_by_every_command(tmp_path: Path, run_cli):
    (tmp_path / "dump").mkdir()
    table(tmp_path / "dump")
    path = tmp_path / "dump" / "mine.jsonl"
    ran = run_cli("import", "dump", "-o", "log.parquet")
    assert ran.code == 0
    assert "warning: response_len is 'long'\n  at: dump/mine.jsonl, line 6\n  hint: it is a whole number\n" in ran.err
    limit = "left out: 1 record that can't be read, the first: response_len is 'long' (dump/mine.jsonl, line 6)"
    smaller = (
        "members may be missing of 1 group, smaller than others of the step, where records were left out: group 1 of "
        "default in train step 1 (3 of 4 responses)"
    )
    assert ran.err.count(f"warning: {limit}\n") == ran.err.count(f"warning: {smaller}\n") == 1
    settings = ["-s", "timeline.train_batch_size=1"]
    compared = ["diff", "--log", "log.parquet", "--set-b", "policy.max_staleness=9"]
    judged = ["gate", "log.parquet", "--rule", "put_groups >= 1"]
    for command in (["replay", "log.parquet"], compared, judged):
        again = run_cli(*command, *settings)
        assert (again.code, limit in again.err, smaller in again.err) == (0, True, True)
    trial = run_cli("import", "dump", "--dry-run")
    assert (trial.code, f"  - {limit}\n" in trial.out) == (0, True)
    assert "warning: response_len is 'long'\n" in trial.err
    for options in (["-o", "other.parquet"], ["--dry-run"]):
        strict = run_cli("import", "dump", "--strict", *options)
        assert (strict.code, strict.out) == (2, "")
        assert "error: response_len is 'long'\n" in strict.err
    assert not (tmp_path / "other.parquet").exists()
    assert path.exists()


def test_the_cut_off_last_line_of_a_killed_run_is_left_out(tmp_path: Path):
    path = jsonl(tmp_path / "dump" / "mine.jsonl", *[ROW | {"group_id": index // 2} for index in range(6)])
    path.write_text(path.read_text()[:-20])
    log = imported("generic", tmp_path / "dump")
    assert log.column("group_id") == [0, 0, 1, 1, 2]
    assert any("group 2 of default in train step 1 (1 of 2 responses)" in limit for limit in log.imports.limits)


@pytest.mark.parametrize("odd", [None, "x", [1], torch.zeros(2)])
def test_an_odd_group_of_a_buffer_leaves_out_itself_alone(odd: object, tmp_path: Path):
    groups: list[object] = [nemo_group(1, 1, 3, name, [0, 1, 1]) for name in "abc"]
    groups[1] = odd
    (tmp_path / "single").mkdir()
    torch.save({"groups": groups}, tmp_path / "single" / "replay_buffer.pt")
    columns = {"trajectory_versions": [1] * 3, "target_weight_versions": [2] * 3}
    batch = {"token_loss_mask": torch.tensor([[0, 1]]), "input_lengths": torch.tensor([2])}
    (tmp_path / "classic").mkdir()
    torch.save({"trajectories": [batch, odd, batch]} | columns, tmp_path / "classic" / "replay_buffer.pt")
    for kind in ("single", "classic"):
        log = imported("nemo-rl", tmp_path / kind)
        assert len(log.column("group_id")) == 2
        (left_out,) = [limit for limit in log.imports.limits if limit.startswith("left out: 1 record")]
        assert "replay_buffer.pt, group 1)" in left_out


def test_an_odd_step_is_left_out_and_ends_no_batch(tmp_path: Path):
    rows = [{"input": index // 4, "output": "a", "score": 1, "step": 1} for index in range(12)]
    rows[5]["step"] = 2**40
    log = imported("verl", jsonl(tmp_path / "1.jsonl", *rows))
    assert list(Counter(log.column("group_id")).values()) == [4, 3, 4]
    assert [limit for limit in log.imports.limits if limit.startswith("left out: 1 record that can't be read")]
    assert not [limit for limit in log.imports.limits if "written more than once" in limit]


def test_versions_before_the_initial_weights_are_told_apart_from_other_odd_values(tmp_path: Path, run_cli):
    versions = [3, 1, 2, 4, "x", 5]
    jsonl(tmp_path / "mine.jsonl", *[ROW | {"group_id": version, "model_step": version} for version in versions])
    command = ["import", "mine.jsonl", "--from", "generic", "-o", "log.parquet"]
    assert run_cli(*command, "--version-offset", "1").err.count("fresher") == 0
    ran = run_cli(*command, "--version-offset", "3", "--force")
    told = (
        "the oldest of the run is missing, so it looks fresher than it was: 2 records with versions before 3, which "
        "stands for the initial weights, as far back as 1; if that one does, import again with --version-offset 1"
    )
    assert (ran.code, ran.err.count(f"warning: {told}\n")) == (0, 1)
    assert "left out: 3 records that can't be read" in ran.err
    again = run_cli("replay", "log.parquet", "-s", "timeline.train_batch_size=1")
    assert (again.code, told in again.err) == (0, True)


def test_a_dump_that_makes_no_sense_as_a_whole_is_left_out(tmp_path: Path):
    samples = [sample(index, index // 4, 2, ["1"]) for index in range(8)]
    for name, rollout_id in (("0", 0), ("1", "late"), ("2", 2)):
        torch.save({"rollout_id": rollout_id, "samples": samples}, tmp_path / f"{name}.pt")
    log = imported("slime", tmp_path)
    assert sorted({*log.column("train_step")}) == [1, 3]
    place = tmp_path / "1.pt"
    assert f"left out: 1 record that can't be read, the first: rollout_id is 'late' ({place})" in log.imports.limits
    with pytest.raises(SourceError, match="rollout_id is 'late'"):
        imported("slime", tmp_path, is_strict=True)


def test_an_item_of_a_buffer_that_is_none_is_left_out(tmp_path: Path):
    groups = [[state(10 * group + index, group, [0, 0]) for index in range(2)] for group in range(3)]
    items: list[Any] = [{"item": group, "task_name": "math", "timestamp_id": 9 - at} for at, group in enumerate(groups)]
    items[1:2] = [7, items[1] | {"timestamp_id": None}]
    torch.save({"storage": "NaiveStorage", "storage_state": {"items": items}}, tmp_path / "replay_buffer.pth")
    log = imported("xtuner-buffer", tmp_path / "replay_buffer.pth")
    # by time, not by place
    assert log.column("group_id") == [2, 2, 0, 0]
    assert [limit for limit in log.imports.limits if limit.startswith("left out: 2 records")]


def test_where_nothing_is_left_the_import_is_refused(tmp_path: Path):
    jsonl(tmp_path / "mine.jsonl", *[ROW | {"response_len": "long"}] * 25)
    with pytest.raises(SourceError, match="response_len is 'long'") as raised:
        imported("generic", tmp_path / "mine.jsonl")
    assert [problem.what for problem in raised.value.problems][-1] == "5 more faults"
    assert not (tmp_path / "log.parquet").exists()


def test_a_response_that_no_log_can_hold_leaves_out_itself_alone(tmp_path: Path):
    rows = [ROW | {"rollout_id": index} for index in range(4)]
    odd = [rows[0], rows[1] | {"response_mask": [1]}, rows[2] | {"status": "done"}, rows[3]]
    log = imported("generic", jsonl(tmp_path / "mine.jsonl", *odd))
    assert log.column("rollout_id") == [0, 3]
    assert [limit for limit in log.imports.limits if limit.startswith("left out: 2 records")]


def test_an_event_that_no_log_can_hold_leaves_out_itself_alone(tmp_path: Path):
    take = {"event": "take", "train_step": 1, "batch_size": 1}
    log = imported("generic", jsonl(tmp_path / "mine.jsonl", ROW, take | {"batch_size": -1}, take))
    assert [row["event"] for row in log.rows] == ["put", "take"]


def test_groups_that_differ_in_size_are_no_loss_where_nothing_was_left_out(tmp_path: Path):
    steps = [(1, "aabbb"), (2, "ccdd"), (3, "eeefff"), (4, "gghhh")]
    rows = [ROW | {"train_step": step, "group_id": name} for step, names in steps for name in names]
    rows[14]["response_len"] = "long"
    log = imported("generic", jsonl(tmp_path / "mine.jsonl", *rows))
    (limit,) = [limit for limit in log.imports.limits if limit.startswith("members may be missing")]
    assert "of 1 group, " in limit
    assert "train step 3 (2 of 3 responses)" in limit


def damaged_slime(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(100))


def damaged_table(path: Path) -> None:
    path.write_bytes(b"PAR1" + bytes(100))


def damaged_csv(path: Path) -> None:
    path.write_text("group_id,train_step,response_len\n1,1,2\n", encoding="utf-16")


@pytest.mark.parametrize(
    ("name", "suffix", "damage"),
    [("slime", "pt", damaged_slime), ("generic", "parquet", damaged_table), ("generic", "csv", damaged_csv)],
)
def test_every_damaged_file_among_others_is_told_at_once(
    name: str, suffix: str, damage: Callable[[Path], None], tmp_path: Path, run_cli
):
    names = ["a", "b", "c", "d"]
    for step, stem in enumerate(names):
        path = tmp_path / f"{stem}.{suffix}"
        if stem in "bd":
            damage(path)
        elif suffix == "pt":
            torch.save({"rollout_id": step, "samples": [sample(0, 0, 2, ["1"])]}, path)
        elif suffix == "csv":
            path.write_text(f"group_id,train_step,response_len,model_step\n1,{step},2,0\n")
        else:
            pq.write_table(pa.table({key: [value] for key, value in ROW.items()}), path)
    ran = run_cli("import", "--from", name, *(f"{stem}.{suffix}" for stem in names), "-o", "log.parquet")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("error: ") == 2
    assert all(f"{stem}.{suffix}" in ran.err for stem in "bd")
    assert not (tmp_path / "log.parquet").exists()


def test_a_log_says_so_in_its_notices(tmp_path: Path):
    verl(tmp_path / "dump")
    log = imported("verl", tmp_path / "dump")
    result = replay_log(log.path, overrides=["timeline.stamp_missing=true"], isolated=True).result
    notices = [notice.message for notice in result.warnings if notice.code == "source-limit"]
    assert notices == list(log.imports.limits)
    assert json.loads(pq.read_metadata(log.path).metadata[b"tokenaudit.limits"]) == notices
