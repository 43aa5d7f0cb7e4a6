"""Imports of large and of crafted dumps: one dump is open at a time, and of it only what is being written is held."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.importers.importing import Imported, imported, jsonl
from tests.importers.test_import import peak_kib
from tests.importers.test_import_dumps import Status, StorageItem, nemo_group, queue_batch, sample, state
from tests.importers.test_import_texts import areal, summary
from tests.importers.test_torch_file import archive
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers.base import Context, VersionScale
from tokenaudit.importers.detect import files_of, importer_named
from tokenaudit.importers.pickles import source
from tokenaudit.importers.pickles.source import _AT_LEAST
from tokenaudit.importers.pickles.torch_file import TorchFile
from tokenaudit.importers.write import checked_events

TOKENS, GROUPS, MEMBERS = 1_000, 150, 4


def slime(path: Path, number: int, groups: int) -> None:
    samples = [
        # lists of their own, as a trainer writes them
        sample(index, index // MEMBERS, TOKENS, ["4"], loss_mask=[1] * TOKENS, rollout_log_probs=[0.5] * TOKENS)
        for index in range(groups * MEMBERS)
    ]
    torch.save({"rollout_id": number, "samples": samples}, path / f"rollout_{number}.pt")


def xtuner_groups(groups: int) -> list[list[Any]]:
    return [
        [
            state(group * MEMBERS + index, group, [3] * TOKENS, response_mask=[1] * TOKENS, logprobs=[0.5] * TOKENS)
            for index in range(MEMBERS)
        ]
        for group in range(groups)
    ]


def xtuner(path: Path, number: int, groups: int) -> None:
    torch.save(xtuner_groups(groups), path / f"debug_rollout_{number}.pt")


def xtuner_buffer(path: Path, number: int, groups: int) -> None:
    items = [
        StorageItem(group, index, index, "math", Status.COMPLETED, 0)
        for index, group in enumerate(xtuner_groups(groups))
    ]
    (path / str(number)).mkdir()
    saved = {"policy": "P", "storage": "NaiveStorage", "storage_state": {"items": items}}
    torch.save(saved, path / str(number) / "replay_buffer.pth")


def verl(path: Path, number: int, groups: int) -> None:
    responses = [(f"g{index // MEMBERS}_0_{index % MEMBERS}", [1] * 8, 4, 4) for index in range(groups * MEMBERS)]
    queue_batch(path / str(number) / "0" / "tq_batch.pt", number, responses)


def nemo(path: Path, number: int, groups: int) -> None:
    (path / str(number)).mkdir()
    saved = [nemo_group(3, 3, 4, f"g{index}", *[[0, 1, 1, 1]] * MEMBERS) for index in range(groups)]
    torch.save({"groups": saved}, path / str(number) / "replay_buffer.pt")


DUMPS: dict[str, Callable[[Path, int, int], None]] = {
    "slime": slime,
    "xtuner": xtuner,
    "xtuner-buffer": xtuner_buffer,
    "verl-queue": verl,
    "nemo-rl": nemo,
}


def dumps(name: str, folder: Path, count: int, groups: int) -> Path:
    folder.mkdir()
    for number in range(1, count + 1):
        DUMPS[name](folder, number, groups)
    return folder


@pytest.mark.parametrize("name", DUMPS)
def test_one_dump_is_open_at_a_time(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    open_now, opened, most = 0, 0, 0
    enter, leave = TorchFile.__enter__, TorchFile.__exit__

    def entered(self: TorchFile) -> TorchFile:
        nonlocal open_now, opened, most
        open_now, opened = open_now + 1, opened + 1
        most = max(most, open_now)
        return enter(self)

    def left(self: TorchFile, *error: Any) -> None:
        nonlocal open_now
        open_now -= 1
        leave(self, *error)

    importer = importer_named(name)
    files, _ = files_of(importer, [dumps(name, tmp_path / "dump", 3, 5)])
    monkeypatch.setattr(TorchFile, "__enter__", entered)
    monkeypatch.setattr(TorchFile, "__exit__", left)
    read: list[int] = []
    context = Context(VersionScale(importer.version_offset, 1), advance=read.append)
    puts = [rows for rows in checked_events(importer, files, context) if rows[0]["event"] == "put"]
    # of slime, the begin of each file tells batches from what the trainer saw of them
    times = 2 if name == "slime" else 1
    assert (len(puts), opened, most, open_now) == (3 * 5, 3 * times, 1, 0)
    assert {len(rows) for rows in puts} == {MEMBERS}
    assert sum(read) == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("name", ["slime", "xtuner", "xtuner-buffer"])
def test_of_a_dump_only_the_group_being_read_is_held(name: str, tmp_path: Path):
    dumps(name, tmp_path / "dump", 1, GROUPS)
    importer = importer_named(name)
    files, _ = files_of(importer, [tmp_path / "dump"])
    events = checked_events(importer, files, Context(VersionScale(importer.version_offset, 1)))
    tracemalloc.start()
    try:
        for _ in range(GROUPS):
            next(events)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # a response holds 3,000 numbers or more, all of them 1.8 million; what is left are the objects around them
    assert held < 7_000 * GROUPS * MEMBERS
    assert peak < 7_000 * GROUPS * MEMBERS + 5_000_000


def test_memory_hardly_grows_with_the_size_of_a_dump(tmp_path: Path):
    def dump(responses: int) -> Path:
        tokens = 8_000
        samples = [
            sample(index, index // 8, tokens, ["4"], rollout_log_probs=[0.25] * tokens) for index in range(responses)
        ]
        torch.save({"rollout_id": 0, "samples": samples}, tmp_path / f"{responses}.pt")
        return tmp_path / f"{responses}.pt"

    # log-probabilities of 4.8 million tokens and of twice as many: rows wait until there are 4 million numbers
    sizes = {responses: peak_kib(tmp_path, dump(responses), "slime") for responses in (600, 1200)}
    bytes_of = [(tmp_path / f"{responses}.pt").stat().st_size for responses in (600, 1200)]
    assert bytes_of[1] > 80_000_000
    # far less than what the file is longer by; allocators alone differ by some megabytes
    assert sizes[1200] < sizes[600] + (bytes_of[1] - bytes_of[0]) // 1024 // 2
    assert sum(pq.read_table(tmp_path / "log.parquet")["response_len"].to_pylist()[:-1]) == 8_000 * 1200


def crafted(path: Path, samples: bytes) -> Path:
    """A dump of slime whose list of samples is made by these instructions; `h\\x07` recalls one sample."""
    head = b"\x80\x02}(X\x0a\0\0\0rollout_idK\x00X\x07\0\0\0samples"
    return archive(path, head + samples + b"u.")


def item(**fields: bytes) -> bytes:
    """Instructions that make a dictionary."""
    pairs = (b"X" + len(name).to_bytes(4, "little") + name.encode() + value for name, value in fields.items())
    return b"}(" + b"".join(pairs) + b"u"


LONG = b"](" + b"K\x01" * 1_000 + b"e"
LENGTH = b"M\xe8\x03"
EVENT = item(name=b"X\x0f\0\0\0sglang_generate", attrs=item(completion_tokens=b"K\x01")) + b"q\x08"
TWO = b"](X\x01\0\0\x004X\x01\0\0\x005e"
COMMON = {"response_length": LENGTH, "group_index": b"K\x00", "index": b"K\x00"}


@pytest.mark.parametrize(
    ("fields", "times", "allowance"),
    [
        # one sample over and over: its mask, its length alone, the ends of its calls, its versions
        ({"loss_mask": LONG}, 20_000, _AT_LEAST),
        ({"response_length": b"J\x00\x00\x80\x00", "remove_sample": b"\x88"}, 20, _AT_LEAST // 10),
        ({"weight_versions": TWO, "trace": item(events=b"](" + EVENT + b"h\x08" * 500 + b"e")}, 2_000, _AT_LEAST // 10),
        ({"weight_versions": b"](X\x01\0\0\x004q\x08" + b"h\x08" * 5_000 + b"e"}, 200, _AT_LEAST // 10),
        ({}, 30_000, _AT_LEAST // 10),
    ],
)
def test_a_sample_that_is_named_over_and_over_ends(
    fields: dict[str, bytes], times: int, allowance: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source, "_AT_LEAST", allowance)
    one = item(**(COMMON | fields)) + b"q\x07"
    path = crafted(tmp_path / "a.pt", b"](" + one + b"h\x07" * times + b"e")
    with pytest.raises(SourceError, match="names far more than it can hold") as raised:
        imported("slime", path)
    assert len(raised.value.problems) == 1


def test_a_group_too_long_for_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenaudit.importers.batch.MAX_GROUP_TOKENS", 10)
    torch.save({"rollout_id": 0, "samples": [sample(index, 0, 6, ["4"]) for index in range(2)]}, tmp_path / "a.pt")
    torch.save([[state(1, 1, [3] * 6), state(2, 1, [3] * 6)]], tmp_path / "debug_rollout_9.pt")
    (tmp_path / "nemo").mkdir()
    torch.save({"groups": [nemo_group(3, 3, 4, "g", *[[0, 1, 1, 1, 1, 1, 1]] * 2)]}, tmp_path / "nemo" / "b.pt")
    jsonl(tmp_path / "2" / "7.jsonl", areal(7, 0), areal(7, 1))
    sources = {"slime": "a.pt", "xtuner": "debug_rollout_9.pt", "nemo-rl": "nemo/b.pt", "areal": "2/7.jsonl"}
    for name, path in sources.items():
        with pytest.raises(SourceError, match="a group too long") as raised:
            imported(name, tmp_path / path, is_strict=True)
        assert str(raised.value.problems[0].where).startswith(str(tmp_path / path))


@pytest.mark.parametrize(("limit", "most"), [("MAX_STEP_TOKENS", 12), ("MAX_STEP_RESPONSES", 2)])
def test_a_step_too_long_for_memory_is_refused(limit: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"tokenaudit.importers.batch.{limit}", most)
    fitting = [summary(step, group, 0, 1, (1, 6)) for step in (3, 4) for group in range(2)]
    log = imported("tinker", jsonl(tmp_path / "fitting" / "train_rollout_summaries.jsonl", *fitting))
    assert (log.column("train_step"), log.column("response_len")) == ([4, 4, 5, 5], [6] * 4)
    path = jsonl(tmp_path / "long" / "train_rollout_summaries.jsonl", *fitting, summary(4, 2, 0, 1, (1, 6)))
    with pytest.raises(SourceError, match="train step 5 is too long to be one step") as raised:
        imported("tinker", path)
    (problem,) = raised.value.problems
    assert (problem.where, str(most) in str(problem.hint)) == (f"{path}, line 5", True)


def test_a_tensor_larger_than_its_storage_is_no_response(tmp_path: Path):
    wide = torch.zeros(1, dtype=torch.int64).expand(2**34)
    log = [{"role": "user", "token_ids": wide}]
    (tmp_path / "nemo").mkdir()
    group = nemo_group(3, 3, 4, "g", [0, 1]) | {"fields_data": {"message_log": [log]}}
    torch.save({"groups": [group]}, tmp_path / "nemo" / "b.pt")
    short = torch.zeros(1, dtype=torch.int64).expand(5_000_000)
    torch.save([[state(1, 1, [3], response_ids=short, prompt_ids=short)] * 9], tmp_path / "debug_rollout_9.pt")
    torch.save({"rollout_id": 0, "samples": [sample(0, 0, 6, ["4"]) | {"loss_mask": wide}]}, tmp_path / "a.pt")
    for name, path, message in (
        ("nemo-rl", "nemo/b.pt", "names far more than it can hold"),
        ("xtuner", "debug_rollout_9.pt", "1 versions for 5000000 tokens"),
        ("slime", "a.pt", "an array of 17179869184 elements"),
    ):
        with pytest.raises(SourceError, match=message):
            imported(name, tmp_path / path)


def test_groups_whose_samples_lie_apart_are_put_together(tmp_path: Path):
    samples = [sample(index, index % 3, 6, ["4"]) for index in range(9)]
    torch.save({"rollout_id": 0, "samples": samples}, tmp_path / "a.pt")
    log: Imported = imported("slime", tmp_path / "a.pt")
    assert log.column("group_id") == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert log.column("rollout_id") == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    assert log.rows[-1]["batch_size"] == 3


def test_long_texts_and_numpy_arrays_are_fields_too(tmp_path: Path):
    values = {
        "loss_mask": np.array([1, 0] * 500, dtype=np.int8),
        "tokens": np.arange(1_002),
        "index": "i" * 1_000,
        "response": "x" * 100_000,
        "rollout_routed_experts": np.zeros((1_000, 4, 8), dtype=np.int32),
    }
    torch.save({"rollout_id": 0, "samples": [sample(0, 0, 1_000, ["4"]) | values]}, tmp_path / "a.pt")
    log = imported("slime", tmp_path / "a.pt")
    assert log.column("response_mask") == [[1, 0] * 500]
    assert log.column("prompt_len") == [2]
    groups = [[state(1, 1, [3] * 1_000, finish_reason="f" * 300, task_name="t" * 300)]]
    torch.save(groups, tmp_path / "debug_rollout_9.pt")
    log = imported("xtuner", tmp_path / "debug_rollout_9.pt")
    assert (log.column("finish_reason"), log.column("task_name")) == (["f" * 300], ["t" * 300])


def test_a_dump_is_closed_when_a_trial_ends_early(tmp_path: Path, run_cli):
    slime(tmp_path, 1, 200)
    before = len(list(Path("/proc/self/fd").iterdir()))
    ran = run_cli("import", tmp_path / "rollout_1.pt", "--dry-run", "-q")
    assert ran.code == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == before
