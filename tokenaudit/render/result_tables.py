"""The tables of a run: a row per step, or per step and task, and a row per task, of the columns that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tokenaudit.compare.exact import number_text
from tokenaudit.compare.metric_values import Figure, Missing, row_value
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import printable
from tokenaudit.contracts.metrics import Metric, Total
from tokenaudit.render.blocks import (
    COLUMNS_HINT,
    NOTHING,
    Fit,
    Form,
    Phrase,
    Table,
    TableColumn,
    TableRow,
    Tone,
    share_text,
    value_text,
)
from tokenaudit.replay.result import TASKS, TRAIN_STEP, Result, RowData

SHOWN_ROWS = 40
"""Step rows that a terminal shows; longer runs are cut in the middle."""

DROPPED_SHARE = "dropped share"
"""The column of dropped tokens in percent of the tokens produced in the same row."""
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
    DROPPED_SHARE,
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
_COLUMNS_HINT = f"{COLUMNS_HINT}; --metrics chooses"
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
    DROPPED_SHARE,
    m.TRAINED_TOKENS.name,
    m.SHORTFALL_GROUPS.name,
    *_POLICY_KEYS,
    m.DROPPED_TOKENS.name,
    m.MASKED_STALE_TOKENS.name,
)


def step_table(result: Result, by_task: bool, figures: Sequence[Figure] | None) -> Table:
    """A row per step, or per step and task; the tail where it holds anything, and the totals."""
    simulated = () if result.simulation is None else _SIMULATED_STEP_METRICS
    chosen = (*_STEP_METRICS, *simulated) if figures is None else figures
    columns = [TableColumn("step", is_label=True)]
    if by_task:
        columns.append(TableColumn("task", "left", is_label=True, free_text=True))
    for figure in chosen:
        columns.append(TableColumn(figure.name))
        if figure is m.DROPPED_TOKENS and figures is None:
            columns.append(TableColumn(DROPPED_SHARE, form=Form.TERMINAL))
    labels = [column.name for column in columns if column.is_label]
    if figures is None:
        shortfall = [m.SHORTFALL_GROUPS.name] if any(_shortfalls(result)) else []
        priority = dict.fromkeys((*labels, *shortfall, *_STEP_PRIORITY, *(metric.name for metric in simulated)))
    else:
        priority = [column.name for column in columns]
    selecting = "--steps" if result.simulation is None else "--show-steps"
    fit = Fit(tuple(priority), SHOWN_ROWS, f"{selecting} A..B selects some, a pipe shows all", _COLUMNS_HINT)
    marked: dict[Figure, set[str]] = {
        metric: texts for metric, texts in _marked_cells(result).items() if metric in chosen
    }
    rows: list[TableRow] = []
    for label, row, form in _labelled_rows(result, chosen):
        for task, part in row[TASKS].items() if by_task else [("", row)]:
            cells: list[Phrase | str] = [label, printable(task)] if by_task else [label]
            if row is result.totals:
                part = _account(result, task if by_task else None) | part
            for figure in chosen:
                text = _figure_text(figure, part, row)
                cells.append(Phrase(text, Tone.BAD) if text in marked.get(figure, ()) else text)
                if figure is m.DROPPED_TOKENS and figures is None:
                    cells.append(dropped_share(part))
            rows.append(TableRow(cells, is_total=row is result.totals, form=form))
    return Table(columns, rows, fit=fit, legend=_LEGEND if any(marked.values()) else "")


def _labelled_rows(result: Result, figures: Sequence[Figure]) -> Iterator[tuple[str, RowData, Form | None]]:
    """Every row with its label and the only form that shows it: steps, the tail and the totals."""
    yield from ((str(row[TRAIN_STEP]), row, None) for row in result.steps)
    if not result.selection:
        holds_any = any(result.tail.get(figure.name) for figure in (*_STEP_METRICS, *figures))
        yield "tail", result.tail, None if holds_any else Form.DOCUMENT
    yield "whole run" if result.selection else "total", result.totals, None


def _figure_text(figure: Figure, part: RowData, row: RowData) -> str:
    """A figure of a row, or of one of its tasks; what belongs to the step comes from the row. Empty: there is none."""
    source = row if isinstance(figure, Metric) and figure.total is Total.STATE else part
    if isinstance(figure, Metric):
        return value_text(figure, source[figure.name]) if figure.name in source else ""
    value = row_value(source, figure)
    return "" if value is Missing.ABSENT else number_text(value, figure)


def _account(result: Result, task: str | None) -> RowData:
    """The tokens of a run, or of one of its tasks, by where they came from and ended, which its rows don't know."""
    account: RowData | None = result.ledger.get("total") if task is None else result.ledger.get(TASKS, {}).get(task)
    return account or {}


