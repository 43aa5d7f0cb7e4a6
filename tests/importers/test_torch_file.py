"""The restricted reader: what torch wrote comes back as plain data, and a hostile file can do nothing."""

from __future__ import annotations

import dataclasses
import enum
import os
import pickle
import random
import resource
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import ROOT
from tokenaudit.contracts.errors import SourceError, shown
from tokenaudit.importers.dumps import ARRAYS, is_table, row_of, width_of
from tokenaudit.importers.pickles.source import LazyBytes, LazyText
from tokenaudit.importers.pickles.torch_file import TorchFile
from tokenaudit.importers.pickles.values import LazyList, Limits, OpaqueObject


class Status(enum.Enum):
    DONE = "completed"


@dataclasses.dataclass
class State:
    ids: list[int]
    status: Status


FILES = ExitStack()


@pytest.fixture(autouse=True)
def close_files() -> Iterator[None]:
    with FILES:
        yield


def load(path: Path, limits: Limits | None = None) -> Any:
    """The object in a file, which stays open until the test ends."""
    return FILES.enter_context(TorchFile(path, limits)).load()


def plain(value: Any) -> Any:
    """Lists as lists, arrays as lists, and what stays in the file read from there."""
    if isinstance(value, LazyList):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, LazyText):
        return value.text()
    if isinstance(value, LazyBytes):
        return value.read()
    return array(value).tolist() if isinstance(value, ARRAYS) else value


def array(value: Any) -> np.ndarray:
    """An array, read if it stays in the file."""
    return value if isinstance(value, np.ndarray) else value.read()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_come_back(protocol: int, tmp_path: Path):
    value = {
        "ids": list(range(-3, 3000)),
        "small": [1, 0, 255, 256, 65535, 65536, -1, 2**31, 2**62],
        "large": [1, 2**70, -(2**70)],
        "reals": [0.5, -1e300, float("inf")],
        "mixed": [1, 2.5, "text", None, True, [1, [2]]],
        "bools": [True, False],
        "empty": [],
        "bytes": b"\x00\xff",
        "tuple": (1, "ä", ()),
        "ordered": OrderedDict(a=1),
        "set": [7],
        "nested": {"x": {"y": [{}]}},
        "long text": "ä" * 5_000,
        "long bytes": bytes(range(256)) * 9,
        "repeated": ["x" * 300] * 2,
    }
    torch.save(value | {5: "number"}, tmp_path / "x.pt", pickle_protocol=protocol)
    # keys are texts, as in JSON
    assert plain(load(tmp_path / "x.pt")) == value | {"5": "number"}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_long_runs_of_numbers_stay_in_the_file_and_come_back(protocol: int, extra: int, tmp_path: Path):
    chance = random.Random(extra)
    count = 100_000 + extra
    value = {
        "narrow": [1] * count,
        "wide": [chance.choice((5, 300, 70_000, -1, 2**31, -(2**40), 2**62)) for _ in range(count)],
        "bools": [chance.random() < 0.5 for _ in range(count)],
        "reals": [chance.random() for _ in range(count)],
        "mixed": [chance.choice((None, True, 1, 0.5)) for _ in range(count)],
        "tuple": tuple(range(count)),
        "texts": ["x", *range(5_000), "y", *range(5_000)],
        "large": [*range(2_000), 2**70, *range(2_000)],
    }
    torch.save(value, tmp_path / "x.pt", pickle_protocol=protocol)
    loaded = load(tmp_path / "x.pt")
    for name, expected in value.items():
        assert list(loaded[name]) == list(expected)
        assert len(loaded[name]) == len(expected)
        kind = "i" if name in ("narrow", "wide", "bools", "tuple") else "f" if name == "reals" else None
        packed = loaded[name].packed()
        assert (packed is None) == (kind is None)
        if packed is not None:
            assert (packed.dtype.kind, packed.tolist()) == (kind, list(expected))


