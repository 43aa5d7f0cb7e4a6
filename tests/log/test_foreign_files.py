"""What is no log, or no part of one: named with what it lacks, and with the command that makes a log of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import numbered, put, refresh, take, two_steps, write_log
from tests.conftest import SAMPLE, Ran
from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.log.files import open_log, open_workload

CSV = "train_step,group_id,rollout_id,model_step,response_len,status\n1,abc,r1,0,4,completed\n1,abc,r2,0,6,completed\n"
JSON_LINES = '{"train_step": 1, "group_id": "abc", "model_step": 0, "response_len": 4}\n' * 2


def problems(*paths: Path) -> tuple[Problem, ...]:
    with pytest.raises(LogError) as error:
        open_log(paths)
    return error.value.problems


def imported_as_hinted(err: str, run_cli: Callable[..., Ran]) -> Ran:
    """Runs the command that an error names, and replays what it wrote."""
    command = shlex.split(re.findall(r"`(tokenaudit import [^`]+)`", err)[0])
    assert command[3:5] == ["--from", "generic"]
    assert run_cli(*command[1:]).code == 0
    return run_cli("inspect", command[-1])


@pytest.mark.parametrize(("name", "text"), [("my runs.csv", CSV), ("rows.jsonl", JSON_LINES)])
@pytest.mark.parametrize("command", ["replay", "inspect", "explain", "simulate"])
def test_a_table_of_another_kind_points_to_the_import(name: str, text: str, command: str, run_cli):
    Path(name).write_text(text)
    ran = run_cli(command, name, *(["--step", "1"] if command == "explain" else []))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: not a Parquet file\n  at: {name}\n  hint: `tokenaudit import ")
    assert "2 responses" in imported_as_hinted(ran.err, run_cli).out


def test_an_audit_points_to_the_import_too(run_cli):
    Path("runs").mkdir()
    Path("runs/a.csv").write_text(CSV)
    ran = run_cli("audit", "runs/a.csv")
    assert ran.code == 2
    assert "not a Parquet file; `tokenaudit import a.csv --from generic -o rollouts.parquet` makes a log" in ran.out
    rows = [row | {"group_id": None} if row["event"] != "put" else row for row in two_steps()]
    table = pq.read_table(write_log(Path("log.parquet"), rows))
    texts = pa.array([None if value is None else f"id{value}" for value in table["group_id"].to_pylist()])
    pq.write_table(table.set_column(table.schema.get_field_index("group_id"), "group_id", texts), "text.parquet")
    out = run_cli("audit", "text.parquet").out
    assert "column 'group_id' has the type string; `tokenaudit import text.parquet --from generic" in out


def test_a_folder_of_such_tables_points_to_the_import(run_cli):
    Path("runs").mkdir()
    Path("runs/a.csv").write_text(CSV)
    ran = run_cli("replay", "runs")
    assert ran.err.startswith("error: the folder holds no *.parquet file\n  at: runs\n  hint: `tokenaudit import runs ")
    assert imported_as_hinted(ran.err, run_cli).code == 0
    Path("empty").mkdir()
    assert "import" not in run_cli("replay", "empty").err


@pytest.mark.parametrize("spelling", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("column", ["group_id", "rollout_id"])
def test_text_ids_point_to_the_import(column: str, spelling: pa.DataType, run_cli):
    table = pq.read_table(write_log(Path("log.parquet"), two_steps()))
    texts = pa.array([None if value is None else f"id{value}" for value in table[column].to_pylist()])
    pq.write_table(table.set_column(table.schema.get_field_index(column), column, texts.cast(spelling)), "text.parquet")
    ran = run_cli("replay", "text.parquet")
    assert ran.code == 2
    assert f"column {column!r} has the type " in ran.err
    assert ran.err.endswith("makes a log of it, with numbers in place of texts\n")
    assert ran.err.count("\n") == 3
    assert imported_as_hinted(ran.err, run_cli).code == 0


def test_other_wrong_types_and_workloads_do_not(tmp_path: Path):
    rows = [{"group_id": "a", "rollout_id": 1, "response_len": 3, "token_time_us": 1}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "w.parquet")
    with pytest.raises(LogError) as error:
        open_workload([tmp_path / "w.parquet"])
    assert [problem.hint for problem in error.value.problems] == ["accepted: any integer type"]
    (tmp_path / "w.parquet").unlink()
    write_log(tmp_path / "log.parquet", two_steps())
    table = pq.read_table(tmp_path / "log.parquet")
    pq.write_table(table.append_column("agentic", pa.array([1.5] * len(table))), tmp_path / "log.parquet")
    assert [problem.hint for problem in problems(tmp_path)] == ["accepted: bool"]


PUTS = [put(event_id=100, group_id=9, rollout_id=90, train_step=3)]


def part(path: Path, without: tuple[str, ...]) -> None:
    rows = [{name: value for name, value in row.items() if name not in without} for row in PUTS]
    pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.mark.parametrize(
    ("without", "lacks"),
    [
        (("event", "event_id"), "event_id"),
        (("event_id",), "event_id"),
        (("event", "group_id", "status"), "group_id, status"),
        (("event", "response_len"), "response_len or response_ids or response_model_steps or response_version_runs"),
        (
            tuple(PUTS[0]),
            "event_id, train_step, group_id, rollout_id, status, response_len or response_ids or response_model_steps"
            " or response_version_runs",
        ),
    ],
)
def test_a_file_that_lacks_what_the_others_have_is_named(tmp_path: Path, without: tuple[str, ...], lacks: str):
    write_log(tmp_path / "part-0.parquet", two_steps())
    if set(PUTS[0]) == set(without):
        pq.write_table(pa.table({"loss": [0.1, 0.2]}), tmp_path / "metrics.parquet")
    else:
        part(tmp_path / "metrics.parquet", without)
    (problem,) = problems(tmp_path)
    assert problem.what == f"the file lacks {lacks}, which the others have"
    assert problem.where == str(tmp_path / "metrics.parquet")
    assert problem.hint == "if it is no part of the log, move it elsewhere or name the other files alone"


def test_parts_without_puts_need_no_columns_of_puts(tmp_path: Path):
    """Parts may differ in columns: events of steps have no group, and a file without a row lacks nothing."""
    puts, steps = [put(event_id=2)], [refresh(event_id=1), take(event_id=3)]
    write_log(tmp_path / "a.parquet", steps[:1])
    write_log(tmp_path / "b.parquet", [{name: value for name, value in puts[0].items() if name != "event"}])
    write_log(tmp_path / "c.parquet", steps[1:])
    pq.write_table(pa.table({"loss": pa.array([], pa.float64())}), tmp_path / "d.parquet")
    log = open_log([tmp_path])
    assert (log.rows, len(log.files)) == (3, 4)


def test_many_such_files_are_counted(tmp_path: Path):
    write_log(tmp_path / "log.parquet", two_steps())
    for number in range(30):
        pq.write_table(pa.table({"loss": [0.1]}), tmp_path / f"metrics-{number:02}.parquet")
    found = problems(tmp_path)
    assert [Path(problem.where or "").name for problem in found[:20]] == [f"metrics-{n:02}.parquet" for n in range(20)]
    assert found[20:] == (Problem("10 more files lack such columns", None, "name the files of the log"),)


def test_columns_that_no_file_has_are_missing_once(tmp_path: Path):
    for name in ("a", "b"):
        part(tmp_path / f"{name}.parquet", ("event_id",))
    assert [problem.what for problem in problems(tmp_path)] == ["column 'event_id' is missing"]


# ---- quarantine is offered where it leaves something


SOUND, FAULTY = {"model_step": 0}, {"model_step": -1}


@pytest.mark.parametrize(
    ("kinds", "offered"),
    [
        ([FAULTY], False),
        ([FAULTY, FAULTY], False),
        ([FAULTY, SOUND], True),
        ([SOUND, FAULTY], True),
    ],
)
@pytest.mark.parametrize("rows_in_group", [1, 3])
def test_quarantine_is_offered_only_where_a_group_is_left(
    kinds: list[dict[str, int]], offered: bool, rows_in_group: int, run_cli
):
    """A group is faulty by any of its rows; the log is longer than one batch, so that both sides of a fault count."""
    rows = []
    for group_id, kind in enumerate(kinds):
        for event_id in range(2):
            rows += [
                put(2 * group_id + event_id, group_id, 10 * group_id + member, **(kind if member == 0 else SOUND))
                for member in range(rows_in_group)
            ]
    rows += [take(event_id=99)]
    write_log(Path("log.parquet"), rows, row_group_size=1)
    ran = run_cli("replay", "log.parquet", "--isolated")
    assert ran.code == 2
    assert ("--quarantine" in ran.err) is offered
    assert run_cli("replay", "log.parquet", "--isolated", "--quarantine").code == (0 if offered else 2)
    shown = run_cli("inspect", "log.parquet").out
    assert ("replay needs --quarantine" in shown, "there is no other to replay" in shown) == (offered, not offered)


def test_a_group_with_a_faulty_row_later_is_not_left(run_cli):
    rows = [put(1, 1, 10), put(2, 1, 10, **FAULTY)]
    write_log(Path("log.parquet"), rows, row_group_size=1)
    assert run_cli("replay", "log.parquet").err.endswith("  hint: mend the log\n")


# ---- names of steps and sides


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["replay", SAMPLE], "--steps 50..60"),
        (["simulate", SAMPLE, "--steps", "30"], "--show-steps 50..60"),
        (["mask", SAMPLE, "-o", "m.parquet"], "--step 50..60"),
        (["mask", SAMPLE, "-o", "m.parquet"], "--include-untaken 50"),
        (["explain", SAMPLE], "--step 50"),
    ],
)
def test_steps_that_a_run_lacks_are_answered_with_those_it_has(command: list[object], option: str, run_cli):
    ran = run_cli(*command, *option.split(), "-q")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {option}: the run has no such step\n")
    assert ran.err.endswith("  hint: its steps are 1 to 30\n")


def test_a_selection_has_the_steps_that_were_selected(run_cli):
    run_cli("replay", SAMPLE, "--steps", "5..9", "-o", "five.json")
    assert run_cli("replay", "five.json", "--steps", "10..12", "-q").err.endswith("  hint: its steps are 5 to 9\n")
    write_log(Path("puts.parquet"), numbered([put(), refresh()]))
    assert "it has no step at all" in run_cli("replay", "puts.parquet", "--steps", "1").err


def test_configs_that_are_missing_are_said_to_be_missing(run_cli):
    Path("there.toml").write_text("")
    ran = run_cli("diff", "a.toml", "b.toml")
    assert ran.code == 2
    assert [line for line in ran.err.splitlines() if not line.startswith("  hint")] == [
        "error: there is no such config file", "  at: a.toml", "error: there is no such config file", "  at: b.toml",
    ]  # fmt: skip
    assert run_cli("diff", "there.toml", "b.toml").err.splitlines()[::3] == [
        "error: a config has no figures without a log",
        "error: there is no such config file",
    ]
    ran = run_cli("diff", "a.json", "there.toml")
    assert ran.err.startswith("error: can't read the saved result: No such file or directory\n  at: a.json\n")
    assert "a config has no figures without a log\n  at: there.toml\n  hint: add --log LOG\n" in ran.err


def test_a_workload_or_a_saved_result_in_place_of_a_log_is_called_so(tmp_path: Path):
    workload = Path(__file__).parent.parent / "golden" / "colocated_000" / "workload.parquet"
    (problem,) = problems(workload)
    assert (problem.what, problem.where) == ("this is a workload, not a log", str(workload))
    assert problem.hint == "simulate takes it; give this command the log that it was derived from"
    saved = tmp_path / "run.json"
    saved.write_text("{}")
    (problem,) = problems(saved)
    assert problem.hint == "a saved result goes to replay, diff or gate; give this command the log behind it"
