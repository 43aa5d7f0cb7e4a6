"""Steps that a resumed run writes again, and groups that stand in several checkpoints, count once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.importers.importing import Imported, imported, jsonl
from tests.importers.test_import_dumps import Status, StorageItem, nemo_group, queue_batch, sample, state
from tests.importers.test_import_texts import summary
from tokenaudit import replay_log
from tokenaudit.importers.repeats import Keep, Repeats, Writing, spans_text

LOST = "train steps 4 to 5 are written more than once, as by a resumed run or by checkpoints that overlap"


def slime(folder: Path, step: int, score: float) -> None:
    samples = [sample(index, step, 2, ["1"], reward=score) for index in range(2)]
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"rollout_id": step - 1, "samples": samples}, folder / f"{step - 1}.pt")


def verl(folder: Path, step: int, score: float) -> None:
    rows = [{"input": "q", "output": "a", "score": score, "step": step} for _ in range(2)]
    jsonl(folder / f"{step}.jsonl", *rows)


def verl_queue(folder: Path, step: int, score: float) -> None:
    mask = [1] * (1 + int(score))
    queue_batch(folder / str(step) / "tq_batch.pt", step, [(f"{step}_{index}_0", mask, 0, 0) for index in range(2)])


def trl(folder: Path, step: int, score: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    columns = {"step": [step] * 2, "prompt": ["q"] * 2, "completion": [f"{step} {score}"] * 2, "reward": [score] * 2}
    table = pa.table(columns | {"advantage": [0.0] * 2})
    pq.write_table(table, folder / f"completions_{step:05d}.parquet")


def tinker(folder: Path, step: int, score: float) -> None:
    rows = [summary(step - 1, 0, index, step - 1, (1, 2)) | {"total_reward": score} for index in range(2)]
    jsonl(folder / f"iteration_{step - 1}" / "train_rollout_summaries.jsonl", *rows)


def xtuner(folder: Path, step: int, score: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    group = [state(index, step, [0, 0], reward={"score": score}) for index in range(2)]
    torch.save([group], folder / f"debug_rollout_{step}.pt")


def xtuner_trajectories(folder: Path, step: int, score: float) -> None:
    row = {"prompt": "q", "response": "a", "response_len": 2, "reward": score}
    jsonl(folder / f"train_rollout_{step}.jsonl", {"reward_mean": 1, "response_len_mean": 2}, row, row)


WRITERS: dict[str, Callable[[Path, int, float], None]] = {
    "slime": slime,
    "verl": verl,
    "verl-queue": verl_queue,
    "trl": trl,
    "tinker": tinker,
    "xtuner": xtuner,
    "xtuner-trajectories": xtuner_trajectories,
}


def batches(log: Imported) -> list[tuple[int, float | None]]:
    """Step and reward of every response."""
    return list(zip(log.column("train_step"), log.column("reward"), strict=True))


def takes(log: Imported) -> list[int]:
    return [row["train_step"] for row in log.rows if row["event"] == "take"]


@pytest.mark.parametrize("name", WRITERS)
def test_a_step_that_two_runs_wrote_counts_once(name: str, tmp_path: Path):
    for run, steps, score in (("run_1", range(1, 6), 0.0), ("run_2", range(4, 8), 1.0)):
        for step in steps:
            WRITERS[name](tmp_path / "dump" / run, step, score)
    for keep, resumed_at in ((Keep.LAST, 4), (Keep.FIRST, 6)):
        log = imported(name, tmp_path / "dump", keep=keep)
        expected = [(step, float(step >= resumed_at)) for step in range(1, 8)]
        found = batches(log)
        if name == "verl-queue":
            # all rewards of these are equal, but the second run has longer responses
            lengths = zip(log.column("train_step"), log.column("response_len"), strict=True)
            found = [(step, length - 1) for step, length in lengths]
        assert found == [pair for pair in expected for _ in range(2)]
        assert takes(log) == [*range(1, 8)]
        assert [row["event_id"] for row in log.rows] == sorted(row["event_id"] for row in log.rows)
        others = "earlier" if keep is Keep.LAST else "later"
        kept = f"the {keep} writing is kept, and 4 responses of {others} ones left out (--keep last, first or both)"
        assert log.imports.limits.count(f"{LOST}: {kept}") == 1
        assert (log.imports.responses, log.imports.train_steps, log.imports.events["take"]) == (14, (1, 7), 7)
        settings = ("policy.max_staleness=99", "timeline.stamp_missing=true")
        assert [row["taken_groups"] for row in log.replayed(*settings).steps] == [1] * 7
    both = imported(name, tmp_path / "dump", keep=Keep.BOTH)
    assert (len(batches(both)), len(takes(both))) == (18, 9)
    assert f"{LOST}: all of it is kept, so 4 responses may count twice" in both.imports.limits


def test_what_is_kept_is_told_in_the_log_and_by_a_trial(tmp_path: Path, run_cli):
    for run in ("a", "b"):
        verl(tmp_path / "dump" / run, 5, 1.0)
    ran = run_cli("import", "dump", "-o", "log.parquet", "--keep", "first")
    message = (
        "train step 5 is written more than once, as by a resumed run or by checkpoints that overlap: the first writing "
        "is kept, and 2 responses of later ones left out (--keep last, first or both)"
    )
    assert (ran.code, f"warning: {message}\n" in ran.err) == (0, True)
    notices = replay_log("log.parquet", overrides=["timeline.stamp_missing=true"], isolated=True).result.warnings
    assert message in [notice.message for notice in notices]
    trial = run_cli("import", "dump", "--dry-run", "--keep", "first")
    assert f"  - {message}\n" in trial.out


def test_a_step_that_comes_again_in_one_file_counts_once(tmp_path: Path):
    steps = [(1, 0.0), (2, 0.0), (3, 0.0), (2, 1.0), (3, 1.0), (4, 1.0)]
    rows = [{"input": f"q{step}", "output": "a", "score": score, "step": step} for step, score in steps]
    log = imported("verl", jsonl(tmp_path / "dump" / "1.jsonl", *rows))
    assert batches(log) == [(1, 0.0), (2, 1.0), (3, 1.0), (4, 1.0)]
    assert takes(log) == [1, 2, 3, 4]


def buffers(folder: Path, *groups: Sequence[dict[str, Any]]) -> Path:
    """A checkpoint for each buffer."""
    for number, held in enumerate(groups, start=1):
        path = folder / f"step_{number}" / "replay_buffer.pt"
        path.parent.mkdir(parents=True)
        torch.save({"groups": [*held]}, path)
    return folder


def test_a_group_in_several_checkpoints_counts_once(tmp_path: Path):
    a, b, c = (nemo_group(1, 1, 3 + index, name, [0, 1, 1]) for index, name in enumerate("abc"))
    # what became of it since then counts
    b_later = b | {"end_weight": 2}
    log = imported("nemo-rl", buffers(tmp_path / "run", [a, b], [b_later, c]))
    assert (log.column("train_step"), log.column("model_step_end")) == ([4, 5, 6], [None, 2, None])
    assert any(limit.startswith("train step 5 is written more than once") for limit in log.imports.limits)
    assert len(imported("nemo-rl", tmp_path / "run", keep=Keep.BOTH).rows) == 4


def test_groups_without_a_name_are_told_by_what_they_hold(tmp_path: Path):
    def save(step: int, *trajectories: tuple[int, list[int]]) -> None:
        batches = [
            {"token_loss_mask": torch.tensor([mask]), "input_lengths": torch.tensor([len(mask)])}
            for _, mask in trajectories
        ]
        versions = [version for version, _ in trajectories]
        saved = {"trajectories": [{"batch": batch} for batch in batches], "trajectory_versions": versions}
        path = tmp_path / "run" / f"step_{step}" / "replay_buffer.pt"
        path.parent.mkdir(parents=True)
        torch.save(saved | {"target_weight_versions": [version + 1 for version in versions]}, path)

    first, second, third = (3, [0, 1, 1]), (4, [0, 0, 1]), (4, [0, 1, 1, 1])
    save(4, first, second)
    save(5, second, third)
    log = imported("nemo-rl", tmp_path / "run")
    assert (log.column("train_step"), log.column("response_len")) == ([5, 6, 6], [2, 1, 3])
    assert len(set(log.column("group_id"))) == 3


def test_a_group_that_waits_in_several_buffers_of_xtuner_counts_once(tmp_path: Path):
    def save(step: int, *groups: int) -> None:
        items = [
            StorageItem(
                [state(group, group, [group], response_mask=None, seq_staleness=step - group - 1)],
                group,
                group,
                "math",
                Status.COMPLETED,
                0,
            )
            for group in groups
        ]
        path = tmp_path / "run" / f"step_{step}" / "replay_buffer.pth"
        path.parent.mkdir(parents=True)
        torch.save({"storage": "NaiveStorage", "storage_state": {"items": items}}, path)

    save(5, 3, 4)
    save(6, 4, 5)
    steps = {Keep.LAST: [(3, 5), (4, 6), (5, 6)], Keep.FIRST: [(3, 5), (4, 5), (5, 6)]}
    for keep, expected in steps.items():
        log = imported("xtuner-buffer", tmp_path / "run", keep=keep)
        assert list(zip(log.column("group_id"), log.column("train_step"), strict=True)) == expected
    assert len(imported("xtuner-buffer", tmp_path / "run", keep=Keep.BOTH).rows) == 4


def steps_of_a_table(*steps: int, score: float, rollouts: int | None = None) -> list[dict[str, Any]]:
    """A group of two responses, and the take, of each step."""
    rows: list[dict[str, Any]] = []
    for step in steps:
        row = {"group_id": f"g{step}", "train_step": step, "response_len": 2, "model_step": 0, "reward": score}
        numbers = [{} if rollouts is None else {"rollout_id": 2 * step + rollouts + index} for index in range(2)]
        rows += [row | number for number in numbers]
        rows.append({"event": "take", "train_step": step, "batch_size": 1})
    return rows


@pytest.mark.parametrize("rollouts", [None, 0])
def test_a_table_that_a_resumed_run_went_on_with_counts_its_steps_once(rollouts: int | None, tmp_path: Path):
    first, then = (
        steps_of_a_table(*steps, score=score, rollouts=rollouts)
        for steps, score in (((1, 2, 3), 0.0), ((2, 3, 4), 1.0))
    )
    log = imported("generic", jsonl(tmp_path / "one" / "mine.jsonl", *first, *then))
    assert batches(log) == [(1, 0.0)] * 2 + [(2, 1.0)] * 2 + [(3, 1.0)] * 2 + [(4, 1.0)] * 2
    assert takes(log) == [1, 2, 3, 4]
    # in files of their own
    jsonl(tmp_path / "dump" / "mine.jsonl", *first)
    jsonl(tmp_path / "dump" / "more.jsonl", *then)
    again = imported("generic", tmp_path / "dump")
    assert (batches(again), takes(again)) == (batches(log), takes(log))
    assert batches(imported("generic", tmp_path / "dump", keep=Keep.FIRST))[2:] == [
        (step, score) for step, score in ((2, 0.0), (3, 0.0), (4, 1.0)) for _ in range(2)
    ]


def test_parts_of_a_group_whose_rollouts_differ_stay(tmp_path: Path):
    rank_0, rank_1 = (steps_of_a_table(1, 2, score=1.0, rollouts=number) for number in (0, 100))
    puts = [[row for row in rows if "event" not in row] for rows in (rank_0, rank_1)]
    jsonl(tmp_path / "dump" / "rank_0.jsonl", *puts[0])
    jsonl(tmp_path / "dump" / "rank_1.jsonl", *puts[1])
    log = imported("generic", tmp_path / "dump")
    assert len(log.rows) == 8
    assert not any("more than once" in limit for limit in log.imports.limits)


def test_rows_of_a_step_may_stand_in_any_order(tmp_path: Path):
    rows = [row for row in steps_of_a_table(1, 2, score=1.0) if "event" not in row]
    mixed = [rows[0] | {"group_id": "other"}, *rows[:2], rows[0] | {"group_id": "other"}]
    assert len(imported("generic", jsonl(tmp_path / "mine.jsonl", *mixed)).rows) == 4


def test_what_lies_in_one_buffer_twice_stays(tmp_path: Path):
    group = nemo_group(1, 1, 3, "a", [0, 1, 1])
    log = imported("nemo-rl", buffers(tmp_path / "run", [group, group]))
    assert len(log.rows) == 2
    assert not any("more than once" in limit for limit in log.imports.limits)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(1, 3)), max_size=30))
def test_repeats_match_a_slow_twin(events: list[tuple[int, str, int]]):
    repeats = Repeats()
    order: dict[int, dict[str, int]] = {}
    for step, place, responses in events:
        repeats.see("put", Writing(step, place), step, responses)
        places = order.setdefault(step, {})
        places[place] = places.get(place, 0) + responses
    repeated = {step: list(places.items()) for step, places in order.items() if len(places) > 1}
    for keep, lost in ((Keep.LAST, slice(None, -1)), (Keep.FIRST, slice(1, None))):
        left = repeats.left_out(keep)
        if not repeated:
            assert left is None
            continue
        assert left is not None
        gone = {(step, place) for step, places in repeated.items() for place, _ in places[lost]}
        assert left.writings == {hash(("put", Writing(*pair))) for pair in gone}
        assert left.train_steps == sorted(repeated)
        assert left.responses == sum(order[step][place] for step, place in gone)


def test_steps_in_words():
    assert spans_text([4]) == "train step 4 is"
    assert spans_text([4, 5, 6, 8]) == "train steps 4 to 6, 8 are"
    assert spans_text(range(0, 20, 2)) == "train steps 0, 2, 4, 6, 8, 5 more spans are"
