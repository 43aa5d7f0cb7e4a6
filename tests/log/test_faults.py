"""What is wrong with a log is told at once, with file, row and value, and only as a LogError."""

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.builders import Row, make_digest, numbered, put, refresh, sample, small_batches, sync, take, write_log
from tests.conftest import examples
from tests.strategies import configs, logs
from tokenaudit.config.model import parse_config
from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.schema import VERSION_RUNS
from tokenaudit.log.digest import Digest
from tokenaudit.log.faults import HINTS, SHOWN_FAULTS, FaultKind
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest
from tokenaudit.replay.ledger import Ledger, count
from tokenaudit.replay.open_loop import replay, run_tasks

TOO_LARGE = 2**31
RUNS = VERSION_RUNS
LOG_KINDS = set(FaultKind) - {FaultKind.NO_TIME, FaultKind.TWO_GROUPS}
"""Kinds of faults that a log can have; the others are those of workloads."""


def run(model_step: int | None, tokens: int | None, trainable: int | None) -> Row:
    return {"model_step": model_step, "tokens": tokens, "trainable": trainable}


def problems_of(path: Path, **options: Any) -> tuple[Problem, ...]:
    """What reading a log complains about; () where it doesn't."""
    try:
        read_digest(open_log([path]), **options)
    except LogError as error:
        return error.problems
    return ()


def written(folder: Path, rows: list[Row], **options: Any) -> Path:
    return write_log(folder / "log.parquet", rows, **options)


# ---- every kind of fault: the smallest log with it, and one that just doesn't have it

