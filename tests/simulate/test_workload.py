"""Workload files: what is accepted, what is refused, and what a log gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import SAMPLE
from tests.simulate.simulated import cases, prompts, response, workload, write_workload_rows
from tokenaudit.contracts.errors import LogError, UsageError
from tokenaudit.contracts.schema import META_CONFIG
from tokenaudit.log.columns import lists
from tokenaudit.log.files import is_workload, open_workload
from tokenaudit.log.semantic_masks import joined, masks_of
from tokenaudit.replay.request import PromptOrder
from tokenaudit.simulate.session import load_workload
from tokenaudit.simulate.workload import Workload
from tokenaudit.simulate.workload_files import SCHEMA, read_workload, write_workload

GOLDEN = Path(__file__).parent.parent / "golden"


def read(path: Path) -> Workload:
    return read_workload(open_workload([path]))


def problems(path: Path) -> list[tuple[str | None, str]]:
    with pytest.raises(LogError) as caught:
        read(path)
    return [(problem.where, problem.what) for problem in caught.value.problems]


# ---- files


@given(cases(least_tokens=0))
def test_a_written_workload_is_read_back(tmp_path_factory: pytest.TempPathFactory, case: Any):
    path = tmp_path_factory.mktemp("workload") / "workload.parquet"
    given_workload = workload(case.rows)
    write_workload(given_workload, path)
    assert read(path).content_hash() == given_workload.content_hash()
    rows = sorted(case.rows, key=lambda row: (list(given_workload.tasks).index(row["task_name"]), row["group_id"]))
    written = pq.read_table(path).to_pylist()
    assert written == [row | {"response_mask": row["response_mask"] or None} for row in rows]


def test_only_the_needed_columns_are_needed(tmp_path: Path):
    columns = ["group_id", "rollout_id", "response_len", "token_time_us"]
    bare = pa.Table.from_pylist(prompts([4, 5], 6)).select(columns)
    path = tmp_path / "bare.parquet"
    pq.write_table(bare, path)
    assert read(path).content_hash() == workload(prompts([4, 5], 6)).content_hash()


def test_column_types_and_batches_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = prompts([4, 5], 6, [2, 1, 3], task_name="a", agentic=True, reward=0.5)
    rows[1]["response_mask"] = [1, 0, 0, 1, 1]
    types = {
        "task_name": pa.dictionary(pa.int8(), pa.string()),
        "group_id": pa.uint8(),
        "rollout_id": pa.int16(),
        "response_len": pa.uint64(),
        "response_mask": pa.large_list(pa.uint16()),
        "reward": pa.float32(),
    }
    other = pa.schema([(field.name, types.get(field.name, field.type)) for field in SCHEMA])
    monkeypatch.setattr("tokenaudit.log.log_file.MAX_BATCH_ROWS", 2)
    path = write_workload_rows(tmp_path / "other.parquet", rows, other)
    assert read(path).content_hash() == workload(rows).content_hash()


def test_groups_keep_the_order_of_their_first_row_and_rows_their_order(tmp_path: Path):
    rows = [response(5, 1), response(2, 2), response(5, 3), response(2, 4, task_name="b"), response(2, 5)]
    tasks = read(write_workload_rows(tmp_path / "mixed.parquet", rows)).tasks
    assert list(tasks) == ["default", "b"]
    assert tasks["default"].responses.group_id.tolist() == [5, 5, 2, 2]
    assert tasks["default"].responses.rollout_id.tolist() == [1, 3, 2, 5]
    assert tasks["default"].first_response.tolist() == [0, 2, 4]


def test_all_faults_are_told_at_once_with_file_row_and_value(tmp_path: Path):
    rows = [
        response(0, 0),
        response(-1, 1),
        response(1, 2, tokens=-4),
        response(2, 3, time=0),
        response(3, 4, tokens=3, response_mask=[1, 0]),
        response(4, 5, tokens=2, response_mask=[1, None]),
        response(5, 0),
        response(6, 7) | {"token_time_us": None},
    ]
    path = write_workload_rows(tmp_path / "bad.parquet", rows)
    assert problems(path) == [
        (f"{path}, row 1, column group_id", "group_id is -1"),
        (f"{path}, row 2, column response_len", "response_len is -4"),
        (f"{path}, row 3, column token_time_us", "token_time_us is 0"),
        (f"{path}, row 4, column response_mask", "2 mask entries for 3 tokens"),
        (f"{path}, row 5, column response_mask", "response_mask holds a null"),
        (f"{path}, row 7, column token_time_us", "token_time_us is null"),
        (f"{path}, row 6, column rollout_id", "rollout 0 is in group 5 and another one"),
        (
            None,
            "7 structural faults: negative value (2), mask length differs from the response length (1), missing value"
            " (1), null element in a list (1), rollout in two groups (1), time below 1 (1)",
        ),
    ]


def test_lengths_fit_32_bits(tmp_path: Path):
    wide = pa.schema([(field.name, pa.int64() if field.name == "response_len" else field.type) for field in SCHEMA])
    good = write_workload_rows(tmp_path / "good.parquet", [response(0, tokens=2**31 - 1)], wide)
    assert read(good).tokens == 2**31 - 1
    path = write_workload_rows(tmp_path / "long.parquet", [response(0, tokens=2**31)], wide)
    assert problems(path)[0] == (f"{path}, row 0, column response_len", "response_len is 2147483648")


@pytest.mark.parametrize("column", ["group_id", "rollout_id", "token_time_us"])
def test_numbers_that_a_log_can_not_hold_are_told(tmp_path: Path, column: str):
    """What 64 bits with a sign can't hold would become one id for several groups."""
    wide = pa.schema([(field.name, pa.uint64() if field.name == column else field.type) for field in SCHEMA])
    rows = [response(0), response(1) | {column: 2**63 - 2}, response(2) | {column: 2**63 - 1}]
    path = write_workload_rows(tmp_path / "large.parquet", [*rows, response(3) | {column: 2**63 + 5}], wide)
    told = f"{column} is 2**63 - 1 or more"
    assert problems(path)[:2] == [(f"{path}, row {row}, column {column}", told) for row in (2, 3)]
    good = read(write_workload_rows(tmp_path / "good.parquet", rows[:2], wide))
    assert good.tasks["default"].responses._asdict()[column].tolist()[1] == 2**63 - 2


