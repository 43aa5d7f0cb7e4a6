"""The parts of the README and the help topics that are generated.

`python -m tests.help.documents` rewrites them where they stand between `<!-- begin NAME -->` and `<!-- end NAME -->`; a
test compares them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from tokenaudit.audit.checks import RULES
from tokenaudit.audit.curve_definitions import DEFINITIONS
from tokenaudit.audit.curve_names import KNOWN
from tokenaudit.audit.rule import Fact
from tokenaudit.cli import app
from tokenaudit.config.commented import commented_toml
from tokenaudit.config.model import Config
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import METRICS, RATES
from tokenaudit.contracts.schema import COLUMNS, EventKind
from tokenaudit.corrections.methods import WELL_KNOWN
from tokenaudit.corrections.trainers import ALIASES, TRAINERS, correction_class
from tokenaudit.help.topics import topics, trainer_topics
from tokenaudit.importers.detect import IMPORTERS
from tokenaudit.render.console import Terminal, console_text
from tokenaudit.render.result import result_blocks
from tokenaudit.replay.request import PromptOrder
from tokenaudit.replay.result import select_steps
from tokenaudit.replay.session import replay_log
from tokenaudit.simulate.session import simulate_workload

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
TOPIC_FOLDER = ROOT / "tokenaudit" / "help"
DOCUMENTS = (README, *sorted(TOPIC_FOLDER.rglob("*.md")))
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


def corrected_table() -> str:
    """The figures that gate rules about a correction have."""
    lines = ["| name | better | meaning |", "| --- | --- | --- |"]
    return "\n".join(
        lines
        + [f"| `{one.name}` | {one.better} | {one.help} |" for one in (*m.CORRECTION_METRICS, *m.CORRECTION_RATES)]
    )


def curve_table() -> str:
    """The curves that trainers log; those of a maximum and minimum stand with their mean."""
    names = {known.name for known in KNOWN}
    lines = ["| trainer | curve | the log's | first step |", "| --- | --- | --- | --- |"]
    for known in KNOWN:
        if not known.trainer or re.sub(r"(max|min)$", "mean", known.name) in names - {known.name}:
            continue
        others = [stat for stat in ("max", "min") if re.sub("mean$", stat, known.name) in names - {known.name}]
        also = f" (and {', '.join(f'…{stat}' for stat in others)})" if others else ""
        plus = f" {known.plus:+d}" if known.plus else ""
        note = f" ({known.inexact})" if known.inexact else ""
        lines.append(f"| {known.trainer} | `{known.name}`{also} | `{known.ours}`{plus}{note} | {known.first_step} |")
    return "\n".join(lines)


def setting_table() -> str:
    """The corrections that are shown where none is named."""
    lines = ["| name | setting |", "| --- | --- |"]
    return "\n".join(lines + [f"| `{name}` | `{setting}` |" for name, setting in WELL_KNOWN.items()])


def preset_list() -> str:
    """The options of every preset, with their defaults and what else they may be."""
    alias = {preset: name for name, preset in ALIASES.items()}
    found: dict[str, list[str]] = {}
    for preset in TRAINERS:
        kind = correction_class(preset)
        source = kind.SOURCE.partition(",")[0]
        options = ", ".join(_options(kind))
        if preset == "miles":
            options = f"as slime ({source})"
        elif preset == "slime-mis":
            options = "slime with `function=mis`"
        else:
            options = f"{source}: {options}"
        also = f" (or `{alias[preset]}`)" if preset in alias else ""
        found[preset] = textwrap.wrap(
            f"- `{preset}`{also}: {options}",
            120,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    return "\n".join(line for lines in found.values() for line in lines)


def _options(kind: type[BaseModel], above: str = "") -> Iterator[str]:
    """`name=default` of every option, and the other words it may be."""
    for name, field in kind.model_fields.items():
        inner = [one for one in _types(field.annotation) if isinstance(one, type) and issubclass(one, BaseModel)]
        is_list = get_origin(field.annotation) is tuple and inner
        if inner and not is_list:
            if field.default is None:
                yield f"`{above}{name}=null`"
            yield from _options(inner[0], f"{above}{name}.")
            continue
        words = [str(one) for one in _types(field.annotation) if isinstance(one, str) and one != field.default]
        default = "[]" if is_list else field.default if isinstance(field.default, str) else json.dumps(field.default)
        text = f"`{above}{name}={default}`"
        each = f" of tables with {', '.join(_options(inner[0]))}" if is_list else ""
        yield text + each + (f" ({', '.join(words)})" if words else "")


def _types(annotation: Any) -> Iterator[Any]:
    """The types and literal values in an annotation."""
    yield annotation
    for part in get_args(annotation):
        yield from _types(part)


def series_table() -> str:
    """The series of a log that are neither metrics nor rates."""
    lines = ["| series | unit | meaning |", "| --- | --- | --- |"]
    lines += [
        f"| `{one.name}` | {one.unit} | {one.text} |"
        for one in DEFINITIONS.values()
        if one.name not in METRICS and one.name not in RATES and not one.name.endswith(("_max", "_min"))
    ]
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
            " or ".join(one if one in set(Fact) else f"`{one}`" for one in need.split("|"))
            for need in map(str, rule.needs)
        )
        lines.append(f"| {rule.code} | `{rule.name}` | {rule.severity} | {rule.meaning} | {needs or 'nothing'} |")
    return "\n".join(lines)


def command_table() -> str:
    lines = ["| command | what it does |", "| --- | --- |"]
    lines += [f"| `tokenaudit {name}` | {purpose} |" for name, purpose, _ in _commands()]
    return "\n".join(lines)


def command_examples() -> str:
    lines = ["| command | what it does | example |", "| --- | --- | --- |"]
    lines += [f"| `tokenaudit {name}` | {purpose} | `{example}` |" for name, purpose, example in _commands()]
    return "\n".join(lines)


def _commands() -> list[tuple[str, str, str]]:
    """Name, first sentences and example of every command, as `--help` has them."""
    found = []
    for command in app.registered_commands:
        assert command.callback is not None
        assert command.epilog is not None
        assert command.help is not None
        purpose = " ".join(command.help.split("\n\n")[0].split())
        name = command.name or command.callback.__name__
        found.append(
            (name, purpose.replace("|", "\\|"), command.epilog.removeprefix("\b\nExample: ").replace("|", "\\|"))
        )
    return found


def topic_table() -> str:
    lines = ["| topic | what it holds |", "| --- | --- |"]
    return "\n".join(lines + [f"| `{topic.name}` | {topic.line} |" for topic in topics()])


def trainer_table() -> str:
    lines = ["| topic | what it imports |", "| --- | --- |"]
    return "\n".join(lines + [f"| `{topic.name}` | {topic.line} |" for topic in trainer_topics()])


def shape_table() -> str:
    heads = ("trainer", "version", "file", "`--from`", "what comes through")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for importer in IMPORTERS.values():
        for shape in importer.shapes:
            cells = (shape.trainer, shape.version, f"`{shape.file}`", f"`{importer.name}`", ", ".join(shape.gives))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _output(config: str | None, steps: tuple[int, int] | None) -> str:
    path = ROOT / config if config else None
    result = replay_log(SAMPLE, config_path=path, isolated=True).result
    if steps is not None:
        result = select_steps(result, *steps)
    return console_text(result_blocks(result), Terminal(width=100))


@cache
def _sample_output() -> str:
    return _output(None, None)


def _printed(*arguments: str | Path, folder: Path = ROOT) -> str:
    """What a command prints in a pipe."""
    command = [sys.executable, "-m", "tokenaudit", *arguments, "-q"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout


@cache
def _explain_output() -> str:
    return _printed("explain", SAMPLE, "--group", "code/102")


@cache
def _explain_log_output() -> str:
    return _printed("explain", SAMPLE.relative_to(ROOT))


@cache
def _diff_output() -> str:
    return _printed("diff", *CONFIGS, "--log", SAMPLE)


@cache
def _gate_output() -> str:
    good, worse = CONFIGS
    with TemporaryDirectory() as folder:
        baseline = Path(folder) / "baseline.json"
        _printed("gate", SAMPLE, "-c", good, "--write-baseline", baseline)
        rules = (part for rule in GATE_RULES for part in ("--rule", rule))
        return _printed("gate", SAMPLE, "-c", worse, "--baseline", baseline, *rules)


def _simulate_output() -> str:
    result = select_steps(simulate_workload(SAMPLE, isolated=True).result, 26, 30)
    return console_text(result_blocks(result), Terminal(width=120))


def shown(text: str) -> str:
    return f"```text\n{text}```"


def excerpt(text: str, *parts: tuple[str, str]) -> str:
    """Parts of an output, with a line of dots between them.

    Each part reaches from the first line that begins with one text to the first one after it that begins with another.
    """
    lines, place, kept = text.splitlines(), 0, []
    for first, last in parts:
        begin = next(index for index in range(place, len(lines)) if lines[index].strip().startswith(first))
        place = next(index for index in range(begin, len(lines)) if lines[index].strip().startswith(last)) + 1
        kept.append("\n".join(lines[begin:place]))
    return "\n...\n".join(kept) + "\n"


COMPARED = (
    m.PUT_GROUPS, m.PRODUCED_TOKENS, m.TAKEN_GROUPS, m.TAKEN_TOKENS, m.TRAINED_TOKENS, m.MASKED_STALE_TOKENS,
    m.MASKED_SEMANTIC_TOKENS, m.DROPPED_TOKENS, m.RESET_TOKENS, m.EXPIRED_GROUPS, m.EXPIRED_AT_PUT,
    m.EXPIRED_AT_REFRESH, m.EXPIRED_BY_TOKEN, m.EXPIRED_BY_SEQUENCE, m.SEQ_STALENESS_SUM, m.FAILED_SAMPLES,
    m.FAILED_TOKENS,
    m.FILTERED_SAMPLES, m.FILTERED_TOKENS, m.RAW_REWARDS_SUM, m.RAW_REWARDS_COUNT, m.RESTARTED_TOKENS,
)  # fmt: skip


def prompt_order_table() -> str:
    """The sample's recorded steps, summed, beside simulations of it in every order of prompts."""
    orders = [order for order in PromptOrder if order is not PromptOrder.AUTO]
    simulated = [simulate_workload(SAMPLE, isolated=True, prompt_order=order).result.steps for order in orders]
    runs = [replay_log(SAMPLE, isolated=True).result.steps, *simulated]
    recorded_end = json.loads((ROOT / "tests" / "sample_expected.json").read_text())["expected"][-1]["taken_at_us"]
    heads = ("metric", "recorded", *(head for order in orders for head in (order.value, "off by")))
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


