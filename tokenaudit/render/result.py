"""A replayed or simulated run: its steps, its tasks, where the tokens went, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import printable
from tokenaudit.contracts.metrics import Metric, Total
from tokenaudit.render.blocks import (
    COLUMNS_HINT,
    NOTHING,
    Block,
    Charts,
    Fit,
    Form,
    Gap,
    Heading,
    Lines,
    Paragraph,
    Phrase,
    Series,
    Table,
    TableColumn,
    TableRow,
    Tone,
    count_text,
    notice_lines,
    only,
    share_text,
    value_text,
)
from tokenaudit.replay.result import EXPIRED_IDS, TAKEN_IDS, TASKS, TRAIN_STEP, Result, RowData, intervals_text

SHOWN_ROWS = 40
"""Step rows that a terminal shows; longer runs are cut in the middle."""

_DROPPED_SHARE = "dropped share"
"""TableColumn of dropped tokens in percent of the tokens produced in the same row."""
_STEP_METRICS: tuple[Metric, ...] = (
    m.MODEL_STEP,
    m.PUT_GROUPS,
    m.PRODUCED_TOKENS,
    m.EXPIRED_GROUPS,
    m.EXPIRED_BY_TOKEN,
    m.EXPIRED_BY_SEQUENCE,
    m.DROPPED_TOKENS,
    m.TAKEN_GROUPS,
    m.SHORTFALL_GROUPS,
    m.TRAINED_TOKENS,
    m.MASKED_STALE_TOKENS,
    m.LEFTOVER_COMPLETED,
    m.LEFTOVER_ABORTED,
    m.LEFTOVER_EXPIRED,
    m.SEQ_STALENESS_MAX,
    m.TOKEN_STALENESS_P95,
)
"""The metrics a table of steps shows."""
_SIMULATED_STEP_METRICS: tuple[Metric, ...] = (
    m.TAKEN_AT_US,
    m.TRAINER_WAIT_US,
    m.ROLLOUT_IDLE_US,
    m.IN_FLIGHT_GROUPS,
    m.ABORTED_GROUPS,
    m.TAIL_BATCH_ROUNDS,
    m.PRODUCER_PAUSED_US,
    m.EXPIRED_BATCH,
)
"""What a table of simulated steps shows beyond that, behind it; a narrow terminal keeps them last, in this order."""
_LEGEND = "red: the most expired_groups and dropped_tokens of a step and of a task in a step, and every shortfall"
_STEP_PRIORITY: tuple[str, ...] = (
    m.EXPIRED_GROUPS.name,
    _DROPPED_SHARE,
    m.DROPPED_TOKENS.name,
    m.PRODUCED_TOKENS.name,
    m.TRAINED_TOKENS.name,
    m.MASKED_STALE_TOKENS.name,
    m.TAKEN_GROUPS.name,
    m.EXPIRED_BY_TOKEN.name,
    m.EXPIRED_BY_SEQUENCE.name,
    m.PUT_GROUPS.name,
    m.SEQ_STALENESS_MAX.name,
    m.TOKEN_STALENESS_P95.name,
    m.SHORTFALL_GROUPS.name,
    m.LEFTOVER_COMPLETED.name,
    m.LEFTOVER_EXPIRED.name,
    m.LEFTOVER_ABORTED.name,
    m.MODEL_STEP.name,
)
"""Columns of the table of steps in the order in which a narrow terminal keeps them."""
_POLICY_KEYS = ("max_staleness", "max_token_staleness", "tail_batch_trigger_size")
_TASK_METRICS: tuple[Metric, ...] = (
    m.EXPIRED_GROUPS,
    m.DROPPED_TOKENS,
    m.TRAINED_TOKENS,
    m.MASKED_STALE_TOKENS,
    m.SHORTFALL_GROUPS,
)
"""The metrics a table of tasks shows, behind the policy of the task."""
_TASK_PRIORITY: tuple[str, ...] = (
    m.EXPIRED_GROUPS.name,
    _DROPPED_SHARE,
    m.TRAINED_TOKENS.name,
    m.SHORTFALL_GROUPS.name,
    *_POLICY_KEYS,
    m.DROPPED_TOKENS.name,
    m.MASKED_STALE_TOKENS.name,
)


def result_blocks(result: Result, *, by_task: bool = False) -> Iterator[Block]:
    """Title, steps, tasks, ledger and verdict.

    Args:
        result: the run.
        by_task: one row per step and task.
    """
    yield Heading(result.kind.replace(".", " "), title(result))
    summary = [
        Paragraph(verdict(result), Tone.STRONG, literal=True),
        *(Paragraph(line) for line in simulation_lines(result)),
    ]
    yield from only(Form.DOCUMENT, *summary)
    if result.warnings:
        yield Lines(notice_lines(result.warnings), form=Form.DOCUMENT)
    steps = _step_table(result, by_task)
    if result.steps:
        yield Gap()
        yield from only(Form.TERMINAL, steps)
        if len(result.steps) > 1:
            yield Charts(list(_series(result)))
        yield Gap()
    yield _task_table(result)
    yield Gap()
    yield _ledger_table(result)
    yield Lines(list(_group_lines(result)), form=Form.TERMINAL)
    if result.intervals:
        yield Gap()
        yield Paragraph(
            f"{_of_run(result, 'versions are spans')}: {intervals_text(result.intervals)}", form=Form.TERMINAL
        )
    yield from only(Form.DOCUMENT, steps)
    yield Gap()
    yield from only(Form.TERMINAL, *summary)


def title(result: Result) -> str:
    """What was replayed or simulated, and under which config."""
    parts = [
        ", ".join(printable(entry.name) for entry in result.inputs),
        count_text(sum(entry.rows for entry in result.inputs), "row"),
        result.timeline if result.simulation else f"{result.timeline} timeline",
        f"config: {printable(result.config_source)}",
    ]
    return " · ".join(parts)


def verdict(result: Result) -> str:
    """The steps of the run in one line, and what expired behind the last of them."""
    steps = f"steps {result.selection}" if result.selection else count_text(len(result.steps), "step")
    expired = _sum(result.steps, m.EXPIRED_GROUPS)
    dropped = share_text(_sum(result.steps, m.DROPPED_TOKENS), _sum(result.steps, m.PRODUCED_TOKENS))
    parts = [
        steps,
        f"{count_text(expired, 'group')} expired{_reasons(result.steps, expired)}",
        f"{dropped} of produced tokens dropped",
    ]
    if not result.selection and _of(result.totals, m.EXPIRED_GROUPS) != expired:
        parts.append(f"with the tail {_of(result.totals, m.EXPIRED_GROUPS):,} and {_dropped_share(result.totals)}")
    coverage = result.coverage
    if coverage.counterfactual_tokens:
        share = share_text(coverage.counterfactual_tokens, coverage.counterfactual_of_tokens)
        decided = ", simulate decides" if coverage.is_for_simulation else ""
        parts.append(f"{share} of {_of_run(result, 'tokens')} rest on counterfactual rules{decided}")
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
    wall = _of(totals, m.WALL_TIME_US)
    parts = [f"{'whole run: ' if result.selection else ''}{wall / 1e6:,.1f} s simulated"]
    if trained := _of(totals, m.TRAINED_TOKENS):
        parts.append(f"{_of(totals, m.PRODUCED_TOKENS) / trained:.3f} tokens generated per trained token")
    for name, part in (
        ("trainer busy", m.TRAINER_BUSY_US),
        ("trainer waiting", m.TRAINER_WAIT_US),
        ("rollout busy", m.ROLLOUT_BUSY_US),
        ("producer paused", m.PRODUCER_PAUSED_US),
    ):
        parts.append(f"{name} {share_text(_of(totals, part), wall)}")
    return [" · ".join(parts), *(f"stuck: {printable(task.message)}" for task in result.simulation.stuck)]


def _step_table(result: Result, by_task: bool) -> Table:
    """A row per step, or per step and task; the tail where it holds anything, and the totals."""
    simulated = () if result.simulation is None else _SIMULATED_STEP_METRICS
    metrics = (*_STEP_METRICS, *simulated)
    columns = [TableColumn("step", is_label=True)]
    if by_task:
        columns.append(TableColumn("task", "left", is_label=True, free_text=True))
    for metric in metrics:
        columns.append(TableColumn(metric.name))
        if metric is m.DROPPED_TOKENS:
            columns.append(TableColumn(_DROPPED_SHARE, form=Form.TERMINAL))
    shortfall = [m.SHORTFALL_GROUPS.name] if any(_shortfalls(result)) else []
    labels = [column.name for column in columns if column.is_label]
    priority = dict.fromkeys((*labels, *shortfall, *_STEP_PRIORITY, *(metric.name for metric in simulated)))
    selecting = "--steps" if result.simulation is None else "--show-steps"
    fit = Fit(tuple(priority), SHOWN_ROWS, f"{selecting} A..B selects some, a pipe shows all", COLUMNS_HINT)
    marked = _marked_cells(result)
    rows: list[TableRow] = []
    for label, row, form in _labelled_rows(result):
        for task, part in row[TASKS].items() if by_task else [("", row)]:
            labels = [label, printable(task)] if by_task else [label]
            cells = (*labels, *_step_cells(part, row, metrics, marked))
            rows.append(TableRow(cells, is_total=row is result.totals, form=form))
    return Table(columns, rows, fit=fit, legend=_LEGEND if any(marked.values()) else "")


def _labelled_rows(result: Result) -> Iterator[tuple[str, RowData, Form | None]]:
    """Every row with its label and the only form that shows it: steps, the tail and the totals."""
    yield from ((str(row[TRAIN_STEP]), row, None) for row in result.steps)
    if not result.selection:
        holds_any = any(result.tail.get(metric.name) for metric in _STEP_METRICS)
        yield "tail", result.tail, None if holds_any else Form.DOCUMENT
    yield "whole run" if result.selection else "total", result.totals, None


def _step_cells(
    part: RowData, row: RowData, metrics: Sequence[Metric], marked: dict[Metric, set[str]]
) -> Iterator[Phrase | str]:
    """Texts of a row, or of one of its tasks, those in `marked` as bad; what belongs to the step comes from the row."""
    for metric in metrics:
        source = row if metric.total is Total.STATE else part
        text = value_text(metric, source[metric.name]) if metric.name in source else ""
        yield Phrase(text, Tone.BAD) if text in marked.get(metric, ()) else text
        if metric is m.DROPPED_TOKENS:
            yield _dropped_share(part)


def _marked_cells(result: Result) -> dict[Metric, set[str]]:
    """Texts of cells that deserve colour: the worst values of a loss, and every shortfall."""
    marked: dict[Metric, set[str]] = {}
    for metric in (m.EXPIRED_GROUPS, m.DROPPED_TOKENS):
        worst_step = max((_of(row, metric) for row in result.steps), default=0)
        worst_task = max((_of(part, metric) for row in result.steps for part in row[TASKS].values()), default=0)
        marked[metric] = {value_text(metric, worst) for worst in (worst_step, max(worst_step, worst_task)) if worst}
    shortfalls = filter(None, _shortfalls(result))
    return marked | {m.SHORTFALL_GROUPS: {value_text(m.SHORTFALL_GROUPS, value) for value in shortfalls}}


def _shortfalls(result: Result) -> Iterator[int]:
    return (_of(row, m.SHORTFALL_GROUPS) for row in (*result.steps, result.totals))


def _series(result: Result) -> Iterator[Series]:
    """Expired groups, and dropped tokens in percent of produced ones, over the steps shown; where there are any."""
    shown = f" of {result.selection}" if result.selection else ""
    expired = [float(_of(row, m.EXPIRED_GROUPS)) for row in result.steps]
    dropped = [
        100 * _of(row, m.DROPPED_TOKENS) / _of(row, m.PRODUCED_TOKENS) if _of(row, m.PRODUCED_TOKENS) else 0.0
        for row in result.steps
    ]
    for name, values, decimals, unit in ((m.EXPIRED_GROUPS.name, expired, 0, ""), (_DROPPED_SHARE, dropped, 1, " %")):
        peak = max(values)
        if peak > 0:
            step = result.steps[values.index(peak)][TRAIN_STEP]
            yield Series(name, values, f"up to {peak:,.{decimals}f}{unit} (step {step}{shown})")


def _task_table(result: Result) -> Table:
    """A row per task: its policy, and what it comes to over the whole run."""
    names = (*_POLICY_KEYS, *(metric.name for metric in _TASK_METRICS), _DROPPED_SHARE)
    rows: list[TableRow] = []
    for task, part in result.totals[TASKS].items():
        policy = {**_section(result.config, "policy"), **_section(result.config, "tasks", task)}
        settings = (str(policy.get(key, NOTHING)) for key in _POLICY_KEYS)
        values = (value_text(metric, part.get(metric.name)) for metric in _TASK_METRICS)
        rows.append(TableRow((printable(task), *settings, *values, _dropped_share(part))))
    heading = _of_run(result, "task")
    columns = [TableColumn(heading, "left", free_text=True)]
    columns += [TableColumn(name, free_text=name in _POLICY_KEYS) for name in names]
    return Table(columns, rows, fit=Fit((heading, *_TASK_PRIORITY)))


def _of_run(result: Result, text: str) -> str:
    """A text about the whole run, which says so where steps are selected."""
    return f"{text} (whole run)" if result.selection else text


def _section(config: dict[str, Any], *path: str) -> dict[str, Any]:
    """A table of a saved config; empty where there is none."""
    section: Any = config
    for name in path:
        section = section.get(name) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else {}


def _ledger_table(result: Result) -> Table:
    """Where the tokens went, with shares of all that came in, sources first; metrics of 0 tokens are left out."""
    total: dict[str, int] = result.ledger.get("total", {})
    whole = sum(total.get(metric.name, 0) for metric in m.LEDGER_SOURCES)
    amounts = {metric.name: total.get(metric.name, 0) for metric in (*m.LEDGER_SOURCES, *m.LEDGER_FATES)}
    name = _of_run(result, "where the tokens went")
    rows = [TableRow((name, f"{tokens:,}", share_text(tokens, whole))) for name, tokens in amounts.items() if tokens]
    return Table([TableColumn(name, "left"), TableColumn("tokens"), TableColumn("share")], rows)


def _group_lines(result: Result) -> Iterator[str]:
    """The groups that were taken and that expired, where the result has their ids."""
    for row in result.steps:
        for name in (TAKEN_IDS, EXPIRED_IDS):
            for task, ids in row.get(name, {}).items():
                if ids:
                    yield f"{name} step {row[TRAIN_STEP]} {printable(task)}: {' '.join(map(str, ids))}"


def _dropped_share(part: RowData) -> str:
    return share_text(_of(part, m.DROPPED_TOKENS), _of(part, m.PRODUCED_TOKENS))


def _sum(rows: Sequence[RowData], metric: Metric) -> int:
    return sum(_of(row, metric) for row in rows)


def _of(row: RowData, metric: Metric) -> int:
    return row.get(metric.name) or 0