def test_a_missing_column_is_told_with_its_nearest(tmp_path: Path):
    table = pa.Table.from_pylist(prompts(4), schema=SCHEMA).rename_columns(
        ["token_times_us" if name == "token_time_us" else name for name in SCHEMA.names]
    )
    path = tmp_path / "named.parquet"
    pq.write_table(table, path)
    (where, what), *others = problems(path)
    assert what == "column 'token_time_us' is missing"
    assert not others
    assert str(path) in str(where)


def test_an_empty_workload_is_refused(tmp_path: Path):
    path = write_workload_rows(tmp_path / "empty.parquet", [])
    assert problems(path) == [(str(path), "the workload has no row")]


def test_a_workload_is_told_from_a_log(tmp_path: Path):
    assert is_workload([write_workload_rows(tmp_path / "w.parquet", prompts(4))])
    assert not is_workload([SAMPLE])
    assert not is_workload([tmp_path / "absent.parquet"])


def test_options_for_logs_are_refused_on_a_workload(tmp_path: Path):
    path = write_workload_rows(tmp_path / "w.parquet", prompts(4))
    with pytest.raises(UsageError, match="--token-time-us, --quarantine is for logs"):
        load_workload([path], token_time_us=5, quarantine=True)


# ---- masks


@given(st.lists(st.none() | st.lists(st.integers(-1, 2), max_size=8), min_size=1, max_size=8), st.data())
def test_prefixes_of_masks(masks: list[list[int] | None], data: st.DataObject):
    cut = data.draw(st.integers(0, len(masks)))
    parts = [part for part in (masks[:cut], masks[cut:]) if part]
    reduced = joined([masks_of(lists(pa.array(part, pa.list_(pa.int8())), len(part))) for part in parts])
    for row, mask in enumerate(masks):
        for tokens in range(len(mask or [1] * 3) + 1):
            assert reduced.trainable(row, tokens) == sum(bit != 0 for bit in (mask or [1] * 3)[:tokens])
    rows = data.draw(st.permutations([row for row, mask in enumerate(masks) if mask]))
    tokens = [data.draw(st.integers(0, len(masks[row] or []))) for row in rows]
    expected = [int(bit != 0) for row, count in zip(rows, tokens, strict=True) for bit in (masks[row] or [])[:count]]
    given_rows = np.array(rows, dtype=np.int64)
    assert reduced.prefixes(given_rows, np.array(tokens, dtype=np.int64)).tolist() == expected


# ---- from a log