def test_loading_takes_memory_for_what_is_asked_for_alone(tmp_path: Path):
    lists = {"ids": [300] * 2_000_000, "text": "x" * 2_000_000, "tensor": torch.zeros(2_000_000)}
    torch.save(lists | {"array": np.zeros(2_000_000)}, tmp_path / "x.pt")
    tracemalloc.start()
    try:
        loaded = load(tmp_path / "x.pt")
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(loaded) == 4
    # of 30 MB; reading takes a window and what is left of the one before
    assert held < 2_500_000
    assert peak < 5_000_000


def test_lists_of_numbers_are_arrays(tmp_path: Path):
    torch.save({"i": list(range(5000)), "f": [0.5] * 5000, "late": [1] * 1500 + ["x"]}, tmp_path / "x.pt")
    value = load(tmp_path / "x.pt")
    assert value["i"].packed().dtype == np.int64
    assert value["f"].packed().dtype == np.float64
    assert value["late"].packed() is None
    assert len(value["late"]) == 1501


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool])
def test_whole_tensors_come_back(dtype: torch.dtype, tmp_path: Path):
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    values = {"all": tensor, "turned": tensor.permute(2, 0, 1), "part": tensor[1, 1:, ::2], "none": tensor[:0]}
    torch.save(values | {"wide": tensor[:1, :1, :1].expand(2, 5, 6), "one": torch.tensor(3)}, tmp_path / "x.pt")
    loaded = load(tmp_path / "x.pt")
    for name, expected in values.items():
        np.testing.assert_array_equal(array(loaded[name]), expected.numpy())
    assert array(loaded["wide"]).shape == loaded["wide"].shape == (2, 5, 6)
    assert array(loaded["one"]).item() == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_real_tensors_come_back(dtype: torch.dtype, tmp_path: Path):
    tensor = torch.tensor([0.0, 1.5, -2.25, 1e4]).to(dtype)
    torch.save([tensor, torch.nn.Parameter(tensor)], tmp_path / "x.pt")
    for loaded in load(tmp_path / "x.pt"):
        np.testing.assert_array_equal(array(loaded).astype(np.float64), tensor.double().numpy())


def test_arrays_and_numbers_of_numpy_come_back(tmp_path: Path):
    arrays = [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([True]),
        np.array(3),
    ]
    arrays.append(np.arange(3, dtype=">i4"))
    # large ones stay in the file
    wide = np.arange(2_000, dtype=">i4").reshape(2, 10, 100)
    arrays += [wide, np.asfortranarray(wide), np.linspace(0, 1, 300), np.arange(100, dtype=np.uint8).reshape(1, 100)]
    arrays += [np.zeros(0, dtype=np.int64), np.zeros((2, 0), dtype=np.float32)]
    for protocol in (2, 4, 5):
        torch.save(arrays, tmp_path / "x.pt", pickle_protocol=protocol)
        for expected, loaded in zip(arrays, load(tmp_path / "x.pt"), strict=True):
            np.testing.assert_array_equal(array(loaded), expected)
    torch.save([np.float32(1.5), np.int64(-3), np.str_("é"), np.str_("x" * 500)], tmp_path / "y.pt")
    assert plain(load(tmp_path / "y.pt")) == [1.5, -3, "é", "x" * 500]


class Table(dict[str, Any]):
    pass


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_what_nobody_asks_for_refuses_no_file(protocol: int, tmp_path: Path):
    odd = [
        np.array(["a", "bc"]),
        np.str_("x" * 5_000),
        np.datetime64("2024-01-01"),
        np.array(["2024-01-01"], dtype="datetime64[D]"),
        np.array([1j]),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
        np.array([1], dtype=np.longdouble),
        torch.tensor([1j]),
        {torch.float32: 1, Status.DONE: 2, (Status.DONE, 3): 4},
    ]
    made = {"none": b"", "default": defaultdict(list, a=[1]), "table": Table(a=2), "counter": Counter("aab")}
    torch.save({"odd": odd, **made, "ids": [1, 2]}, tmp_path / "x.pt", pickle_protocol=protocol)
    loaded = load(tmp_path / "x.pt")
    assert (loaded["none"], plain(loaded["default"]), plain(loaded["ids"])) == (b"", {"a": [1]}, [1, 2])
    assert loaded["table"].state == {"a": 2}
    assert all(isinstance(value, OpaqueObject | dict) for value in loaded["odd"])
    assert repr(next(iter(loaded["odd"]))) == "<numpy.ndarray>"


