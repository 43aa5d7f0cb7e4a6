"""prime-rl: branches, layouts of several versions, runs that were resumed, and what the trainer recorded of tokens.

The archives hold invented numbers. `prime_exports` and `prime_monitor` are one run: the first is what `FileMonitor`,
`prepare_batch` and `TokenExporter` of 559b447 wrote; the second was written by hand after the code of `FileMonitor` of
048a6e2 and the annotations of 65a1858. The expected numbers were summed from the tensors that went in.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.importers.importing import Imported, imported, jsonl, trained
from tests.importers.shapes import real
from tests.importers.test_import_texts import episode
from tests.importers.test_real_files import imported_real, sizes, takes, trainable
from tests.oracles.slow_branches import WEIGHTS, slow_in_loss, slow_samples
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers.base import Lack
from tokenaudit.importers.detect import detected
from tokenaudit.importers.prime_exports import export_row, exported
from tokenaudit.importers.prime_traces import samples, token_digest
from tokenaudit.importers.repeats import Keep


def members(log: Imported) -> Counter[int]:
    """How many rollouts groups have."""
    puts = {(row["group_id"], row["rollout_id"]) for row in log.rows if row["event"] == "put"}
    return Counter(Counter(group for group, _ in puts).values())


def test_every_branch_is_a_response(tmp_path: Path):
    log = imported_real("prime_branches", tmp_path, "prime-rl")
    # two episodes of three branches; three tokens before each answer are the template's
    assert trainable(log) == [18, 7, 17, 15, 7, 14]
    assert log.column("response_len") == [21, 10, 20, 18, 10, 17]
    assert log.column("prompt_len") == [17, 27, 27, 17, 27, 27]
    assert len(set(log.column("rollout_id"))) == 2
    assert log.column("reward") == pytest.approx([0.1] * 3 + [1.1] * 3)
    assert log.column("generate_time_us") == [1_500_000] * 6
    assert log.imports.limits == (Lack.TIMELINE, Lack.CANCELLED)
    # what a replay trains are the tokens that the trainer had in its loss
    assert log.replayed("timeline.train_batch_size=2").totals["trained_tokens"] == 78


def test_a_trace_a_line_as_of_v0_8_0(tmp_path: Path):
    log = imported_real("prime_v0.8.0", tmp_path, "prime-rl")
    assert sizes(log) == Counter({8: 4})
    assert set(log.column("task_name")) == {"gsm8k"}
    assert log.column("train_step") == [1] * 32
    assert sum(trainable(log)) == sum(log.column("response_len")) - 3 * 32 == 1064
    assert log.column("reward") == [0.0, 1.0] * 16
    # before the first step only the initial weights are there
    assert (set(log.column("model_step")), set(log.column("version_precision"))) == ({0}, {"exact"})
    assert log.column("agentic") == [False] * 32
    assert log.imports.limits == (Lack.TIMELINE, Lack.CANCELLED)


def test_versions_and_agents_of_v0_8_0(tmp_path: Path):
    source = real("prime_v0.8.0", tmp_path)
    path = source / "rollouts" / "step_1" / "train" / "all" / "traces.jsonl"
    traces = [json.loads(line) for line in path.read_text().splitlines()]
    traces[1]["info"]["episode_id"] = traces[0]["info"]["episode_id"]
    traces[2]["agent"]["trainable"] = False
    evaluation = traces[4] | {"run": {"type": "eval", "id": "run", "step": 7}}
    step = source / "rollouts" / "step_7" / "train"
    jsonl(step / "all" / "traces.jsonl", *traces[:4], evaluation)
    jsonl(step / "effective" / "traces.jsonl", *traces[:4])
    shutil.rmtree(source / "rollouts" / "step_1")
    log = imported("prime-rl", source)
    # a group that was begun with the initial weights may have tokens of the six steps before
    assert log.column("model_step") == [0] * 3
    assert log.column("model_step_end") == [6] * 3
    assert set(log.column("version_precision")) == {"start"}
    # two agents of one episode; the third doesn't train
    assert log.column("agentic") == [True, True, False]
    assert takes(log) == [(7, 1)]
    assert log.imports.limits == (Lack.STARTS, Lack.CANCELLED)


RESUMED = {
    Keep.LAST: (5, 67, [(5, 2), (5, 2)]),
    Keep.FIRST: (5, 61, [(5, 2), (5, 2)]),
    Keep.BOTH: (10, 128, [(5, 2)] * 4),
}


@pytest.mark.parametrize("keep", Keep)
def test_a_step_that_a_resumed_run_wrote_again_counts_once(keep: Keep, tmp_path: Path):
    log = imported("prime-rl", real("prime_resumed", tmp_path), keep=keep)
    groups, responses, expected = RESUMED[keep]
    assert len(set(log.column("group_id"))) == groups
    assert (log.imports.responses, takes(log)) == (responses, expected)
    # an episode that failed left no trace
    assert members(log) == Counter({8: groups * 4 // 5, 7: groups // 5})
    assert [limit for limit in log.imports.limits if "train step 5 is written more than once" in limit]
    unscored = [row for row in log.rows if row["status"] == "failed"]
    assert [row["reward"] for row in unscored] == [None] * (groups // 5)
    assert None not in [row["reward"] for row in log.rows if row["status"] == "completed"]


def test_batches_of_twice_the_usual_size_are_two(tmp_path: Path):
    for step, names in {1: "ab", 2: "cd", 3: "efgh"}.items():
        lines = [episode(name, f"group {name}", 0, 0) for name in names]
        for kind in ("all", "effective"):
            jsonl(tmp_path / "dump" / f"step_{step}" / "train" / kind / "traces.jsonl", *lines)
    log = imported("prime-rl", tmp_path / "dump")
    assert takes(log) == [(1, 2), (2, 2), (3, 2)]
    assert len(set(log.column("group_id"))) == 6


def test_another_run_in_the_same_files_is_another_batch(tmp_path: Path):
    lines = [episode(name, name, 0, 0) for name in "abc"]
    for name, line in zip("xxy", lines, strict=True):
        line["run"]["id"] = name
    for kind in ("all", "effective"):
        jsonl(tmp_path / "dump" / "step_1" / "train" / kind / "traces.jsonl", *lines)
    assert takes(imported("prime-rl", tmp_path / "dump")) == [(1, 1)]
    assert takes(imported("prime-rl", tmp_path / "dump", keep=Keep.FIRST)) == [(1, 2)]


@pytest.mark.parametrize(("pause", "runs"), [(30.0, 3), (29.0, 1)])
def test_batches_of_one_size_between_pauses_are_writings_of_a_step(pause: float, runs: int, tmp_path: Path):
    lines = [episode(name, name, 0, 0) for name in "abcdef"]
    for place, line in enumerate(lines):
        line["traces"][0]["timing"] = {"start": 100.0 + place // 2 * pause}
    for kind in ("all", "effective"):
        jsonl(tmp_path / "dump" / "step_1" / "train" / kind / "traces.jsonl", *lines)
    assert takes(imported("prime-rl", tmp_path / "dump", keep=Keep.BOTH)) == [(1, 6 // runs)] * runs
    assert takes(imported("prime-rl", tmp_path / "dump")) == [(1, 6 // runs)]


def test_a_group_is_put_when_its_last_episode_arrives(tmp_path: Path):
    one, two, three = (episode(name, group, 0, 0) for name, group in (("a", "g"), ("b", "h"), ("c", "g")))
    jsonl(tmp_path / "dump" / "step_1" / "train" / "all" / "traces.jsonl", one, two)
    jsonl(tmp_path / "dump" / "step_1" / "train" / "effective" / "traces.jsonl", two)
    jsonl(tmp_path / "dump" / "step_2" / "train" / "all" / "traces.jsonl", three)
    # its parts were shipped in two steps, but it is one group
    jsonl(tmp_path / "dump" / "step_2" / "train" / "effective" / "traces.jsonl", one)
    jsonl(tmp_path / "dump" / "step_3" / "train" / "effective" / "traces.jsonl", three)
    log = imported("prime-rl", tmp_path / "dump")
    events = [(row["event"], row["train_step"]) for row in log.rows]
    assert list(dict.fromkeys(events)) == [("put", 1), ("take", 1), ("put", 2), ("take", 2)]
    assert takes(log) == [(1, 1), (2, 1)]
    assert members(log) == Counter({1: 1, 2: 1})


SHIPPED = [11, 17, 17, 6, 11, 13, 5, 17, 17, 6, 11, 80, 6, 17, 6, 11, 16, 17, 17, 6, 11, 7, 17, 17]
LEFT_OVER = [17, 19]


def test_token_exports_are_joined_with_traces_by_their_tokens(tmp_path: Path):
    log = imported_real("prime_exports", tmp_path, "prime-rl")
    assert (members(log), takes(log)) == (Counter({4: 4, 2: 1}), [(1, 1), (1, 1), (2, 1), (2, 1)])
    assert trainable(log) == SHIPPED + LEFT_OVER
    # the trust region masked 46 of 332 tokens or more, and weights of 0 left out others; of one response, the last 27
    # tokens were cut off
    assert sum(SHIPPED) - 27 == 332
    in_loss = [9, 9, 13, 4, 8, 9, 5, 15, 16, 5, 9, 44, 6, 11, 5, 11, 13, 15, 16, 4, 11, 7, 17, 16]
    assert trained(log) == [*in_loss, None, None]
    assert sum(in_loss) == 278
    lengths = [0 if values is None else len(values) for values in log.column("train_logprobs")]
    cut = SHIPPED.index(80)
    expected = [*log.column("response_len")[:24], 0, 0]
    expected[cut] = 0
    assert lengths == expected
    assert log.column("trained_mask")[cut][-27:] == [0] * 27
    assert log.imports.limits == (Lack.SPANS, Lack.CANCELLED)


def test_joined_log_probabilities_are_those_of_the_tokens(tmp_path: Path):
    source = real("prime_exports", tmp_path)
    log = imported("prime-rl", source)
    lines = [json.loads(line) for path in source.rglob("rank_*.jsonl") for line in path.read_text().splitlines()]
    traces = {
        node["logprobs"][0]: node
        for path in source.rglob("all/traces.jsonl")
        for line in path.read_text().splitlines()
        for trace in json.loads(line)["traces"]
        for node in trace["nodes"]
        if node.get("sampled")
    }
    joined = 0
    for row in log.rows:
        if row.get("train_logprobs") is None:
            continue
        # the line of equal sampled log-probabilities: two sequences have equal tokens, but were sampled otherwise
        end = row["prompt_len"] + row["response_len"]
        [line] = [
            line
            for line in lines
            if len(line["token_ids"]) == end
            and np.allclose(line["inference_logprobs"][row["prompt_len"] :], row["logprobs"], atol=1e-5)
        ]
        assert row["train_logprobs"] == pytest.approx(line["trainer_logprobs"][row["prompt_len"] :])
        first = row["logprobs"][row["response_mask"].index(1)]
        node = traces[round(first, 4)]
        assert line["token_ids"][row["prompt_len"] :][: len(node["token_ids"])] == node["token_ids"]
        joined += 1
    assert joined == 23


def test_sequences_that_match_no_trace_are_named(tmp_path: Path):
    source = real("prime_exports", tmp_path)
    shutil.rmtree(source / "rollouts" / "step_2")
    log = imported("prime-rl", source)
    left_out = "12 sequences of the token exports left out: no trace that was trained in their step has their tokens"
    assert log.imports.limits[-1] == left_out
    # one episode of a group that was trained in the other step had arrived
    assert [value is None for value in log.column("trained_mask")] == [False] * 6 + [True] + [False] * 6


def test_exports_are_joined_where_no_file_says_what_was_trained(tmp_path: Path):
    source = real("prime_exports", tmp_path)
    for step in (1, 2):
        shutil.rmtree(source / "rollouts" / f"step_{step}" / "train" / "effective")
    log = imported("prime-rl", source)
    assert sum(tokens or 0 for tokens in trained(log)) == 278
    assert log.imports.limits == (Lack.SPANS, Lack.TIMELINE, Lack.CANCELLED)


def test_token_exports_alone(tmp_path: Path):
    source = real("prime_exports", tmp_path) / "token_exports"
    assert detected([source]).name == "prime-rl"
    log = imported("prime-rl", source)
    # four prompts of four responses each, and branches, whose prompts hold what came before
    assert sizes(log) == Counter({4: 4, 1: 8})
    assert (sum(trainable(log)), sum(tokens or 0 for tokens in trained(log))) == (332, 278)
    assert Counter(log.column("task_name")) == Counter(gsm8k=12, wordle=12)
    assert log.column("train_step") == [1] * 12 + [2] * 12
    assert len(set(log.column("rollout_id"))) == 24
    assert log.imports.limits == (Lack.PROMPTS, Lack.DROPPED, Lack.VERSIONS, Lack.EQUAL_PROMPTS)


def test_a_monitored_stream_with_annotations(tmp_path: Path):
    log = imported_real("prime_monitor", tmp_path, "prime-rl")
    other = imported("prime-rl", real("prime_exports", tmp_path))
    same = ("group_id", "rollout_id", "train_step", "status", "response_mask", "prompt_len", "reward", "model_step")
    for name in same:
        assert log.column(name) == other.column(name), name
    assert takes(log) == takes(other)
    # annotations don't tell weights of 0 from other tokens that the policy gradient leaves alone: 11 more
    in_loss, exported_in_loss = trained(log)[:24], trained(other)[:24]
    more = [place for place in range(24) if in_loss[place] != exported_in_loss[place]]
    assert [(in_loss[place], exported_in_loss[place]) for place in more] == [(15, 9), (16, 11)]
    assert sum(tokens or 0 for tokens in in_loss) == 289
    for mine, theirs in zip(log.column("train_logprobs"), other.column("train_logprobs"), strict=True):
        assert (mine is None) == (theirs is None)
        # rounded to four places, and only of tokens that are trained
        assert mine is None or [a for a in mine if a] == pytest.approx(
            [b for a, b in zip(mine, theirs, strict=True) if a], abs=1e-4
        )


def test_exports_count_where_annotations_are_there_too(tmp_path: Path):
    source, other = real("prime_monitor", tmp_path), real("prime_exports", tmp_path)
    shutil.move(other / "token_exports", source)
    log = imported("prime-rl", source)
    assert sum(tokens or 0 for tokens in trained(log)) == 278
    assert log.imports.limits == (Lack.SPANS, Lack.CANCELLED)


def streamed(name: str, group: str, arrival: int) -> dict[str, Any]:
    line = episode(name, group, 0, 0)
    line["traces"][0] |= {"id": f"trace {name}", "info": {"kind": "train", "arrival": {"step": arrival, "time": 1.0}}}
    return line


def ship(name: str, step: int, time: float) -> dict[str, Any]:
    info = {"effective": True, "ship": {"step": step, "time": time}}
    return {"version": 1, "trace_id": f"trace {name}", "info": info, "branches": []}


def test_a_resumed_stream_counts_its_steps_once(tmp_path: Path):
    traces = tmp_path / "run" / "monitors" / "file" / "traces"
    lines = [streamed(name, name, step) for name, step in (("a", 1), ("b", 2), ("c", 3), ("d", 2), ("e", 3))]
    jsonl(traces / "stream.jsonl", *lines)
    shipped = [ship("a", 1, 1.0), ship("b", 2, 2.0), ship("d", 2, 9.0), ship("e", 3, 10.0)]
    jsonl(traces / "annotations" / "orchestrator.jsonl", *shipped)
    log = imported("prime-rl", tmp_path / "run")
    assert takes(log) == [(1, 1), (2, 1), (3, 1)]
    assert list(dict.fromkeys(log.column("train_step"))) == [1, 2, 3]
    assert len(set(log.column("group_id"))) == 3
    both = imported("prime-rl", tmp_path / "run", keep=Keep.BOTH)
    assert takes(both) == [(1, 1), (2, 1), (2, 1), (3, 1)]


def test_compressed_files_read_alike(tmp_path: Path):
    source = real("prime_exports", tmp_path)
    plain = imported("prime-rl", source)
    for path in [*source.rglob("*.jsonl")]:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert imported("prime-rl", source).rows == plain.rows


def test_attempts_to_compact_that_were_given_up_are_no_samples():
    nodes: list[dict[str, Any]] = [
        {"parent": None, "token_ids": [1, 2], "mask": [False] * 2},
        {"parent": 0, "sampled": True, "token_ids": [3] * 3, "mask": [True] * 3},
        {"parent": 0, "sampled": True, "token_ids": [4] * 4, "mask": [True] * 4},
        {"parent": 0, "sampled": True, "token_ids": [5] * 5, "mask": [True] * 5},
    ]
    for place in (1, 2):
        nodes[place]["semantic_parents"] = [{"node": 0, "type": "compaction_attempt"}]
    nodes[3]["semantic_parents"] = [{"node": 2, "type": "compaction"}]
    assert [(sample.branch, len(sample.mask)) for sample in samples({"nodes": nodes})] == [(1, 4), (2, 5)]


@st.composite
def message_trees(draw: st.DrawFn) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = []
    for place in range(draw(st.integers(1, 12))):
        is_sampled = draw(st.booleans())
        mask = [is_sampled and draw(st.booleans()) for _ in range(draw(st.integers(0, 4)))]
        parent = draw(st.sampled_from((None, *range(place))))
        logprobs = [-float(draw(st.integers(1, 99))) for bit in mask if bit]
        tokens = [draw(st.integers(0, 9)) for _ in mask]
        nodes.append({"parent": parent, "sampled": is_sampled, "token_ids": tokens, "mask": mask, "logprobs": logprobs})
    return nodes


@given(message_trees(), st.integers(1, 20))
def test_samples_are_those_of_the_slow_twin(nodes: list[dict[str, Any]], cut: int):
    expected = slow_samples(nodes)
    found = samples({"nodes": nodes}, cut)
    if not expected:
        assert [int(sample.mask.sum()) for sample in found] == [0]
        return
    assert [sample.branch for sample in found] == [sample.branch for sample in expected]
    for mine, slow in zip(found, expected, strict=True):
        assert mine.prompt_len + len(mine.mask) == len(slow.token_ids)
        # nothing before the response is trained
        assert [False] * mine.prompt_len + [bool(bit) for bit in mine.mask] == slow.mask
        assert mine.logprobs is not None
        assert mine.logprobs.tolist() == slow.logprobs[mine.prompt_len :]
        digests = [token_digest(np.array(slow.token_ids))]
        if len(slow.token_ids) > cut:
            digests.append(token_digest(np.array(slow.token_ids[:cut])))
        assert list(mine.digests) == digests


@st.composite
def exported_lines(draw: st.DrawFn) -> dict[str, Any]:
    mask = [False, *draw(st.lists(st.booleans(), max_size=6)), True, *draw(st.lists(st.booleans(), max_size=3))]
    line: dict[str, Any] = {"loss_mask": mask, "token_ids": [7] * len(mask)}
    line |= dict.fromkeys(("inference_logprobs", "trainer_logprobs"), [-1.0] * len(mask))
    for name in WEIGHTS:
        values = st.sampled_from((True, False) if name == "is_masked" else (0.0, 0.5, 1.0))
        line[name] = [draw(values) for _ in mask] if draw(st.integers(0, 3)) else [None] * len(mask)
    return line


@given(exported_lines())
def test_what_was_in_the_loss_is_that_of_the_slow_twin(line: dict[str, Any]):
    row = export_row(exported(line), 0)
    expected = slow_in_loss(line)
    found = row.get("trained_mask")
    assert (found is None) == (expected is None)
    if expected is not None:
        assert [bool(bit) for bit in found] == expected[row["prompt_len"] :]


def test_a_tree_of_many_branches_makes_no_more_tokens_than_it_holds():
    deep = [{"parent": place - 1 if place else None, "sampled": True, "token_ids": [1]} for place in range(20_000)]
    ends = [{"parent": 19_999, "sampled": True, "token_ids": [2]} for _ in range(20_000)]
    found = samples({"nodes": deep + ends}, cut=100)
    assert len(found) == 20_000
    assert sum(len(sample.mask) for sample in found) == 40_000
    assert {sample.prompt_len for sample in found[1:]} == {20_000}


EXPORTED = {
    "schema_version": 1,
    "step": 1,
    "env_name": "math",
    "token_ids": [1, 2, 3],
    "loss_mask": [False, True, True],
    "inference_logprobs": [0.0, -1.0, -1.0],
    "trainer_logprobs": [None, -1.0, None],
}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss_mask": [True]}, "don't fit"),
        ({"loss_mask": [False] * 3}, "don't fit"),
        ({"token_ids": "abc"}, "token_ids is no list of whole numbers"),
        ({"trainer_logprobs": [[1.0], 2.0, 3.0]}, "trainer_logprobs is no list of numbers"),
        ({"ce_weights": [1.0]}, "1 ce_weights for 3 tokens"),
        ({"step": -1}, "step is -1"),
        ({"inference_logprobs": {"a": 1}}, "inference_logprobs is no list of numbers"),
    ],
)
def test_exports_that_make_no_sense_are_faults(values: dict[str, Any], message: str, tmp_path: Path):
    path = jsonl(tmp_path / "dump" / "token_exports" / "step_1" / "rank_0.jsonl", EXPORTED, EXPORTED | values)
    with pytest.raises(SourceError, match=message) as raised:
        imported("prime-rl", tmp_path / "dump", is_strict=True)
    assert raised.value.problems[0].where == f"{path}, line 2"


def test_exports_that_do_not_say_what_the_loss_masked(tmp_path: Path):
    jsonl(tmp_path / "dump" / "token_exports" / "step_1" / "rank_0.jsonl", EXPORTED)
    [row] = [row for row in imported("prime-rl", tmp_path / "dump").rows if row["event"] == "put"]
    assert (row["trained_mask"], row["response_mask"], row["prompt_len"]) == (None, [1, 1], 1)
    # a log-probability that wasn't finite is none
    assert row["train_logprobs"][0] == -1.0
    assert np.isnan(row["train_logprobs"][1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"branches": [{"index": 0, "trainer_logprobs": ["x"]}]}, "trainer_logprobs is no list of numbers"),
        ({"branches": [{"index": 0, "trainer_logprobs": [-1.0], "is_masked": []}]}, "0 is_masked for 1"),
        ({"branches": [1]}, "branches is no list of objects"),
        ({"info": {"ship": {"step": "a"}}}, "step is 'a'"),
        ({"info": 3}, "info is 3"),
    ],
)
def test_annotations_that_make_no_sense_are_faults(values: dict[str, Any], message: str, tmp_path: Path):
    traces = tmp_path / "run" / "monitors" / "file" / "traces"
    jsonl(traces / "stream.jsonl", streamed("a", "a", 1))
    jsonl(traces / "annotations" / "trainer.jsonl", ship("a", 1, 1.0), ship("b", 1, 1.0) | values)
    with pytest.raises(SourceError, match=message):
        imported("prime-rl", tmp_path / "run", is_strict=True)


def test_what_is_read_twice_is_named_once(tmp_path: Path):
    path = tmp_path / "dump" / "step_1" / "train" / "all" / "traces.jsonl"
    odd = episode("b", "g", 0, 0)
    odd["traces"][0]["nodes"][0]["token_ids"] = "abc"
    jsonl(path, episode("a", "g", 0, 0), odd, "{", episode("c", "g", 0, 0) | {"env": 3})
    jsonl(tmp_path / "dump" / "step_1" / "train" / "effective" / "traces.jsonl", episode("a", "g", 0, 0))
    log = imported("prime-rl", tmp_path / "dump")
    assert (log.imports.responses, takes(log)) == (2, [(1, 1)])
    with pytest.raises(SourceError) as raised:
        imported("prime-rl", tmp_path / "dump", is_strict=True)
    assert sorted(problem.where or "" for problem in raised.value.problems) == [
        f"{path}, line {line}" for line in (2, 3, 4)
    ]
