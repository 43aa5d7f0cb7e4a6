"""Versions known as spans: replay says what depends on them, and refuses where there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.importers.importing import Imported, imported, jsonl
from tokenaudit import replay_log
from tokenaudit.contracts.errors import LogError, ResultError
from tokenaudit.log.cache import DigestCache
from tokenaudit.replay.result import Result
from tokenaudit.replay.saved_result import result_from_json, result_to_json

POLICY = ("policy.max_staleness=9", "policy.max_token_staleness=1")


def row(group: int, tokens: int, start: int | None, end: int | None = None, **values: Any) -> dict[str, Any]:
    return {
        "train_step": 5,
        "group_id": group,
        "response_len": tokens,
        "model_step": start,
        "model_step_end": end,
    } | values


def log_of(tmp_path: Path, *rows: dict[str, Any]) -> Imported:
    take = {"event": "take", "train_step": 5, "batch_size": len(rows)}
    return imported("generic", jsonl(tmp_path / "mine.jsonl", *rows, take))


def notice(result: Result) -> tuple[str, str]:
    (found,) = [(entry.message, entry.cost) for entry in result.warnings if entry.code == "version-spans"]
    return found


def test_totals_that_depend_on_the_span_are_intervals(tmp_path: Path):
    # the threshold is 2 steps: at step 5 versions 0 to 2 are stale, 3 and 4 are fresh
    log = log_of(tmp_path, row(1, 10, 2, 4), row(2, 7, 3, 4), row(3, 5, 4), row(4, 3, 0, 1))
    result = log.replayed(*POLICY)
    # read as old as they may be, groups 1 and 4 are stale as a whole and expire
    assert log.column("version_precision") == ["span", "span", "exact", "span"]
    assert (result.totals["expired_groups"], result.totals["trained_tokens"]) == (2, 12)
    assert result.intervals["expired_groups"] == (1, 2)
    assert result.intervals["trained_tokens"] == (12, 22)
    assert result.intervals["discarded_stale_tokens"] == (3, 13)
    assert "put_groups" not in result.intervals
    message, cost = notice(result)
    assert message.startswith("versions of 3 responses are known as spans")
    assert "trained_tokens 12 to 22" in cost


def test_spans_on_one_side_of_the_threshold_give_exact_totals(tmp_path: Path):
    result = log_of(tmp_path, row(1, 10, 3, 4), row(2, 5, 4)).replayed(*POLICY, "policy.max_token_staleness=3")
    assert result.totals["trained_tokens"] == 15
    assert "trained_tokens" not in result.intervals
    # the staleness itself still depends on the version
    assert result.intervals["seq_staleness_sum"] == (0, 1)


def test_exact_versions_have_no_interval(tmp_path: Path):
    result = log_of(tmp_path, row(1, 10, 3, 3), row(2, 5, 4)).replayed(*POLICY)
    assert result.intervals == {}
    assert "version-spans" not in [entry.code for entry in result.warnings]


def test_a_log_without_versions_is_refused_rather_than_guessed(tmp_path: Path):
    log = log_of(tmp_path, row(1, 10, None), row(2, 5, 4))
    assert log.column("version_precision") == ["none", "exact"]
    with pytest.raises(LogError, match="no model_step"):
        log.replayed(*POLICY)
    assert log.replayed(*POLICY, "timeline.stamp_missing=true").coverage.stamped_tokens == 10


def test_the_table_shows_the_intervals_and_a_saved_result_keeps_them(tmp_path: Path, run_cli):
    log = log_of(tmp_path, row(1, 10, 2, 4))
    arguments = [argument for override in POLICY for argument in ("-s", override)]
    ran = run_cli("replay", log.path, "--isolated", *arguments, "-o", tmp_path / "result.json")
    assert ran.code == 0
    assert "versions are spans: expired_groups 0 to 1" in ran.out
    assert "warning: versions of 1 responses are known as spans" in ran.err
    saved = result_from_json((tmp_path / "result.json").read_text(), "result.json")
    assert saved.intervals["trained_tokens"] == (0, 10)
    assert result_from_json(result_to_json(saved), "again") == saved
    data = json.loads(result_to_json(saved))
    data["intervals"]["trained_tokens"] = [1, 10]
    with pytest.raises(ResultError, match="intervals: trained_tokens is 1 to 10, and 0 in the totals"):
        result_from_json(json.dumps(data), "again")


def test_a_cache_does_not_hide_the_spans(tmp_path: Path):
    path = log_of(tmp_path, row(1, 10, 2, 4)).path
    cache = DigestCache(tmp_path / "cache", lambda _: None)
    for _ in range(2):
        result = replay_log(path, overrides=POLICY, isolated=True, cache=cache).result
        assert result.intervals["trained_tokens"] == (0, 10)


def test_a_compact_log_keeps_spans_and_limits(tmp_path: Path, run_cli):
    jsonl(tmp_path / "dump" / "1.jsonl", {"input": "q", "output": "a", "score": 1.0, "step": 1})
    limits = imported("verl", tmp_path / "dump").imports.limits
    assert run_cli("compact", tmp_path / "log.parquet", "-o", tmp_path / "small.parquet").code == 0
    result = replay_log(tmp_path / "small.parquet", isolated=True).result
    assert [entry.message for entry in result.warnings if entry.code == "source-limit"] == list(limits)
    log = log_of(tmp_path, row(1, 10, 2, 4))
    assert run_cli("compact", log.path, "-o", tmp_path / "smaller.parquet").code == 0
    assert pq.read_table(tmp_path / "smaller.parquet")["model_step_end"].to_pylist()[0] == 4
    assert replay_log(tmp_path / "smaller.parquet", overrides=POLICY, isolated=True).result.intervals