def test_unknown_classes_become_records(tmp_path: Path):
    torch.save(State([1, 2], Status.DONE), tmp_path / "x.pt")
    record = load(tmp_path / "x.pt")
    assert isinstance(record, OpaqueObject)
    assert record.name.endswith("test_torch_file.State")
    assert plain(record.state["ids"]) == [1, 2]
    assert record.state["status"].arguments == ("completed",)


def archive(path: Path, data: bytes, method: int = zipfile.ZIP_STORED, **others: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("archive/data.pkl", data)
        for name, content in others.items():
            file.writestr(f"archive/data/{name}", content)
    return path


class Evil:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self._made = (call, arguments)

    def __reduce__(self) -> Any:
        return self._made


def test_a_malicious_file_runs_nothing_and_imports_nothing(tmp_path: Path):
    target = tmp_path / "ran"
    (tmp_path / "trap.py").write_text(f"open({str(target)!r}, 'w').close()\n\ndef fire(*_): pass\n")
    hostile = [
        pickle.dumps(Evil(os.system, f"touch {target}"), 2),
        pickle.dumps([Evil(eval, f"open({str(target)!r}, 'w')")], 4),
        pickle.dumps({"x": Evil(exec, f"open({str(target)!r}, 'w')")}, 4),
        b"\x80\x02ctrap\nfire\n)R.",
        b"\x80\x02ctrap\nfire\n)\x81}b.",
        b"\x80\x04\x8c\x04trap\x8c\x04fire\x93)R.",
        # the getattr of a builtin, and a state that would set attributes
        b"\x80\x02cbuiltins\ngetattr\ncos\nsystem\nX\x04\x00\x00\x00name\x86R.",
        b"\x80\x02cos\nsystem\n)R}X\x08\x00\x00\x00__dict__}sb.",
    ]
    for number, data in enumerate(hostile):
        archive(tmp_path / f"{number}.pt", data)
    code = (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[1])\n"
        # zipfile decodes the names of entries with it
        "import encodings.cp437\n"
        "from tokenaudit.importers.pickles.torch_file import TorchFile\nbefore = set(sys.modules)\n"
        "for path in sorted(Path(sys.argv[1]).glob('*.pt')):\n"
        "    with TorchFile(path) as file:\n        print(file.load())\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    lines = ran.stdout.splitlines()
    assert len(lines) == len(hostile) + 1
    assert lines[-1] == "[]"
    assert not target.exists()


LAUGHS = b"\x80\x02]" + b"".join(b"2\x86" for _ in range(60)) + b"."
MARKS = b"\x80\x02" + b"(" * 10_000 + b"."


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cut off"),
        (b"\x80\x02", "cut off"),
        (b"\x80\x63N.", "later protocol"),
        (b"\x80\x02X\xff\xff\xff\x7fab.", "cut off"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b"ab.", "cut off"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "more than 64 bytes"),
        (b"\x80\x02\x8b\xff\xff\xff\xff.", "negative size"),
        (b"\x80\x02.", "takes more than it has made"),
        (b"\x80\x02(0.", "takes more than it has made"),
        (b"\x80\x02e.", "lacks a mark"),
        (MARKS, "nested deeper than"),
        (b"\x80\x02h\x05.", "never remembered"),
        (b"\x80\x02N(K\x01e.", "appended to what is no list"),
        (b"\x80\x02}(K\x01u.", "items set on what is no dictionary"),
        (b"\x80\x02}(]K\x01u.", "no number or text"),
        (b"\x80\x02K\x01)R.", "a call of what is no name"),
        (b"\x80\x02cabc", "a name without an end"),
        (b"\x80\x02I5\n.", "instruction 'I'"),
        (b"\x80\x02(i__main__\nX\n.", "instruction 'i'"),
        (b"\x80\x02\x82\x01.", "is none that a data file needs"),
        (b"\x80\x02K\x01Q.", "persistent id that is no storage"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)RK\x01b.", "an array without its state"),
    ],
)
def test_a_damaged_pickle_is_refused(data: bytes, message: str, tmp_path: Path):
    with pytest.raises(SourceError, match=message):
        load(archive(tmp_path / "x.pt", data))


