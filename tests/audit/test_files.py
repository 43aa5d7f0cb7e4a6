"""Files that can't be read, differ, or hold nothing: what is left is audited, and what isn't is told."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import numbered, put, take, write_log
from tests.log.ranked_logs import rank_metadata, write_ranks
from tests.oracles.slow_ranks import RankRows
from tokenaudit.audit.files import LARGE_LIST_ELEMENTS, LARGE_ROW_GROUP_BYTES, large_notes
from tokenaudit.audit.report import AuditReport
from tokenaudit.audit.rule import Severity
from tokenaudit.audit.session import audit_log
from tokenaudit.contracts.errors import LogError
from tokenaudit.contracts.schema import META_DROPPED, META_LIMITS, META_REJECTED


def audited(*paths: Path) -> AuditReport:
    return audit_log(list(paths), isolated=True)


def found(report: AuditReport) -> list[tuple[str, str, str]]:
    return [
        (f.name, str(f.subject), f.message)
        for f in report.findings
        if f.severity is not Severity.INFO and not f.name.startswith("group")
    ]


def parts(folder: Path, count: int = 3, **options: object) -> list[Path]:
    folder.mkdir()
    return [
        write_log(folder / f"{n}.parquet", [put(2 * n, n), take(2 * n + 1)], **options)  # type: ignore[arg-type]
        for n in range(count)
    ]


@pytest.mark.parametrize("damage", ["empty", "no footer", "not Parquet"])
def test_a_file_that_can_not_be_read_is_an_error_and_the_others_are_audited(damage: str, tmp_path: Path):
    files = parts(tmp_path / "log")
    content = files[1].read_bytes()
    files[1].write_bytes({"empty": b"", "no footer": content[: len(content) // 2], "not Parquet": b"text"}[damage])
    report = audited(tmp_path / "log")
    (finding,) = (finding for finding in report.findings if finding.name == "input-truncated-file")
    assert (finding.severity, finding.subject.file) == (Severity.ERROR, "1.parquet")
    assert (report.files_named, report.files_audited, report.rows, report.exit_code()) == (3, 2, 4, 1)


def test_a_pipe_and_a_name_that_is_no_text_are_told_and_do_not_stop_the_audit(tmp_path: Path):
    files = parts(tmp_path / "log")
    os.mkfifo(tmp_path / "pipe.parquet")
    odd = files[1].rename(os.fsdecode(os.fsencode(tmp_path / "log") + b"/1\xff.parquet"))
    report = audited(files[0], tmp_path / "pipe.parquet", odd, files[2])
    truncated = [(s, message) for name, s, message in found(report) if name == "input-truncated-file"]
    assert truncated == [("pipe.parquet", "not a regular file"), (odd.name, "its name isn't UTF-8 text")]
    assert (report.files_named, report.files_audited) == (4, 2)
    assert audited(tmp_path / "pipe.parquet").exit_code() == 2


def test_a_damaged_page_costs_its_file(tmp_path: Path):
    files = parts(tmp_path / "log", compression="none")
    _damage(files[2], "train_step")
    report = audited(tmp_path / "log")
    assert [(name, subject) for name, subject, _ in found(report)] == [("input-truncated-file", "2.parquet")]
    assert (report.files_audited, report.rows) == (2, 4)


def test_a_damaged_optional_column_costs_that_column(tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1, finish_reason="stop"), take(2)], compression="none")
    _damage(path, "finish_reason")
    report = audited(path)
    assert [(name, subject) for name, subject, _ in found(report)] == [("input-unreadable-column", "log.parquet")]
    assert (report.rows, report.exit_code()) == (2, 0)
    assert next(run for run in report.runs if run.rule.name == "length-pile-up").missing == ("finish_reason",)


def _damage(path: Path, column: str) -> None:
    """Overwrite the first bytes of a column's pages."""
    metadata = pq.read_metadata(path).row_group(0)
    chunk = next(metadata.column(n) for n in range(metadata.num_columns) if metadata.column(n).path_in_schema == column)
    content = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(bytes(content))


def test_files_that_differ_in_columns_and_types_are_told(tmp_path: Path):
    folder = tmp_path / "log"
    folder.mkdir()
    write_log(folder / "0.parquet", [put(1, 1, response_mask=[1, 1, 0, 1])])
    write_log(folder / "1.parquet", [put(2, 2, response_mask=[1, 1, 0, 1], agentic=False)], mask="bool")
    report = audited(folder)
    messages = [message for name, subject, message in found(report) if subject == "1.parquet"]
    assert messages == [
        "column 'response_mask' is list<element: bool>, and list<element: int8> in the first file",
        "column 'agentic' is new",
    ]
    assert report.exit_code() == 0
    assert not [entry for entry in found(audited(folder / "0.parquet")) if entry[0] == "input-schema-drift"]


def test_versions_that_are_no_integers_are_an_error(tmp_path: Path):
    folder = tmp_path / "log"
    files = parts(folder, 2, versions="complete")
    table = pq.read_table(files[1])
    index = table.schema.get_field_index("response_model_steps")
    versions = pa.array([["step-0"] * 4, None], pa.list_(pa.string()))
    pq.write_table(table.set_column(index, "response_model_steps", versions), files[1])
    report = audited(folder)
    assert (
        "version-not-integer",
        "1.parquet",
        "response_model_steps is list<element: string>, not a list of integers",
    ) in found(report)
    assert (report.exit_code(), report.files_audited) == (1, 1)
    alone = audited(files[1])
    assert (alone.exit_code(), alone.rows) == (2, 0)


