"""The parts of the README that are generated: `python tests/readme.py` rewrites them, a test compares them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from tokenaudit.audit.checks import RULES
from tokenaudit.audit.rule import Fact
from tokenaudit.cli.diff_sides import load_sides
from tokenaudit.compare.compare import compare
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import METRICS, RATES
from tokenaudit.contracts.schema import COLUMNS, EventKind
from tokenaudit.gate.judge import judge
from tokenaudit.gate.rule_sources import collect_rules
from tokenaudit.render.diff_table import render_diff_table
from tokenaudit.render.gate_table import render_gate_table
from tokenaudit.render.table import TableOptions, render_table
from tokenaudit.replay.request import PromptOrder, RunRequest
from tokenaudit.replay.result import select_steps
from tokenaudit.replay.session import replay_log
from tokenaudit.simulate.session import simulate_workload

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
SAMPLE = ROOT / "sample_data" / "rollouts.parquet"
CONFIGS = (ROOT / "sample_data" / "config.toml", ROOT / "sample_data" / "worse.toml")
GATE_RULES = ("dropped_tokens <= +2%", "trained_token_rate >= -1pp", "warn: shortfall_groups{step} <= 0")


def metric_table() -> str:
    lines = ["| metric | unit | better | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{metric.name}` | {metric.unit} | {metric.better} | {metric.help} |" for metric in METRICS.values()]
    return "\n".join(lines)


def rate_table() -> str:
    lines = ["| rate | better | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{rate.name}` | {rate.better} | {rate.help} |" for rate in RATES.values()]
    return "\n".join(lines)


def column_table() -> str:
    lines = ["| column | type | on | meaning |", "| --- | --- | --- | --- |"]
    for column in COLUMNS:
        events = "all" if set(column.events) == set(EventKind) else ", ".join(column.events)
        mark = " *" if column.required else ""
        lines.append(f"| `{column.name}`{mark} | {column.type.value} | {events} | {column.meaning} |")
    return "\n".join(lines)


def rule_table() -> str:
    lines = ["| code | rule | severity | meaning | needs |", "| --- | --- | --- | --- | --- |"]
    for rule in RULES:
        needs = ", ".join(
            need.replace("|", " or ") if need in set(Fact) else f"`{need.replace('|', '` or `')}`"
            for need in map(str, rule.needs)
        )
        lines.append(f"| {rule.code} | `{rule.name}` | {rule.severity} | {rule.meaning} | {needs or 'nothing'} |")
    return "\n".join(lines)


def _output(config: str | None, steps: tuple[int, int] | None) -> str:
    path = ROOT / config if config else None
    result = replay_log(ROOT / "sample_data" / "rollouts.parquet", config_path=path, isolated=True).result
    if steps is not None:
        result = select_steps(result, *steps)
    return f"```text\n{render_table(result, TableOptions(width=100))}```"


def _diff_output() -> str:
    a, b = CONFIGS
    sides = load_sides(a, b, RunRequest(paths=(SAMPLE,), isolated=True))
    return f"```text\n{render_diff_table(compare(*sides))}```"


def _gate_output() -> str:
    good, worse = (replay_log(SAMPLE, config_path=path, isolated=True).result for path in CONFIGS)
    report = judge(worse, collect_rules(GATE_RULES, None, None, None, ROOT), good)
    return f"```text\n{render_gate_table(report)}```"


COMPARED = (
    m.PUT_GROUPS, m.PRODUCED_TOKENS, m.TAKEN_GROUPS, m.TAKEN_TOKENS, m.TRAINED_TOKENS, m.MASKED_STALE_TOKENS,
    m.MASKED_SEMANTIC_TOKENS, m.DROPPED_TOKENS, m.RESET_TOKENS, m.EXPIRED_GROUPS, m.EXPIRED_AT_PUT,
    m.EXPIRED_AT_REFRESH, m.EXPIRED_BY_TOKEN, m.EXPIRED_BY_SEQUENCE, m.SEQ_STALENESS_SUM, m.FAILED_SAMPLES,
    m.FAILED_TOKENS,
    m.FILTERED_SAMPLES, m.FILTERED_TOKENS, m.RAW_REWARDS_SUM, m.RAW_REWARDS_COUNT, m.RESTARTED_TOKENS,
)  # fmt: skip


def prompt_order_table() -> str:
    """The sample's recorded steps, summed, beside simulations of it in both orders of prompts."""
    simulated = [simulate_workload(SAMPLE, isolated=True, prompt_order=order).result.steps for order in PromptOrder]
    runs = [replay_log(SAMPLE, isolated=True).result.steps, *simulated]
    recorded_end = json.loads((ROOT / "tests" / "sample_expected.json").read_text())["expected"][-1]["taken_at_us"]
    heads = ("metric", "recorded", "first-put", "off by", "group-id", "off by")
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for metric in COMPARED:
        values = [sum(row[metric.name] for row in rows) for rows in runs]
        lines.append(_compared(f"`{metric.name}`", values, ",.0f"))
    ends = [recorded_end, *(rows[-1][m.TAKEN_AT_US.name] for rows in simulated)]
    lines.append(_compared("time of the last take, s", [end / 1e6 for end in ends], ",.0f"))
    return "\n".join(lines)


def _compared(name: str, values: Sequence[float], spec: str) -> str:
    recorded = values[0]
    cells = [f"{recorded:{spec}}"]
    for value in values[1:]:
        cells += [f"{value:{spec}}", f"{100 * (value - recorded) / recorded:+.2f} %" if value != recorded else "0"]
    return f"| {name} | {' | '.join(cells)} |"


def generated_parts() -> dict[str, str]:
    return {
        "sample-output": _output(None, None),
        "worse-output": _output("sample_data/worse.toml", (26, 30)),
        "diff-output": _diff_output(),
        "gate-output": _gate_output(),
        "prompt-orders": prompt_order_table(),
        "metrics": metric_table(),
        "rates": rate_table(),
        "columns": column_table(),
        "audit-rules": rule_table(),
    }


def with_generated_parts(text: str) -> str:
    for name, part in generated_parts().items():
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, count = re.subn(pattern, lambda match, part=part: f"{match[1]}{part}\n{match[2]}", text, flags=re.DOTALL)
        assert count == 1, name
    return text


if __name__ == "__main__":
    README.write_text(with_generated_parts(README.read_text()))
