"""Tables of anyone: whatever file they are in, the same rows make the same log, with the values that stand there."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import Row
from tests.importers.importing import Imported, imported, jsonl
from tests.oracles.slow_table import id_of, put_sizes, table_rows
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers import generic

ROW = {"group_id": 1, "train_step": 1, "response_len": 2, "model_step": 0}

# csv doesn't quote a carriage return in rows that end with a line feed alone
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), min_size=1, max_size=6)
NAMED = TEXTS.filter(lambda text: text.strip().lower() not in ("nan", "none", "null", "-1", "") and not text.isdigit())
ID_TEXTS = st.one_of(
    NAMED.filter(lambda text: not text.endswith(".0")),
    st.uuids().map(str),
    st.sampled_from(["0", "7", "007", "-5", "a,b", 'a"b', "a;b\tc", "x\ny", "1" * 19, "9" * 19, "9" * 30]),
)
ID_NUMBERS = st.one_of(st.integers(0, 9), st.sampled_from([-7, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]))


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows that are a log without faults; each column has one type, as Parquet needs it."""
    group_ids, rollout_ids = (draw(st.sampled_from([ID_TEXTS, ID_NUMBERS])) for _ in range(2))
    finite = st.floats(allow_nan=False, allow_infinity=False, width=32)

    def optional(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.one_of(st.none(), values))

    rows: list[Row] = []
    ids = draw(st.lists(rollout_ids, unique_by=id_of, min_size=8, max_size=8))
    for rollout_id in ids[: draw(st.integers(1, 8))]:
        length = draw(st.integers(0, 4))
        step = optional(st.integers(0, 9))
        rows.append(
            {
                "task_name": optional(NAMED),
                "group_id": draw(group_ids),
                "rollout_id": rollout_id,
                "train_step": draw(st.integers(0, 2)),
                "status": optional(st.sampled_from(["completed", "aborted", "failed"])),
                "response_len": length,
                "model_step": step,
                "model_step_end": None if step is None else optional(st.integers(step, 9)),
                "response_mask": optional(st.lists(st.integers(0, 2), min_size=length, max_size=length)),
                "logprobs": optional(st.lists(finite, min_size=length, max_size=length)),
                "reward": optional(finite),
                "advantage": optional(finite),
                "agentic": optional(st.booleans()),
                "time_us": optional(st.integers(0, 2**40)),
            }
        )
    return rows


def json_lines(rows: list[Row]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def csv_text(rows: list[Row], delimiter: str = ",", newline: str = "\n", bom: str = "") -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=delimiter, lineterminator=newline)
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow(["" if v is None else json.dumps(v) if isinstance(v, list) else v for v in row.values()])
    return (bom + stream.getvalue()).encode()


def parquet(rows: list[Row], path: Path, types: dict[str, pa.DataType] | None = None) -> Path:
    columns = {name: pa.array([row[name] for row in rows], (types or {}).get(name)) for name in rows[0]}
    pq.write_table(pa.table(columns), path)
    return path


def log_of(data: bytes, name: str, folder: Path) -> Imported:
    (folder / name).write_bytes(data)
    return imported("generic", folder / name)


def compared(log: Imported, names: list[str]) -> list[dict[str, Any]]:
    """Put rows as the twin makes them, with NaN as None."""

    def plain(value: Any) -> Any:
        return [None if math.isnan(one) else one for one in value] if isinstance(value, list) else value

    return [{name: plain(row[name]) for name in names} for row in log.rows if row["event"] == "put"]


