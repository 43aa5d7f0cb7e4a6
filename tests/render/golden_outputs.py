"""What `gate` and `diff` print, as kept in `tests/outputs`; `python -m tests.render.golden_outputs` rewrites that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.compare.results import made_result
from tokenaudit.compare.compare import Comparison, Side, compare
from tokenaudit.config.toml import quoted
from tokenaudit.contracts.errors import Notice
from tokenaudit.gate.grammar import parse_rule
from tokenaudit.gate.judge import judge
from tokenaudit.gate.report import GateReport, LocatedRule, Origin
from tokenaudit.render.console import console_text
from tokenaudit.render.diff import diff_blocks
from tokenaudit.render.diff_data import diff_csv, diff_json
from tokenaudit.render.gate import gate_blocks, gate_json
from tokenaudit.render.github import gate_github
from tokenaudit.render.junit import gate_junit
from tokenaudit.render.markdown import markdown_text
from tokenaudit.render.sarif import gate_sarif
from tokenaudit.replay.result import EXPIRED_IDS, TAKEN_IDS, Coverage, InputInfo, Result

OUTPUTS = Path(__file__).parent.parent / "outputs"
HOSTILE = "a|b<c>&d%0A\n::error::[red]\x1b[31m]]>\ufffe,;:\\`*_"
"""A task name that means something to every format."""


def before_and_after() -> tuple[Result, Result]:
    """Two runs with everything that a renderer meets: rates, nulls, growth from 0, hostile names, missing steps."""
    before = made_result(
        [
            {"math": {"produced_tokens": 1000, "dropped_tokens": 100, "trained_tokens": 900, "taken_groups": 2}},
            {HOSTILE: {"produced_tokens": 500, "seq_staleness_max": 1, "raw_rewards_sum": 0.1}},
            {"math": {"produced_tokens": 10}},
        ],
        tasks=("math", HOSTILE),
        config={"policy": {"max_staleness": 3}, "tasks": {"math": {"tail_batch_trigger_size": 2}, HOSTILE: {}}},
    )
    after = made_result(
        [
            {"math": {"produced_tokens": 1000, "dropped_tokens": 101, "trained_tokens": 880, "taken_groups": 2}},
            {HOSTILE: {"produced_tokens": 800, "seq_staleness_max": 2, "discarded_groups": 3, "raw_rewards_sum": 0.3}},
        ],
        tasks=("math", HOSTILE),
        config={"policy": {"max_staleness": 1}, "tasks": {"math": {}, HOSTILE: {}}},
        warnings=(Notice("code", f"beware of {HOSTILE}", "it costs"),),
        coverage=Coverage(counterfactual_tokens=90, counterfactual_of_tokens=1800),
        inputs=(InputInfo(f"{HOSTILE}.parquet", 10, "sha256:0"),),
    )
    return before, after


def with_ids(result: Result, taken: list[list[int]], expired: list[list[int]]) -> Result:
    """The result as `--groups` saves it, with groups of the task math."""
    steps = [
        row | {TAKEN_IDS: {"math": ids}, EXPIRED_IDS: {"math": gone}}
        for row, ids, gone in zip(result.steps, taken, expired, strict=True)
    ]
    return replace(result, steps=steps, tail=result.tail | {TAKEN_IDS: {}, EXPIRED_IDS: {}})


def gate_report() -> GateReport:
    before, after = before_and_after()
    rules = (
        "dropped_tokens <= +0.5%",
        "discarded_groups <= +1%",
        "dropped_token_rate <= 5%",
        "trained_token_rate >= -1pp",
        "produced_tokens{step} >= -5% or -10",
        "seq_staleness_max{task=math} <= 3",
        "warn: seq_staleness_max <= +0",
        "warn: token_staleness_max <= 1",
        "shortfall_groups <= 0",
        f"discarded_groups{{task={quoted(HOSTILE)}}} <= 2",
    )
    file = "ci/gate 1%.toml"
    origins = [Origin("gate 1%.toml", file, line) if line % 2 else Origin("--rule") for line in range(3, 99)]
    located = [LocatedRule(parse_rule(text, "rules"), origin) for text, origin in zip(rules, origins, strict=False)]
    return judge(after, located, before, allow_fewer_steps=True)


def comparison() -> Comparison:
    before, after = before_and_after()
    before = with_ids(before, [[1, 2], [3], []], [[], [4], []])
    after = with_ids(after, [[1], [2]], [[3], [3, 4]])
    return compare(Side("a.toml", before, {"policy.max_staleness": "a.toml"}), Side(HOSTILE, after), with_ids=True)


@cache
def many_steps(count: int) -> tuple[Result, Result]:
    """Two long runs that differ at every step."""
    steps = [{"math": {"produced_tokens": 100 + step, "dropped_tokens": step % 7}} for step in range(count)]
    worse = [{"math": {"produced_tokens": 100 + step, "dropped_tokens": step % 11}} for step in range(count)]
    return made_result(steps, tasks=("math",)), made_result(worse, tasks=("math",))


GATE_FORMATS: dict[str, Callable[[GateReport], str]] = {
    "gate.txt": lambda report: console_text(gate_blocks(report)),
    "gate.json": gate_json,
    "gate.md": lambda report: markdown_text(gate_blocks(report)),
    "gate.xml": gate_junit,
    "gate.sarif": lambda report: gate_sarif(report, "runs/my log.parquet"),
    "gate.github.txt": gate_github,
}
DIFF_FORMATS: dict[str, Callable[[Comparison], str]] = {
    "diff.txt": lambda comparison: console_text(diff_blocks(comparison)),
    "diff.json": diff_json,
    "diff.md": lambda comparison: markdown_text(diff_blocks(comparison)),
    "diff.csv": diff_csv,
}


@cache
def outputs() -> dict[str, bytes]:
    """All outputs by file name, as files hold them."""
    report, compared = gate_report(), comparison()
    texts = {name: render(report) for name, render in GATE_FORMATS.items()}
    texts |= {name: render(compared) for name, render in DIFF_FORMATS.items()}
    return {name: text.encode(errors="backslashreplace") for name, text in texts.items()}


if __name__ == "__main__":
    OUTPUTS.mkdir(exist_ok=True)
    for output, content in outputs().items():
        (OUTPUTS / output).write_bytes(content)
