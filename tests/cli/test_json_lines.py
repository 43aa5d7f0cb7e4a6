"""JSON Lines hold what CSV holds, with numbers as numbers and names as they are; a database takes them in one line."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.builders import numbered, put, take, write_log
from tests.conftest import ROOT, SAMPLE

Run = Callable[..., Any]
CONFIGS = (SAMPLE.parent / "config.toml", SAMPLE.parent / "worse.toml")
COMMANDS = {
    "replay": ("replay", SAMPLE),
    "replay by task": ("replay", SAMPLE, "--by-task", "--groups"),
    "simulate": ("simulate", SAMPLE, "--steps", "2"),
    "diff": ("diff", *CONFIGS, "--log", SAMPLE),
    "audit": ("audit", SAMPLE),
    "explain": ("explain", SAMPLE, "--step", "9"),
}


def as_csv(value: object) -> str:
    """A value as CSV spells it."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


@pytest.mark.parametrize("name", COMMANDS)
def test_json_lines_are_the_rows_of_the_csv(name: str, tmp_path: Path, run_cli: Run):
    ran = run_cli(*COMMANDS[name], "--format", "jsonl", "-o", "rows.jsonl", "-o", "rows.csv", "-q")
    assert ran.out == (tmp_path / "rows.jsonl").read_text()
    records = [json.loads(line) for line in ran.out.splitlines()]
    rows = list(csv.DictReader(StringIO((tmp_path / "rows.csv").read_text())))
    assert len(records) == len(rows) > 0
    for record, row in zip(records, rows, strict=True):
        assert row.keys() >= record.keys()
        cells = {key: as_csv(record.get(key)) for key in row}
        floats = {key for key, value in record.items() if isinstance(value, float)}
        assert {key: cells[key] for key in cells.keys() - floats} == {key: row[key] for key in cells.keys() - floats}
        assert all(float(row[key]) == pytest.approx(record[key]) for key in floats)


def test_names_are_as_they_are_and_stay_on_their_line(tmp_path: Path, run_cli: Run):
    name = '=a\n\u2028"b'
    log = write_log(tmp_path / "log.parquet", numbered([put(task_name=name), take()]))
    ran = run_cli("replay", log, "--by-task", "--format", "jsonl", "-q")
    assert {json.loads(line)["task"] for line in ran.out.split("\n")[:-1]} == {name, "default"}


def test_the_documented_line_makes_a_table_of_steps(tmp_path: Path, run_cli: Run):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    text = (ROOT / "tokenaudit" / "help" / "commands.md").read_text()
    ((statement,),) = [re.findall(r'duckdb runs\.db "(.*?)"', text)]
    assert run_cli("replay", SAMPLE, "-c", CONFIGS[0], "-o", "steps.jsonl", "-q").code == 0
    database = duckdb.connect(str(tmp_path / "runs.db"))
    database.sql(statement)
    question = "SELECT count(*), sum(dropped_tokens), sum(trained_tokens) FROM steps"
    assert database.sql(question).fetchall() == [(31, 1_215_648, 4_427_730)]
