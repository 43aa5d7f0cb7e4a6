"""How off-policy each age is: against plain arithmetic, and by batch."""

from __future__ import annotations

import math
import random
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import Row, put, take, write_log
from tests.conftest import examples
from tests.oracles.slow_differences import slow_evidence
from tokenaudit.audit.differences import SAMPLED
from tokenaudit.audit.offpolicy import AgeEvidence
from tokenaudit.audit.session import audit_log
from tokenaudit.contracts.schema import RUN_FIELDS
from tokenaudit.corrections.logprobs import BOTH

CONFIG = ("policy.max_staleness=9",)


def evidence(path: Path, rows: list[Row], **options: object) -> dict[int, AgeEvidence]:
    report = audit_log([write_log(path, rows, **options)], overrides=CONFIG, isolated=True)  # type: ignore[arg-type]
    return {entry.staleness: entry for entry in report.evidence}


def with_logprobs(versions: list[int], deltas: list[float], **others: object) -> Row:
    old = [-1.0] * len(deltas)
    return put(
        1, 1, tokens=len(deltas), response_model_steps=versions, logprobs=old,
        train_logprobs=[-1.0 + delta for delta in deltas], **others,
    )  # type: ignore[arg-type]  # fmt: skip


def test_the_figures_of_one_age(tmp_path: Path):
    deltas = [0.0, 0.125, -0.25, 0.5]
    (entry,) = evidence(tmp_path / "log", [with_logprobs([0] * 4, deltas, train_step=1), take(2, 3)]).values()
    ratios = [math.exp(delta) for delta in deltas]
    assert (entry.staleness, entry.tokens) == (2, 4)
    assert entry.mean_abs == pytest.approx(sum(map(abs, deltas)) / 4)
    assert entry.p95_abs == 0.5
    assert entry.mean_ratio == pytest.approx(sum(ratios) / 4)
    assert entry.effective_share == pytest.approx(sum(ratios) ** 2 / (4 * sum(r * r for r in ratios)))
    assert entry.outside_share == 0.5
    assert entry.kl == pytest.approx(sum(r - 1 - d for r, d in zip(ratios, deltas, strict=True)) / 4)


def test_version_runs_tell_the_ages_of_tokens(tmp_path: Path):
    runs = [
        dict(zip(("model_step", "tokens", "trainable"), run, strict=True)) for run in ((0, 2, 2), (1, 1, 0), (2, 3, 1))
    ]
    row = with_logprobs([], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], train_step=4, model_step=3)
    row |= {"response_model_steps": None, "response_version_runs": runs}
    other = with_logprobs([1], [0.7, 0.8], train_step=4, model_step=3) | {"group_id": 2, "rollout_id": 2}
    found = evidence(tmp_path / "log", [row, other | {"event_id": 2}, take(3, 4, 2)])
    # Which token of the run of version 2 is trained can't be told.
    assert {age: (entry.tokens, entry.mean_abs) for age, entry in found.items()} == {
        0: (1, pytest.approx(0.8)), 2: (1, pytest.approx(0.7)), 3: (2, pytest.approx(0.15)),
    }  # fmt: skip


def test_equal_weights_show_no_difference(tmp_path: Path):
    (entry,) = evidence(tmp_path / "log", [with_logprobs([0] * 3, [0.0] * 3), take(2)]).values()
    assert (entry.mean_abs, entry.mean_ratio, entry.effective_share, entry.outside_share, entry.kl) == (0, 1, 1, 0, 0)


def test_ages_are_those_at_the_take_else_at_the_put(tmp_path: Path):
    rows = [
        with_logprobs([0, 0, 1], [0.1, 0.1, 0.2], train_step=2),
        take(2, 4),
        with_logprobs([3], [0.3, 0.3], train_step=5, model_step=4) | {"event_id": 3, "group_id": 2, "rollout_id": 2},
    ]
    found = evidence(tmp_path / "log", rows)
    assert {age: entry.tokens for age, entry in found.items()} == {0: 1, 1: 1, 2: 1, 3: 2}


def test_tokens_out_of_the_loss_or_without_a_value_do_not_count(tmp_path: Path):
    row = with_logprobs([0] * 4, [0.1, 9.0, 0.1, 0.1], response_mask=[1, 0, 1, 1])
    row["logprobs"] = [-1.0, -1.0, None, -5000.0]
    (entry,) = evidence(tmp_path / "log", [row, take(2)]).values()
    assert (entry.tokens, entry.p95_abs) == (1, pytest.approx(0.1, abs=0.001))


