"""Crafted pickles: what they could repeat over and over is counted, and nothing large is held for it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import ROOT
from tests.importers.test_torch_file import archive
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers.pickles.torch_file import TorchFile
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
