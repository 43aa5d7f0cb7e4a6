"""How a log is stored and read changes nothing: batches, row groups, files, column types and column order."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Row, make_digest, put, read_rows, refresh, small_batches, take, write_log
from tests.conftest import examples
from tests.strategies import configs, logs, spellings
from tokenaudit.config.model import parse_config
from tokenaudit.contracts import metrics as m
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest
from tokenaudit.replay.ledger import Ledger, count
from tokenaudit.replay.open_loop import replay, run_tasks
from tokenaudit.replay.request import TimelineKind

GOLDEN = Path(__file__).parent.parent / "golden"
CASES = ("buffer_000", "colocated_003", "disagg_007")


def replayed(digest: Digest, config: Row, timeline: str | None = None) -> Ledger:
    parsed = parse_config(config, "config.toml")
    kind = None if timeline is None else TimelineKind(timeline)
    return count(replay(digest, parsed, kind), run_tasks(digest, parsed))


def read_in_batches(path: Path, elements: int, most_rows: int) -> Digest:
    """The digest of a log read in batches of at most so many list elements (on average) and rows."""
    with pytest.MonkeyPatch.context() as patch:
        small_batches(patch, rows=most_rows, elements=elements)
        return read_digest(open_log([path]))


@examples(1.5)
@given(
    rows=logs(),
    spelling=spellings(),
    config=configs(),
    elements=st.integers(1, 40),
    most_rows=st.integers(1, 12),
)
def test_random_logs_read_the_same_however_they_are_stored(rows, spelling, config, elements, most_rows):
    plain = make_digest(rows)
    with tempfile.TemporaryDirectory() as folder:
        stored = read_in_batches(write_log(Path(folder, "log"), rows, **spelling), elements, most_rows)
    assert stored.content_hash() == plain.content_hash()
    assert (stored.rows, stored.tasks, stored.unscored_rewards) == (plain.rows, plain.tasks, plain.unscored_rewards)
    assert replayed(stored, config) == replayed(plain, config)


SPELLINGS = {
    "one row per row group": {"row_group_size": 1},
    "row groups that cut events": {"row_group_size": 7},
    "five files": {"files": 5, "file_seed": 3},
    "large lists": {"list_type": "large_list"},
    "dictionaries": {"text": "dictionary"},
    "large strings": {"text": "large_string"},
    "bool masks": {"mask": "bool"},
    "8 bits where they do": {"integers": pa.int8(), "mask": "integers"},
    "16 bits where they do": {"integers": pa.int16()},
    "32 bits": {"integers": pa.int32()},
    "unsigned": {"integers": (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), "mask": "integers"},
    "other column order": {"column_seed": 1},
    "columns of nulls": {"omit_null_columns": False},
    "columns of the null type": {"omit_null_columns": False, "null_type": True},
    "a column that the schema does not know": {"extra_column": True},
    "pages of 64 bytes": {"data_page_size": 64, "use_dictionary": False},
    "zstd": {"compression": "zstd"},
    "complete versions": {"versions": "complete"},
    "versions by model_step": {"versions": "stamped"},
    "version runs": {"versions": "runs"},
    "version runs of one token": {"versions": "split runs", "list_type": "large_list", "integers": pa.int8()},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_golden_logs_have_one_content_hash_in_any_spelling(tmp_path, case, spelling):
    rows = read_rows(GOLDEN / case / "log.parquet")
    path = write_log(tmp_path / "log.parquet", rows, **spelling)
    assert read_digest(open_log([path])).content_hash() == make_digest(rows).content_hash()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("most_rows", "elements"),
    [(1, 10**6), (2, 50), (2, 10**6), (7, 50), (7, 10**6), (100, 1), (100, 50), (100, 10**6)],
)
def test_golden_logs_have_one_content_hash_in_any_batches(case, most_rows, elements):
    path = GOLDEN / case / "log.parquet"
    assert read_in_batches(path, elements, most_rows).content_hash() == read_digest(open_log([path])).content_hash()


def test_files_may_differ_in_columns_and_types(tmp_path):
    rows = [
        put(1, 1, tokens=3, response_model_steps=[0, 0, 0], reward=0.5),
        put(2, 2, tokens=2, response_mask=[1, 0]),
        put(3, 1, 11, tokens=2, task_name="math", response_ids=[5, 6], prior_len=None),
        take(4, task_name="math"),
    ]
    folder = tmp_path / "log"
    folder.mkdir()
    narrow = {"integers": pa.int16(), "text": "dictionary", "mask": "bool", "list_type": "large_list"}
    write_log(folder / "a.parquet", rows[:2], **narrow)
    write_log(folder / "b.parquet", rows[2:], integers=pa.uint64(), omit_null_columns=False, null_type=True)
    assert read_digest(open_log([folder])).content_hash() == make_digest(rows).content_hash()


def test_token_ids_count_only_where_something_depends_on_them():
    # prior_len says what came before. Where a length has to be told from the ids, they are read all the same.
    rows = [put(number, 1, tokens=2, response_ids=[5, 6], prior_len=0) for number in range(2)]
    told_by_ids = [rows[0] | {"response_len": None}, rows[1]]
    assert make_digest(told_by_ids).content_hash() == make_digest(rows).content_hash()


def test_null_versions_are_no_versions():
    rows = [put(number, 1, response_model_steps=None, model_step=2, prior_len=None) for number in range(2)]
    told = [row | {"response_model_steps": []} for row in rows]
    assert make_digest(rows).content_hash() == make_digest(told).content_hash()


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"status": "aborted"}, "status"),
        ({"reward": 0.25}, "reward"),
        ({"agentic": True}, "agentic"),
        ({"prior_len": 1}, "prior_len"),
        ({"model_step": 1}, "model_step"),
        ({"response_mask": [1, 1, 0, 1]}, "response_mask"),
        ({"response_model_steps": [1]}, "response_model_steps"),
        ({"response_len": 5}, "response_len"),
        ({"rollout_id": 8}, "rollout_id"),
        ({"group_id": 8}, "group_id"),
        ({"train_step": 2}, "train_step"),
        ({"task_name": "math"}, "task_name"),
    ],
)
def test_what_replay_reads_changes_the_content_hash(change, column):
    row = put(1, 1, tokens=4, reward=0.5)
    assert column in change
    assert make_digest([row | change]).content_hash() != make_digest([row]).content_hash()


def test_what_replay_does_not_read_leaves_the_content_hash():
    row = put(5, 1, tokens=4)
    others = {"event_id": 9, "logprobs": [-0.5] * 4, "prompt_len": 7, "finish_reason": "stop", "time_us": 3}
    assert make_digest([row | others]).content_hash() == make_digest([row]).content_hash()


# ---- more than 2**31 tokens, without one of them in memory

LONG = 2_000_000_000
"""Tokens of one response: as many as 32 bits hold, nearly."""


def test_sums_of_tokens_have_64_bits():
    rows = [
        refresh(0, 1),
        # Too old at step 5: the older half of the versions makes the whole response so.
        put(1, 1, train_step=1, tokens=LONG, model_step=0),
        put(1, 1, 11, train_step=1, tokens=LONG, model_step=0),
        put(2, 2, train_step=1, tokens=LONG, model_step=3, status="aborted"),
        put(2, 2, 21, train_step=1, tokens=LONG, model_step=3, status="aborted"),
        put(3, 3, train_step=4, tokens=LONG, model_step=3),
        put(3, 3, 31, train_step=4, tokens=LONG, model_step=3, prior_len=1),
        put(4, 4, train_step=4, tokens=LONG, model_step=3, status="failed"),
        put(4, 4, 41, train_step=4, tokens=LONG, model_step=3, status="failed"),
        put(5, 2, train_step=4, tokens=LONG, model_step=3, status="aborted"),
        put(5, 2, 21, train_step=4, tokens=LONG, model_step=3, status="aborted"),
        refresh(6, 5),
        take(7, 5, batch_size=1),
    ]
    digest = make_digest(rows)
    assert int(digest.responses.tokens.sum()) == 10 * LONG
    assert int(digest.runs.tokens.sum(dtype="int64")) == 10 * LONG
    policy = {"max_staleness": 3, "tail_batch_trigger_size": 0}
    total = replayed(digest, {"policy": policy}).totals["default"]
    expected = {
        m.PRODUCED_TOKENS: 10 * LONG - 1,
        m.CARRIED_IN_TOKENS: 1,
        m.RESET_TOKENS: 2 * LONG,
        m.FAILED_TOKENS: 2 * LONG,
        m.RESTARTED_TOKENS: 2 * LONG,
        m.TAKEN_TOKENS: 2 * LONG,
        m.TRAINED_TOKENS: 2 * LONG,
        m.HELD_TOKENS: 2 * LONG,
        m.TOKEN_STALENESS_P50: 1,
        m.TOKEN_STALENESS_MAX: 1,
    }
    assert {metric.name: total.value(metric) for metric in expected} == {
        metric.name: value for metric, value in expected.items()
    }


def test_sums_of_stale_and_of_skipped_tokens_have_64_bits():
    rows = [
        put(1, 1, tokens=LONG, model_step=0),
        put(1, 1, 11, tokens=LONG, model_step=0),
        put(1, 1, 12, tokens=LONG, model_step=2),
        take(2, 3),
        # Taken already: both are skipped.
        put(3, 1, train_step=3, tokens=LONG, model_step=2),
        put(3, 1, 11, train_step=3, tokens=LONG, model_step=2),
    ]
    config = {"policy": {"max_staleness": 9, "max_token_staleness": 0, "tail_batch_trigger_size": 0}}
    total = replayed(make_digest(rows), config).totals["default"]
    counts = (total.value(m.MASKED_STALE_TOKENS), total.value(m.TRAINED_TOKENS), total.value(m.AVOIDED_TOKENS))
    assert counts == (2 * LONG, LONG, 2 * LONG)


@pytest.mark.parametrize("tokens", [2**31 - 1, 2**31 - 2])
def test_a_response_may_be_as_long_as_32_bits_hold(tokens):
    digest = make_digest([put(1, 1, tokens=tokens)])
    assert (digest.responses.tokens.tolist(), digest.runs.tokens.tolist()) == ([tokens], [tokens])
