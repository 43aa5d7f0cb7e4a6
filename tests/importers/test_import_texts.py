"""Importers of JSON lines and tables: small dumps written by hand, imported, replayed, checked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import put, write_log
from tests.importers.importing import imported, jsonl, total
from tokenaudit import replay_log
from tokenaudit.contracts.errors import LogError, SourceError
from tokenaudit.importers.base import Lack
from tokenaudit.importers.detect import detected

BATCH = "timeline.train_batch_size=1"


def areal(task: int, sample: int, **values: Any) -> dict[str, Any]:
    return {
        "task_id": task,
        "sample_idx": sample,
        "seqlen": 14,
        "prompt_len": 4,
        "head_version": 1,
        "tail_version": 2,
        "version_rle": [[1, 4], [2, 6]],
        "reward": 0.5,
        "prompt": "p",
        "completion": "c",
    } | values


def areal_dump(folder: Path) -> Path:
    """Versions 1 and 2; two tasks: one of one turn, one with context between its turns, and a rejected one."""
    jsonl(
        folder / "rollout" / "2" / "7.jsonl",
        areal(7, 0),
        areal(7, 1, version_rle=[[2, 10]], head_version=2, reward=None),
    )
    segments = [("prompt", 4), ("gen", 3), ("context", 5), ("gen", 2)]
    turns = {"segments": [{"role": role, "len": size, "text": "…"} for role, size in segments]}
    jsonl(folder / "rollout" / "2" / "10.jsonl", areal(10, 0, version_rle=[[1, 3], [2, 2]], **turns))
    jsonl(folder / "rollout" / "2" / "11.jsonl", areal(11, 0))
    jsonl(
        folder / "session_tracer" / "sessions-r0.jsonl",
        {"task_id": 7, "session_id": 1, "status": "accepted"},
        {"task_id": 11, "session_id": 2, "status": "rejected"},
        {"task_id": 11, "session_id": 3, "status": "accepted"},
    )
    return folder


def test_areal_versions_are_exact_and_context_is_masked(tmp_path: Path):
    assert detected([areal_dump(tmp_path / "dump")]).name == "areal"
    log = imported("areal", tmp_path / "dump")
    assert log.column("group_id") == [7, 7, 10, 11]
    assert log.column("status") == ["completed", "completed", "completed", "filtered"]
    assert log.column("train_step") == [3, 3, 3, 3]
    assert log.column("response_model_steps") == [
        [1] * 4 + [2] * 6,
        [2] * 10,
        # three tokens of version 1, five of context that follow them, two of version 2
        [1] * 8 + [2] * 2,
        [1] * 4 + [2] * 6,
    ]
    assert log.column("response_mask") == [None, None, [1, 1, 1, 0, 0, 0, 0, 0, 1, 1], None]
    assert log.column("agentic") == [False, False, True, False]
    assert log.imports.limits == (Lack.TIMELINE, Lack.NOT_DUMPED)


def test_areal_replays_with_token_staleness(tmp_path: Path):
    log = imported("areal", areal_dump(tmp_path / "dump"))
    fresh = ("policy.max_staleness=1", "policy.max_token_staleness=0", "timeline.train_batch_size=2")
    result = log.replayed(*fresh)
    # at step 3, version 1 has staleness 1 and version 2 staleness 0: of group 7, 4 + 0 of 20 tokens are masked;
    # group 10 is agentic, so none of its 5 generated tokens is; group 11 was filtered with 10 tokens
    assert total(result, "trained_tokens", "masked_stale_tokens", "masked_semantic_tokens") == [16 + 5, 4, 5]
    assert total(result, "filtered_tokens", "raw_rewards_count") == [10, 3]
    assert [notice.message for notice in result.warnings if notice.code == "source-limit"] == [
        Lack.TIMELINE,
        Lack.NOT_DUMPED,
    ]


@pytest.mark.parametrize(
    ("values", "precision", "expected"),
    [
        ({"version_rle": None}, "span", {"model_step": 1, "model_step_end": 2}),
        # fewer versions than tokens and no segments to place them
        ({"version_rle": [[1, 9]]}, "span", {"model_step": 1, "model_step_end": 2}),
        # dumps before the fix wrote the minimum over all tokens, prompt included
        ({"version_rle": None, "head_version": -1}, "span", {"model_step": 0, "model_step_end": 2}),
        ({"version_rle": None, "head_version": -1, "tail_version": -1}, "none", {"model_step": None}),
    ],
)
def test_areal_samples_without_a_version_for_every_token(values: dict, precision: str, expected: dict, tmp_path: Path):
    jsonl(tmp_path / "dump" / "2" / "7.jsonl", areal(7, 0, **values))
    log = imported("areal", tmp_path / "dump")
    (row,) = log.rows
    assert (row["version_precision"], row["response_model_steps"]) == (precision, None)
    assert {name: row[name] for name in expected} == expected
    assert (Lack.VERSIONS if precision == "none" else Lack.SPANS) in log.imports.limits


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt_len": 15}, "prompt_len 15 exceeds seqlen 14"),
        ({"version_rle": [[1, 11]]}, "11 versions for 10 generated tokens"),
        ({"version_rle": [[1, 10**12]]}, "count is 1000000000000"),
        ({"version_rle": [["x", 1]]}, "version is 'x'"),
        ({"version_rle": [[1]]}, "version_rle is"),
        ({"segments": [{"role": "gen", "len": 3}]}, "segments hold 3 response tokens of 10"),
        ({"reward": "good"}, "reward is 'good'"),
        ({"task_id": None}, "task_id is missing"),
        ({"seqlen": 1e400}, "seqlen is inf"),
    ],
)
def test_areal_records_that_make_no_sense_are_faults(values: dict, message: str, tmp_path: Path):
    jsonl(tmp_path / "dump" / "2" / "7.jsonl", areal(7, 0), areal(7, 1, **values))
    with pytest.raises(SourceError, match=message) as raised:
        imported("areal", tmp_path / "dump", is_strict=True)
    assert raised.value.problems[0].where == f"{tmp_path / 'dump' / '2' / '7.jsonl'}, line 2"
    assert not (tmp_path / "log.parquet").exists()
    assert imported("areal", tmp_path / "dump").column("response_len") == [10]


def episode(name: str, group: str, start: int, end: int, **values: Any) -> dict[str, Any]:
    nodes = [
        {"parent": None, "sampled": False, "token_ids": [1, 2, 3]},
        {"parent": 0, "sampled": True, "token_ids": [4, 5], "mask": [True, True]},
        {"parent": 1, "sampled": False, "token_ids": [6], "mask": [False]},
        # a branch of its own, which is trained first
        {"parent": 1, "sampled": True, "token_ids": [9] * 50},
        {"parent": 2, "sampled": True, "token_ids": [7, 8, 9]},
    ]
    trace = {
        "id": "t",
        "agent": {"name": "a", "trainable": True},
        "nodes": nodes,
        "calls": [{"node": 4, "finish_reason": "stop", "time": {"start": 10.0, "end": 10.5}}],
        "rewards": {"correct": {"score": 1.0, "weight": 0.5}, "format": {"score": 1.0, "weight": 0.25}},
    }
    return {
        "id": name,
        "env": {"id": "math-env", "name": "math"},
        "group": {"id": group},
        "run": {"work": {"type": "train", "step": 4, "policy": {"start": start, "end": end}}},
        "ok": True,
        "errors": [],
        "traces": [trace],
    } | values


def prime_dump(folder: Path) -> Path:
    step = folder / "rollouts" / "step_5" / "train"
    arrived = [
        episode("e1", "g1", 3, 3),
        episode("e2", "g2", 2, 4),
        episode("e3", "g1", 3, 4),
        episode("e4", "g3", 4, 4, ok=False, errors=["timeout"]),
    ]
    jsonl(step / "all" / "traces.jsonl", *arrived)
    jsonl(step / "effective" / "traces.jsonl", arrived[0], arrived[2])
    jsonl(folder / "rollouts" / "step_5" / "eval" / "all" / "traces.jsonl", episode("x", "y", 1, 1))
    return folder


def test_prime_rl_puts_what_arrived_and_takes_what_was_trained(tmp_path: Path):
    assert detected([prime_dump(tmp_path / "dump")]).name == "prime-rl"
    log = imported("prime-rl", tmp_path / "dump")
    # each of four episodes has two branches
    assert [row["event"] for row in log.rows] == ["put"] * 8 + ["take"]
    # a group is put with its last episode; the third failed
    groups = log.column("group_id")
    assert [groups.index(group) for group in groups] == [0, 0, 2, 2, 2, 2, 6, 6]
    assert log.column("status") == ["completed"] * 6 + ["failed"] * 2
    assert log.column("response_mask")[:2] == [[1] * 52, [1] * 3]
    # the second branch has the first one's answer and a question in its prompt
    assert log.column("prompt_len")[:2] == [3, 6]
    assert log.column("generate_time_us")[:2] == [None, 500_000]
    assert log.column("reward") == [0.75] * 8
    assert log.column("version_precision") == ["span"] * 2 + ["exact"] * 2 + ["span"] * 2 + ["exact"] * 2
    assert log.column("model_step") == [2, 2, 3, 3, 3, 3, 4, 4]
    assert log.column("model_step_end") == [4, 4, None, None, 4, 4, None, None]
    assert (log.rows[-1]["train_step"], log.rows[-1]["batch_size"]) == (5, 1)
    assert log.imports.limits == (Lack.SPANS, Lack.CANCELLED)


def test_prime_rl_groups_shipped_in_parts_are_groups_of_their_own(tmp_path: Path):
    for step in (5, 6, 10):
        path = tmp_path / "dump" / f"step_{step}" / "train" / "effective" / "traces.jsonl"
        jsonl(path, episode(f"e{step}", "g1", 4, 4))
    log = imported("prime-rl", tmp_path / "dump")
    assert log.column("train_step") == [5, 5, 6, 6, 10, 10]
    assert len(set(log.column("group_id"))) == 3
    # of both branches of every step all tokens are trained
    assert total(log.replayed("policy.max_staleness=9"), "trained_tokens", "avoided_tokens") == [165, 0]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"parent": 4, "sampled": True, "token_ids": [1]}, "parent 4 of node 4 is no earlier node"),
        ({"parent": 99, "sampled": True, "token_ids": [1]}, "parent 99 of node 4 is no earlier node"),
        ({"parent": 2, "sampled": True, "token_ids": [1, 2], "mask": [1]}, "1 mask entries for 2 tokens"),
        ({"parent": 2, "sampled": True, "token_ids": ["a"]}, "token_ids is no list of whole numbers"),
    ],
)
def test_prime_rl_traces_that_make_no_sense_are_faults(node: dict, message: str, tmp_path: Path):
    faulty = episode("e", "g", 1, 1)
    faulty["traces"][0]["nodes"][4] = node
    jsonl(tmp_path / "dump" / "step_5" / "train" / "all" / "traces.jsonl", faulty)
    with pytest.raises(SourceError, match=message):
        imported("prime-rl", tmp_path / "dump")


def summary(iteration: int, group: int, member: int, client: int, *steps: tuple[int, int]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "split": "train",
        "iteration": iteration,
        "group_idx": group,
        "traj_idx": member,
        "tags": ["gsm8k"],
        "sampling_client_step": client,
        "total_reward": 1.0,
        "steps": [{"step_idx": index, "ob_len": ob, "ac_len": ac} for index, (ob, ac) in enumerate(steps)],
    }


def test_tinker_summaries_give_lengths_masks_and_takes(tmp_path: Path):
    rows = [summary(8, 0, 0, 8, (5, 10)), summary(8, 0, 1, 8, (5, 20)), summary(8, 1, 0, 6, (5, 4), (12, 6))]
    jsonl(tmp_path / "dump" / "iteration_000008" / "train_rollout_summaries.jsonl", *rows)
    jsonl(tmp_path / "dump" / "iteration_000010" / "train_rollout_summaries.jsonl", summary(10, 0, 0, 9, (5, 7)))
    assert detected([tmp_path / "dump"]).name == "tinker"
    log = imported("tinker", tmp_path / "dump")
    # 12 tokens observed in the second turn, 5 + 4 of them known before: 3 of context
    assert log.column("response_len") == [10, 20, 4 + 3 + 6, 7]
    assert log.column("response_mask")[2] == [1] * 4 + [0] * 3 + [1] * 6
    assert (log.column("model_step"), log.column("train_step")) == ([8, 8, 6, 9], [9, 9, 9, 11])
    assert [(row["train_step"], row["batch_size"]) for row in log.rows if row["event"] == "take"] == [(9, 2), (11, 1)]
    result = log.replayed("policy.max_staleness=1")
    # at step 9 version 6 has staleness 2 and expires; version 9 at step 11 has 1
    assert total(result, "trained_tokens", "expired_groups", "discarded_stale_tokens") == [30 + 7, 1, 13]
    assert [row["seq_staleness_max"] for row in result.steps] == [0, 1]


def test_tinker_groups_whose_client_nobody_counted_have_no_version(tmp_path: Path):
    rows = [summary(0, group, 0, 0, (5, 10)) for group in range(2)]
    rows[1]["sampling_client_step"] = None
    jsonl(tmp_path / "dump" / "iteration_000000" / "train_rollout_summaries.jsonl", *rows)
    log = imported("tinker", tmp_path / "dump")
    assert (log.column("model_step"), log.column("version_precision")) == ([0, None], ["exact", "none"])
    assert Lack.VERSIONS in log.imports.limits


def test_verl_texts_tell_groups_and_rewards_and_no_tokens(tmp_path: Path):
    def text(uid: str | None, score: float, step: int) -> dict[str, Any]:
        ids = {} if uid is None else {"uid": uid}
        return {"input": "q", "output": "a", "gts": "a", "score": score, "step": step} | ids

    jsonl(tmp_path / "dump" / "1.jsonl", text("ab_0_0", 1, 1), text("cd_0_0", 0, 1), text("ab_0_1", 0.5, 1))
    jsonl(tmp_path / "dump" / "2.jsonl", text(None, 1, 2), text(None, 1, 2))
    log = imported("verl", tmp_path / "dump")
    groups = log.column("group_id")
    # puts hold their groups together
    assert groups[0] == groups[1] != groups[2]
    assert log.column("reward") == [1, 0.5, 0, 1, 1]
    result = log.replayed()
    assert total(result, "taken_groups", "produced_tokens", "raw_rewards_count", "raw_rewards_sum") == [3, 0, 5, 3.5]
    assert {Lack.LENGTHS, Lack.VERSIONS, Lack.DROPPED, Lack.PROMPTS} <= set(log.imports.limits)


def test_xtuner_trajectories_are_indented_objects_behind_a_summary(tmp_path: Path):
    folder = tmp_path / "train_rollout"
    folder.mkdir()
    for step, prompts in ((9, "aab"), (10, "b")):
        records: list[dict[str, Any]] = [{"reward_mean": 0.5, "response_len_mean": 3.0, "total_len": len(prompts)}]
        records += [
            {"prompt": [{"role": "user", "content": prompt}], "response": "}\n", "response_len": 3, "reward": 1.0}
            for prompt in prompts
        ]
        text = "".join(json.dumps(record, indent=2) + "\n" for record in records)
        (folder / f"train_rollout_{step}.jsonl").write_text(text)
    assert detected([folder]).name == "xtuner-trajectories"
    log = imported("xtuner-trajectories", folder)
    # the prompt of step 10 is that of the last response of step 9, and still another group
    assert (log.column("group_id"), log.column("train_step")) == ([0, 0, 1, 2], [9, 9, 9, 10])
    assert total(log.replayed("timeline.stamp_missing=true"), "trained_tokens", "taken_groups") == [12, 3]


def test_xtuner_trajectories_are_objects_alone(tmp_path: Path):
    path = jsonl(tmp_path / "train_rollout_3.jsonl", {"reward_mean": 1}, "[{", "}]")
    with pytest.raises(SourceError, match="list in place of an object") as raised:
        imported("xtuner-trajectories", path)
    assert raised.value.problems[0].where == f"{path}, line 2"


def test_trl_completions_need_their_prompts(tmp_path: Path):
    pq.write_table(pa.table({"step": [1], "completion": ["a"], "reward": [1.0]}), tmp_path / "completions_1.parquet")
    with pytest.raises(SourceError, match="prompt is missing"):
        imported("trl", tmp_path / "completions_1.parquet")


def test_trl_completions_sum_the_reward_columns(tmp_path: Path):
    (tmp_path / "dump").mkdir()
    columns = {
        "step": [3, 3, 3],
        "prompt": ["a", "a", "b"],
        "completion": ["x", "y", "z"],
        "correct": [1.0, 0.0, None],
        "format": [0.5, 0.5, None],
        "advantage": [1.0, -1.0, 0.0],
    }
    pq.write_table(pa.table(columns), tmp_path / "dump" / "completions_00003.parquet")
    assert detected([tmp_path / "dump"]).name == "trl"
    log = imported("trl", tmp_path / "dump")
    assert (log.column("group_id"), log.column("reward")) == ([0, 0, 1], [1.5, 0.5, None])
    assert total(log.replayed(), "taken_groups", "raw_rewards_sum") == [2, 2.0]


GENERIC = [
    {"step": 4, "prompt_id": "p1", "n": 5, "weights": 3, "score": 1.0},
    {"step": 4, "prompt_id": "p1", "n": 7, "weights": 2, "score": 0.0},
    {"step": 5, "prompt_id": "p2", "n": 2, "weights": 4, "score": None},
]
MAPPED = {
    "train_step": "step",
    "group_id": "prompt_id",
    "response_len": "n",
    "model_step": "weights",
    "reward": "score",
}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_any_table_with_mapped_names(suffix: str, tmp_path: Path):
    path = tmp_path / f"mine{suffix}"
    if suffix == ".jsonl":
        jsonl(path, *GENERIC)
    elif suffix == ".csv":
        lines = [
            ",".join(GENERIC[0]),
            *(",".join("" if v is None else str(v) for v in row.values()) for row in GENERIC),
        ]
        path.write_text("\n".join(lines) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist(GENERIC), path)
    log = imported("generic", path, MAPPED)
    assert log.column("response_len") == [5, 7, 2]
    assert log.column("rollout_id") == [0, 1, 2]
    assert [row["event_id"] for row in log.rows] == [1, 1, 2]
    result = log.replayed("policy.max_staleness=1", BATCH)
    # versions 3 and 2 at step 4 have staleness 0 and 1, version 4 at step 5 has 0
    assert total(result, "trained_tokens", "seq_staleness_max", "raw_rewards_sum") == [14, 1, 1.0]


def test_ids_made_of_texts_are_kept_by_json_and_floats(tmp_path: Path):
    names = [f"group-{number}" for number in range(200)]
    rows = [{"group_id": name, "train_step": 1, "response_len": 1} for name in names]
    log = imported("generic", jsonl(tmp_path / "mine.jsonl", *rows))
    ids = log.column("group_id")
    assert len(set(ids)) == 200
    assert max(ids) < 2**53
    assert max(ids) > 2**51
    assert [int(float(number)) for number in ids] == ids


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.list_(pa.bool_())])
def test_lists_of_a_parquet_table_are_read(kind: pa.DataType, tmp_path: Path):
    table = pa.table(
        {
            "group_id": ["a", "a"],
            "train_step": [1, 1],
            "response_mask": pa.array([[1, 0], None], pa.list_(pa.int8())).cast(kind),
            "logprobs": pa.array([[-0.5, -0.25], None], pa.list_(pa.float32())),
            "response_len": [2, 3],
            "task_name": pa.array(["math", None], pa.large_string()),
            "other": [{"a": 1}, None],
        }
    )
    pq.write_table(table, tmp_path / "mine.parquet")
    log = imported("generic", tmp_path / "mine.parquet")
    assert log.column("response_mask") == [[1, 0], None]
    assert log.column("logprobs") == [[-0.5, -0.25], None]
    assert log.column("task_name") == ["math", "default"]


def test_nulls_among_lists_of_a_fixed_size_are_read_or_the_user_told_to_update_pyarrow(tmp_path: Path):
    rows = [
        put(group_id=1, rollout_id=1, tokens=2, model_step=0, response_mask=[1, 0]),
        put(group_id=1, rollout_id=2, tokens=3, model_step=0, response_mask=None),
    ]
    path = write_log(tmp_path / "log.parquet", rows)
    table = pq.read_table(path)
    fixed = table["response_mask"].cast(pa.list_(pa.int8(), 2))
    pq.write_table(table.set_column(table.schema.get_field_index("response_mask"), "response_mask", fixed), path)
    if int(pa.__version__.partition(".")[0]) >= 26:
        assert imported("generic", path).column("response_mask") == [[1, 0], None]
        assert replay_log(path, overrides=[BATCH], isolated=True).result.totals["masked_semantic_tokens"] == 1
        return
    with pytest.raises(SourceError, match="can't read: Expected all lists to be of size=2") as from_import:
        imported("generic", path)
    with pytest.raises(LogError, match="pyarrow can't decode a column: Expected all lists to be of size=2") as from_log:
        replay_log(path, overrides=[BATCH], isolated=True)
    for error in (from_import, from_log):
        assert "update pyarrow" in str(error.value.problems[0].hint)


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_texts_of_a_parquet_table_in_every_encoding(encoding: str, tmp_path: Path):
    texts = {"group_id": ["a", "a", "b"], "task_name": ["math", None, "x" * 100_000]}
    table = pa.table(texts | {"train_step": [1, 1, 1], "response_len": [2, 3, 4]})
    encodings = dict.fromkeys(texts, encoding)
    pq.write_table(table, tmp_path / "mine.parquet", use_dictionary=False, column_encoding=encodings)
    log = imported("generic", tmp_path / "mine.parquet")
    assert log.column("task_name") == ["math", "default", "x" * 100_000]


def test_a_parquet_table_with_damaged_names_is_refused(tmp_path: Path):
    names = {"step": [1], "prompt": ["a"], "advantage": [0.5]}
    pq.write_table(pa.table(names), tmp_path / "a.parquet", store_schema=False)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    # of a name there is one in the schema, and one for each row group
    place = data.rindex(b"prompt")
    data[place] = 0xFF
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(SourceError, match="can't read: "):
        imported("trl", tmp_path / "a.parquet")


def test_a_log_of_ours_as_json_lines_keeps_its_events(tmp_path: Path):
    path = jsonl(
        tmp_path / "log.jsonl",
        {"event": "refresh", "event_id": 1, "train_step": 1},
        {
            "event_id": 2,
            "train_step": 1,
            "group_id": 1,
            "rollout_id": 8,
            "response_model_steps": [0, 0],
            "response_mask": [1, 0],
        },
        {"event_id": 3, "train_step": 1, "group_id": 1, "rollout_id": 9, "response_model_steps": [0]},
        {"event": "take", "event_id": 4, "train_step": 1, "batch_size": 1},
    )
    log = imported("generic", path)
    assert [row["event"] for row in log.rows] == ["refresh", "put", "put", "take"]
    assert [row["event_id"] for row in log.rows] == [1, 2, 3, 4]
    assert log.column("response_mask") == [[1, 0], None]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"train_step": 1, "response_len": 1}, "no row has group_id"),
        ({"group_id": 1, "train_step": "x", "response_len": 1}, "train_step is 'x'"),
        ({"group_id": 1, "train_step": 1}, "nothing gives the length"),
        ({"group_id": 1, "train_step": 1, "response_mask": [[1]]}, "response_mask is no flat list"),
        ({"group_id": [1], "train_step": 1, "response_len": 1}, r"group_id is \[1\]"),
        ({"group_id": 1, "train_step": 1, "response_len": 1, "status": "done"}, "unknown status 'done'"),
        ({"group_id": 1, "train_step": 1, "response_len": 1, "event": "puts"}, "unknown event 'puts'"),
        ({"group_id": 1, "train_step": 1, "response_len": 1, "agentic": "maybe"}, "agentic is 'maybe'"),
    ],
)
def test_rows_that_make_no_sense_are_faults(record: dict, message: str, tmp_path: Path):
    with pytest.raises(SourceError, match=message):
        imported("generic", jsonl(tmp_path / "mine.jsonl", record))