FAULTS: dict[str, tuple[FaultKind, str, int, str, list[Row], list[Row]]] = {
    # name: kind, column, row, what is said, a log with the fault, a log that comes close
    "unknown event": (
        FaultKind.UNKNOWN_EVENT, "event", 0, "unknown event 'puts'",
        [put() | {"event": "puts"}], [put() | {"event": None}],
    ),
    "unknown status of a put": (
        FaultKind.UNKNOWN_STATUS, "status", 0, "unknown status 'finished'",
        [put(status="finished")], [put(status="init")],
    ),
    "unknown status of a sample": (
        FaultKind.UNKNOWN_STATUS, "status", 1, "unknown status 'done'",
        [put(1), sample(2, status="done")], [put(1), sample(2, status="expired")],
    ),
    "event_id falls": (
        FaultKind.EVENT_ID_FALLS, "event_id", 1, "event_id 1 comes after 2",
        [put(2, 1), put(1, 2)], [put(2, 1), put(2, 1, 2)],
    ),
    "event_id falls below an earlier one": (
        FaultKind.EVENT_ID_FALLS, "event_id", 2, "event_id 4 comes after 5",
        [put(5, 1), put(5, 1, 2), put(4, 2)], [put(5, 1), put(5, 1, 2), put(6, 2)],
    ),
    "event_id falls below zero": (
        FaultKind.EVENT_ID_FALLS, "event_id", 1, "event_id -3 comes after -2",
        [put(-2, 1), put(-3, 2)], [put(-3, 1), put(-2, 2)],
    ),
    "two kinds in an event": (
        FaultKind.MIXED_EVENT, "event", 1, "event differs from the row before, in event 3",
        [sample(3), put(3, train_step=0)], [sample(3), put(4, train_step=0)],
    ),
    "two groups in an event": (
        FaultKind.MIXED_EVENT, "group_id", 1, "group_id differs from the row before, in event 3",
        [put(3, 1), put(3, 2)], [put(3, 1), put(3, 1, 2)],
    ),
    "two tasks in an event": (
        FaultKind.MIXED_EVENT, "task_name", 1, "task_name differs from the row before, in event 3",
        [put(3, 1), put(3, 1, 2, task_name="math")], [put(3, 1), put(3, 1, 2, task_name="default")],
    ),
    "two steps in an event": (
        FaultKind.MIXED_EVENT, "train_step", 1, "train_step differs from the row before, in event 3",
        [put(3, 1), put(3, 1, 2, train_step=2)], [put(3, 1), put(3, 1, 2)],
    ),
    "no event_id": (
        FaultKind.MISSING_VALUE, "event_id", 0, "event_id is null",
        [put(None)], [put(0)],
    ),
    "no train_step of a put": (
        FaultKind.MISSING_VALUE, "train_step", 0, "train_step is null",
        [put(train_step=None)], [put(train_step=0)],
    ),
    "no train_step of a refresh": (
        FaultKind.MISSING_VALUE, "train_step", 1, "train_step is null",
        [put(1), refresh(2, None)], [put(1), sample(2, train_step=None)],
    ),
    "no group_id": (
        FaultKind.MISSING_VALUE, "group_id", 1, "group_id is null",
        [put(1), sample(2, None)], [put(1), refresh(2, group_id=None)],
    ),
    "no rollout_id": (
        FaultKind.MISSING_VALUE, "rollout_id", 0, "rollout_id is null",
        [put() | {"rollout_id": None}], [put(rollout_id=-1)],
    ),
    "no status": (
        FaultKind.MISSING_VALUE, "status", 0, "status is null",
        [put(status=None)], [put(), take(1, status=None)],
    ),
    "no batch_size": (
        FaultKind.MISSING_VALUE, "batch_size", 1, "batch_size is null",
        [put(1), take(2, batch_size=None)], [put(1), take(2, batch_size=0)],
    ),
    "negative length": (
        FaultKind.NEGATIVE_VALUE, "response_len", 0, "response_len is -1",
        [put(tokens=-1)], [put(tokens=0)],
    ),
    "negative prior_len": (
        FaultKind.NEGATIVE_VALUE, "prior_len", 0, "prior_len is -1",
        [put(prior_len=-1)], [put(prior_len=0)],
    ),
    "negative model_step": (
        FaultKind.NEGATIVE_VALUE, "model_step", 0, "model_step is -1",
        [put(model_step=-1)], [put(model_step=0)],
    ),
    "negative model_step of a sync": (
        FaultKind.NEGATIVE_VALUE, "model_step", 1, "model_step is -2",
        [put(1), sync(2, 1, -2)], [put(1), sync(2, 1, 0)],
    ),
    "negative version": (
        FaultKind.NEGATIVE_VALUE, "response_model_steps", 0, "response_model_steps holds the version -1",
        [put(response_model_steps=[0, -1])], [put(response_model_steps=[0, 0])],
    ),
    "negative batch_size": (
        FaultKind.NEGATIVE_VALUE, "batch_size", 1, "batch_size is -1",
        [put(1), take(2, batch_size=-1)], [put(1, batch_size=-1)],
    ),
    "negative train_step": (
        FaultKind.NEGATIVE_VALUE, "train_step", 0, "train_step is -1",
        [put(train_step=-1)], [put(1), sample(2, train_step=-1)],
    ),
    "length above 32 bits": (
        FaultKind.VALUE_TOO_LARGE, "response_len", 0, "response_len is 2147483648",
        [put(tokens=TOO_LARGE)], [put(tokens=TOO_LARGE - 1)],
    ),
    "version above 32 bits": (
        FaultKind.VALUE_TOO_LARGE, "response_model_steps", 0, "response_model_steps holds the version 2147483648",
        [put(response_model_steps=[TOO_LARGE])], [put(response_model_steps=[TOO_LARGE - 1])],
    ),
    "model_step above 32 bits": (
        FaultKind.VALUE_TOO_LARGE, "model_step", 0, "model_step is 2147483648",
        [put(model_step=TOO_LARGE)], [put(model_step=TOO_LARGE - 1)],
    ),
    "batch_size above 32 bits": (
        FaultKind.VALUE_TOO_LARGE, "batch_size", 1, "batch_size is 2147483648",
        [put(1), take(2, batch_size=TOO_LARGE)], [put(1), take(2, batch_size=TOO_LARGE - 1)],
    ),
    "train_step above 32 bits": (
        FaultKind.VALUE_TOO_LARGE, "train_step", 1, "train_step is 2147483648",
        [put(1), take(2, TOO_LARGE)], [put(1), take(2, TOO_LARGE - 1)],
    ),
    "no length": (
        FaultKind.NO_LENGTH, "response_len", 1, "nothing gives the length of the response",
        [put(1), put(2, 2, tokens=None)], [put(1), put(2, 2, tokens=None, response_model_steps=[])],
    ),
    "prior_len too long": (
        FaultKind.PRIOR_TOO_LONG, "prior_len", 0, "prior_len is 5 for 4 tokens",
        [put(tokens=4, prior_len=5)], [put(tokens=4, prior_len=4)],
    ),
    "too many versions": (
        FaultKind.TOO_MANY_VERSIONS, "response_model_steps", 0, "3 versions for 2 tokens",
        [put(tokens=2, response_model_steps=[0, 0, 0])], [put(tokens=2, response_model_steps=[0, 0])],
    ),
    "too few versions": (
        FaultKind.TOO_FEW_VERSIONS, "response_model_steps", 0, "1 versions for 2 tokens and no model_step",
        [put(tokens=2, model_step=None, response_model_steps=[0])],
        [put(tokens=2, model_step=None, response_model_steps=[0, 0])],
    ),
    "no versions": (
        FaultKind.TOO_FEW_VERSIONS, "response_model_steps", 0, "0 versions for 1 tokens and no model_step",
        [put(tokens=1, model_step=None)], [put(tokens=0, model_step=None)],
    ),
    "mask too short": (
        FaultKind.MASK_LENGTH, "response_mask", 0, "1 mask entries for 2 tokens",
        [put(tokens=2, response_mask=[1])], [put(tokens=2, response_mask=[1, 0])],
    ),
    "mask empty": (
        FaultKind.MASK_LENGTH, "response_mask", 1, "0 mask entries for 2 tokens",
        [put(1, tokens=2, response_mask=[1, 1]), put(2, 2, tokens=2, response_mask=[])],
        [put(1, tokens=2, response_mask=[1, 1]), put(2, 2, tokens=0, response_mask=[])],
    ),
    "mask too long": (
        FaultKind.MASK_LENGTH, "response_mask", 0, "3 mask entries for 2 tokens",
        [put(tokens=2, response_mask=[1, 0, 1])], [put(tokens=2, response_mask=None)],
    ),
    "run without tokens": (
        FaultKind.BAD_RUN, RUNS, 0, "a run of version 3 with 0 tokens, 0 trainable",
        [put(tokens=1, **{RUNS: [run(2, 1, 1), run(3, 0, 0)]})], [put(tokens=1, **{RUNS: [run(2, 1, 1)]})],
    ),
    "run with more trainable than tokens": (
        FaultKind.BAD_RUN, RUNS, 0, "a run of version 3 with 2 tokens, 3 trainable",
        [put(tokens=2, **{RUNS: [run(3, 2, 3)]})], [put(tokens=2, **{RUNS: [run(3, 2, 2)]})],
    ),
    "run of a negative version": (
        FaultKind.BAD_RUN, RUNS, 0, "a run of version -1 with 2 tokens, 0 trainable",
        [put(tokens=2, **{RUNS: [run(-1, 2, 0)]})], [put(tokens=2, **{RUNS: [run(0, 2, 0)]})],
    ),
    "run without a version": (
        FaultKind.TOO_FEW_VERSIONS, RUNS, 1, "a run without a version",
        [put(1, **{RUNS: [run(0, 4, 4)]}), put(2, 2, **{RUNS: [run(0, 1, 1), run(None, 3, 1)]})],
        [put(1, **{RUNS: [run(0, 4, 4)]}), put(2, 2, tokens=0, model_step=None, **{RUNS: []})],
    ),
    "runs too long": (
        FaultKind.RUNS_LENGTH, RUNS, 0, "runs of 5 tokens for 4 tokens",
        [put(tokens=4, **{RUNS: [run(0, 2, 2), run(1, 3, 0)]})],
        [put(tokens=None, **{RUNS: [run(0, 2, 2), run(1, 3, 0)]})],
    ),
    "no runs for tokens": (
        FaultKind.RUNS_LENGTH, RUNS, 0, "runs of 0 tokens for 4 tokens",
        [put(1, **{RUNS: []}), put(2, 2, **{RUNS: [run(0, 4, 4)]})],
        [put(1, **{RUNS: None}), put(2, 2, **{RUNS: [run(0, 4, 4)]})],
    ),
    "runs beside versions": (
        FaultKind.RUNS_BESIDE_TOKENS, RUNS, 0, "runs beside response_model_steps or response_mask",
        [put(tokens=1, response_model_steps=[0], **{RUNS: [run(0, 1, 1)]})],
        [put(tokens=1, response_ids=[7], **{RUNS: [run(0, 1, 1)]})],
    ),
    "runs beside a mask": (
        FaultKind.RUNS_BESIDE_TOKENS, RUNS, 0, "runs beside response_model_steps or response_mask",
        [put(tokens=1, response_mask=[1], **{RUNS: [run(0, 1, 1)]})],
        [put(1, tokens=1, response_mask=[1]), put(2, 2, tokens=1, **{RUNS: [run(0, 1, 1)]})],
    ),
    "null in the runs": (
        FaultKind.NULL_ELEMENT, RUNS, 0, "response_version_runs holds a null",
        [put(tokens=2, **{RUNS: [run(0, 2, 2), None]})], [put(tokens=2, **{RUNS: [run(0, 2, 2)]})],
    ),
    "null in a run": (
        FaultKind.NULL_ELEMENT, RUNS, 0, "response_version_runs holds a null",
        [put(tokens=2, **{RUNS: [run(0, 2, None)]})], [put(tokens=2, **{RUNS: [run(0, 2, 0)]})],
    ),
    "null in the versions": (
        FaultKind.NULL_ELEMENT, "response_model_steps", 0, "response_model_steps holds a null",
        [put(tokens=2, response_model_steps=[0, None])], [put(tokens=2, response_model_steps=None)],
    ),
    "null in the mask": (
        FaultKind.NULL_ELEMENT, "response_mask", 1, "response_mask holds a null",
        [put(1, tokens=2, response_mask=[0, 1]), put(2, 2, tokens=2, response_mask=[None, 1])],
        [put(1, tokens=2, response_mask=[0, 1]), put(2, 2, tokens=2)],
    ),
}  # fmt: skip


