"""The parts of the README that are generated: `python tests/readme.py` rewrites them, a test compares them."""

from __future__ import annotations

import re
from pathlib import Path

from tokenaudit.audit.catalogue import RULES
from tokenaudit.audit.rules import Fact
from tokenaudit.metrics import METRICS
from tokenaudit.render.table import TableOptions, render_table
from tokenaudit.result import select_steps
from tokenaudit.schema import COLUMNS, EventKind
from tokenaudit.session import replay_log

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def metric_table() -> str:
    lines = ["| metric | unit | better | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{metric.name}` | {metric.unit} | {metric.better} | {metric.help} |" for metric in METRICS.values()]
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


def generated_parts() -> dict[str, str]:
    return {
        "sample-output": _output(None, None),
        "worse-output": _output("sample_data/worse.toml", (26, 30)),
        "metrics": metric_table(),
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
