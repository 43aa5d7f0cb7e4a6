"""A run of prime-rl's orchestrator is recorded, and replay counts what the orchestrator did."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.record.stand_ins.prime_rl import (
    Episode,
    MessageNode,
    ModelCall,
    Orchestrator,
    TimeSpan,
    Trace,
    TrainBatch,
    TrainEpisodes,
)
from tokenaudit import Recorder, audit_log, replay_log
from tokenaudit.record.ids import log_id
from tokenaudit.record.prime_rl import attach_prime_rl


def run(orchestrator: Orchestrator, folder: Path, **options: Any) -> None:
    config = {
        "policy": {"max_staleness": orchestrator.config.max_off_policy_steps},
        "buffer": {"replay_policy": "fifo"},
    }
    with Recorder(folder, config, **options) as recorder:
        detach = attach_prime_rl(orchestrator, recorder)
        asyncio.run(orchestrator.start())
        detach()


def lengths(traces: Iterable[Trace]) -> int:
    """Tokens from the first answer on, and behind a fork those of the second way alone, from its answer on."""
    return sum(len(node.token_ids) for trace in traces for node in trace.nodes[1:])


def trained(traces: Iterable[Trace]) -> int:
    return sum(sum(node.mask) for trace in traces for node in trace.nodes)


@pytest.mark.parametrize("batch_size", [8, 11])
@pytest.mark.parametrize("max_off_policy_steps", [0, 1, 8])
@pytest.mark.parametrize("seed", range(2))
def test_replay_counts_what_the_orchestrator_did(batch_size: int, max_off_policy_steps: int, seed: int, tmp_path: Path):
    orchestrator = Orchestrator(seed, 10, max_off_policy_steps, batch_size)
    run(orchestrator, tmp_path)
    result = replay_log(tmp_path, isolated=True).result
    shipped = {event[1]: event[2] for event in orchestrator.journal if event[0] == "shipped"}
    assert [row["train_step"] for row in result.steps] == [*shipped] == [*range(1, 11)]
    for row in result.steps:
        traces = shipped[row["train_step"]]
        assert row["taken_tokens"] == lengths(traces)
        assert row["trained_tokens"] == trained(traces)
        assert (row["shortfall_groups"], row["leftover_completed"]) == (0, 0)
    gone = {name: [event[1] for event in orchestrator.journal if event[0] == name] for name in DROPS}
    totals = result.totals
    assert totals["failed_tokens"] == lengths(gone["failed"])
    assert totals["filtered_tokens"] == lengths(gone["filtered"])
    # what is queued at the end may be too old by then
    left = orchestrator.train_sink.left()
    stale = [*gone["stale"], *(trace for trace, is_stale in left if is_stale)]
    assert totals["discarded_stale_tokens"] == lengths(stale)
    assert result.ledger["total"]["held_tokens"] == lengths(trace for trace, is_stale in left if not is_stale)
    assert totals["expired_at_refresh"] == totals["discarded_fresh_tokens"] == totals["avoided_tokens"] == 0
    assert bool(gone["stale"]) == (max_off_policy_steps < 8)
    came = [*shipped.values(), *gone.values(), [trace for trace, _ in left]]
    assert totals["produced_tokens"] == sum(map(lengths, came))
    errors = {finding.code for finding in audit_log(tmp_path, isolated=True).findings if finding.severity == "error"}
    # some traces have no reward, and some groups take long enough to look like those of an earlier run
    assert errors <= {"G008", "V006"}


DROPS = ("failed", "filtered", "stale")


def rows_of(folder: Path, event: str) -> list[dict[str, Any]]:
    return [row for row in pq.read_table(folder).to_pylist() if row["event"] == event]


def test_takes_name_the_traces_that_were_shipped(tmp_path: Path):
    orchestrator = Orchestrator(3, 6, 1, 11)
    run(orchestrator, tmp_path)
    puts = {row["rollout_id"]: row for row in rows_of(tmp_path, "put")}
    takes = rows_of(tmp_path, "take")
    shipped = {event[1]: event[2] for event in orchestrator.journal if event[0] == "shipped"}
    for step, traces in shipped.items():
        assert len({row["rollout_id"] for row in takes if row["train_step"] == step}) == len(traces)
    assert {row["task_name"] for row in takes} == {"math", "code"}
    assert all(puts[row["rollout_id"]]["status"] == "completed" for row in takes)


def node(parent: int | None, mask: str, tokens: int) -> MessageNode:
    bits = [bit == "1" for bit in mask]
    return MessageNode(parent, any(bits), [*range(tokens, tokens + len(bits))], bits, [-float(tokens)] * sum(bits))


def test_every_branch_is_a_segment_that_trains_what_no_earlier_one_does(tmp_path: Path):
    nodes = [node(None, "00", 0), node(0, "011", 10), node(1, "0", 20), node(2, "01", 30), node(1, "1", 40)]
    calls = [ModelCall(1, time=TimeSpan(1.0, 2.0)), ModelCall(3, "length", TimeSpan(2.0, 2.5)), ModelCall(4)]
    rewards = {"a": SimpleNamespace(value=1.0), "b": SimpleNamespace(value=0.5), "c": None}
    trace = Trace("t", nodes, calls, rewards)
    policy = SimpleNamespace(start=2, end=3)
    work = SimpleNamespace(work=SimpleNamespace(type="train", step=3, policy=policy))
    episode = Episode("e", SimpleNamespace(id="env", name=None), SimpleNamespace(id="g"), work, [trace])
    window = TrainEpisodes([episode], {"t"}, {"e"})
    orchestrator = Orchestrator(0, 1, 8, 1)
    orchestrator.progress.step = 4
    orchestrator.policy.version = 4
    with Recorder(tmp_path, token_columns=True) as recorder:
        attach_prime_rl(orchestrator, recorder)
        asyncio.run(orchestrator.finalize_train_batch(TrainBatch(window, window, [object()])))
    first, second = rows_of(tmp_path, "put")
    assert (first["response_ids"], first["response_mask"]) == ([10, 11, 12, 20, 30, 31], [0, 1, 1, 0, 0, 1])
    assert (second["response_ids"], second["response_mask"]) == ([40], [1])
    assert (first["logprobs"], second["logprobs"]) == ([0.0, -10.0, -10.0, 0.0, 0.0, -30.0], [-40.0])
    assert (first["prompt_len"], second["prompt_len"]) == (2, 5)
    assert (first["finish_reason"], second["finish_reason"]) == ("length", "stop")
    assert (first["generate_time_us"], second["generate_time_us"]) == (1_500_000, None)
    for row in (first, second):
        assert (row["rollout_id"], row["group_id"], row["task_name"]) == (log_id("e t"), log_id("g"), "env")
        assert (row["reward"], row["agentic"], row["train_step"], row["status"]) == (1.5, True, 4, "completed")
        assert (row["model_step"], row["model_step_end"], row["version_precision"]) == (2, 3, "span")


def test_an_empty_batch_is_no_take_and_shows_its_traces_once(tmp_path: Path):
    orchestrator = Orchestrator(3, 6, 1, 4)
    has_any = iter([False] * 4 + [True] * 1000)
    orchestrator.has_advantage = lambda _: next(has_any)  # type: ignore[method-assign]
    run(orchestrator, tmp_path)
    puts = rows_of(tmp_path, "put")
    assert len({(row["group_id"], row["rollout_id"]) for row in puts}) == len({row["rollout_id"] for row in puts})
    result = replay_log(tmp_path, isolated=True).result
    gone = [event[1] for event in orchestrator.journal if event[0] == "filtered"]
    assert result.totals["filtered_tokens"] == lengths(gone)
    assert [row["train_step"] for row in result.steps] == [*range(1, 7)]


def test_a_trace_that_cannot_be_recorded_is_left_out_alone(tmp_path: Path):
    orchestrator = Orchestrator(3, 3, 1, 8)
    make, odd = orchestrator._trace, []

    def trace() -> Trace:
        made = make()
        if int(made.id.split()[1]) % 4 == 0:
            made.rewards = None  # type: ignore[assignment]
            odd.append(log_id(made.id))
        return made

    orchestrator._trace = trace  # type: ignore[method-assign]
    with Recorder(tmp_path) as recorder:
        attach_prime_rl(orchestrator, recorder)
        with pytest.warns(RuntimeWarning, match="not recorded: AttributeError") as told:
            asyncio.run(orchestrator.start())
    shipped = {event[1]: event[2] for event in orchestrator.journal if event[0] == "shipped"}
    assert (len(told), len(shipped)) == (1, 3)
    assert 0 < recorder.rejected_events <= len(odd)
    takes = rows_of(tmp_path, "take")
    for step, traces in shipped.items():
        good = [trace for trace in traces if trace.rewards is not None]
        assert 0 < len(good) == len({row["rollout_id"] for row in takes if row["train_step"] == step})


def test_an_orchestrator_is_left_as_it_was(tmp_path: Path):
    orchestrator = Orchestrator(3, 3, 1, 8)
    with Recorder(tmp_path) as recorder:
        detach = attach_prime_rl(orchestrator, recorder)
        with pytest.raises(TypeError, match="attached to this orchestrator already"):
            attach_prime_rl(orchestrator, recorder)
        detach()
        with pytest.raises(TypeError, match="object has no method finalize_train_batch, on_new_version"):
            attach_prime_rl(object(), recorder)
    assert "finalize_train_batch" not in vars(orchestrator)