def test_every_kind_of_fault_has_a_case():
    assert {fault[0] for fault in FAULTS.values()} == LOG_KINDS


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_file_row_and_value(tmp_path, name):
    kind, column, row, what, rows, _ = FAULTS[name]
    path = written(tmp_path, rows)
    first, closing = problems_of(path)
    assert first == Problem(what, f"{path}, row {row}, column {column}", HINTS[kind])
    assert closing.what == f"1 structural fault: {kind.value} (1)"


@pytest.mark.parametrize("name", FAULTS)
def test_what_comes_close_is_no_fault(tmp_path, name):
    *_, rows = FAULTS[name]
    assert problems_of(written(tmp_path, rows)) == ()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_row_in_its_file(tmp_path, name):
    kind, column, row, what, rows, _ = FAULTS[name]
    folder = tmp_path / "log"
    folder.mkdir()
    write_log(folder / "0.parquet", [put(-9, 99), put(-8, 98)])
    path = write_log(folder / "1.parquet", rows)
    assert problems_of(folder)[0] == Problem(what, f"{path}, row {row}, column {column}", HINTS[kind])


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("most_rows", [1, 2, 3])
def test_faults_are_the_same_in_any_batches(tmp_path, monkeypatch, name, most_rows):
    rows = [row for fault in ("mask too short", name) for row in FAULTS[fault][4]]
    rows = [row | {"event_id": row["event_id"] and row["event_id"] + 10 * (row is rows[0])} for row in rows]
    path = written(tmp_path, rows)
    expected = problems_of(path)
    small_batches(monkeypatch, rows=most_rows)
    assert problems_of(path) == expected