VALUES = st.sampled_from([-0.5, -0.25, -3.0, 0.0, -200.0, -1000.0, -5000.0, 9999.0, None, math.nan, -math.inf])
"""Of few bits, so that differences are exact in single precision."""


@st.composite
def puts_with_logprobs(draw: st.DrawFn) -> Row:
    tokens = draw(st.integers(1, 70))

    def listed(values: st.SearchStrategy[Any], least: int = tokens, most: int = tokens) -> list[Any]:
        return draw(st.lists(values, min_size=least, max_size=most))

    sides = {name: listed(VALUES, tokens, draw(st.integers(tokens, tokens + 1))) for name in BOTH}
    row = put(tokens=tokens, train_step=draw(st.integers(1, 4)), model_step=2, **sides)
    if draw(st.booleans()):
        return row | {
            "response_model_steps": listed(st.integers(0, 3), 0),
            "response_mask": draw(st.none() | st.just(listed(st.integers(0, 1)))),
        }
    cuts = sorted({0, tokens, *listed(st.integers(0, tokens), 0, 3)})
    runs = [(draw(st.integers(0, 3)), last - first, last - first) for first, last in pairwise(cuts)]
    runs = [dict(zip(RUN_FIELDS, (*run[:2], draw(st.integers(0, run[2]))), strict=True)) for run in runs]
    return row | {"response_model_steps": None, "response_version_runs": runs}


@settings(examples(0.5), suppress_health_check=list(HealthCheck))
@given(rows=st.lists(puts_with_logprobs(), min_size=1, max_size=6), epsilon=st.sampled_from([0.0, 0.2]))
def test_the_figures_are_those_of_a_walk_over_all_tokens(rows: list[Row], epsilon: float):
    rows = [row | {"event_id": n, "group_id": n, "rollout_id": n} for n, row in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        path = write_log(Path(folder, "log.parquet"), rows, row_group_size=2)
        found = audit_log([path], epsilon=epsilon, isolated=True).evidence
    expected = slow_evidence([(row, row["train_step"]) for row in rows], epsilon)
    # rows of more than 64 tokens are sampled for the percentile
    exact = [name for name in expected[0].data() if name != "p95_abs"] if expected else []
    for own, other in zip(found, expected, strict=True):
        # ratios of float32 columns are computed in single precision
        assert [own.data()[name] for name in exact] == pytest.approx([other.data()[name] for name in exact], abs=5e-7)
        if all(row["response_len"] <= SAMPLED for row in rows):
            assert own.p95_abs == other.p95_abs


def test_the_percentile_of_long_rows_is_that_of_a_sample_spread_over_them(tmp_path: Path):
    rng = random.Random(2)
    rows = [
        with_logprobs([0] * 500, [rng.gauss(0, 0.2) for _ in range(500)])
        | {"event_id": n, "group_id": n, "rollout_id": n}
        for n in range(40)
    ]
    (entry,) = evidence(tmp_path / "log", rows).values()
    assert entry.p95_abs == pytest.approx(0.2 * 1.96, abs=0.02)


def test_batches_and_files_change_nothing_that_is_shown(tmp_path: Path):
    rng = random.Random(3)
    rows = [
        with_logprobs([0] * 5, [rng.gauss(0, 0.2) for _ in range(5)], train_step=1 + n % 3)
        | {"event_id": n, "group_id": n, "rollout_id": n}
        for n in range(40)
    ]
    one = evidence(tmp_path / "one", rows)
    many = evidence(tmp_path / "many", rows, files=3, row_group_size=4)
    assert [entry.data() for entry in one.values()] == [entry.data() for entry in many.values()]


def test_the_table_shows_a_bar_and_epsilon_counts(run_cli, tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [with_logprobs([0] * 2, [0.1, 0.5]), take(2)])
    assert "50.0 %" in run_cli("audit", path, *("-s", CONFIG[0])).out
    wide = run_cli("audit", path, "-s", CONFIG[0], "--clip-epsilon", "0.05").out
    assert "100.0 %" in wide
    assert "█" * 24 in wide
