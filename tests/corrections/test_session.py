"""Corrections over a whole log: every figure of the report is that of a slow twin, however the log is read."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Row, numbered, put, refresh, small_batches, take, write_log
from tests.conftest import examples
from tests.oracles import slow_corrected_log as slow
from tokenaudit.contracts.errors import UsageError
from tokenaudit.corrections.arrays import Arrays, NumpyArrays
from tokenaudit.corrections.methods import methods_of
from tokenaudit.corrections.result import AdvantageSource, CorrectionsReport, MethodResult, NotJudged, TokenCounts
from tokenaudit.corrections.session import corrections_of_log
from tokenaudit.corrections.torch_arrays import TorchArrays
from tokenaudit.masks.plan import Selection

SPECS = (
    "verl: rollout_is=token, rollout_is_threshold=2.0",
    'verl: rollout_is=token, rollout_is_threshold="0.5_5.0"',
    "verl: rollout_is=token, rollout_is_batch_normalize=true, rollout_rs=seq_mean_k3, rollout_rs_threshold=0.1",
    "xtuner: rollout_is_mode=both, rollout_is_threshold=[2.0, 0.5]",
    "slime-mis: rs_level=geometric, rs_lower_bound=0.8, rs_upper_bound=1.25",
    "skyrl: sequence_mask_metric=geometric",
    "prime-rl",
    "trl",
    "areal: m2_threshold=0.04",
)
METHODS = methods_of(SPECS)
NAMES = [method.name for method in METHODS]
COUNTS = ("already_masked", "in_loss", "kept", "dropped", "responses", "responses_dropped_whole")


@st.composite
def rows_of_logs(draw: st.DrawFn, odd: bool = True) -> list[Row]:
    """Completed puts of groups of up to 3 members, at steps 1 to 4; some with tokens that can't be judged."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows: list[Row] = []
    has_rewards, has_advantages = draw(st.booleans()), draw(st.booleans())
    for group in range(draw(st.integers(1, 7))):
        step = int(rng.integers(1, 5))
        for member in range(int(rng.integers(1, 4))):
            length = int(rng.choice([0, 1, 2, 3, 9, 10, 11, 25]))
            rollout = -rng.exponential(1, length)
            trained = np.minimum(rollout + rng.normal(0, rng.choice([0.01, 0.3, 1.0]), length), 0)
            both = [side.astype(np.float32).astype(float).tolist() for side in (rollout, trained)]
            row: Row = {
                "task_name": str(rng.choice(["a", "b"])) if member == 0 else rows[-1]["task_name"],
                "response_model_steps": np.sort(rng.integers(max(step - 4, 0), step, length)).tolist(),
                "response_mask": None if rng.random() < 0.4 else rng.integers(0, 2, length).tolist(),
                "logprobs": both[0],
                "train_logprobs": both[1],
                "agentic": bool(rng.random() < 0.2),
            }
            if has_rewards and rng.random() < 0.9:
                row["reward"] = float(rng.choice([0.0, 0.5, 1.0]))
            if has_advantages and rng.random() < 0.8:
                row["advantage"] = float(rng.choice([-0.5, 0.0, 1.5]))
            if odd and length and rng.random() < 0.3:
                spoil(row, rng, length)
            rows.append(put(group_id=group, rollout_id=len(rows), train_step=step, tokens=length, **row))
    return [row | {"event_id": row["group_id"]} for row in rows]


def spoil(row: Row, rng: np.random.Generator, length: int) -> None:
    name = str(rng.choice(["logprobs", "train_logprobs"]))
    match rng.integers(0, 4):
        case 0:
            row[name] = None
        case 1:
            row[name] = row[name][1:]
        case _:
            row[name][rng.integers(0, length)] = rng.choice([math.nan, math.inf, -math.inf, -9999.0, 1e30, None])


def report_of(path: Path, xp: Arrays | None = None, **options: Any) -> CorrectionsReport:
    return corrections_of_log([path], METHODS, xp or NumpyArrays(), isolated=True, **options).report


def written(rows: list[Row], folder: str, **options: Any) -> Path:
    return write_log(Path(folder, "log.parquet"), rows, omit_null_columns=False, **options)


def counts_of(counts: TokenCounts) -> tuple[int, ...]:
    return tuple(getattr(counts, name) for name in COUNTS)