@pytest.mark.parametrize("most_rows", [1, 2, 100])
def test_an_event_id_is_compared_with_the_largest_before_it(tmp_path, monkeypatch, most_rows):
    small_batches(monkeypatch, rows=most_rows)
    path = written(tmp_path, [put(5, 1), put(1, 2), put(3, 3), put(5, 1, 4)])
    assert [problem.what for problem in problems_of(path)] == [
        "event_id 1 comes after 5",
        "event_id 3 comes after 5",
        "2 structural faults: event_id falls (2)",
    ]


def test_tokens_without_versions_can_be_allowed():
    rows = [put(1, tokens=2, model_step=None, response_model_steps=[5]), put(2, 2, tokens=0, model_step=None)]
    digest = make_digest(rows, allow_missing_versions=True)
    assert (digest.runs.model_step.tolist(), digest.runs.tokens.tolist()) == ([5, -1], [1, 1])


def test_nothing_is_asked_of_columns_that_an_event_does_not_have(tmp_path):
    noise = {"response_len": -1, "prior_len": 9, "response_mask": [None], "response_model_steps": [-1], "status": "?"}
    rows = [
        put(1),
        refresh(2, group_id=None, batch_size=-1, model_step=-1, **noise),
        sync(3, task_name="?", batch_size=-1, **noise),
        take(4, model_step=-1, **noise),
        sample(5, train_step=-1, model_step=-1, batch_size=-1, **(noise | {"status": "aborted"})),
    ]
    path = written(tmp_path, rows)
    assert problems_of(path) == ()
    assert read_digest(open_log([path])).tasks == ("default",)