LISTS = [pa.list_, pa.large_list]
MASKS = [pa.int8(), pa.uint8(), pa.int64(), pa.float32(), pa.float64()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(rows=tables(), data=st.data())
def test_the_same_rows_make_the_same_log_in_any_file(rows: list[Row], data: st.DataObject, tmp_path: Path):
    expected = table_rows(rows)
    names = [*expected[0]]
    delimiter = data.draw(st.sampled_from(",;\t|"))
    texts = csv_text(
        rows, delimiter, data.draw(st.sampled_from(["\n", "\r\n"])), data.draw(st.sampled_from(["", "\ufeff"]))
    )
    lines = json_lines(rows)
    list_of = data.draw(st.sampled_from(LISTS))
    types = {
        "response_mask": list_of(data.draw(st.sampled_from(MASKS))),
        "logprobs": list_of(pa.float64()),
        "response_len": data.draw(st.sampled_from([pa.int16(), pa.uint8(), pa.float64()])),
        "time_us": data.draw(st.sampled_from([pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC")])),
    }
    logs = [
        log_of(lines, "a.jsonl", tmp_path),
        log_of(gzip.compress(lines), "b.jsonl.gz", tmp_path),
        log_of(texts, "c.csv", tmp_path),
        log_of(pa.compress(texts, codec="zstd", asbytes=True), "d.tsv.zst", tmp_path),
        imported("generic", parquet(rows, tmp_path / "e.parquet", types)),
    ]
    for log in logs:
        assert compared(log, names) == expected
        by_event = groupby(log.rows, key=lambda row: row["event_id"])
        assert [len([*event]) for _, event in by_event] == put_sizes(expected)
        assert log.imports.limits == logs[0].imports.limits


# folders


def test_a_folder_with_a_map_is_read_and_what_is_passed_over_is_named(tmp_path: Path, run_cli):
    folder = tmp_path / "dump"
    rows = [{"gid": "a", "st": 1, "n": 5}, {"gid": "a", "st": 1, "n": 6}]
    jsonl(folder / "a.jsonl", *rows)
    (folder / "b.csv").write_text("gid,st,n\nb,2,7\n")
    jsonl(folder / "metrics.jsonl", {"loss": 1.0})
    (folder / "README.md").write_text("text")
    options = ["--from", "generic", "--map", "gid=group_id", "--map", "st=train_step", "--map", "n=response_len"]
    ran = run_cli("import", folder, "-o", "log.parquet", *options)
    assert ran.code == 0
    assert "note: 2 other files passed over: README.md, metrics.jsonl\n" in ran.err
    log = pq.read_table(tmp_path / "log.parquet").to_pylist()
    assert [(row["group_id"], row["train_step"], row["response_len"]) for row in log] == [
        (id_of("a"), 1, 5),
        (id_of("a"), 1, 6),
        (id_of("b"), 2, 7),
    ]


@pytest.mark.parametrize("place", ["dump", "dump/a.jsonl"])
def test_a_table_without_the_columns_that_are_needed_says_what_to_map(place: str, tmp_path: Path, run_cli):
    jsonl(tmp_path / "dump" / "a.jsonl", *({"gid": 1, "step": number, "n": 5} for number in range(3_000)))
    ran = run_cli("import", place, "--from", "generic", "-o", "log.parquet")
    assert (ran.code, ran.out, ran.err.count("error:")) == (2, "", 1)
    assert "error: no row has group_id and train_step, which every response needs" in ran.err
    assert "as in --map …=group_id --map step=train_step; there are: gid, step, n" in ran.err
    ran = run_cli("import", place, "--from", "generic", "--map", "gid=group_id", "-o", "log.parquet")
    assert "error: no row has train_step, which every response needs" in ran.err


def test_a_row_without_a_column_does_not_speak_for_the_table(tmp_path: Path, run_cli):
    jsonl(tmp_path / "a.jsonl", {"version": 1}, ROW)
    ran = run_cli("import", "a.jsonl", "--from", "generic", "-o", "log.parquet")
    assert "group_id and train_step are missing" in ran.err
    assert "no row has" not in ran.err


# names


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_columns_are_found_in_other_letters_and_inside_of_objects(name: str, tmp_path: Path, run_cli):
    row = {"Group_ID": "g", " TRAIN_STEP": 3, "info": {"n": 4, "version": {"first": 2}}, "other": 1}
    flat = row | {"info.n": 4, "info.version.first": 2}
    del flat["info"]
    path = tmp_path / name
    if name == "a.jsonl":
        jsonl(path, row)
    elif name == "a.csv":
        path.write_bytes(csv_text([flat]))
    else:
        parquet([row], path)
    options = ["--map", "info.n=response_len", "--map", "info.version.first=model_step", "--map", "info.no=tool_turns"]
    ran = run_cli("import", path, "-o", "log.parquet", *options)
    assert ran.code == 0
    assert "columns not read: other" in ran.err
    assert "no row has the column 'info.no' that --map names, so tool_turns is unknown" in ran.err
    (made,) = pq.read_table(tmp_path / "log.parquet").to_pylist()
    assert [made[name] for name in ("group_id", "train_step", "response_len", "model_step")] == [id_of("g"), 3, 4, 2]


def test_a_name_in_other_letters_is_never_guessed(tmp_path: Path):
    jsonl(tmp_path / "a.jsonl", ROW | {"Reward": 1.0, "REWARD": 2.0, "Tool_Turns": 3, "Prompt_Len": 4})
    log = imported("generic", tmp_path / "a.jsonl", {"experts_len": "Prompt_Len"})
    assert log.column("reward") == [None]
    assert log.column("tool_turns") == [3]
    # what --map gives to another column isn't taken twice
    assert (log.column("experts_len"), log.column("prompt_len")) == ([4], [None])
    jsonl(tmp_path / "a.jsonl", ROW | {"Reward": 1.0, "reward": 2.0})
    assert imported("generic", tmp_path / "a.jsonl").column("reward") == [2.0]


# ids


def test_ids_that_are_equal_texts_are_equal_in_all_files(tmp_path: Path):
    name = uuid.uuid4()
    folder = tmp_path / "dump"
    jsonl(folder / "a.jsonl", ROW | {"group_id": str(name), "rollout_id": 0}, ROW | {"group_id": 12, "rollout_id": "r"})
    (folder / "b.csv").write_text(
        f"group_id,rollout_id,train_step,response_len\n{name},1,2,5\n12,r2,2,5\n12.0,r3,2,5\n"
    )
    parquet([ROW | {"group_id": str(name), "rollout_id": 2, "train_step": 3}], folder / "c.parquet")
    groups = [12.0, math.nan, 2.0]
    rows = [ROW | {"group_id": group, "rollout_id": 3 + place} for place, group in enumerate(groups) if group == group]
    parquet(rows, folder / "d.parquet")
    parquet([ROW | {"group_id": Decimal(12), "rollout_id": b"r", "train_step": 4}], folder / "e.parquet")
    log = imported("generic", folder)
    by_name = id_of(str(name))
    assert log.column("group_id") == [by_name, 12, by_name, 12, 12, by_name, 12, 2, 12]
    assert log.column("rollout_id") == [0, id_of("r"), 1, id_of("r2"), id_of("r3"), 2, 3, 5, id_of("r")]


@pytest.mark.parametrize("value", [-1, "-1", True, [1], 1.5, {}])
def test_what_is_no_id_is_told(value: object, tmp_path: Path, run_cli):
    jsonl(tmp_path / "a.jsonl", ROW, ROW | {"rollout_id": value})
    ran = run_cli("import", "a.jsonl", "-o", "log.parquet")
    assert "rollout_id is " in ran.err


@pytest.mark.parametrize("value", [None, "", "None", "nan", " NULL "])
def test_an_absent_group_is_no_group_of_its_own(value: object, tmp_path: Path, run_cli):
    jsonl(tmp_path / "a.jsonl", ROW, ROW | {"group_id": value})
    ran = run_cli("import", "a.jsonl", "-o", "log.parquet")
    assert "group_id is missing" in ran.err


# values


def test_arrays_of_parquet_are_lists_whatever_their_type(tmp_path: Path):
    rows = [
        ROW | {"response_mask": [False, True], "response_ids": [5, 6]},
        ROW | {"response_mask": None, "response_ids": None},
    ]
    kinds: list[Callable[[pa.DataType], pa.DataType]] = [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)]
    for list_of in kinds:
        for kind in [*MASKS, pa.bool_()]:
            types = {"response_mask": list_of(kind), "response_ids": list_of(pa.uint32())}
            rows[0]["response_mask"] = [False, True] if kind == pa.bool_() else [0, 1]
            log = imported("generic", parquet(rows, tmp_path / "a.parquet", types))
            assert log.column("response_mask") == [[0, 1], None]
            assert log.column("response_ids") == [[5, 6], None]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("response_mask", [0.0, 0.5], [0, 1]),
        ("response_mask", "[true, false]", [1, 0]),
        ("response_ids", [5.0, 6.0], [5, 6]),
        ("logprobs", [-1, -0.5], [-1.0, -0.5]),
        ("logprobs", [-1.0, True], [-1.0, 1.0]),
        ("agentic", 1, True),
        ("agentic", "False", False),
        ("agentic", 0.0, False),
        ("status", "Status.COMPLETED", "completed"),
        ("status", "Aborted", "aborted"),
        ("version_precision", "start", "start"),
        ("reward", "True", 1.0),
        ("reward", "inf", None),
        ("advantage", "-0.5", -0.5),
        ("tool_turns", "3.0", 3),
        ("tool_turns", math.nan, None),
        ("time_us", "1970-01-01T00:00:01.000002Z", 1_000_002),
        ("time_us", "1970-01-01 01:00:00+01:00", 0),
        ("time_us", "1970-01-01 00:00:02", 2_000_000),
    ],
)
def test_values_are_read_as_what_they_are(name: str, value: object, expected: object, tmp_path: Path):
    log = imported("generic", jsonl(tmp_path / "a.jsonl", ROW | {"group_id": 9}, ROW | {name: value}))
    assert log.column(name)[1] == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("response_mask", [math.nan, 1.0], "response_mask holds entries that are missing or not finite"),
        ("response_mask", [None, 1], "response_mask holds entries that are missing or not finite"),
        ("response_mask", [[0, 1]], "response_mask is no flat list of numbers"),
        ("response_mask", "[1 0]", "lists in CSV are written as JSON"),
        ("response_mask", ["a", "b"], "response_mask is no flat list of numbers"),
        ("response_ids", [5.5, 6.0], "response_ids is no list of whole numbers"),
        ("response_ids", [2**63 + 5, 6], "response_ids is no list of whole numbers"),
        ("logprobs", ["x", 1], "logprobs is no flat list of numbers"),
        ("agentic", 2, "it is true or false"),
        ("status", True, "status is True"),
        ("status", "done", "unknown status 'done'"),
        ("version_precision", "roughly", "it is one of: exact, segment, span, start, none"),
        ("reward", "1_0", "reward is '1_0'"),
        ("tool_turns", "3.5", "it is a whole number"),
        ("time_us", "yesterday", "it counts microseconds, or is a date and time"),
    ],
)
def test_values_that_cannot_be_read_are_told(name: str, value: object, message: str, tmp_path: Path, run_cli):
    jsonl(tmp_path / "a.jsonl", ROW | {"group_id": 9}, ROW | {name: value})
    assert message in run_cli("import", "a.jsonl", "-o", "log.parquet").err


