"""Which files an import reads: none twice, and none that is compressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from tests.importers.importing import ROW, imported, jsonl
from tests.importers.test_import_dumps import slime_dump
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers.base import Context, VersionScale
from tokenaudit.importers.detect import importer_named
from tokenaudit.importers.write import import_log

TEXT = (b'{"group_id": 1, "train_step": 1, "response_len": 5, "model_step": 0}\n') * 9
PACKED = {
    "gzip": gzip.compress(TEXT),
    "bzip2": bz2.compress(TEXT),
    "xz": lzma.compress(TEXT),
    "zstd": pa.compress(TEXT, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl", "a.pt", "a.parquet.gz", "a"])
def test_a_compressed_file_is_told_by_its_first_bytes(kind: str, name: str, tmp_path: Path, run_cli):
    (tmp_path / name).write_bytes(PACKED[kind])
    is_read = ".jsonl" in name and kind in ("gzip", "zstd")
    for options in ([], ["--from", "generic"], ["--from", "slime"]):
        ran = run_cli("import", tmp_path / name, "-o", "log.parquet", "--force", *options)
        if is_read and "slime" not in options:
            assert (ran.code, ran.err.count("error:")) == (0, 0)
            continue
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.count("error:") == 1
        assert f"error: the file is compressed with {kind}" in ran.err
        assert "unpack it first" in ran.err


@pytest.mark.parametrize("name", ["a.jsonl.bz2", "a.jsonl", "a.pt.bz2"])
def test_a_folder_of_compressed_files_is_told_too(name: str, tmp_path: Path, run_cli):
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / name).write_bytes(PACKED["bzip2"])
    for options in ([], ["--from", "slime" if ".pt" in name else "areal"]):
        ran = run_cli("import", tmp_path / "dump", "-o", "log.parquet", *options)
        assert (ran.code, ran.err.count("error:")) == (2, 1)
        assert "the file is compressed with bzip2" in ran.err


def test_the_old_format_of_torch_is_told(tmp_path: Path, run_cli):
    (tmp_path / "dump").mkdir()
    torch.save({"rollout_id": 1, "samples": []}, tmp_path / "dump" / "a.pt", _use_new_zipfile_serialization=False)
    for path in ("dump", "dump/a.pt"):
        for options in ([], ["--from", "slime"]):
            ran = run_cli("import", path, "-o", "log.parquet", *options)
            assert (ran.code, ran.err.count("error:")) == (2, 1)
            assert "error: a file of torch.save in its old format" in ran.err
            assert "save it again" in ran.err


def test_a_text_that_begins_like_a_compressed_file_is_read(tmp_path: Path, run_cli):
    (tmp_path / "a.csv").write_text("BZh1,train_step,response_len,model_step\n1,1,5,0\n")
    options = ["--from", "generic", "--map", "BZh1=group_id"]
    assert run_cli("import", tmp_path / "a.csv", "-o", "log.parquet", *options).code == 0


def test_a_file_that_is_named_twice_is_refused(tmp_path: Path, run_cli):
    path = jsonl(tmp_path / "dump" / "a.jsonl", ROW)
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    for paths in ([path, path], [path.parent, path], [path, link], [path.parent, path.parent]):
        ran = run_cli("import", *paths, "-o", "log.parquet", "-q")
        assert (ran.code, ran.out) == (2, "")
        assert len(ran.err.splitlines()) <= 3
        assert ran.err.startswith("error: the file is named twice")
        assert "name every file of a dump once" in ran.err
    assert not (tmp_path / "log.parquet").exists()


@pytest.mark.parametrize(("name", "file"), [("slime", "b.pt"), ("generic", "b.jsonl"), ("generic", "b.csv")])
def test_a_file_that_is_gone_is_told_by_its_name(name: str, file: str, tmp_path: Path):
    importer = importer_named(name)
    with pytest.raises(SourceError) as raised:
        import_log(importer, [tmp_path / file], Context(VersionScale(0, 1)), tmp_path / "log.parquet")
    (problem,) = raised.value.problems
    assert (problem.what, problem.where) == ("can't read: No such file or directory", str(tmp_path / file))


def test_two_imports_of_one_name_do_not_meet(tmp_path: Path, run_cli):
    jsonl(tmp_path / "a.jsonl", ROW)
    # whatever has the name that another import would write under, a link too
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".log.parquet.tmp").symlink_to("precious")
    assert run_cli("import", "a.jsonl", "-o", "log.parquet", "-q").code == 0
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "log.parquet").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "log.parquet", "precious", ".log.parquet.tmp"}


def test_dumps_that_are_named_twice_are_told_up_to_a_count(tmp_path: Path, run_cli):
    folder = slime_dump(tmp_path / "dump")
    dump = (folder / "rollout_4.pt").read_bytes()
    for number in range(30):
        (folder / f"rollout_{number}.pt").write_bytes(dump)
    ran = run_cli("import", folder, folder, "-o", "log.parquet", "-q")
    assert ran.err.count("error: the file is named twice") == 20
    assert "error: 10 more faults" in ran.err


def test_an_archive_of_torch_may_be_called_a_pickle(tmp_path: Path):
    sample = {"response_length": 3, "index": 0, "group_index": 0}
    torch.save({"rollout_id": 1, "samples": [sample]}, tmp_path / "1.pkl")
    assert imported("slime", tmp_path / "1.pkl").column("response_len") == [3]