def log_row(event_id: int, group_id: int, **others: Any) -> dict[str, Any]:
    row = {
        "event": "put",
        "event_id": event_id,
        "train_step": 1,
        "model_step": 0,
        "group_id": group_id,
        "rollout_id": group_id,
        "status": "completed",
        "response_len": 4,
        "prior_len": 0,
        "generate_time_us": None,
        "response_mask": None,
        "reward": None,
        "agentic": False,
    }
    return row | others


def derived(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> Workload:
    path = tmp_path / "log.parquet"
    table = pa.Table.from_pylist(rows)
    for name, column_type in (("response_mask", pa.list_(pa.int8())), ("generate_time_us", pa.int64())):
        position = table.schema.get_field_index(name)
        if position >= 0:
            table = table.set_column(position, name, table.column(name).cast(column_type))
    pq.write_table(table, path)
    return load_workload([path], **options).workload


def test_rounds_of_a_response_become_one_row(tmp_path: Path):
    """Aborted at 6 of its 10 tokens, then finished: 6 tokens in 60 us, 4 in 30, so 90 // 10 each."""
    rows = [
        log_row(1, 3, status="aborted", response_len=6, generate_time_us=60),
        log_row(2, 1, response_len=5, generate_time_us=3),
        log_row(3, 3, response_len=10, prior_len=6, generate_time_us=30, reward=0.5, agentic=True,
                response_mask=[1, 1, 0, 0, 1, 1, 1, 1, 0, 1]),
    ]  # fmt: skip
    task = derived(tmp_path, rows).tasks["default"]
    assert task.responses.group_id.tolist() == [3, 1]
    assert task.responses.response_len.tolist() == [10, 5]
    assert task.responses.token_time_us.tolist() == [9, 1]
    assert task.responses.reward.tolist()[0] == 0.5
    assert task.responses.agentic.tolist() == [True, False]
    assert [task.masks.trainable(0, tokens) for tokens in (2, 4, 10)] == [2, 2, 7]
    assert task.masks.trainable(1, 5) == 5


def test_groups_stand_by_first_put_or_by_id_and_tasks_and_members_by_first_put_alone(tmp_path: Path):
    rows = [
        log_row(1, 30, rollout_id=9, task_name="b", generate_time_us=1),
        log_row(1, 30, rollout_id=8, task_name="b", generate_time_us=1),
        log_row(2, 5, rollout_id=0, task_name="a", generate_time_us=1),
        log_row(3, 20, rollout_id=7, task_name="b", generate_time_us=1),
        log_row(4, 1, rollout_id=1, task_name="a", generate_time_us=1),
        log_row(5, 20, rollout_id=7, task_name="b", generate_time_us=1),
    ]

    def order(prompt_order: PromptOrder | None) -> dict[str, list[tuple[int, int]]]:
        tasks = derived(tmp_path, rows, prompt_order=prompt_order).tasks
        return {
            name: list(zip(task.responses.group_id.tolist(), task.responses.rollout_id.tolist(), strict=True))
            for name, task in tasks.items()
        }

    by_put = {"b": [(30, 9), (30, 8), (20, 7)], "a": [(5, 0), (1, 1)]}
    assert order(None) == order(PromptOrder.FIRST_PUT) == by_put
    by_id = order(PromptOrder.GROUP_ID)
    assert by_id == {"b": [(20, 7), (30, 9), (30, 8)], "a": [(1, 1), (5, 0)]}
    assert list(by_id) == ["b", "a"]


def test_lengths_are_the_longest_seen_and_never_completed_ones_are_counted(tmp_path: Path):
    rows = [
        log_row(1, 1, status="aborted", response_len=9, generate_time_us=90),
        log_row(2, 1, status="aborted", response_len=4, generate_time_us=40, response_mask=[0, 0, 1, 1]),
        log_row(3, 2, status="filtered", response_len=7, generate_time_us=70),
        log_row(4, 3, status="failed", response_len=0, generate_time_us=55),
    ]
    found = derived(tmp_path, rows)
    responses = found.tasks["default"].responses
    assert responses.response_len.tolist() == [9, 7, 0]
    assert found.tasks["default"].masks.trainable(0, 9) == 7
    assert found.truncated_responses == 2
    assert responses.failed.tolist() == [False, False, True]
    assert responses.filtered.tolist() == [False, True, False]
    assert responses.token_time_us.tolist() == [10, 10, 255 // 20]


def test_prior_lengths_that_are_not_recorded_are_told_from_the_versions(tmp_path: Path):
    first, second = [0] * 6, [0] * 6 + [1] * 2
    cut_off = log_row(1, 1, status="aborted", response_len=6, generate_time_us=60, response_model_steps=first)
    finished = log_row(2, 1, response_len=8, generate_time_us=20, response_model_steps=second)
    rows = [row | {"prior_len": None} for row in (cut_off, finished)]
    assert derived(tmp_path, rows).tasks["default"].responses.token_time_us.tolist() == [10]


def test_a_log_without_times_needs_a_token_time(tmp_path: Path):
    rows = [log_row(1, 1), log_row(2, 2, response_len=6)]
    with pytest.raises(LogError, match="no put says how long its tokens took"):
        derived(tmp_path, rows)
    assert derived(tmp_path, rows, token_time_us=7).tasks["default"].responses.token_time_us.tolist() == [7, 7]


def test_times_that_are_none_are_refused(tmp_path: Path):
    with pytest.raises(LogError, match="generate_time_us is negative or above"):
        derived(tmp_path, [log_row(1, 1, generate_time_us=-5)])


def test_negative_ids_are_refused(tmp_path: Path):
    with pytest.raises(LogError, match="group_id -1 is negative"):
        derived(tmp_path, [log_row(1, -1, rollout_id=1, generate_time_us=4)])


def test_quarantined_groups_are_left_out(tmp_path: Path):
    rows = [
        log_row(1, 1, generate_time_us=40),
        log_row(2, 2, response_len=4, response_mask=[1], generate_time_us=8),
        log_row(3, 3, response_len=2, response_mask=[0, 1], generate_time_us=6),
    ]
    found = derived(tmp_path, rows, quarantine=True)
    task = found.tasks["default"]
    assert task.responses.group_id.tolist() == [1, 3]
    assert task.responses.token_time_us.tolist() == [10, 3]
    assert task.masks.trainable(1, 2) == 1


def test_a_log_whose_groups_are_all_quarantined_says_so(tmp_path: Path):
    rows = [log_row(1, 1, response_len=-1, generate_time_us=1)]
    with pytest.raises(LogError, match="every group is left out because of structural faults"):
        derived(tmp_path, rows, quarantine=True)


def test_a_log_of_no_puts_gives_no_workload(tmp_path: Path):
    rows = [{"event": "refresh", "event_id": 1, "train_step": 1}]
    columns = {"group_id": None, "rollout_id": None, "status": None, "response_len": None}
    with pytest.raises(LogError, match="no put to derive a workload from"):
        derived(tmp_path, [row | columns for row in rows])


@pytest.mark.parametrize("name", ["colocated_005", "disagg_001", "disagg_008"])
def test_completed_responses_of_a_golden_log_are_those_of_its_workload(name: str):
    """Whatever was completed in one round has its exact length, token time and mask."""
    original = {
        (row["task_name"], row["rollout_id"]): row
        for row in pq.read_table(GOLDEN / name / "workload.parquet").to_pylist()
    }
    log = pq.read_table(GOLDEN / name / "log.parquet").to_pylist()
    whole = {
        (row["task_name"], row["rollout_id"]) for row in log if row["status"] == "completed" and row["prior_len"] == 0
    }
    again = {(row["task_name"], row["rollout_id"]) for row in log if row["status"] in ("aborted", "failed")}
    found = load_workload([GOLDEN / name / "log.parquet"]).workload
    compared = 0
    for task_name, task in found.tasks.items():
        for row, rollout_id in enumerate(task.responses.rollout_id.tolist()):
            key = (task_name, rollout_id)
            if key not in whole or key in again:
                continue
            wanted = original[key]
            length = wanted["response_len"]
            assert task.responses.response_len[row] == length
            assert task.responses.token_time_us[row] == wanted["token_time_us"]
            mask = wanted["response_mask"] or [1] * length
            assert [task.masks.trainable(row, n) for n in range(length + 1)] == [
                sum(mask[:n]) for n in range(length + 1)
            ]
            compared += 1
    assert compared > 10


def test_the_metadata_config_comes_along(run_cli: Any, tmp_path: Path):
    path = tmp_path / "workload.parquet"
    assert run_cli("workload", SAMPLE, "-o", path).code == 0
    metadata = pq.read_schema(path).metadata
    assert metadata[META_CONFIG.encode()] == pq.read_schema(SAMPLE).metadata[META_CONFIG.encode()]
    assert read(path).truncated_responses == load_workload([SAMPLE]).workload.truncated_responses