def test_times_of_parquet_are_microseconds(tmp_path: Path):
    time = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
    micros = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    rows = [ROW | {"time_us": time, "generate_time_us": timedelta(seconds=3)}]
    for unit in ("us", "ns"):
        types = {"time_us": pa.timestamp(unit, "Europe/Berlin"), "generate_time_us": pa.duration(unit)}
        log = imported("generic", parquet(rows, tmp_path / "a.parquet", types))
        assert (log.column("time_us"), log.column("generate_time_us")) == ([micros], [3_000_000])


# CSV


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group_id,train_step,response_len,response_mask\n1,1,2,[1, 0]\n", "5 cells for 4 columns"),
        ("group_id,train_step,response_len,model_step\n1,1,57\n", "3 cells for 4 columns"),
        ('group_id,train_step,response_len\n"1"x,1,5\n', "not CSV: "),
        ('group_id,train_step,response_len\n"1,1,5\n2,1,5\n', "not CSV: "),
        ("group_id,train_step,group_id\n1,1,5\n", "two columns are called 'group_id'"),
        ("group_id,train_step,response_len\n1,1,5\n".encode("utf-16"), "a CSV file in UTF-16"),
    ],
)
def test_rows_of_csv_that_do_not_fit_are_told(text: str | bytes, message: str, tmp_path: Path, run_cli):
    (tmp_path / "a.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    ran = run_cli("import", "a.csv", "--from", "generic", "-o", "log.parquet")
    assert ran.code == 2
    assert message in ran.err


def test_csv_with_spaces_an_index_and_a_text_that_is_no_utf_8_is_read(tmp_path: Path):
    log = log_of(
        b'"", group_id, train_step, response_len, response_mask\n0, g, 1, 2, "[1, 0]"\n\n1, \xff, 1, 1, "[0]",\n',
        "a.csv",
        tmp_path,
    )
    assert log.column("response_mask") == [[1, 0], [0]]
    assert log.column("group_id")[0] == id_of("g")
    assert len(set(log.column("group_id"))) == 2


# puts


def test_groups_whose_rows_stand_apart_are_noticed(tmp_path: Path):
    first, second = ROW, ROW | {"group_id": 2}
    together = imported("generic", jsonl(tmp_path / "a.jsonl", first, first, second, first | {"train_step": 2}))
    assert not any("stand together" in limit for limit in together.imports.limits)
    apart = imported("generic", jsonl(tmp_path / "a.jsonl", first, second, first))
    assert any("rows of some groups don't stand together" in limit for limit in apart.imports.limits)
    assert len({row["event_id"] for row in apart.rows}) == 3


def test_a_group_without_end_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generic, "MOST_PUT_COST", 64 * 100)
    jsonl(tmp_path / "a.jsonl", *[ROW | {"group_id": group} for group in (1, 2, 3) for _ in range(100)])
    assert len(imported("generic", tmp_path / "a.jsonl").rows) == 300
    jsonl(tmp_path / "a.jsonl", *[ROW] * 101)
    with pytest.raises(SourceError, match="group 1 of train step 1 has too many rows to be one group"):
        imported("generic", tmp_path / "a.jsonl")
