"""Logs that store version runs: what they replay to, what is wrong with them, and how they are made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT, SAMPLE
from tokenaudit.contracts.errors import LogError
from tokenaudit.log.columns import Lists
from tokenaudit.log.compact import write_compact
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest
from tokenaudit.log.semantic_masks import masks_of, masks_of_runs, split_at_masks
from tokenaudit.log.version_runs import recorded_runs, version_runs
from tokenaudit.replay.result import Result
from tokenaudit.replay.session import replay_log
from tokenaudit.simulate.session import load_workload

CASES = sorted(path.parent for path in (ROOT / "tests" / "golden").glob("*/log.parquet"))
RUN = pa.struct({"model_step": pa.int32(), "tokens": pa.int32(), "trainable": pa.int32()})
SCHEMA = pa.schema(
    {
        "event": pa.string(),
        "event_id": pa.int64(),
        "train_step": pa.int32(),
        "model_step": pa.int32(),
        "group_id": pa.int64(),
        "rollout_id": pa.int64(),
        "status": pa.string(),
        "response_len": pa.int32(),
        "prior_len": pa.int32(),
        "response_ids": pa.list_(pa.int32()),
        "response_model_steps": pa.list_(pa.int32()),
        "response_mask": pa.list_(pa.int8()),
        "response_version_runs": pa.list_(RUN),
        "batch_size": pa.int32(),
        "generate_time_us": pa.int64(),
    }
)


def put(event_id: int = 0, **others: Any) -> dict[str, Any]:
    row = {"event": "put", "train_step": 1, "group_id": event_id, "rollout_id": event_id, "status": "completed"}
    return row | {"event_id": event_id, "prior_len": 0} | others


def run(model_step: int | None, tokens: int | None, trainable: int | None = None) -> dict[str, int | None]:
    return {"model_step": model_step, "tokens": tokens, "trainable": tokens if trainable is None else trainable}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    return path


def compacted(path: Path, target: Path) -> Path:
    log = open_log([path])
    with target.open("wb") as file:
        write_compact(file, log, read_digest(log, allow_missing_versions=True))
    return target


def numbers(result: Result) -> Result:
    """A result without the name and the hash of its input."""
    return replace(result, inputs=())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_compact_log_replays_to_the_same_numbers(case: Path, tmp_path: Path):
    config = case / "config.toml"
    small = compacted(case / "log.parquet", tmp_path / "small.parquet")
    results = [replay_log(path, config_path=config, with_groups=True).result for path in (case / "log.parquet", small)]
    assert numbers(results[0]) == numbers(results[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_compact_log_gives_the_same_workload(case: Path, tmp_path: Path):
    small = compacted(case / "log.parquet", tmp_path / "small.parquet")
    workloads = [load_workload([path], token_time_us=7).workload for path in (case / "log.parquet", small)]
    assert workloads[0].content_hash() == workloads[1].content_hash()


def test_the_content_hash_stays(tmp_path: Path):
    small = compacted(SAMPLE, tmp_path / "small.parquet")
    before, after = (read_digest(open_log([path])).content_hash() for path in (SAMPLE, small))
    assert before == after
    twice = compacted(small, tmp_path / "twice.parquet")
    assert twice.read_bytes() == small.read_bytes()


def test_runs_are_the_tokens_they_stand_for(tmp_path: Path):
    by_token = [
        put(0, response_len=5, response_model_steps=[0, 0, 1, 1, 2], response_mask=[0, 1, 1, 1, 0]),
        put(1, response_len=0),
        put(2, response_len=2, response_model_steps=[3, 3]),
    ]
    by_run = [
        put(0, response_len=5, response_version_runs=[run(0, 2, 1), run(1, 1), run(1, 1), run(2, 1, 0)]),
        put(1, response_version_runs=[]),
        put(2, response_len=2, response_model_steps=[3, 3]),
    ]
    digests = [
        read_digest(open_log([write(tmp_path / f"{n}.parquet", rows)])) for n, rows in enumerate((by_token, by_run))
    ]
    assert digests[0].content_hash() == digests[1].content_hash()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"response_version_runs": [run(0, 0)]}, "a run of version 0 with 0 tokens, 0 trainable"),
        ({"response_version_runs": [run(0, 2, 3)]}, "a run of version 0 with 2 tokens, 3 trainable"),
        ({"response_version_runs": [run(0, 2, -1)]}, "a run of version 0 with 2 tokens, -1 trainable"),
        ({"response_version_runs": [run(-1, 2)]}, "a run of version -1 with 2 tokens, 2 trainable"),
        ({"response_version_runs": [None]}, "response_version_runs holds a null"),
        ({"response_version_runs": [run(0, None, 1)]}, "response_version_runs holds a null"),
        ({"response_version_runs": [run(0, 2)], "response_len": 3}, "runs of 2 tokens for 3 tokens"),
        ({"response_version_runs": [run(None, 2)]}, "a run without a version"),
        (
            {"response_version_runs": [run(0, 1)], "response_mask": [1]},
            "runs beside response_model_steps or response_mask",
        ),
        (
            {"response_version_runs": [run(0, 1)], "response_model_steps": [0]},
            "runs beside response_model_steps or response_mask",
        ),
    ],
)
def test_runs_that_can_not_be(row: dict[str, Any], message: str, tmp_path: Path):
    log = open_log([write(tmp_path / "log.parquet", [put(0, response_version_runs=[run(0, 1)]), put(1, **row)])])
    with pytest.raises(LogError) as caught:
        read_digest(log)
    assert message in caught.value.problems[0].what
    assert caught.value.problems[0].where == f"{tmp_path / 'log.parquet'}, row 1, column response_version_runs"


def test_missing_versions_and_masks_survive(tmp_path: Path):
    rows = [
        put(0, response_len=2, response_mask=[0, 1]),
        {"event": "take", "event_id": 1, "train_step": 1, "batch_size": 1},
    ]
    small = compacted(write(tmp_path / "log.parquet", rows), tmp_path / "small.parquet")
    assert pq.read_table(small)["response_version_runs"].to_pylist() == [[run(None, 1, 0), run(None, 1)], None]
    overrides = ["timeline.stamp_missing=true"]
    result = replay_log(small, isolated=True, overrides=overrides).result
    assert (result.totals["trained_tokens"], result.totals["masked_semantic_tokens"]) == (1, 1)


def test_ids_that_differ_become_a_prior_length(tmp_path: Path):
    def twice(second: list[int], versions: tuple[list[int], list[int]]) -> Path:
        rows = [
            put(0, response_ids=[7, 8], response_model_steps=versions[0], status="aborted"),
            put(1, group_id=0, rollout_id=0, response_ids=second, response_model_steps=versions[1]),
        ]
        for row in rows:
            del row["prior_len"]
        return write(tmp_path / "log.parquet", rows)

    small = compacted(twice([9, 8, 7], ([0, 0], [0, 0, 1])), tmp_path / "small.parquet")
    assert pq.read_table(small)["prior_len"].to_pylist() == [None, 0]
    small = compacted(twice([7, 8, 9], ([0, 0], [0, 0, 1])), tmp_path / "small.parquet")
    assert pq.read_table(small)["prior_len"].to_pylist() == [None, None]
    with pytest.raises(LogError, match="only response_ids say what 1 responses continue from"):
        compacted(twice([7, 8, 9], ([0, 0], [1, 1, 1])), tmp_path / "small.parquet")


def test_the_command(run_cli):
    ran = run_cli("compact", SAMPLE, "-o", "small.parquet")
    assert ran.code == 0
    assert ran.out.endswith("version runs\n")
    assert "note: left out response_model_steps, response_mask" in ran.err
    assert "can't check single tokens" in ran.err
    assert Path("small.parquet").stat().st_size < SAMPLE.stat().st_size
    results = [run_cli("replay", path, "--isolated") for path in (SAMPLE, "small.parquet")]
    tables = [ran.out.split("\n", 1)[1] for ran in results]
    assert tables[0] == tables[1]


def test_masks_of_runs_only_where_they_are_known(run_cli, tmp_path: Path):
    rows = [
        put(0, response_version_runs=[run(0, 3, 2)]),
        {"event": "take", "event_id": 1, "train_step": 1, "batch_size": 1},
    ]
    write(tmp_path / "log.parquet", rows)
    ran = run_cli("mask", "log.parquet", "-o", "masks.parquet", "--isolated")
    assert ran.code == 2
    assert "nothing says which tokens of a response are in the loss" in ran.err
    for later in (0, 1):
        rows[0]["response_version_runs"] = [run(0, 2), run(later, 1, 0)]
        write(tmp_path / "log.parquet", rows)
        assert run_cli("mask", "log.parquet", "-o", "masks.parquet", "--isolated").code == 0
        assert pq.read_table("masks.parquet")["effective_mask"].to_pylist() == [[1, 1, 0]]


def test_rows_with_masks_stand_beside_rows_with_runs(run_cli, tmp_path: Path):
    rows = [
        put(0, response_version_runs=[run(0, 1, 0), run(0, 2)]),
        put(1, response_len=3, response_model_steps=[0, 0, 0], response_mask=[1, 0, 1]),
        put(2, response_len=2, response_model_steps=[0, 0]),
        put(3, response_version_runs=[run(0, 1), run(0, 1, 0)]),
        {"event": "take", "event_id": 9, "train_step": 1, "batch_size": 4},
    ]
    for row in rows:
        row["generate_time_us"] = 5
    write(tmp_path / "log.parquet", rows)
    compacted(tmp_path / "log.parquet", tmp_path / "small.parquet")
    expected = [[0, 1, 1], [1, 0, 1], [1, 1], [1, 0]]
    for name in ("log.parquet", "small.parquet"):
        assert run_cli("mask", name, "-o", "masks.parquet", "--isolated").code == 0
        assert pq.read_table("masks.parquet")["effective_mask"].to_pylist() == expected
        assert run_cli("workload", name, "-o", "w.parquet", "--token-time-us", "1").code == 0
        masks = pq.read_table("w.parquet")["response_mask"].to_pylist()
        assert [mask or [1, 1] for mask in masks] == expected


def test_a_workload_needs_to_know_which_tokens_are_in_the_loss(run_cli, tmp_path: Path):
    write(
        tmp_path / "log.parquet",
        [put(0, response_version_runs=[run(0, 3)]), put(1, response_version_runs=[run(0, 3, 2)])],
    )
    ran = run_cli("workload", "log.parquet", "-o", "w.parquet", "--token-time-us", "1")
    assert (ran.code, ran.out) == (2, "")
    assert "a run says how many of its tokens are in the loss, and not which" in ran.err
    assert "log.parquet, row 1, column response_version_runs" in ran.err


def test_a_compact_log_simulates_and_masks_like_the_log_it_was_made_from(run_cli):
    assert run_cli("compact", SAMPLE, "-o", "small.parquet").code == 0
    results = [
        json.loads(run_cli("simulate", path, "--format", "json", "-q").out) for path in (SAMPLE, "small.parquet")
    ]
    assert results[0]["totals"]["masked_semantic_tokens"] > 0
    for result in results:
        del result["inputs"][0]["name"]
    assert results[0] == results[1]
    tables = []
    for path in (SAMPLE, "small.parquet"):
        run_cli("mask", path, "-o", "masks.parquet", "--device", "cpu", "--step", "5..9")
        tables.append(pq.read_table("masks.parquet"))
    assert tables[0].equals(tables[1])


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=12), max_size=8), st.data())
def test_runs_split_at_masks_tell_masks_and_versions(responses: list[list[tuple[int, int]]], data: st.DataObject):
    masks = [data.draw(st.sampled_from([None, [mask for _, mask in response]])) for response in responses]
    lengths = np.array([len(response) for response in responses], dtype=np.int64)
    mask = np.array([entry for entries in masks for entry in entries or []], dtype=np.int8)
    counts = np.array([len(entries or []) for entries in masks], dtype=np.int64)
    versions = np.array([version for response in responses for version, _ in response], dtype=np.int32)
    nothing = np.zeros(0, dtype=np.int64)
    semantic = masks_of(Lists(mask, counts, counts == 0, nothing))
    whole = version_runs(lengths, versions, lengths, np.zeros_like(lengths), mask, counts)
    split = split_at_masks(whole, semantic)
    assert np.repeat(split.model_step, split.tokens).tolist() == versions.tolist()
    flags = [flag for entries, length in zip(masks, lengths.tolist(), strict=True) for flag in entries or [1] * length]
    assert np.repeat(split.trainable > 0, split.tokens).tolist() == [flag > 0 for flag in flags]
    assert set(split.trainable[split.trainable != split.tokens].tolist()) <= {0}
    structs = [
        [run(*entry) for entry in zip(*(array[first:last].tolist() for array in split[1:]), strict=True)]
        for first, last in zip(np.cumsum(split.counts) - split.counts, np.cumsum(split.counts), strict=True)
    ]
    given_column = recorded_runs(pa.array(structs, pa.list_(RUN)), len(structs))
    if given_column is not None:
        told = masks_of_runs(given_column)
        assert not told.is_unknown.any()
        assert [array.tolist() for array in told.masks.arrays()] == [
            array.tolist() for array in semantic.without_all_ones().arrays()
        ]


@pytest.mark.parametrize(
    ("output", "message"), [("small.csv", "extensions: .parquet"), ("none/small.parquet", "isn't there")]
)
def test_outputs_that_are_refused(run_cli, output: str, message: str):
    ran = run_cli("compact", SAMPLE, "-o", output)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


FAULTY = [
    put(1, response_len=3, response_model_steps=[0, 0, 1], response_mask=[1, 0, 1]),
    put(2, response_len=2, response_model_steps=[0, 0, 0]),
    {"event": "sample", "event_id": 3, "group_id": 2, "status": "aborted"},
    put(4, event="puts", group_id=5, response_len=2, model_step=0),
    put(6, group_id=5, rollout_id=6, response_len=2, model_step=0),
    put(7, response_len=4, model_step=1, train_step=2),
    {"event": "take", "event_id": 8, "train_step": 2, "batch_size": 4},
]


def test_compact_leaves_out_the_groups_that_quarantine_leaves_out(tmp_path: Path, run_cli):
    path = write(tmp_path / "log.parquet", FAULTY)
    ran = run_cli("compact", path, "-o", "small.parquet")
    assert (ran.code, ran.out) == (2, "")
    assert "--quarantine to leave out the 2 groups" in ran.err
    ran = run_cli("compact", path, "-o", "small.parquet", "--quarantine")
    assert (ran.code, ran.out) == (0, "3 rows: 7 tokens as 4 version runs\n")
    assert "warning: 2 groups with " in ran.err
    assert "more versions than tokens (1), unknown event (1)" in ran.err
    rows = pq.read_table(tmp_path / "small.parquet").to_pylist()
    assert [(row["event"], row["group_id"]) for row in rows] == [("put", 1), ("put", 7), ("take", None)]
    small, whole = (
        replay_log(name, quarantine=True, isolated=True).result.totals for name in (tmp_path / "small.parquet", path)
    )
    assert small == whole


def test_rows_that_quarantine_leaves_out_need_not_fit_the_new_log(tmp_path: Path, run_cli):
    table = pa.Table.from_pylist(FAULTY, SCHEMA)
    ids = pa.array([1, 2, None, 2**63 + 5, 6, 7, None], pa.uint64())
    table = table.set_column(table.schema.get_field_index("rollout_id"), "rollout_id", ids)
    pq.write_table(table, tmp_path / "log.parquet")
    ran = run_cli("compact", tmp_path / "log.parquet", "-o", "small.parquet", "--quarantine")
    assert (ran.code, ran.out) == (0, "3 rows: 7 tokens as 4 version runs\n")
