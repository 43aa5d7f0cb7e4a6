"""Every recorded case through the command line: its responses in a log, its options in a file of methods."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import Row, put, refresh, take
from tests.conftest import Ran
from tests.corrections.test_cases import IN_FLOAT32, KNOWN, METRIC_BOUND, UNSPECIFIED, WEIGHT_BOUND, flat, numbers
from tokenaudit.corrections.trainers import ALIASES

Case = dict[str, Any]
Run = Callable[..., Ran]

REALS = {"float32": pa.float32(), "float64": pa.float64()}


def rows_of(case: Case, step: int, *, single: bool, taken: bool) -> list[Row]:
    """The responses of a case as the batch of a step: one group, or one of each response."""
    puts = []
    for number, response in enumerate(case["responses"]):
        row = put(
            group_id=100 * step + number * single,
            rollout_id=100 * step + number,
            train_step=step,
            tokens=len(response["mask"]),
            model_step=step - 1,
            response_mask=response["mask"],
            logprobs=numbers(response["rollout_logprobs"]).tolist(),
            train_logprobs=numbers(response["train_logprobs"]).tolist(),
            advantage=response["advantage"],
        )
        puts.append(row)
    if not taken:
        return puts
    groups = len({row["group_id"] for row in puts})
    return [refresh(train_step=step), *puts, take(train_step=step, batch_size=groups)]


def write_cases(path: Path, cases: list[Case], reals: str, *, single: bool, taken: bool) -> Path:
    """A log with the batch of each case, in steps from 1 on."""
    rows = [row for step, case in enumerate(cases, 1) for row in rows_of(case, step, single=single, taken=taken)]
    events: list[Row] = []
    for row in rows:
        joins = events and row["event"] == "put" == events[-1]["event"] and row["group_id"] == events[-1]["group_id"]
        events.append(row | {"event_id": events[-1]["event_id"] + (not joins) if events else 0})
    columns = {name: [row.get(name) for row in events] for name in dict.fromkeys(key for row in events for key in row)}
    types = {"response_mask": pa.list_(pa.int8()), "advantage": REALS[reals]}
    types |= dict.fromkeys(("logprobs", "train_logprobs"), pa.list_(REALS[reals]))
    pq.write_table(pa.table({name: pa.array(part, types.get(name)) for name, part in columns.items()}), path)
    return path


def write_methods(path: Path, cases: list[Case]) -> Path:
    """The options of each case as a method of its name."""
    listed = [
        {"name": case["case"], "trainer": case["framework"], "options": case["option"], "dtype": case["dtype"]}
        for case in cases
    ]
    path.write_text(json.dumps({"method": listed}))
    return path


def lenient_tokens(case: Case) -> np.ndarray[Any, Any]:
    """Tokens whose fate hangs on the last bit of exp."""
    return np.concatenate(
        [
            np.isin(np.arange(len(response["mask"])), [t for r, t in case.get("ulp_sensitive", ()) if r == number])
            for number, response in enumerate(case["responses"])
        ]
    )


def check_figures(case: Case, found: dict[str, Any]) -> None:
    """Assert that counts and figures of a batch are those of the case."""
    trainer = ALIASES.get(case["framework"], case["framework"])
    mask, keep = (flat(lists) != 0 for lists in ([r["mask"] for r in case["responses"]], case["expected"]["keep"]))
    assert found["in_loss"] == mask.sum()
    if not lenient_tokens(case).any():
        assert found["kept"] == keep.sum()
        assert found["dropped"] == (mask & ~keep).sum()
    bound = METRIC_BOUND[case["dtype"]]
    for name, value in case["expected"]["metrics"].items():
        if any(re.search(part, name) for part in UNSPECIFIED.get(trainer, ())):
            continue
        wanted = float(np.mean(numbers(value))) if isinstance(value, list) else float(value)
        assert float(found["metrics"][name]) == pytest.approx(wanted, rel=bound, abs=bound, nan_ok=True), name


def check_masks(case: Case, path: Path) -> None:
    """Assert that a file of masks keeps and weighs the tokens of a case as its trainer did."""
    table = pq.read_table(path)
    lenient = lenient_tokens(case)
    keep = flat(table["effective_mask"].to_pylist()) != 0
    assert np.flatnonzero((keep != (flat(case["expected"]["keep"]) != 0)) & ~lenient).tolist() == []
    weights = flat(table["weights"].to_pylist())
    if case["expected"]["weight"] is None:
        assert (weights == 1).all()
        return
    made = "float32" if case["framework"] in IN_FLOAT32 else case["expected"]["weight_dtype"]
    bound = WEIGHT_BOUND[made if made in WEIGHT_BOUND else case["dtype"]]
    wanted = flat(case["expected"]["weight"])
    np.testing.assert_allclose(weights[~lenient], wanted[~lenient], rtol=bound, atol=bound)


SHAPES = (
    ("float64", False, False),
    ("float64", True, True),
    ("as recorded", True, False),
    ("as recorded", False, True),
)
"""Type of the columns, whether each response is a group, whether steps take them; cases go to these in turn."""


@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_command_line_does_what_the_trainers_did(dtype: str, shape: int, run_cli: Run, tmp_path: Path):
    reals, single, taken = SHAPES[shape]
    cases = [case for case in KNOWN if case["dtype"] == dtype][shape :: len(SHAPES)]
    log = write_cases(
        tmp_path / "log.parquet", cases, dtype if reals == "as recorded" else reals, single=single, taken=taken
    )
    methods = write_methods(tmp_path / "methods.json", cases)
    for step, case in enumerate(cases, 1):
        chosen = ("--methods", methods, "--step", step, "--isolated")
        ran = run_cli("corrections", log, *chosen, "-m", case["case"], "--format", "json")
        assert ran.code == 0, ran.err
        (method,) = json.loads(ran.out)["methods"]
        check_figures(case, method["totals"] | {"metrics": method["metrics"]})
        ran = run_cli("mask", log, *chosen, "--correction", case["case"], "--weights", "-o", "masks.parquet")
        assert ran.code == 0, ran.err
        check_masks(case, tmp_path / "masks.parquet")