def check_method(found: MethodResult, tokens: list[slow.Token], metrics: dict[int, Any]) -> None:
    assert counts_of(found.totals) == slow.counts(tokens)
    assert {part: counts_of(f.counts) for part, f in found.by_task.items()} == slow.parts(tokens, lambda t: t.task)
    assert {part: counts_of(f.counts) for part, f in found.by_age.items()} == slow.parts(tokens, lambda t: t.age)
    assert {part: counts_of(f.counts) for part, f in found.by_sign.items()} == slow.parts(tokens, lambda t: t.sign)
    of_place = {part: counts_of(f.counts) for part, f in found.by_position.items()}
    assert of_place == slow.parts(tokens, lambda t: t.place)
    of_step = slow.parts(tokens, lambda t: t.step)
    assert {s.train_step: counts_of(s.counts) for s in found.by_step if s.counts.responses} == of_step
    for limit in found.staleness:
        both, only_method, only_limit = slow.limit(tokens, limit.max_token_staleness + 1)
        assert (limit.both, limit.only_method, limit.only_limit) == (both, only_method, only_limit)
    assert [limit.max_token_staleness for limit in found.staleness] == list(range(len(found.staleness)))
    assert found.staleness[-1].both == found.staleness[-1].only_limit == 0
    overlaps = [limit.jaccard for limit in found.staleness]
    if found.nearest_limit is None:
        assert max(overlaps) == 0
    else:
        nearest = found.nearest_limit.max_token_staleness
        assert overlaps[nearest] == max(overlaps) > max(overlaps[nearest + 1 :], default=-1)
    assert {step.train_step: dict(step.metrics) for step in found.by_step if step.metrics} == {
        step: pytest.approx(values, rel=1e-5, abs=1e-6, nan_ok=True) for step, values in metrics.items()
    }
    for name in found.metrics:
        values = [of_step[name] for of_step in metrics.values() if name in of_step]
        assert found.metrics[name] == pytest.approx(np.mean(values), rel=1e-5, abs=1e-6, nan_ok=True)
    kept = [t.weight for t in tokens if t.kept and t.weight is not None]
    if found.weights is None:
        assert kept == []
        return
    assert found.weights.mean == pytest.approx(np.mean(kept), rel=1e-6)
    assert found.weights.largest == pytest.approx(max(kept), rel=1e-6)
    squares = sum(weight * weight for weight in kept)
    effective = sum(kept) ** 2 / squares / len(kept) if squares else None
    assert found.weights.effective_share == (effective if effective is None else pytest.approx(effective, rel=1e-5))
    for name, share in (("p5", 5), ("p50", 50), ("p95", 95)):
        assert getattr(found.weights, name) == pytest.approx(slow.percentile(kept, share), rel=2**-7)


@examples(0.4)
@given(rows=rows_of_logs())
def test_every_figure_is_that_of_the_slow_twin(rows: list[Row]):
    with tempfile.TemporaryDirectory() as folder:
        report = report_of(written(rows, folder))
    batches: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        batches[row["train_step"]].append(row)
    assert not report.is_taken
    assert (report.responses, report.tokens) == (len(rows), sum(row["response_len"] for row in rows))
    dropped = {}
    for method, found in zip(METHODS, report.methods, strict=True):
        tokens, metrics = slow.tokens_of(batches, method.correction, method.dtype)
        if found.not_run is None:
            check_method(found, tokens, metrics)
        else:
            assert not any(token.in_loss for token in tokens)
        dropped[found.name] = {index for index, t in enumerate(tokens) if t.in_loss and not t.kept}
    for pair in report.between:
        first, second = dropped[pair.first], dropped[pair.second]
        found = (pair.both, pair.only_first, pair.only_second)
        assert found == (len(first & second), len(first - second), len(second - first))


@examples(0.2)
@given(rows=rows_of_logs(), chunk=st.integers(1, 30), read=st.integers(1, 5), files=st.integers(1, 3))
def test_neither_chunks_nor_borders_of_batches_change_a_bit(rows: list[Row], chunk: int, read: int, files: int):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        expected = report_of(written(rows, folder))
        xp = NumpyArrays()
        xp.chunk_tokens = chunk
        small_batches(patch, rows=read)
        again = report_of(written(rows, folder, row_group_size=read), xp)
    assert repr(again) == repr(expected)