def test_more_than_twenty_faults_are_counted(tmp_path):
    # Rows of two kinds of faults in turn, one of them with both.
    bad = [
        put(number, number, tokens=2, response_mask=[1] if number % 2 else None, prior_len=0 if number % 2 else 3)
        for number in range(30)
    ]
    bad[7] |= {"prior_len": 4}
    path = written(tmp_path, [*numbered([put(0, 99)]), *(row | {"event_id": row["event_id"] + 1} for row in bad)])
    problems = problems_of(path)
    assert len(problems) == SHOWN_FAULTS + 1
    places = [(int(problem.where.split("row ")[1].split(",")[0]), problem.where.split("column ")[1])
              for problem in problems[:-1]]  # fmt: skip
    assert places == sorted(places)
    assert places[0] == (1, "prior_len")
    assert places[7:9] == [(8, "prior_len"), (8, "response_mask")]
    assert places[-1] == (19, "prior_len")
    assert problems[-1].what == (
        "31 structural faults: prior_len above the response length (16), "
        "mask length differs from the response length (15)"
    )


def test_faults_of_several_files_are_told_together(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    first = write_log(folder / "0.parquet", [put(number, number, prior_len=9) for number in range(15)])
    second = write_log(folder / "1.parquet", [put(number, number, prior_len=9) for number in range(15, 30)])
    problems = problems_of(folder)
    assert [problem.where.split(", row ")[0] for problem in problems[:-1]] == [str(first)] * 15 + [str(second)] * 5
    assert problems[-1].what == "30 structural faults: prior_len above the response length (30)"


def test_all_kinds_of_faults_at_once(tmp_path):
    rows = [
        put(1, 1) | {"event": "puts"},
        put(2, 2, status="finished"),
        put(1, 3),
        put(3, 4), put(3, 5),
        put(4, 6, status=None),
        put(5, 7, model_step=-2),
        put(6, 8, model_step=TOO_LARGE),
        put(7, 9, tokens=None, prior_len=None),
        put(8, 10, prior_len=5),
        put(9, 11, response_model_steps=[0] * 5),
        put(10, 12, model_step=None),
        put(11, 13, response_mask=[1]),
        put(12, 14, response_mask=[1, 1, 1, None]),
        put(13, 15, tokens=1, **{RUNS: [run(0, 1, 2)]}),
        put(14, 16, tokens=2, **{RUNS: [run(0, 1, 1)]}),
        put(15, 17, tokens=1, response_mask=[1], **{RUNS: [run(0, 1, 1)]}),
    ]  # fmt: skip
    path = written(tmp_path, rows)
    *shown, closing = problems_of(path)
    rows_told = [int(problem.where.split("row ")[1].split(",")[0]) for problem in shown]
    assert rows_told == [0, 1, 2, *range(4, 17)]
    assert closing.what == "16 structural faults: " + ", ".join(f"{kind.value} (1)" for kind in sorted(LOG_KINDS))
    assert closing.hint == "mend the log"


# ---- quarantine


def test_quarantine_leaves_out_all_events_of_the_groups_with_faulty_rows(tmp_path):
    rows = [
        put(1, 1, tokens=10),
        put(1, 1, 11, tokens=7, prior_len=2),
        put(2, 1, task_name="math"),  # another task's group of that number
        put(3, 2, status="aborted"),
        sample(4, 2),
        put(5, 3, tokens=6, prior_len=1, response_mask=[1]),  # faulty: group 3
        put(5, 3, 31, tokens=5),
        sample(6, 3),
        put(7, 1, tokens=9, prior_len=4),
        put(7, 1, 11, tokens=9, prior_len=12),  # faulty: group 1, which was fine before
        refresh(8, 2),
        take(9, 2),
    ]
    path = written(tmp_path, rows)
    digest = read_digest(open_log([path]), quarantine=True)
    kept = [rows[2], rows[3], rows[4], rows[10], rows[11]]
    assert digest.content_hash() == make_digest(kept).content_hash()
    assert digest.tasks == ("math", "default")
    assert digest.quarantined_groups == 2
    # A prior_len that can't be leaves no new token.
    assert digest.quarantined_tokens == 10 + (7 - 2) + (6 - 1) + 5 + (9 - 4) + 0
    assert digest.faults == {
        FaultKind.MASK_LENGTH.value: 1,
        FaultKind.PRIOR_TOO_LONG.value: 1,
    }
    assert digest.rows == len(rows)


@pytest.mark.parametrize(
    "name", ["unknown event", "unknown status of a sample", "two groups in an event", "two tasks in an event"]
)
def test_quarantine_knows_the_group_of_a_fault(tmp_path, name):
    rows = [row | {"event_id": row["event_id"] + 1} for row in FAULTS[name][4]]
    path = written(tmp_path, [put(0, 99), *rows, put(9, 98)])
    digest = read_digest(open_log([path]), quarantine=True)
    assert digest.content_hash() == make_digest([put(0, 99), put(9, 98)]).content_hash()


UNGROUPED = {
    "no group_id": [put(1), sample(2, None)],
    "refresh that falls": [put(2), refresh(1)],
    "take without a size": [put(1), take(2, batch_size=None)],
    "sync of a negative version": [put(1), sync(2, 1, -1)],
    "unknown event without a group": [put(1), refresh(2) | {"event": "reset"}],
}


@pytest.mark.parametrize("name", UNGROUPED)
def test_faults_outside_of_groups_can_not_be_quarantined(tmp_path, name):
    path = written(tmp_path, UNGROUPED[name])
    plain, quarantined = problems_of(path), problems_of(path, quarantine=True)
    assert plain[0] == quarantined[0]
    assert plain[-1].hint == "mend the log"
    assert quarantined[-1].hint == "mend the log; rows of no group can't be quarantined"


@pytest.mark.parametrize("most_rows", [1, 100])
def test_only_faults_outside_of_groups_are_told_when_quarantine_fails(tmp_path, monkeypatch, most_rows):
    small_batches(monkeypatch, rows=most_rows)
    path = written(tmp_path, [put(1, prior_len=9), refresh(2, -1), put(3, 3, prior_len=9)])
    refused = problems_of(path, quarantine=True)
    assert [problem.what for problem in refused] == ["train_step is -1", "1 structural fault: negative value (1)"]


def test_a_log_of_faulty_groups_only_leaves_nothing(tmp_path):
    digest = read_digest(open_log([written(tmp_path, [put(1, prior_len=9)])]), quarantine=True)
    assert (digest.tasks, len(digest.events.kind), digest.quarantined_groups) == ((), 0, 1)
    assert replayed(digest, {"timeline": {"train_batch_size": 1}}).totals == {}


def replayed(digest: Digest, config: Row) -> Ledger:
    parsed = parse_config(config, "config.toml")
    return count(replay(digest, parsed), run_tasks(digest, parsed))


def spoiled(row: Row, how: str) -> Row:
    tokens = len(row["response_ids"] or row["response_model_steps"] or []) if row["response_len"] is None else 0
    tokens = tokens or row["response_len"] or 0
    return row | {
        "status": {"status": "finished"},
        "no status": {"status": None},
        "event": {"event": "puts"},
        "prior": {"prior_len": tokens + 1},
        "mask": {"response_mask": [1] * (tokens + 1)},
        "versions": {"response_model_steps": [1] * (tokens + 1), "response_len": tokens},
        "null": {"response_mask": [None] * tokens, "response_model_steps": [None]},
        "length": {"response_len": -1},
        "no length": {"response_len": None, "response_ids": None, "response_model_steps": None},
        "rollout": {"rollout_id": None},
    }[how]  # fmt: skip


HOW = ("status", "no status", "event", "prior", "mask", "versions", "null", "length", "no length", "rollout")


@examples(1.5)
@given(rows=logs(), config=configs(), data=st.data())
def test_quarantine_is_the_log_without_the_groups(rows, config, data):
    def group(row: Row) -> tuple[str, int] | None:
        is_grouped = row["event"] in (None, "put", "sample")
        return (row.get("task_name") or "default", row["group_id"]) if is_grouped else None

    puts = [position for position, row in enumerate(rows) if row["event"] in (None, "put")]
    assume(puts)
    faulty = dict(
        data.draw(
            st.lists(st.tuples(st.sampled_from(puts), st.sampled_from(HOW)), min_size=1, max_size=3), label="faulty"
        )
    )
    groups = {group(rows[position]) for position in faulty}
    kept = [row for row in rows if group(row) not in groups]
    assume(kept)
    bad = [spoiled(row, faulty[position]) if position in faulty else row for position, row in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), bad)
        assert problems_of(path) != ()
        digest = read_digest(open_log([path]), quarantine=True)
    clean = make_digest(kept)
    assert digest.quarantined_groups == len(groups)
    assert digest.tasks == clean.tasks
    assert replayed(digest, config) == replayed(clean, config)
    assert digest.content_hash() == clean.content_hash()


