"""Files of curves in the forms that trackers export, and files that aren't what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenaudit.audit.curve_files
import tokenaudit.audit.curve_points
from tokenaudit.audit.curve_files import Curves, read_curves
from tokenaudit.audit.curve_names import CurveNames
from tokenaudit.contracts.errors import SourceError, UsageError

NAMES = CurveNames({"loss": "taken_tokens"})
A, B = "async/completed_samples", "response/response_len/mean"
POINTS = {A: {1: 4.0, 2: 5.0, 3: 6.0}, B: {1: 0.5, 3: 1.5}}


def read(*paths: Path, step_column: str | None = None) -> Curves:
    return read_curves(paths, lambda name: NAMES.known(name) is not None, step_column)


def points(curves: Curves) -> dict[str, dict[int, float]]:
    """The points by the name that the curve is known by."""
    found: dict[str, dict[int, float]] = {}
    for curve in curves.wanted:
        known = NAMES.known(curve.name)
        assert known is not None
        found[known.name] = dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))
    return found


def text_file(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def parquet_file(folder: Path, columns: dict[str, Any]) -> Path:
    path = folder / "curves.parquet"
    pq.write_table(pa.table(columns), path)
    return path


HISTORY = f"_step,_runtime,_timestamp,{A},{B},loss_text"

FORMS = {
    "XTuner's tracker, a line per call": ("tracker.jsonl", [
        json.dumps({A: 4, B: 0.5, "time/step": 9.5, "step": 1}), json.dumps({A: 5, "step": 2}),
        json.dumps({B: 1.5, "step": 3}), json.dumps({A: 6, "step": 3}), json.dumps({"eval/acc": 1, "step": 3}),
    ]),
    "verl's file logger": ("run.jsonl", [
        json.dumps({"step": 1, "data": {A: 4, B: 0.5}}), json.dumps({"step": 2, "data": {A: 5}}),
        json.dumps({"step": 3, "data": {A: 6, B: 1.5, "timing": [1]}}),
    ]),
    "objects inside objects": ("run.jsonl", [
        json.dumps({"step": 1, "async": {"completed_samples": 4}, B: 0.5}),
        json.dumps({"step": 2, "async": {"completed_samples": 5}}),
        json.dumps({"step": 3, "async": {"completed_samples": 6}, B: 1.5}),
    ]),
    "long JSON lines": ("run.jsonl", [
        json.dumps({"step": step, "tag": tag, "value": value}) for tag, own in POINTS.items()
        for step, value in own.items()
    ]),
    "wide CSV": ("curves.csv", [f"step,{A},{B}", "1,4,0.5", "2,5,", "3,6,1.5"]),
    "CSV with a mark and other line ends": ("curves.csv", [
        f"\ufeffStep,{A},{B}\r", "1,4,0.5\r", "2,5,\r", "3,6,1.5\r",
    ]),
    "a history of Weights & Biases": ("history.csv", [
        HISTORY, "1,0.1,17.5,4,0.5,x", "2,0.2,17.6,5,NaN,y", "3,0.3,17.7,6.0,1.5,z",
    ]),
    "a data frame with its index": ("history.csv", [
        f",_step,{A},{B}", "0,1,4,0.5", "1,2,5,nan", "2,3,6,1.5",
    ]),
    "a chart of Weights & Biases": ("wandb_export.csv", [
        f'"Step","brisk-run-7 - {A}","brisk-run-7 - {A}__MIN","brisk-run-7 - {A}__MAX","r - {B}"',
        '"1","4","4","4","0.5"', '"2","5","5","5",""', '"3","6","6","6","1.5"',
    ]),
    "long CSV": ("curves.csv", ["step,tag,value", *(
        f"{step},{tag},{value}" for tag, own in POINTS.items() for step, value in own.items()
    )]),
    "SwanLab's CSV of columns": ("swanlab.csv", [
        f"step,t0707-02:17-{A}_step,t0707-02:17-{A}_timestamp,e-1-{B}_step",
        "1,4,17000,0.5", "2,5,17001,", "3,6,17002,1.5",
    ]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_read(form: str, tmp_path: Path):
    name, lines = FORMS[form]
    assert points(read(text_file(tmp_path, name, *lines))) == POINTS


@pytest.mark.parametrize("stem", ["run-7B_run-tag-async_completed_samples", "async_completed_samples"])
def test_a_tensorboard_csv_is_named_by_its_file(stem: str, tmp_path: Path):
    lines = ("Wall time,Step,Value", "1654943296.2150984,1,4.0", "1654943313.77,2,5.0", "1654943332.38,3,6.0")
    assert points(read(text_file(tmp_path, f"{stem}.csv", *lines))) == {A: POINTS[A]}


def test_several_files_are_one_run(tmp_path: Path):
    first = text_file(tmp_path, "a.csv", f"step,{A}", "1,4", "2,5", "3,6")
    second = text_file(tmp_path, "b.csv", f"step,{B}", "1,0.5", "3,1.5")
    curves = read(first, second)
    assert points(curves) == POINTS
    assert [curve.file for curve in curves.wanted] == ["a.csv", "b.csv"]


def test_parquet_is_read_wide_and_long(tmp_path: Path):
    wide = {"_step": [1, 2, 3], A: [4, 5, 6], B: [0.5, None, 1.5], "notes": ["x", "y", "z"]}
    curves = read(parquet_file(tmp_path, wide))
    assert points(curves) == POINTS
    assert curves.others == ("notes",)
    rows = [(step, tag, value) for tag, own in POINTS.items() for step, value in own.items()]
    long = dict(zip(("step", "tag", "value"), map(list, zip(*rows, strict=True)), strict=True))
    assert points(read(parquet_file(tmp_path, long))) == POINTS


def test_the_trainers_own_step_counts_and_not_that_of_the_tracker(tmp_path: Path):
    lines = ['{"_step": 7, "rollout/step": 0, "rollout/response_len/mean": 5}',
             '{"_step": 8, "train/step": 3, "train/loss": 5}',
             '{"_step": 9, "rollout/step": 1, "rollout/response_len/mean": 6}']  # fmt: skip
    assert points(read(text_file(tmp_path, "history.jsonl", *lines))) == {"rollout/response_len/mean": {0: 5, 1: 6}}


def test_a_column_of_steps_can_be_named(tmp_path: Path):
    path = text_file(tmp_path, "c.csv", f"step,update,{A}", "10,1,4", "20,2,5", "30,3,6")
    assert points(read(path, step_column="update")) == {A: POINTS[A]}
    assert points(read(path)) == {A: {10: 4, 20: 5, 30: 6}}


def test_repeated_steps_and_gaps_are_counted(tmp_path: Path):
    path = text_file(tmp_path, "c.csv", f"step,{A}", "2,9", "3,9", "1,4", "2,5", "3,6", "4,inf", "5,")
    (curve,) = read(path).wanted
    assert (curve.steps.tolist(), curve.values.tolist()) == ([1, 2, 3], [4, 5, 6])
    assert (curve.repeated, curve.gaps) == (2, 2)


def test_a_line_that_is_still_being_written_is_passed_over(tmp_path: Path):
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({A: 4, "step": 1}) + "\n" + json.dumps({A: 5, "step": 2})[:-9])
    assert points(read(path)) == {A: {1: 4}}


BAD = {
    "c.csv": [
        (f"step,{A}\n1,four\n2,x\n", "'four' is no number", "'x' is no number"),
        (f"step,{A}\none,4\n", "'one' is no number"),
        (f"step,{A}\n1.5,4\n", "'1.5' is no step"),
        (f"step,{A}\n-1,4\n", "'-1' is no step"),
        (f"step,{A}\n1e400,4\n", "'1e400' is no step"),
        (f"step,{A}\n1,1_000\n", "'1_000' is no number"),
        (f"step,{A}\n1,4,5\n", "can't be read: line 2 has 3 cells for 2 columns"),
        (f"step,{A},{A}\n1,4,5\n", "can't be read: two columns have one name"),
        ("", "can't be read: it is empty"),
        (f"{A},{B}\n1,2\n", "no column of steps"),
        (f'step,{A}\n1,"{"9" * 200_000}"\n', "can't be read: field larger than field limit"),
        (f"step,{A}\n1,\udcff\n", "can't be read: 'utf-8' codec can't decode"),
    ],
    "c.jsonl": [
        ("[1, 2]\n", "can't be read: line 1 is no object"),
        ('{"step": 1\n{}\n', "can't be read: line 1 is no JSON"),
        (json.dumps({"step": 1, A: True}) + "\n", "True is no number"),
        (f'{{"step": 1, "{A}": {"9" * 5000}}}\n', "can't be read: line 1 is no JSON"),
        (f'{{"step": 1, "{A}": {"[" * 100_000}\n', "can't be read: "),
        (f'{{"step": 1, "{A}": 1{"0" * 400}}}\n', "is no number"),
        (json.dumps({A: 1}) + "\n", "no column of steps"),
    ],
    "c.parquet": [
        ("PAR1", "can't be read: "),
        ("PAR1" + "x" * 100 + "PAR1", "can't be read: "),
    ],
}


@pytest.mark.parametrize(("name", "text", "what"), [
    (name, text, what) for name, cases in BAD.items() for text, *what in cases
])  # fmt: skip
def test_what_is_no_curve_is_refused_with_its_place(name: str, text: str, what: list[str], tmp_path: Path):
    path = tmp_path / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(SourceError) as raised:
        read(path)
    found = raised.value.problems
    assert len(found) == len(what)
    for problem, part in zip(found, what, strict=True):
        assert part in problem.what
        assert str(path) in (problem.where or "")
        assert problem.hint


def test_columns_of_parquet_that_hold_no_numbers_are_refused(tmp_path: Path):
    path = parquet_file(tmp_path, {"step": [1], A: [[1, 2]]})
    with pytest.raises(SourceError, match=re.escape(f"column '{A}' holds list<")):
        read(path)


def test_faults_are_counted_where_there_are_many(tmp_path: Path):
    path = text_file(tmp_path, "c.csv", f"step,{A}", *(f"{step},x" for step in range(1000)))
    with pytest.raises(SourceError) as raised:
        read(path)
    assert len(raised.value.problems) == tokenaudit.audit.curve_points.SHOWN_PROBLEMS + 1
    assert raised.value.problems[-1].what.endswith("more faults in the curves")


def test_too_many_points_and_too_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = text_file(tmp_path, "c.csv", f"step,{A}", "1,4", "2,5", "3,6")
    long = parquet_file(tmp_path, {"step": [1, 2, 3], A: [1, 2, 3]})
    for module in (tokenaudit.audit.curve_points, tokenaudit.audit.curve_files):
        monkeypatch.setattr(module, "MOST_POINTS", 2)
    with pytest.raises(SourceError, match="more than 2 values"):
        read(path)
    with pytest.raises(SourceError, match="more than 2 rows"):
        read(long)
    monkeypatch.setattr(tokenaudit.audit.curve_files, "MOST_FILE_BYTES", 20)
    with pytest.raises(SourceError, match="more than 0 MiB"):
        read(path)


@pytest.mark.parametrize(("name", "what"), [
    ("absent.csv", "there is no such file of curves"), ("events.out.tfevents", "curves aren't read from .tfevents"),
])  # fmt: skip
def test_what_is_no_file_of_curves_is_named(name: str, what: str, tmp_path: Path):
    (tmp_path / "events.out.tfevents").write_bytes(b"")
    with pytest.raises(UsageError, match=re.escape(what)):
        read(tmp_path / name)


def test_a_file_is_named_once(tmp_path: Path):
    path = text_file(tmp_path, "c.csv", f"step,{A}", "1,4")
    with pytest.raises(UsageError, match="named twice"):
        read(path, path)


def test_columns_are_worked_out_once_for_all_rows(tmp_path: Path):
    asked: list[str] = []

    def is_wanted(name: str) -> bool:
        asked.append(name)
        return NAMES.known(name) is not None

    lines = [json.dumps({"step": step, A: 1} | ({B: 2} if step % 2 else {})) for step in range(500)]
    (first, second) = read_curves([text_file(tmp_path, "c.jsonl", *lines)], is_wanted).wanted
    assert (len(first.steps), len(second.steps)) == (500, 250)
    assert len(asked) == 2


def test_a_hint_cuts_names_that_nobody_reads(tmp_path: Path):
    name = "x" * 5_000
    (problem,) = CurveNames({name: "taken_tokens"}).unused([], ["y" * 5_000, "z"])
    assert "y" * 200 + "…, z" in problem.hint
    assert len(problem.hint) + len(problem.where or "") < 500
    with pytest.raises(UsageError) as raised:
        CurveNames({name: name})
    assert all(len(problem.where or "") < 500 for problem in raised.value.problems)