def _marked_cells(result: Result) -> dict[Metric, set[str]]:
    """Texts of cells that deserve colour: the worst values of a loss, and every shortfall."""
    marked: dict[Metric, set[str]] = {}
    for metric in (m.EXPIRED_GROUPS, m.DROPPED_TOKENS):
        worst_step = max((count_of(row, metric) for row in result.steps), default=0)
        worst_task = max((count_of(part, metric) for row in result.steps for part in row[TASKS].values()), default=0)
        marked[metric] = {value_text(metric, worst) for worst in (worst_step, max(worst_step, worst_task)) if worst}
    shortfalls = filter(None, _shortfalls(result))
    return marked | {m.SHORTFALL_GROUPS: {value_text(m.SHORTFALL_GROUPS, value) for value in shortfalls}}


def _shortfalls(result: Result) -> Iterator[int]:
    return (count_of(row, m.SHORTFALL_GROUPS) for row in (*result.steps, result.totals))


def task_table(result: Result, figures: Sequence[Figure] | None) -> Table:
    """A row per task: its policy, and what it comes to over the whole run."""
    parts = {task: _account(result, task) | part for task, part in result.totals[TASKS].items()}
    texts = {
        figure: [_figure_text(figure, part, {}) for part in parts.values()]
        for figure in (_TASK_METRICS if figures is None else figures)
    }
    # What belongs to a step as a whole has no column: no task has it.
    shown = {figure.name: cells for figure, cells in texts.items() if figures is None or any(cells)}
    if figures is None:
        shown[DROPPED_SHARE] = [dropped_share(part) for part in parts.values()]
    heading = of_run(result, "task")
    columns = [TableColumn(heading, "left", free_text=True)]
    columns += [TableColumn(name, free_text=True) for name in _POLICY_KEYS]
    columns += map(TableColumn, shown)
    rows: list[TableRow] = []
    for task, *values in zip(parts, *shown.values(), strict=True):
        policy = {**_section(result.config, "policy"), **_section(result.config, "tasks", task)}
        settings = (str(policy.get(key, NOTHING)) for key in _POLICY_KEYS)
        rows.append(TableRow((printable(task), *settings, *values)))
    priority = _TASK_PRIORITY if figures is None else (*shown, *_POLICY_KEYS)
    return Table(columns, rows, fit=Fit((heading, *priority)))


def of_run(result: Result, text: str) -> str:
    """A text about the whole run, which says so where steps are selected."""
    return f"{text} (whole run)" if result.selection else text


def _section(config: dict[str, Any], *path: str) -> dict[str, Any]:
    """A table of a saved config; empty where there is none."""
    section: Any = config
    for name in path:
        section = section.get(name) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else {}


def dropped_share(part: RowData) -> str:
    """Dropped tokens in percent of the tokens produced in the same row."""
    return share_text(count_of(part, m.DROPPED_TOKENS), count_of(part, m.PRODUCED_TOKENS))


def count_of(row: RowData, metric: Metric) -> int:
    """The count of a metric in a row; 0 where the row doesn't have it."""
    return row.get(metric.name) or 0