def test_a_memory_bomb_in_the_memo_takes_no_memory(tmp_path: Path):
    # index 2**32 - 1 makes the table of the standard library's unpickler that large
    assert load(archive(tmp_path / "x.pt", b"\x80\x02Nr\xff\xff\xff\xff.")) is None


@pytest.mark.parametrize(
    ("made", "call", "most"),
    [
        (b"](" + b"K\x01" * 4_000 + b"e", b"cbuiltins\nset\n", 1_000_000),
        (b"](" + b"K\x01" * 4_000 + b"e", b"cbuiltins\nfrozenset\n", 1_000_000),
        (b"X" + (240).to_bytes(4, "little") + b"a" * 240 + b"X\x06\x00\x00\x00latin1", b"c_codecs\nencode\n", 10_000),
    ],
)
def test_copying_one_value_over_and_over_counts_every_copy(made: bytes, call: bytes, most: int, tmp_path: Path):
    made = made.replace(b"X\x06", b"q\x00X\x06") if b"latin1" in made else made + b"q\x00"
    argument = b"h\x00X\x06\x00\x00\x00latin1\x86" if b"latin1" in made else b"h\x00\x85"
    data = b"\x80\x02" + made + call + b"q\x01" + (b"h\x01" + argument + b"R0") * 1_000 + b"N."
    with (
        TorchFile(archive(tmp_path / "x.pt", data), Limits(objects=most)) as file,
        pytest.raises(SourceError, match=f"more than {most} objects"),
    ):
        file.load()


def test_a_long_tuple_is_no_key(tmp_path: Path):
    data = b"\x80\x02}((" + b"K\x01" * 17 + b"tK\x01u."
    with pytest.raises(SourceError, match="nor a few of them"):
        load(archive(tmp_path / "x.pt", data))


def test_pieces_of_one_storage_are_read_piece_by_piece(tmp_path: Path):
    whole = torch.arange(4_000_000)
    torch.save([*whole.split(1_000), whole[::2][5:8], whole.view(2000, 2000).T[1:3, :2], whole[7]], tmp_path / "x.pt")
    before = time.process_time()
    *pieces, strided, turned, one = [value.read() for value in load(tmp_path / "x.pt")]
    # each piece once; the whole storage for each would be 128 GB
    assert time.process_time() - before < 5
    assert np.array_equal(np.concatenate(pieces), whole.numpy())
    assert strided.tolist() == [10, 12, 14]
    assert turned.tolist() == [[1, 2001], [2, 2002]]
    assert one.item() == 7


def test_a_tuple_that_holds_itself_over_and_over_takes_no_time(tmp_path: Path):
    from tokenaudit.importers.base import FieldFault
    from tokenaudit.importers.dumps import plain as plain_value

    value = load(archive(tmp_path / "x.pt", LAUGHS))
    assert len(shown(value)) <= 60
    with pytest.raises(FieldFault, match="no plain value"):
        plain_value(value)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(objects=100), "more than 100 objects"),
        (Limits(depth=2), "nested deeper than 2"),
    ],
)
def test_what_exceeds_the_limits_is_refused(limits: Limits, message: str, tmp_path: Path):
    torch.save([[[["x"] * 200] * 2] * 2] * 2, tmp_path / "x.pt")
    with pytest.raises(SourceError, match=message):
        load(tmp_path / "x.pt", limits)


