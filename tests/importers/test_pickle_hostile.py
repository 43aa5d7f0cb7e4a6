"""Crafted pickles: what they could repeat over and over is counted, and nothing large is held for it."""

from __future__ import annotations

import io
import pickle
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from tests.conftest import ROOT
from tests.importers.test_torch_file import Evil, archive
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers.pickles.source import LazyBytes
from tokenaudit.importers.pickles.torch_file import PickleFile, TorchFile, inner_archive
from tokenaudit.importers.pickles.values import Limits

LATER = b"\x80\x02"
RUN = b"](" + b"K\x01" * 1_000 + b"e"


def text(value: bytes) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value


def refused(path: Path, message: str, limits: Limits | None = None) -> None:
    with TorchFile(path, limits) as file, pytest.raises(SourceError, match=message) as raised:
        file.load()
    (problem,) = raised.value.problems
    assert problem.where == str(path)


@pytest.mark.parametrize(
    "data",
    [
        # names are made of two texts, keys of up to sixteen, and both of texts that are there once
        text(b"m" * 200) + b"q\x000" + b"h\x00h\x00\x930" * 2_000 + b"N.",
        text(b"k" * 200) + b"q\x000" + b"(" + b"h\x00" * 16 + b"tq\x010}" + b"h\x01Ns" * 500 + b".",
        # a name of a line, and a tuple that is the argument of many calls
        (b"c" + b"m" * 900 + b"\nn\n0") * 200 + b"N.",
        b"(" + b"N" * 100 + b"tq\x00cx\ny\nq\x01" + b"h\x01h\x00R0" * 200 + b"N.",
        # numbers that no list takes up
        b"(" + b"K\x01" * 20_000 + b"(" + b"N" * 20_000 + b".",
    ],
)
def test_objects_count_by_what_they_take(data: bytes, tmp_path: Path):
    refused(archive(tmp_path / "x.pt", LATER + data), "more than 10000 objects", Limits(objects=10_000))


def test_a_pickle_that_numbers_its_memory_at_random_is_refused(tmp_path: Path):
    data = b"N" + b"".join(b"r" + (5 + 7 * index).to_bytes(4, "little") for index in range(1_001)) + b"."
    refused(archive(tmp_path / "x.pt", LATER + data), "in no order")


def test_keys_that_would_collide_take_no_time(tmp_path: Path):
    # multiples of 2**61 - 1 have one hash: a table of these numbers compares each with all others
    keys = [number * (2**61 - 1) for number in range(1, 50_001)]
    data = b"}" + b"".join(b"\x8a\x0a" + key.to_bytes(10, "little") + b"Ns" for key in keys) + b"."
    before = time.process_time()
    with TorchFile(archive(tmp_path / "x.pt", LATER + data)) as file:
        assert len(file.load()) == len(keys)
    assert time.process_time() - before < 5


def test_reading_one_list_over_and_over_ends(tmp_path: Path):
    with TorchFile(archive(tmp_path / "x.pt", LATER + RUN + b".")) as file:
        numbers = file.load()
        with pytest.raises(SourceError, match="names far more than it can hold"):
            sum(len(numbers) for _ in range(40_000))


def test_reading_one_number_of_a_huge_tensor_reads_no_more(tmp_path: Path):
    torch.save(torch.arange(3_000_000)[::1_000_000], tmp_path / "x.pt")
    with TorchFile(tmp_path / "x.pt") as file:
        before = time.process_time()
        tensor = file.load()
        for _ in range(1_000):
            assert tensor.read().tolist() == [0, 1_000_000, 2_000_000]
        # 24 MB each time otherwise
        assert time.process_time() - before < 2


def test_a_column_of_a_table_is_read(tmp_path: Path):
    table = torch.arange(3_000_000).reshape(3_000, 1_000)
    torch.save([table[:, 7], table[::9, ::500], table.T[3:5]], tmp_path / "x.pt")
    with TorchFile(tmp_path / "x.pt") as file:
        for tensor, expected in zip(file.load(), (table[:, 7], table[::9, ::500], table.T[3:5]), strict=True):
            np.testing.assert_array_equal(tensor.read(), expected.numpy())