TRIGGERS = (-1, 0, 2, 6, 12)


def trigger_table() -> str:
    """What simulations of the sample with several values of tail_batch_trigger_size cost."""
    heads = (
        "`tail_batch_trigger_size`", "fresh tokens lost", "`dropped_tokens`", "`trained_tokens`",
        "generated per trained token", "tail-batch rounds", "simulated time",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"|{' ---: |' * len(heads)}"]
    for trigger in TRIGGERS:
        overrides = [f"tasks.{task}.tail_batch_trigger_size={trigger}" for task in ("math", "code")]
        result = simulate_workload(SAMPLE, isolated=True, overrides=overrides).result
        totals = result.totals
        counts = [
            f"{totals[metric.name]:,}" for metric in (m.DISCARDED_FRESH_TOKENS, m.DROPPED_TOKENS, m.TRAINED_TOKENS)
        ]
        ratio = f"{totals[m.PRODUCED_TOKENS.name] / totals[m.TRAINED_TOKENS.name]:.3f}"
        end = f"{result.steps[-1][m.TAKEN_AT_US.name] / 1e6:,.0f} s"
        cells = [str(trigger), *counts, ratio, f"{totals[m.TAIL_BATCH_ROUNDS.name]:,}", end]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "sample-output": lambda: shown(_sample_output()),
    "sample-excerpt": lambda: shown(
        excerpt(
            _sample_output(), ("rollouts.parquet", "3 "), ("30 ", "total "), ("tail", "masked_stale"), ("held", "with")
        )
    ),
    "worse-output": lambda: shown(_output("sample_data/worse.toml", (26, 30))),
    "explain-log-output": lambda: shown(_explain_log_output()),
    "explain-output": lambda: shown(_explain_output()),
    "explain-excerpt": lambda: shown(
        excerpt(
            _explain_log_output(),
            ("18.4 %", "18.4 %"),
            ("How much", "tasks.code.max_staleness=4"),
            ("next,", "tokenaudit"),
        )
    ),
    "diff-output": lambda: shown(_diff_output()),
    "diff-excerpt": lambda: shown(
        excerpt(
            _diff_output(), ("setting", "tasks.math.tail"), ("total", "──"), ("trained_tokens", "dropped"),
        )
    ),
    "gate-output": lambda: shown(_gate_output()),
    "simulate-output": lambda: shown(_simulate_output()),
    "prompt-orders": prompt_order_table,
    "trigger-sizes": trigger_table,
    "metrics": metric_table,
    "rates": rate_table,
    "correction-metrics": corrected_table,
    "columns": column_table,
    "curves": curve_table,
    "curve-series": series_table,
    "correction-settings": setting_table,
    "correction-presets": preset_list,
    "audit-rules": rule_table,
    "config-keys": lambda: f"```toml\n{commented_toml(Config())}```",
    "commands": command_table,
    "command-examples": command_examples,
    "topics": topic_table,
    "trainers": trainer_table,
    "shapes": shape_table,
}  # fmt: skip
"""How the generated parts are made, by name."""

MARKED = re.compile(r"(<!-- begin ([\w-]+) -->\n)(.*?)(<!-- end \2 -->)", flags=re.DOTALL)
"""A generated part: its beginning, name, content and end."""


def with_generated_parts(text: str) -> str:
    return MARKED.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[4]}", text)


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(with_generated_parts(document.read_text()))
