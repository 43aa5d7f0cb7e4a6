"""Files of lines that are compressed with gzip or zstd: read like the text in them, in bounded memory and time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.importers.importing import ROW, imported, jsonl
from tests.importers.test_import import DUMPS, peak_kib
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers import packed
from tokenaudit.importers.base import Context, VersionScale
from tokenaudit.importers.files import json_documents, json_records

LINES = [json.dumps(ROW | {"group_id": group, "response_len": group % 97}).encode() + b"\n" for group in range(5_000)]

TEXT = b"".join(LINES[:2_000])
"""More than the 128 KiB that zstd makes at once."""


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


PACK: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstd}
SKIPPED = bytes.fromhex("5a2a4d1804000000") + b"skip"
"""A frame of zstd that readers skip."""


def groups_of(path: Path) -> list[int]:
    return imported("generic", path).column("group_id")


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("name", [name for name in DUMPS if name != "slime"])
def test_dumps_of_lines_give_the_same_log_when_they_are_compressed(name: str, suffix: str, tmp_path: Path, run_cli):
    dump = tmp_path / "dump"
    DUMPS[name](dump)
    assert run_cli("import", dump, "-o", "plain.parquet").code == 0
    rows = imported(name, dump)
    for path in [*dump.rglob("*.jsonl")]:
        path.with_name(f"{path.name}.{suffix}").write_bytes(PACK[suffix](path.read_bytes()))
        path.unlink()
    assert [*dump.rglob("*.jsonl")] == []
    again = imported(name, dump)
    assert (again.rows, again.imports) == (rows.rows, rows.imports)
    ran = run_cli("import", dump, "-o", "packed.parquet")
    assert (ran.code, f"the files look like {name}:" in ran.err) == (0, True)


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(b"".join(LINES[:10])) + gzip.compress(b"".join(LINES[10:2_000])),
        gzip.compress(TEXT[:1234]) + gzip.compress(b"") + gzip.compress(TEXT[1234:]) + bytes(512),
        zstd(b"".join(LINES[:10])) + zstd(b"".join(LINES[10:2_000])),
        SKIPPED + zstd(TEXT[:1234]) + SKIPPED + zstd(b"") + zstd(TEXT[1234:]) + SKIPPED,
        TEXT,
    ],
    ids=["members", "members that split a line", "frames", "frames to skip", "not compressed"],
)
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.jsonl"])
def test_members_and_frames_are_one_text_and_the_first_bytes_say_what_they_are(name: str, data: bytes, tmp_path: Path):
    (tmp_path / name).write_bytes(data)
    assert groups_of(tmp_path / name) == list(range(2_000))


@pytest.mark.parametrize("suffix", PACK)
def test_of_a_file_that_is_cut_off_what_lies_before_is_read_and_the_cut_is_told(suffix: str, tmp_path: Path, run_cli):
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(PACK[suffix](b"".join(LINES[:2_500])) + PACK[suffix](b"".join(LINES[2_500:]))[:-100])
    for read in (json_records, json_documents):
        context = Context(VersionScale(0, 1))
        records = list(read(path, context))
        assert [record.data["group_id"] for record in records] == list(range(len(records)))
        # zstd makes 128 KiB at once
        assert 2_500 <= len(records) < 5_000
        assert len(records) > 4_900 or suffix == "zst"
        (problem,) = context.problems.all()
        assert "file is cut off: it ends after " in problem.what
        assert problem.where == str(path)
    ran = run_cli("import", path, "-o", "log.parquet")
    assert (ran.code, ran.err.count("file is cut off")) == (0, 2)
    (limit,) = [line for line in ran.err.splitlines() if "left out: 1 record" in line]
    assert "file is cut off" in limit
    assert run_cli("import", path, "-o", "log.parquet", "--force", "--strict").code == 2


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        ("gz", lambda data: data[:200] + b"\xff" * 50 + data[250:]),
        ("gz", lambda data: data[:-8] + bytes(4) + data[-4:]),
        ("gz", lambda data: data + b"more"),
        ("zst", lambda data: data + b"more"),
        ("zst", lambda data: data[:4] + b"\xff" * 50 + data[54:]),
    ],
)
def test_a_damaged_file_is_told(suffix: str, damage: Callable[[bytes], bytes], tmp_path: Path, run_cli):
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(damage(PACK[suffix](b"".join(LINES))))
    ran = run_cli("import", path, "--from", "generic", "-o", "log.parquet")
    assert (ran.code, ran.out, ran.err.count("error:")) == (2, "", 1)
    assert "error: can't unpack what " in ran.err
    assert "the file is damaged: copy it again" in ran.err
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", PACK)
def test_a_file_that_unpacks_to_far_more_than_a_dump_holds_is_refused(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(PACK[suffix](b"\n" * 2_000_000))
    size = path.stat().st_size
    monkeypatch.setattr(packed, "UNPACKED_ANYWAY", 1_000_000)
    monkeypatch.setattr(packed, "UNPACKED_PER_BYTE", 10)
    with pytest.raises(SourceError) as raised:
        groups_of(path)
    (problem,) = raised.value.problems
    assert problem.what.startswith(f"the file unpacks to more than {1_000_000 + 10 * size} bytes")
    monkeypatch.undo()
    with pytest.raises(SourceError, match="the files hold no response"):
        groups_of(path)


@pytest.mark.parametrize("suffix", PACK)
def test_memory_stays_flat_while_a_file_is_unpacked(suffix: str, tmp_path: Path):
    row = ROW | {"response_len": 5000, "response_mask": [1] * 5000, "text": "x" * 20_000}
    sizes: list[int] = []
    for count in (1_500, 4_000):
        path = tmp_path / f"a.jsonl.{suffix}"
        with path.open("wb") as file:
            for first in range(0, count, 100):
                rows = (row | {"group_id": group} for group in range(first, first + 100))
                file.write(PACK[suffix]("".join(f"{json.dumps(one)}\n" for one in rows).encode()))
        sizes.append(peak_kib(tmp_path, path))
    # 52 MB and 139 MB of text, both more than what is written at once; allocators keep some of what is freed
    assert sizes[1] < sizes[0] + 50_000


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_progress_counts_the_bytes_of_the_file(name: str, suffix: str, tmp_path: Path):
    path = tmp_path / f"{name}{suffix}"
    head = b"group_id,train_step,response_len\n" if name == "a.csv" else b""
    text = head + (b"7,1,9\n" * 10_000 if name == "a.csv" else b"".join(LINES))
    path.write_bytes(PACK[suffix[1:]](text) if suffix else text)
    sizes: list[int] = []
    context = Context(VersionScale(0, 1), advance=sizes.append)
    from tokenaudit.importers.generic import IMPORTER

    assert sum(1 for _ in IMPORTER.read([path], context)) > 0
    assert sum(sizes) == path.stat().st_size


def test_a_file_that_is_there_unpacked_too_is_refused(tmp_path: Path, run_cli):
    jsonl(tmp_path / "dump" / "a.jsonl", ROW)
    jsonl(tmp_path / "dump" / "b.jsonl", ROW)
    for suffix, pack in PACK.items():
        (tmp_path / "dump" / f"a.jsonl.{suffix}").write_bytes(pack(b"".join(LINES[:5])))
    ran = run_cli("import", "dump", "-o", "log.parquet")
    assert (ran.code, ran.out, ran.err.count("error:")) == (2, "", 2)
    assert ran.err.count("error: the file is there unpacked too, as 'a.jsonl'") == 2