def tensor(key: str, count: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """A pickle of one tensor."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", torch.LongStorage, key, "cpu", count) if obj == "here" else None

    import io

    class Tensor:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, ("here", offset, size, stride, False, OrderedDict())

    out = io.BytesIO()
    Pickler(out, 2).dump(Tensor())
    return out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0", 4, 2, (3,), (1,)), "reaches behind its storage"),
        (("0", 4, 0, (2, 2), (4, 1)), "reaches behind its storage"),
        (("0", 4, -1, (2,), (1,)), "reaches behind its storage"),
        (("0", 10**9, 0, (10**9,), (1,)), "reaches behind its storage"),
        (("0", 4, 0, (2,), (-1,)), "shape makes no sense"),
        (("0", 4, 0, (2,), (1, 1)), "shape makes no sense"),
        (("0", 4, 0, (2**50,), (0,)), "shape makes no sense"),
        (("0", 4, 0, (2**30,), (0,)), "an array of 1073741824 elements, where up to"),
        (("1", 4, 0, (2,), (1,)), "no entry 'archive/data/1'"),
        (("../../etc/passwd", 4, 0, (2,), (1,)), "no entry"),
    ],
)
def test_a_tensor_that_makes_no_sense_is_refused(arguments: tuple, message: str, tmp_path: Path):
    others = {"0": bytes(32)}
    with pytest.raises(SourceError, match=message):
        load(archive(tmp_path / "x.pt", tensor(*arguments), **others)).read()


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path: Path):
    path = archive(tmp_path / "bomb.pt", b"\x80\x02]." + bytes(200_000_000), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(SourceError, match="compressed"):
        load(path)


@pytest.mark.parametrize("is_64", [False, True])
@pytest.mark.parametrize(
    ("entries", "what"),
    [
        (250_001, "250001 entries in the archive, where"),
        (1_500_000, "list of entries of 69000000 bytes"),
    ],
)
def test_an_archive_of_too_many_entries_is_refused_before_they_are_read(
    entries: int, what: str, is_64: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its counts may lie: here they say that there is one."""
    monkeypatch.setattr(zipfile.ZipInfo, "__init__", None)
    listed = (b"PK\x01\x02" + bytes(42)) * entries
    if is_64:
        numbers = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, len(listed), 0)
        end = b"PK\x06\x06" + numbers + b"PK\x06\x07" + struct.pack("<IQI", 0, len(listed), 1)
        end += b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0)
    else:
        end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(listed), 0, 0)
    (tmp_path / "x.pt").write_bytes(listed + end)
    with pytest.raises(SourceError, match=what):
        load(tmp_path / "x.pt")


@pytest.mark.parametrize("place", [2**31, 2**62, 2**64 - 1])
def test_an_entry_before_the_beginning_or_behind_the_end_is_refused(place: int, tmp_path: Path):
    torch.save([1], tmp_path / "x.pt")
    data = bytearray((tmp_path / "x.pt").read_bytes())
    # where the list of entries begins; all places are counted from there
    start = data.rindex(b"PK\x06\x06") + 48
    data[start : start + 8] = place.to_bytes(8, "little")
    (tmp_path / "x.pt").write_bytes(data)
    with pytest.raises(SourceError, match="is damaged"):
        load(tmp_path / "x.pt")


def test_names_that_leave_the_archive_are_never_followed(tmp_path: Path):
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("../../escape/data.pkl", b"\x80\x02K\x05.")
    assert load(path) == 5
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.pt"]


def test_an_entry_that_lies_about_its_size_is_refused(tmp_path: Path):
    path = archive(tmp_path / "x.pt", b"\x80\x02K\x05.")
    data = bytearray(path.read_bytes())
    start = data.index(b"PK\x01\x02")
    data[start + 20 : start + 28] = struct.pack("<II", 2**31, 2**31)
    path.write_bytes(data)
    with pytest.raises(SourceError, match="behind the end"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip", pickle.dumps([1])])
def test_other_files_are_refused(content: bytes, tmp_path: Path):
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(SourceError, match=r"not a file of torch\.save"):
        load(tmp_path / "x.pt")
    with pytest.raises(SourceError, match="can't read"):
        load(tmp_path / "none.pt")


def test_random_damage_is_refused_or_read_and_never_crashes(tmp_path: Path):
    sample = {"ids": [1, 2, 300], "t": torch.arange(5), "s": "text"}
    torch.save({"samples": [sample], "n": np.arange(3)}, tmp_path / "x.pt")
    good = (tmp_path / "x.pt").read_bytes()
    chance = random.Random(7)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(400):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / "y.pt").write_bytes(data)
        try:
            load(tmp_path / "y.pt")
        except SourceError:
            continue
    # The peak is that of the whole process: other tests may have taken more before.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= max(before, 4_000_000)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("kind", [torch.int64, torch.float32, torch.bfloat16, torch.bool])