def test_a_list_that_was_changed_while_it_was_read_is_refused(tmp_path: Path):
    path = archive(tmp_path / "x.pt", LATER + RUN + b".")
    target = tmp_path / "ran"
    call = f"cos\nsystem\n(X{chr(5)}\0\0\0touch".encode()
    with TorchFile(path) as file:
        numbers = file.load()
        data = path.read_bytes()
        start = data.index(b"K\x01K\x01") + 100
        with path.open("r+b") as stream:
            stream.seek(start)
            stream.write(call)
        with pytest.raises(SourceError, match="changed while it was read"):
            list(numbers)
    assert not target.exists()


def test_a_file_that_was_cut_off_while_it_was_read_is_refused(tmp_path: Path):
    torch.save(torch.arange(100_000), tmp_path / "x.pt")
    with TorchFile(tmp_path / "x.pt") as file:
        tensor = file.load()
        with (tmp_path / "x.pt").open("r+b") as stream:
            stream.truncate(1_000)
        with pytest.raises(SourceError, match="cut off while it was read"):
            tensor.read()


@pytest.mark.parametrize(
    "piece",
    [
        b"}",
        b"]",
        b"Nq\x00\x85",
        b"}NNs",
        text(b"abcd"),
        b"h\x00)\x81",
        b"h\x00)\x81NNs",
        b"h\x01h\x02R",
        b"G" + b"\x01" * 8,
        b"]Na",
    ],
)
def test_the_most_objects_take_bounded_memory(piece: bytes, tmp_path: Path):
    """A fortieth of the objects that are allowed, each kind as many as there can be."""
    limit = Limits().objects // 40
    start = LATER + b"cx\ny\nq\x00cnumpy.core.multiarray\nscalar\nq\x01cnumpy\ndtype\n"
    # a text of numpy, over and over
    start += text(b"U63") + b"\x85R" + b"C" + bytes([252]) + "\U0001f600".encode("utf-32-le") * 63 + b"\x86q\x02"
    path = archive(tmp_path / "x.pt", start + piece * limit)
    code = (
        "import re, sys\nfrom pathlib import Path\nfrom tokenaudit.contracts.errors import SourceError\n"
        "from tokenaudit.importers.pickles.torch_file import TorchFile\n"
        "from tokenaudit.importers.pickles.values import Limits\n"
        "def status(name): return int(re.search(name + r':\\s+([0-9]+)', open('/proc/self/status').read())[1])\n"
        "before = status('VmRSS')\n"
        "with TorchFile(Path(sys.argv[1]), Limits(objects=int(sys.argv[2]))) as file:\n"
        "    try:\n        file.load()\n"
        "    except SourceError as error:\n        print(error.summary)\n"
        "print(status('VmHWM') - before)\n"
    )
    arguments = [sys.executable, "-c", code, str(path), str(limit)]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
    said, used = ran.stdout.splitlines()
    assert re.fullmatch(f"more than {limit} objects", said)
    # forty times as many take up to 2 GB
    assert int(used) < 50_000


@contextmanager
def bare(path: Path, data: bytes, limits: Limits | None = None) -> Iterator[PickleFile]:
    """A file that is one pickle, opened."""
    path.write_bytes(data)
    with PickleFile(path, limits) as file:
        yield file


def inner(path: Path, content: bytes) -> tuple[PickleFile, LazyBytes]:
    """Bytes in the middle of a bare pickle; the file stays open for as long as it is held."""
    path.write_bytes(pickle.dumps(["before", content, "behind"], 4))
    file = PickleFile(path)
    held = list(file.load())[1]
    assert isinstance(held, LazyBytes)
    return file, held


def saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def test_a_bare_pickle_runs_nothing(tmp_path: Path):
    target = tmp_path / "ran"
    for protocol in (2, 3, 4, 5):
        data = pickle.dumps({"x": Evil(exec, f"open({str(target)!r}, 'w')"), "y": torch.arange(3)}, protocol)
        with bare(tmp_path / "x.pkl", data) as file:
            loaded = file.load()
        # a tensor that pickled itself holds what `torch.save` wrote long ago, which stays opaque
        assert [value.name for value in loaded.values()] in (
            ["builtins.exec", "torch._utils._rebuild_tensor_v2"],
            ["__builtin__.exec", "torch._utils._rebuild_tensor_v2"],
        )
    assert not target.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cut off"),
        (LATER + b"X\x01\0\0\0aQ.", "a persistent id, which a bare pickle has no need of"),
        (LATER + b"(" * 2_000 + b".", "nested deeper than 1000"),
        (LATER + b"B\xff\xff\xff\x7f.", "cut off"),
        (b"\x80\x04\x97.", "the instruction"),
        (LATER + b"N0" * 6_000 + b"N.", "more than 10000 objects"),
    ],
)
def test_bare_pickles_have_the_same_bounds(data: bytes, message: str, tmp_path: Path):
    limits = Limits(objects=10_000)
    with bare(tmp_path / "x.pkl", data, limits) as file, pytest.raises(SourceError, match=message) as raised:
        file.load()
    (problem,) = raised.value.problems
    assert problem.where == str(tmp_path / "x.pkl")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_a_tensor_that_was_saved_into_a_pickle_is_read(dtype: torch.dtype, tmp_path: Path):
    tensor = (torch.arange(600).reshape(20, 30) % 2).to(dtype)
    file, held = inner(tmp_path / "x.pkl", saved(tensor.T[3:5]))
    with file:
        loaded = inner_archive(held).load()
        assert_array_equal(loaded.read(), tensor.T[3:5].to(torch.float32).numpy())
        assert_array_equal(loaded.row(1, 7), tensor.T[4, :7].to(torch.float32).numpy())
    file, held = inner(tmp_path / "x.pkl", saved(None))
    with file:
        assert inner_archive(held).load() is None


def _zipped(data: bytes, method: int = zipfile.ZIP_STORED, others: int = 0) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as file:
        file.writestr("archive/data.pkl", data)
        for number in range(others):
            file.writestr(f"archive/data/{number}", b"")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(1_000), "not a file of torch.save"),
        (saved(torch.arange(500))[:-100], "not a file of torch.save"),
        (_zipped(LATER + b"N.", others=100), "101 entries in the archive, where up to 100"),
        (_zipped(LATER + b"N.", others=600), "a list of entries of"),
        (_zipped(LATER + b"]." + bytes(50_000_000), zipfile.ZIP_DEFLATED), "is compressed"),
        (_zipped(LATER + b"N0" * 600 + b"N."), "more than 1000 objects"),
        (_zipped(LATER + b"(" * 30 + b"."), "nested deeper than 20"),
        (_zipped(LATER + text(b"x" * 300)[:-1]), "cut off"),
        # an entry that says it is larger than the archive is, though the file isn't
        (_zipped(LATER + b"N.").replace((4).to_bytes(4, "little"), (5_000).to_bytes(4, "little")), "reaches behind"),
    ],
)
def test_what_lies_in_a_pickle_has_tighter_bounds(content: bytes, message: str, tmp_path: Path):
    (tmp_path / "x.pkl").write_bytes(pickle.dumps([content.ljust(300, b"\0"), bytes(10_000)], 4))
    with PickleFile(tmp_path / "x.pkl") as file:
        held = next(iter(file.load()))
        with pytest.raises(SourceError, match=message) as raised:
            inner_archive(held).load()
    assert raised.value.problems[0].where == str(tmp_path / "x.pkl")


def test_a_tensor_in_bytes_of_an_old_protocol_is_refused(tmp_path: Path):
    data = pickle.dumps([b"\xff" * 300], 2)
    with bare(tmp_path / "x.pkl", data) as file:
        held = next(iter(file.load()))
        with pytest.raises(SourceError, match="written as a text"):
            inner_archive(held)
