"""Digests kept on disk: the same results, never trusted, never in the way."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenaudit.log.cache
from tests.builders import make_digest, put
from tests.conftest import ROOT, SAMPLE
from tokenaudit.log.cache import DigestCache
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest

CASES = [ROOT / "tests" / "golden" / name / "log.parquet" for name in ("buffer_000", "colocated_003", "disagg_007")]
LOG = CASES[-1]


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, notes: list[str]) -> DigestCache:
    return DigestCache(tmp_path / "cache", notes.append)


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("tasks", "others"),
    [(("ab", "c"), ("a", "bc")), (("ab", "c"), ("abc", "")), (("a", "b"), ("a\0b",)), (("a",), ("a", ""))],
)
def test_the_content_hash_knows_where_a_task_name_ends(tasks: tuple[str, ...], others: tuple[str, ...]):
    digest = make_digest([put(1, 1)])
    one, other = (replace(digest, tasks=names) for names in (tasks, others))
    assert one.content_hash() != other.content_hash()


def test_logs_of_other_tasks_with_the_same_letters_are_other_logs():
    one, other = (
        make_digest([put(1, 1, task_name=first), put(2, 2, task_name=second)])
        for first, second in (("ab", "c"), ("a", "bc"))
    )
    assert one.content_hash() != other.content_hash()


def refuse_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Digest:
        raise AssertionError("read again")

    monkeypatch.setattr(tokenaudit.log.cache, "read_digest", refuse)


def assert_same(one: Digest, other: Digest) -> None:
    assert one.content_hash() == other.content_hash()
    assert np.array_equal(one.log_row, other.log_row)
    for name in ("name", "rows", "tasks", "faults", "quarantined_groups", "quarantined_tokens", "unscored_rewards"):
        assert getattr(one, name) == getattr(other, name)
    for table in ("events", "responses", "runs"):
        for mine, theirs in zip(getattr(one, table), getattr(other, table), strict=True):
            assert mine.dtype == theirs.dtype


@pytest.mark.parametrize("path", [*CASES, SAMPLE], ids=lambda path: path.parent.name)
def test_the_digest_of_the_cache_is_the_digest(
    path: Path, cache: DigestCache, notes: list[str], monkeypatch: pytest.MonkeyPatch
):
    log = open_log([path])
    assert_same(cache.read_digest(log), read_digest(log))
    refuse_to_read(monkeypatch)
    assert_same(cache.read_digest(log), read_digest(log))
    assert_same(cache.read_digest(log, quarantine=True, allow_missing_versions=True), read_digest(log))
    assert notes == []


def empty_log(path: Path) -> Path:
    """A log without any response."""
    table = pa.table(
        {
            "event": ["refresh"],
            "event_id": [0],
            "train_step": [1],
            "group_id": pa.array([None], pa.int64()),
            "rollout_id": pa.array([None], pa.int64()),
            "status": pa.array([None], pa.string()),
            "response_len": pa.array([None], pa.int32()),
        }
    )
    pq.write_table(table, path)
    return path


def test_a_log_without_responses(cache: DigestCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = open_log([empty_log(tmp_path / "log.parquet")])
    kept = cache.read_digest(log)
    refuse_to_read(monkeypatch)
    assert_same(cache.read_digest(log), kept)


def test_another_name_hits_and_another_content_misses(cache: DigestCache, tmp_path: Path):
    shutil.copy(CASES[0], tmp_path / "log.parquet")
    cache.read_digest(open_log([CASES[0]]))
    shutil.copy(CASES[0], tmp_path / "other.parquet")
    assert cache.read_digest(open_log([tmp_path / "other.parquet"])).name == "other.parquet"
    assert len(entries(tmp_path)) == 1
    cache.read_digest(open_log([CASES[1]]))
    assert len(entries(tmp_path)) == 2


def test_options_that_change_the_digest_have_entries_of_their_own(cache: DigestCache, tmp_path: Path):
    table = pq.read_table(CASES[0])
    steps = table["response_model_steps"].to_pylist()
    steps[0] = [-1] * len(steps[0]) if steps[0] else [-1]
    position = table.schema.get_field_index("response_model_steps")
    pq.write_table(
        table.set_column(position, table.schema.field(position), pa.array(steps, table.schema.types[position])),
        tmp_path / "log.parquet",
    )
    log = open_log([tmp_path / "log.parquet"])
    made = cache.read_digest(log, quarantine=True)
    assert made.quarantined_groups == 1
    assert_same(cache.read_digest(log, quarantine=True), made)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def write_something_else(path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), path)


def change_meta(path: Path, **values: Any) -> None:
    table = pq.read_table(path)
    meta = json.loads(table.schema.metadata[b"tokenaudit.cache"]) | values
    pq.write_table(table.replace_schema_metadata({b"tokenaudit.cache": json.dumps(meta)}), path)


def change_value(path: Path, *, with_checksum: bool = False) -> None:
    table = pq.read_table(path)
    names, data = table["name"].to_pylist(), table["data"].to_pylist()
    position = names.index("responses.first_run")
    offsets = np.frombuffer(data[position], "<i8").copy()
    offsets[1] = 2**40
    data[position] = offsets.tobytes()
    changed = table.set_column(2, table.schema.field(2), [data])
    pq.write_table(changed, path)
    if with_checksum:
        plain = json.loads(table.schema.metadata[b"tokenaudit.cache"])["plain"]
        change_meta(path, checksum=tokenaudit.log.cache._checksum(plain, names, data))


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        write_something_else,
        change_value,
        lambda path: path.write_bytes(b""),
        lambda path: change_meta(path, version=99),
        lambda path: change_meta(path, plain="{}"),
        lambda path: change_value(path, with_checksum=True),
    ],
)
def test_what_is_no_entry_is_passed_over_and_made_anew(
    damage: Any, cache: DigestCache, notes: list[str], tmp_path: Path
):
    log = open_log([CASES[0]])
    made = cache.read_digest(log)
    (entry,) = entries(tmp_path)
    before = entry.read_bytes()
    damage(entry)
    assert_same(cache.read_digest(log), made)
    assert len(notes) == 1
    assert f"{entry} is passed over and made anew" in notes[0]
    assert entry.read_bytes() == before


def test_a_cache_inside_the_folder_of_its_log_is_no_part_of_the_log(tmp_path: Path, notes: list[str]):
    shutil.copy(CASES[0], tmp_path / "log.parquet")
    digests = [DigestCache(tmp_path / "cache", notes.append).read_digest(open_log([tmp_path])) for _ in range(2)]
    assert_same(*digests)
    assert len(entries(tmp_path)) == 1
    assert notes == []


def test_a_folder_that_can_not_be_looked_at_is_only_noted(tmp_path: Path, notes: list[str]):
    """As one of another user, which root may look at: so this one has a name that no file system takes."""
    folder, log = tmp_path / ("x" * 300), open_log([CASES[0]])
    assert_same(DigestCache(folder, notes.append).read_digest(log), read_digest(log))
    assert len(notes) == 2
    assert "File name too long" in notes[0]
    assert notes[1].startswith(f"note: the digest isn't kept in {folder}")


def test_a_folder_that_can_not_be_written_is_only_noted(tmp_path: Path, notes: list[str]):
    (tmp_path / "file").write_text("")
    log = open_log([CASES[0]])
    assert_same(DigestCache(tmp_path / "file" / "cache", notes.append).read_digest(log), read_digest(log))
    assert len(notes) == 1
    assert "isn't kept" in notes[0]


@pytest.mark.parametrize(
    "command",
    [
        ("replay", LOG),
        ("inspect", LOG),
        ("mask", LOG, "-o", "out.parquet", "--device", "cpu"),
        ("gate", LOG, "--rule", "expired_groups <= 0"),
        ("diff", "--log", LOG, "--set-b", "policy.max_staleness=1"),
        ("explain", LOG, "--step", "3"),
    ],
    ids=lambda command: command[0],
)
def test_commands_use_the_cache(run_cli, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copy(LOG.with_name("config.toml"), tmp_path / "tokenaudit.toml")
    plain = run_cli(*command)
    assert plain.code in (0, 1)
    first = run_cli(*command, "--cache", "kept")
    monkeypatch.setenv("TOKENAUDIT_CACHE", "kept")
    refuse_to_read(monkeypatch)
    second = run_cli(*command)
    assert plain == first == second
    assert len(list((tmp_path / "kept").iterdir())) == 1