@examples(0.1)
@given(rows=rows_of_logs())
def test_torch_finds_the_same(rows: list[Row]):
    with tempfile.TemporaryDirectory() as folder:
        path = written(rows, folder)
        of_numpy, of_torch = report_of(path), report_of(path, TorchArrays(torch.device("cpu")))
    assert of_torch.between == of_numpy.between
    for found, expected in zip(of_torch.methods, of_numpy.methods, strict=True):
        assert (found.not_run, found.totals, found.staleness) == (expected.not_run, expected.totals, expected.staleness)
        assert dict(found.metrics) == pytest.approx(dict(expected.metrics), rel=1e-4, abs=1e-6, nan_ok=True)
        for name in ("mean", "p5", "p50", "p95", "largest", "effective_share"):
            values = [None if r.weights is None else getattr(r.weights, name) for r in (found, expected)]
            assert values[0] == (values[1] if values[1] is None else pytest.approx(values[1], rel=2**-7))


def token_row(ratio: float, **others: Any) -> Row:
    """A put of 10 tokens whose ratios of trainer over engine are all the same."""
    return put(tokens=10, logprobs=[-1.0] * 10, train_logprobs=[-1.0 + math.log(ratio)] * 10, **others)


def test_taken_responses_stand_in_the_batch_of_the_step_that_took_them(tmp_path: Path):
    rows = numbered(
        [
            refresh(train_step=1),
            token_row(1.0, group_id=1),
            token_row(3.0, group_id=2),
            take(train_step=1, batch_size=1),
            refresh(train_step=2),
            take(train_step=2, batch_size=1),
            token_row(9.0, group_id=3, train_step=2, model_step=1),
        ]
    )
    report = report_of(write_log(tmp_path / "log.parquet", rows), overrides="policy.max_staleness=5")
    assert (report.is_taken, report.steps, report.responses, report.in_loss) == (True, 2, 2, 20)
    icepop = report.methods[3]
    assert [(step.train_step, step.counts.kept, step.divisor) for step in icepop.by_step] == [(1, 10, 10), (2, 0, 0)]
    # taken a step late
    assert {age: part.counts.dropped for age, part in icepop.by_age.items()} == {0: 0, 1: 10}
    assert icepop.nearest_limit is not None
    assert (icepop.nearest_limit.max_token_staleness, icepop.nearest_limit.both) == (0, 10)


def test_steps_and_tasks_can_be_chosen(tmp_path: Path):
    rows = [token_row(1.0, group_id=step, train_step=step, task_name="ab"[step % 2]) for step in (1, 2, 3)]
    path = write_log(tmp_path / "log.parquet", numbered(rows))
    report = report_of(path, selection=Selection((2, 3), frozenset("b")))
    assert [step.train_step for step in report.methods[0].by_step] == [3]
    with pytest.raises(UsageError, match="no such step"):
        report_of(path, selection=Selection((7, 9)))
    with pytest.raises(UsageError, match="there is no task 'c'"):
        report_of(path, selection=Selection(None, frozenset("c")))


@pytest.mark.parametrize("missing", ["logprobs", "train_logprobs"])
def test_a_log_with_one_of_the_columns_runs_nothing_and_says_which_is_missing(missing: str, tmp_path: Path):
    rows = numbered([{name: value for name, value in token_row(1.0).items() if name != missing}])
    report = report_of(write_log(tmp_path / "log.parquet", rows))
    assert {method.not_run for method in report.methods} == {f"the log has no {missing}"}
    assert report.not_judged == NotJudged(**{f"no_{missing}": 10}, responses=1)


def test_what_cannot_be_judged_counts_once_by_its_reason(tmp_path: Path):
    rows = [token_row(1.0, group_id=index, response_mask=[1] * 9 + [0]) for index in range(6)]
    rows[0]["logprobs"] = None
    rows[1]["train_logprobs"] = [-1.0] * 9
    rows[2]["logprobs"] = [math.nan, -math.inf, -1.0, -9999.0, None, *[-1.0] * 4, math.nan]
    rows[2]["train_logprobs"] = [None, -9999.0, *[-1.0] * 8]
    rows[3]["train_logprobs"] = None
    report = report_of(write_log(tmp_path / "log.parquet", numbered(rows)))
    assert report.not_judged == NotJudged(9, 9, 9, null=2, not_finite=1, sentinel=1, responses=3)
    assert (report.in_loss, report.methods[0].totals.already_masked) == (9 * 3 - 4, 3)