# ---- files that can't be read


def good_file(folder: Path) -> Path:
    rows = [put(number, number, response_model_steps=[0, 1, 2], tokens=4, agentic=False) for number in range(50)]
    return write_log(folder / "good.parquet", rows, compression="none")


def truncated(folder: Path) -> Path:
    path = good_file(folder)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def damaged_page(folder: Path) -> Path:
    path = good_file(folder)
    content = bytearray(path.read_bytes())
    content[4:300] = b"\xff" * 296
    path.write_bytes(bytes(content))
    return path


def rewritten(folder: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    path = good_file(folder)
    pq.write_table(change(pq.read_table(path)), path)
    return path


def with_column(name: str, values: pa.Array) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        def change(table: pa.Table) -> pa.Table:
            return table.set_column(table.schema.get_field_index(name), name, values)

        return rewritten(folder, change)

    return write


def renamed(old: str, new: str) -> Callable[[Path], Path]:
    return lambda folder: rewritten(
        folder, lambda table: table.rename_columns([new if name == old else name for name in table.column_names])
    )


def with_bytes(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def misspelled_path(folder: Path) -> Path:
    good_file(folder)
    return folder / "god.parquet"


def empty_folder(folder: Path) -> Path:
    (folder / "notes.txt").write_text("nothing here")
    return folder


def hidden_files_only(folder: Path) -> Path:
    (folder / "_temporary").mkdir()
    good_file(folder / "_temporary").rename(folder / ".part.parquet")
    return folder


def too_few_rows(folder: Path) -> Path:
    """A file that pyarrow writes and reads wrongly: its footer tells of a row that the reader doesn't give."""
    return write_log(folder / "short.parquet", [put(1, response_model_steps=[0])], data_page_size=1)


def bad_metadata(folder: Path) -> Path:
    return rewritten(folder, lambda table: table.replace_schema_metadata({b"tokenaudit.config": b"\xff\xfe"}))


UNREADABLE: dict[str, tuple[Callable[[Path], Path], str, str | None]] = {
    # name: how to make it, what is said, what is hinted
    "0 bytes": (with_bytes("log.parquet", b""), "empty file (0 bytes)", "still being written has no footer yet"),
    "text": (with_bytes("log.parquet", b"event,event_id\nput,1\n"), "not a Parquet file", "reads logs in Parquet"),
    "magic bytes only": (with_bytes("log.parquet", b"PAR1"), "truncated or damaged Parquet file", "copy or write"),
    "truncated": (truncated, "truncated or damaged Parquet file", "copy or write the file again"),
    "damaged page": (damaged_page, "damaged", "copy or write the file again"),
    "rows lost": (too_few_rows, "", None),
    "metadata that is not UTF-8": (bad_metadata, "its metadata isn't UTF-8 text", "copy or write"),
    "no Parquet in the folder": (empty_folder, "the folder holds no *.parquet file", None),
    "hidden files only": (hidden_files_only, "the folder holds no *.parquet file", None),
    "missing path": (misspelled_path, "there is no such file or folder", "good.parquet?"),
    "missing folder": (lambda folder: folder / "no" / "log.parquet", "there is no such file or folder", "give a Parq"),
    "glob without match": (lambda folder: folder / "*.parquet", "the pattern matches no file", "quote it"),
    "missing column": (renamed("group_id", "groupid"), "column 'group_id' is missing", "nearest: 'groupid'"),
    "no column of lengths": (
        lambda folder: rewritten(folder, lambda table: table.drop_columns(["response_len", "response_model_steps"])),
        "no column gives the length of a response", None,
    ),
    "float versions": (
        with_column("response_model_steps", pa.array([[0.5]] * 50)),
        "column 'response_model_steps' has the type list<", "accepted: list of any integer type",
    ),
    "text as event_id": (
        with_column("event_id", pa.array(["1"] * 50)), "column 'event_id' has the type string", "any integer type"
    ),
    "numbers as status": (
        with_column("status", pa.array([1] * 50)), "column 'status' has the type int64", "string or dictionary"
    ),
    "numbers as agentic": (
        with_column("agentic", pa.array([1] * 50)), "column 'agentic' has the type int64", "accepted: bool"
    ),
    "duplicate column": (
        lambda folder: rewritten(folder, lambda table: table.append_column("group_id", table["group_id"])),
        "column 'group_id' is there 2 times", "keep one of them",
    ),
    "no row": (lambda folder: rewritten(folder, lambda table: table.slice(0, 0)), "the log has no row", "at least one"),
    "another schema version": (
        lambda folder: write_log(folder / "log.parquet", [put()], metadata={"tokenaudit.schema_version": "2"}),
        "log schema version '2'", "reads version 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_log_that_can_not_be_read_is_told_in_one_problem(tmp_path, name):
    make, what, hint = UNREADABLE[name]
    path = make(tmp_path)
    (problem,) = problems_of(path)
    assert what in problem.what
    assert str(path) in problem.where
    assert hint is None or hint in problem.hint


def test_text_that_is_not_utf8_is_read_with_escapes(tmp_path):
    plain = {"compression": "none", "use_dictionary": False}
    path = write_log(tmp_path / "text.parquet", [put(1, task_name="mathmath")], **plain)
    path.write_bytes(path.read_bytes().replace(b"mathmath", b"math\xffath"))
    assert read_digest(open_log([path])).tasks == ("math\\xffath",)


def test_unreadable_files_are_told_together(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"")
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    good_file(tmp_path)
    problems = problems_of(tmp_path)
    assert [Path(problem.where).name for problem in problems] == ["a.parquet", "b.parquet"]


def test_several_paths_are_told_together(tmp_path):
    good = good_file(tmp_path)
    with pytest.raises(LogError) as error:
        open_log([tmp_path / "x", good, tmp_path / "*.csv"])
    assert [problem.what for problem in error.value.problems] == [
        "there is no such file or folder",
        "the pattern matches no file",
    ]


def test_a_file_that_vanishes_between_footer_and_rows_is_told(tmp_path):
    path = good_file(tmp_path)
    log = open_log([path])
    path.unlink()
    with pytest.raises(LogError):
        read_digest(log)


# ---- random damage, in a process of its own: what kills it must not kill the tests


def outcome(content: bytes) -> str:
    """How reading a damaged file ends: "read", "refused", or the exception that escaped."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.parquet")
        path.write_bytes(content)
        try:
            read_digest(open_log([path]))
        except LogError as error:
            return "refused" if all(problem.what for problem in error.problems) else "refused without a word"
        except BaseException as error:  # noqa: BLE001 - whatever escapes is what the test looks for
            return f"{type(error).__name__}: {error}"
    return "read"


@cache
def workers() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def outcome_elsewhere(content: bytes) -> str:
    try:
        return workers().submit(outcome, content).result(timeout=60)
    except BrokenProcessPool:
        workers().shutdown()
        workers.cache_clear()
        return "the process died"


@cache
def intact_files() -> tuple[bytes, ...]:
    rows = [
        put(number, number % 2, tokens=3, response_model_steps=[0, 1], response_mask=[1, 0, 1], task_name="math",
            response_ids=[7, 8, 9], prior_len=None, reward=0.5)
        for number in range(6)
    ]  # fmt: skip
    spellings = ({"compression": "none"}, {"compression": "zstd", "text": "dictionary", "row_group_size": 3})
    with tempfile.TemporaryDirectory() as folder:
        return tuple(written(Path(folder), [*rows, take(7, 2)], **spelling).read_bytes() for spelling in spellings)


@pytest.fixture(scope="module", autouse=True)
def _end_of_workers():
    yield
    if workers.cache_info().currsize:
        workers().shutdown()


@examples(4)
@given(data=st.data())
def test_damaged_files_are_refused_or_read(data):
    content = bytearray(data.draw(st.sampled_from(intact_files()), label="file"))
    places = st.integers(0, len(content) - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=4), label="flips"):
        content[place] = value
    if data.draw(st.sampled_from((False, False, False, True)), label="truncate"):
        del content[data.draw(places, label="length") :]
    assert outcome_elsewhere(bytes(content)) in ("read", "refused")
