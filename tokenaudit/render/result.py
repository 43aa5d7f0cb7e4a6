"""A replayed or simulated run: its steps, its tasks, where the tokens went, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenaudit.compare.metric_values import Figure
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import plural, printable
from tokenaudit.contracts.metrics import Metric
from tokenaudit.render.blocks import (
    Block,
    Charts,
    Form,
    Gap,
    Heading,
    Lines,
    Paragraph,
    Series,
    Table,
    TableColumn,
    TableRow,
    Tone,
    notice_lines,
    only,
    share_text,
)
from tokenaudit.render.cost import cost_lines
from tokenaudit.render.result_tables import DROPPED_SHARE, count_of, dropped_share, of_run, step_table, task_table
from tokenaudit.replay.result import EXPIRED_IDS, TAKEN_IDS, TRAIN_STEP, Result, RowData, intervals_text


def result_blocks(result: Result, *, by_task: bool = False, figures: Sequence[Figure] | None = None) -> Iterator[Block]:
    """Title, steps, tasks, ledger and verdict.

    Args:
        result: the run.
        by_task: one row per step and task.
        figures: the columns of both tables, beside the policy of a task; None: the usual ones.
    """
    yield Heading(result.kind.replace(".", " "), title(result))
    summary = [
        Paragraph(verdict(result), Tone.STRONG, literal=True),
        *(Paragraph(line) for line in simulation_lines(result)),
        *(Paragraph(line) for line in cost_lines(result.cost, of_run(result, ""))),
    ]
    yield from only(Form.DOCUMENT, *summary)
    if result.warnings:
        yield Lines(notice_lines(result.warnings), form=Form.DOCUMENT)
    steps = step_table(result, by_task, figures)
    if result.steps:
        yield Gap()
        yield from only(Form.TERMINAL, steps)
        if len(result.steps) > 1:
            yield Charts(list(_series(result)))
        yield Gap()
    yield task_table(result, figures)
    yield Gap()
    yield _ledger_table(result)
    yield Lines(list(_group_lines(result)), form=Form.TERMINAL)
    if result.intervals:
        yield Gap()
        yield Paragraph(
            f"{of_run(result, 'versions are spans')}: {intervals_text(result.intervals)}", form=Form.TERMINAL
        )
    yield from only(Form.DOCUMENT, steps)
    yield Gap()
    yield from only(Form.TERMINAL, *summary)


def title(result: Result) -> str:
    """What was replayed or simulated, and under which config."""
    parts = [
        ", ".join(printable(entry.name) for entry in result.inputs),
        plural(sum(entry.rows for entry in result.inputs), "row"),
        result.timeline if result.simulation else f"{result.timeline} timeline",
        f"config: {printable(result.config_source)}",
    ]
    return " · ".join(parts)


def verdict(result: Result) -> str:
    """The steps of the run in one line, and what expired behind the last of them."""
    steps = f"steps {result.selection}" if result.selection else plural(len(result.steps), "step")
    expired = _sum(result.steps, m.EXPIRED_GROUPS)
    dropped = share_text(_sum(result.steps, m.DROPPED_TOKENS), _sum(result.steps, m.PRODUCED_TOKENS))
    parts = [
        steps,
        f"{plural(expired, 'group')} expired{_reasons(result.steps, expired)}",
        f"{dropped} of produced tokens dropped",
    ]
    if not result.selection and count_of(result.totals, m.EXPIRED_GROUPS) != expired:
        parts.append(f"with the tail {count_of(result.totals, m.EXPIRED_GROUPS):,} and {dropped_share(result.totals)}")
    coverage = result.coverage
    if coverage.counterfactual_tokens:
        share = share_text(coverage.counterfactual_tokens, coverage.counterfactual_of_tokens)
        decided = ", simulate decides" if coverage.is_for_simulation else ""
        parts.append(f"{share} of {of_run(result, 'tokens')} rest on counterfactual rules{decided}")
    return " · ".join(parts)


def _reasons(rows: Sequence[RowData], expired: int) -> str:
    if expired == 0:
        return ""
    by_token, by_sequence = _sum(rows, m.EXPIRED_BY_TOKEN), _sum(rows, m.EXPIRED_BY_SEQUENCE)
    reasons = [f"{by_token:,} by token", f"{by_sequence:,} by sequence"]
    if expired > by_token + by_sequence:
        reasons.append(f"{expired - by_token - by_sequence:,} put as expired")
    return f" ({', '.join(reasons)})"


def simulation_lines(result: Result) -> list[str]:
    """What a simulated run took, and why it ended early if it did; empty for a replay."""
    if result.simulation is None:
        return []
    totals = result.totals
    wall = count_of(totals, m.WALL_TIME_US)
    parts = [f"{'whole run: ' if result.selection else ''}{wall / 1e6:,.1f} s simulated"]
    if trained := count_of(totals, m.TRAINED_TOKENS):
        parts.append(f"{count_of(totals, m.PRODUCED_TOKENS) / trained:.3f} tokens generated per trained token")
    for name, part in (
        ("trainer busy", m.TRAINER_BUSY_US),
        ("trainer waiting", m.TRAINER_WAIT_US),
        ("rollout busy", m.ROLLOUT_BUSY_US),
        ("producer paused", m.PRODUCER_PAUSED_US),
    ):
        parts.append(f"{name} {share_text(count_of(totals, part), wall)}")
    return [" · ".join(parts), *(f"stuck: {printable(task.message)}" for task in result.simulation.stuck)]


def _series(result: Result) -> Iterator[Series]:
    """Expired groups, and dropped tokens in percent of produced ones, over the steps shown; where there are any."""
    shown = f" of {result.selection}" if result.selection else ""
    expired = [float(count_of(row, m.EXPIRED_GROUPS)) for row in result.steps]
    dropped = [
        100 * count_of(row, m.DROPPED_TOKENS) / count_of(row, m.PRODUCED_TOKENS)
        if count_of(row, m.PRODUCED_TOKENS)
        else 0.0
        for row in result.steps
    ]
    for name, values, decimals, unit in ((m.EXPIRED_GROUPS.name, expired, 0, ""), (DROPPED_SHARE, dropped, 1, " %")):
        peak = max(values)
        if peak > 0:
            step = result.steps[values.index(peak)][TRAIN_STEP]
            yield Series(name, values, f"up to {peak:,.{decimals}f}{unit} (step {step}{shown})")


def _ledger_table(result: Result) -> Table:
    """Where the tokens went, with shares of all that came in, sources first; metrics of 0 tokens are left out."""
    total: dict[str, int] = result.ledger.get("total", {})
    whole = sum(total.get(metric.name, 0) for metric in m.LEDGER_SOURCES)
    amounts = {metric.name: total.get(metric.name, 0) for metric in (*m.LEDGER_SOURCES, *m.LEDGER_FATES)}
    name = of_run(result, "where the tokens went")
    rows = [TableRow((name, f"{tokens:,}", share_text(tokens, whole))) for name, tokens in amounts.items() if tokens]
    return Table([TableColumn(name, "left"), TableColumn("tokens"), TableColumn("share")], rows)


def _group_lines(result: Result) -> Iterator[str]:
    """The groups that were taken and that expired, where the result has their ids."""
    for row in result.steps:
        for name in (TAKEN_IDS, EXPIRED_IDS):
            for task, ids in row.get(name, {}).items():
                if ids:
                    yield f"{name} step {row[TRAIN_STEP]} {printable(task)}: {' '.join(map(str, ids))}"


def _sum(rows: Sequence[RowData], metric: Metric) -> int:
    return sum(count_of(row, metric) for row in rows)