def test_large_parts_are_told_beyond_their_limits():
    assert list(large_notes("x", 0, 10, LARGE_ROW_GROUP_BYTES, LARGE_LIST_ELEMENTS)) == []
    notes = list(large_notes("x", 3, 10, LARGE_ROW_GROUP_BYTES + 1, LARGE_LIST_ELEMENTS + 1))
    assert [note.rule for note in notes] == ["input-large-lists", "input-row-group-large"]
    assert notes[0].message == "row group 3 holds 2,147,483,648 list elements"


def test_nothing_to_audit_is_never_green(tmp_path: Path, run_cli):
    path = write_log(tmp_path / "log.parquet", [put(1, 1)])
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    ran = run_cli("audit", path)
    assert ran.code == 2
    assert "nothing was audited" in ran.out
    assert run_cli("audit", path, "--exit-zero").code == 2
    assert run_cli("audit", tmp_path / "absent.parquet").code == 2
    with pytest.raises(LogError, match="no such file"):
        audited(tmp_path / "absent.parquet")


def test_cutting_a_log_into_other_files_keeps_identities(tmp_path: Path):
    rows = [put(n, n, response_mask=[0] * 4) for n in range(9)]
    whole = audited(write_log(tmp_path / "whole.parquet", rows))
    cut = audited(write_log(tmp_path / "cut", rows, files=3))
    shifted = audited(write_log(tmp_path / "more.parquet", [put(-1, 77), *rows]))
    identities = {finding.identity for finding in whole.findings}
    assert {finding.identity for finding in cut.findings if finding.name != "input-schema-drift"} == identities
    assert {finding.identity for finding in shifted.findings} >= {i for i in identities if "fully-masked" in i}


@pytest.mark.parametrize("column", ["response_len", "time_us"])
def test_a_damaged_part_of_a_rank_is_left_out_and_the_others_are_merged(column: str, tmp_path: Path):
    """Where what decides the order is damaged, it is found before anything is read."""
    recorded = [
        RankRows(rank, 0, numbered([put(0, 10 * n + rank, tokens=50, time_us=n) for n in range(40)]))
        for rank in range(3)
    ]
    folder = write_ranks(tmp_path / "log", recorded, use_dictionary=False, compression="zstd")
    path = folder / "part-rank0001-000001.parquet"
    footer = pq.ParquetFile(path).metadata.row_group(0)
    chunks = [footer.column(index) for index in range(footer.num_columns)]
    (chunk,) = (chunk for chunk in chunks if chunk.path_in_schema == column)
    content = bytearray(path.read_bytes())
    end = chunk.data_page_offset + chunk.total_compressed_size
    content[chunk.data_page_offset : end] = bytes(chunk.total_compressed_size)
    path.write_bytes(content)
    report = audited(folder)
    (finding,) = (finding for finding in report.findings if finding.name == "input-truncated-file")
    assert finding.subject.file == path.name
    assert (report.files_named, report.files_audited, report.rows) == (3, 2, 80)


def test_what_the_recorder_did_not_write_is_an_error_and_noted_whatever_rules_run(tmp_path: Path, run_cli):
    rows = [put(1, 1, time_us=1), take(2, time_us=2)]
    for rank, (losses, of_rank) in enumerate([({META_DROPPED: "2"}, rows), ({META_REJECTED: "1"}, [])]):
        metadata = rank_metadata(rank, 4) | losses
        (tmp_path / "log").mkdir(exist_ok=True)
        write_log(tmp_path / "log" / f"part-rank{rank:04}-000001.parquet", of_rank, metadata=metadata)
    losses = [
        "the recorder dropped 2 events because its queue was full",
        "the recorder refused 1 event that couldn't be recorded",
        "there is no part of ranks 2 to 3 of 4",
    ]
    report = audited(tmp_path / "log")
    assert [f.message for f in report.findings if f.name == "recording-incomplete"] == losses
    assert (report.log_notes, report.exit_code()) == (tuple(losses), 1)
    ran = run_cli("audit", "log", "--ignore", "S023")
    assert ran.code == 0
    assert [f"note: {loss}" in ran.out for loss in losses] == [True] * 3
    # a part without rows isn't left out where another one is damaged
    (tmp_path / "log" / "part-rank0002-000001.parquet").write_bytes(b"PAR1")
    report = audited(tmp_path / "log")
    assert [f.message for f in report.findings if f.name == "recording-incomplete"] == losses
    assert (report.files_named, report.files_audited) == (3, 2)


def test_what_the_source_leaves_out_and_clocks_that_disagree_are_noted(tmp_path: Path):
    limit = "no reward is recorded"
    recorded = [
        RankRows(0, 0, [put(1, 1, time_us=1), take(2, 1, time_us=5)]),
        RankRows(1, 0, [put(1, 2, time_us=9)]),
    ]
    folder = tmp_path / "log"
    folder.mkdir()
    for rank, _, rows in recorded:
        metadata = rank_metadata(rank, 2) | {META_LIMITS: f'["{limit}"]'}
        write_log(folder / f"part-rank{rank:04}-000001.parquet", rows, metadata=metadata)
    (clocks, source) = audited(folder).log_notes
    assert clocks.startswith("by the clocks of the ranks, events lie outside their train steps")
    assert (source, audited(folder).exit_code()) == (limit, 0)