def test_steps_without_a_token_in_the_loss_have_no_figures_of_the_trainer(tmp_path: Path):
    rows = [token_row(1.0, group_id=step, train_step=step, response_mask=[step - 1] * 10) for step in (1, 2)]
    report = report_of(write_log(tmp_path / "log.parquet", numbered(rows)))
    ran = [method for method in report.methods if method.not_run is None]
    assert len(ran) == len(SPECS) - 1
    for method in ran:
        assert method.by_step[0].metrics == {}
        assert dict(method.metrics) == dict(method.by_step[1].metrics)
    alone = report_of(write_log(tmp_path / "log.parquet", numbered(rows[:1])))
    assert {method.not_run for method in alone.methods} == {"no token in the loss can be judged"}


def test_an_advantage_comes_from_the_column_else_from_rewards_else_it_is_not_known(tmp_path: Path):
    def of(**others: Any) -> CorrectionsReport:
        rows = [
            token_row(0.5, event_id=0, group_id=1, rollout_id=rollout, **{k: v[rollout] for k, v in others.items()})
            for rollout in range(3)
        ]
        return report_of(write_log(tmp_path / "log.parquet", rows))

    prime = NAMES.index("prime-rl")
    of_rewards = of(reward=[0.0, 1.0, 1.0])
    assert of_rewards.advantage_source is AdvantageSource.REWARD
    signs = {sign.value: part.counts.in_loss for sign, part in of_rewards.methods[prime].by_sign.items()}
    assert signs == {"positive": 20, "negative": 10}
    # the mean of equal rewards isn't exactly theirs
    even = of(reward=[0.1, 0.1, 0.1])
    assert {sign.value for sign in even.methods[prime].by_sign} == {"zero"}
    mixed = of(reward=[0.0, 1.0, None], advantage=[None, -2.0, None])
    assert (mixed.advantage_source, mixed.unknown_advantages) == (AdvantageSource.BOTH, 1)
    signs = {sign.value: part.counts.in_loss for sign, part in mixed.methods[prime].by_sign.items()}
    assert signs == {"negative": 20, "unknown": 0}
    assert (mixed.methods[prime].unknown_advantage_tokens, mixed.methods[0].totals.in_loss) == (10, 30)
    nothing = of()
    assert (nothing.advantage_source, nothing.unknown_advantages) == (AdvantageSource.NONE, 3)
    assert [method.name for method in nothing.methods if method.not_run] == ["prime-rl"]


def test_weights_that_overflow_are_counted_apart(tmp_path: Path):
    rows = numbered([put(tokens=3, logprobs=[-200.0, -1.0, -1.0], train_logprobs=[-1.0, -1.0, -1.0])])
    path = write_log(tmp_path / "log.parquet", rows)
    openrlhf = methods_of(
        ["openrlhf: is_correction_enable=true, is_correction_type=icepop", "roll", "prime-rl: type=ipo"]
    )
    report = corrections_of_log([path], openrlhf, NumpyArrays(), isolated=True).report
    assert report.methods[2].weights is not None
    assert report.methods[2].totals.kept == 3 - 1
    for method in report.methods:
        assert method.weights is None or math.isfinite(method.weights.mean + method.weights.largest)


def test_recorded_runs_say_which_tokens_are_in_the_loss(tmp_path: Path):
    row = token_row(3.0, response_model_steps=[0] * 10, response_mask=[1] * 4 + [0] * 6, train_step=2)
    as_lists = report_of(write_log(tmp_path / "lists.parquet", [row]))
    runs = [{"model_step": 0, "tokens": 4, "trainable": 4}, {"model_step": 0, "tokens": 6, "trainable": 0}]
    row |= {"response_model_steps": None, "response_mask": None, "response_version_runs": runs}
    as_runs = report_of(write_log(tmp_path / "runs.parquet", [row]))
    assert repr(replace(as_runs, name="")) == repr(replace(as_lists, name=""))
    assert as_lists.in_loss == 4