def test_rows_of_nested_tensors_come_back(layout: torch.layout, kind: torch.dtype, tmp_path: Path):
    rows = [torch.arange(size).to(kind) for size in (3, 0, 5, 1)]
    torch.save({"x": torch.nested.nested_tensor(rows, layout=layout)}, tmp_path / "x.pt")
    table = load(tmp_path / "x.pt")["x"]
    assert is_table(table)
    assert (table.shape[0], [width_of(table, index) for index in range(4)]) == (4, [3, 0, 5, 1])
    assert [row_of(table, index, 2).tolist() for index in range(4)] == [row[:2].tolist() for row in rows]


def test_rows_of_a_narrowed_nested_tensor_have_their_own_lengths(tmp_path: Path):
    base = torch.arange(24).reshape(3, 8)
    narrowed = torch.nested.narrow(base, 1, torch.tensor([1, 0, 4]), torch.tensor([2, 3, 4]), layout=torch.jagged)
    torch.save(narrowed, tmp_path / "x.pt")
    table = load(tmp_path / "x.pt")
    assert [row_of(table, index, 9).tolist() for index in range(3)] == [[1, 2], [8, 9, 10], [20, 21, 22, 23]]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_more_axes_are_opaque(tmp_path: Path):
    rows = [torch.zeros(2, 3), torch.zeros(4, 3)]
    for layout in (torch.jagged, torch.strided):
        torch.save(torch.nested.nested_tensor(rows, layout=layout), tmp_path / "x.pt")
        assert isinstance(load(tmp_path / "x.pt"), OpaqueObject)


class Nested:
    """Pickles itself as a nested tensor of these parts."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        from torch.nested._internal.nested_tensor import _rebuild_njt

        return torch._tensor._rebuild_from_type_v2, (_rebuild_njt, torch.Tensor, (self.parts,), {})


@pytest.mark.parametrize(
    ("offsets", "lengths", "row"),
    [([0, 3, 2], None, 1), ([0, 2, 9], None, 1), ([-1, 2], None, 0), ([0, 2**62], None, 0), ([0, 2, 4], [2, 9], 1)],
)
def test_a_row_outside_of_a_nested_tensor_is_a_fault(
    offsets: list[int], lengths: list[int] | None, row: int, tmp_path: Path
):
    parts = {"values": torch.arange(4), "offsets": torch.tensor(offsets)}
    torch.save(Nested(**parts, lengths=None if lengths is None else torch.tensor(lengths)), tmp_path / "x.pt")
    table = load(tmp_path / "x.pt")
    with pytest.raises(SourceError, match=f"row {row} of a nested tensor lies outside its numbers"):
        row_of(table, row, 9)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"offsets": None}, "without its offsets"),
        ({"offsets": torch.zeros(3)}, "without its offsets"),
        ({"offsets": torch.zeros(0, dtype=torch.int64)}, "without its offsets"),
        ({"lengths": torch.zeros(7, dtype=torch.int64)}, "whose lengths make no sense"),
    ],
)
def test_a_nested_tensor_of_parts_that_make_no_sense_is_refused(parts: dict[str, Any], message: str, tmp_path: Path):
    torch.save(Nested(**({"values": torch.arange(4), "offsets": torch.tensor([0, 4])} | parts)), tmp_path / "x.pt")
    with pytest.raises(SourceError, match=message):
        load(tmp_path / "x.pt")


def test_a_nested_tensor_of_a_billion_rows_takes_no_memory(tmp_path: Path):
    offsets = torch.zeros(1, dtype=torch.int64).expand(2**30)
    torch.save(Nested(values=torch.arange(4), offsets=offsets), tmp_path / "x.pt")
    tracemalloc.start()
    table = load(tmp_path / "x.pt")
    assert width_of(table, 2**29) == 0
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
