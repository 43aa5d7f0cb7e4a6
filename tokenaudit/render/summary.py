"""What a run comes to, in a line or a few: shared by the table and Markdown."""

from __future__ import annotations

from typing import Any

from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import Metric, Total
from tokenaudit.render.text import NOTHING, count_text, printable, share_text, value_text
from tokenaudit.replay.result import TASKS, TRAIN_STEP, Result, RowData

DROPPED_SHARE = "dropped share"
"""Column of dropped tokens in percent of the tokens produced in the same row."""

STEP_METRICS: tuple[Metric, ...] = (
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

STEP_COLUMNS: tuple[str, ...] = tuple(
    name
    for metric in STEP_METRICS
    for name in ((metric.name, DROPPED_SHARE) if metric is m.DROPPED_TOKENS else (metric.name,))
)
"""Their names with the share of dropped tokens, in the order of the columns."""

_MOST_TELLING: tuple[Metric, ...] = (
    m.DROPPED_TOKENS,
    m.PRODUCED_TOKENS,
    m.TRAINED_TOKENS,
    m.MASKED_STALE_TOKENS,
    m.TAKEN_GROUPS,
    m.EXPIRED_BY_TOKEN,
    m.EXPIRED_BY_SEQUENCE,
    m.PUT_GROUPS,
    m.SEQ_STALENESS_MAX,
    m.TOKEN_STALENESS_P95,
    m.SHORTFALL_GROUPS,
    m.LEFTOVER_COMPLETED,
    m.LEFTOVER_EXPIRED,
    m.LEFTOVER_ABORTED,
    m.MODEL_STEP,
)
WIDTH_PRIORITY: tuple[str, ...] = (
    m.EXPIRED_GROUPS.name,
    DROPPED_SHARE,
    *(metric.name for metric in _MOST_TELLING),
)
"""The same, in the order in which a narrow terminal keeps them."""


SIMULATED_STEP_METRICS: tuple[Metric, ...] = (
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


def step_metrics(result: Result) -> tuple[Metric, ...]:
    """The metrics a table of its steps shows."""
    return STEP_METRICS if result.simulation is None else (*STEP_METRICS, *SIMULATED_STEP_METRICS)


def step_columns(result: Result) -> tuple[str, ...]:
    """Their names with the share of dropped tokens, in the order of the columns."""
    return (*STEP_COLUMNS, *(metric.name for metric in step_metrics(result)[len(STEP_METRICS) :]))


def width_priority(result: Result) -> tuple[str, ...]:
    """The same, in the order in which a narrow terminal keeps them."""
    return (*WIDTH_PRIORITY, *(metric.name for metric in step_metrics(result)[len(STEP_METRICS) :]))


def step_values(part: RowData, row: RowData) -> dict[str, str]:
    """Texts of what a table of steps shows, by name; what a part lacks is left out.

    Args:
        part: a row, or the row of one of its tasks.
        row: the whole row, which tells what belongs to the step.
    """
    metrics = (*STEP_METRICS, *SIMULATED_STEP_METRICS)
    sources = ((metric, row if metric.total is Total.STATE else part) for metric in metrics)
    return {metric.name: value_text(metric, source[metric.name]) for metric, source in sources if metric.name in source}


def title(result: Result) -> str:
    """What was replayed or simulated, and under which config."""
    names = ", ".join(printable(entry.name) for entry in result.inputs)
    rows = sum(entry.rows for entry in result.inputs)
    parts = [
        names,
        count_text(rows, "row"),
        result.timeline if result.simulation else f"{result.timeline} timeline",
        f"config: {printable(result.config_source)}",
    ]
    return " · ".join(parts)


TASK_METRICS: tuple[Metric, ...] = (
    m.EXPIRED_GROUPS,
    m.DROPPED_TOKENS,
    m.TRAINED_TOKENS,
    m.MASKED_STALE_TOKENS,
    m.SHORTFALL_GROUPS,
)
"""The metrics a table of tasks shows, behind the policy of the task."""

_POLICY_KEYS = ("max_staleness", "max_token_staleness", "tail_batch_trigger_size")


TASK_PRIORITY: tuple[str, ...] = (
    "task",
    m.EXPIRED_GROUPS.name,
    DROPPED_SHARE,
    m.TRAINED_TOKENS.name,
    m.SHORTFALL_GROUPS.name,
    *_POLICY_KEYS,
    m.DROPPED_TOKENS.name,
    m.MASKED_STALE_TOKENS.name,
)
"""The columns of `task_rows` in the order in which a narrow terminal keeps them."""


def task_header() -> list[str]:
    """Names of the columns of `task_rows`."""
    return ["task", *_POLICY_KEYS, *(metric.name for metric in TASK_METRICS), DROPPED_SHARE]


def task_rows(result: Result) -> list[list[str]]:
    """One row per task: its policy, and what it comes to over the whole run."""
    rows: list[list[str]] = []
    for task, part in result.totals[TASKS].items():
        policy = {**_section(result.config, "policy"), **_section(result.config, "tasks", task)}
        values = [value_text(metric, part.get(metric.name)) for metric in TASK_METRICS]
        share = share_text(_of(part, m.DROPPED_TOKENS), _of(part, m.PRODUCED_TOKENS))
        rows.append([printable(task), *(str(policy.get(key, NOTHING)) for key in _POLICY_KEYS), *values, share])
    return rows


def _section(config: dict[str, Any], *path: str) -> dict[str, Any]:
    """A table of a saved config; empty where there is none."""
    section: Any = config
    for name in path:
        section = section.get(name) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else {}


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
        whole = share_text(_of(result.totals, m.DROPPED_TOKENS), _of(result.totals, m.PRODUCED_TOKENS))
        parts.append(f"with the tail {_of(result.totals, m.EXPIRED_GROUPS):,} and {whole}")
    coverage = result.coverage
    if coverage.counterfactual_tokens:
        share = share_text(coverage.counterfactual_tokens, coverage.counterfactual_of_tokens)
        parts.append(f"{share} of tokens rest on counterfactual rules")
    return " · ".join(parts)


def simulation_lines(result: Result) -> list[str]:
    """What a simulated run took, and why it ended early if it did; empty for a replay."""
    if result.simulation is None:
        return []
    totals = result.totals
    wall = _of(totals, m.WALL_TIME_US)
    parts = [f"{wall / 1e6:,.1f} s simulated"]
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


def _reasons(rows: list[RowData], expired: int) -> str:
    if expired == 0:
        return ""
    by_token, by_sequence = _sum(rows, m.EXPIRED_BY_TOKEN), _sum(rows, m.EXPIRED_BY_SEQUENCE)
    reasons = [f"{by_token:,} by token", f"{by_sequence:,} by sequence"]
    if expired > by_token + by_sequence:
        reasons.append(f"{expired - by_token - by_sequence:,} put as expired")
    return f" ({', '.join(reasons)})"


def _sum(rows: list[RowData], metric: Metric) -> int:
    return sum(_of(row, metric) for row in rows)


def ledger_lines(result: Result) -> list[tuple[str, int, str]]:
    """(metric name, tokens, share of all tokens that came in), sources first; lines of 0 tokens are left out."""
    total: dict[str, int] = result.ledger.get("total", {})
    whole = sum(total.get(metric.name, 0) for metric in m.LEDGER_SOURCES)
    lines = [(metric.name, total.get(metric.name, 0)) for metric in (*m.LEDGER_SOURCES, *m.LEDGER_FATES)]
    return [(name, tokens, share_text(tokens, whole)) for name, tokens in lines if tokens]


def dropped_shares(result: Result) -> list[float]:
    """Dropped tokens in percent of produced ones, per step; 0 where nothing was produced."""
    return [
        100 * _of(row, m.DROPPED_TOKENS) / _of(row, m.PRODUCED_TOKENS) if _of(row, m.PRODUCED_TOKENS) else 0.0
        for row in result.steps
    ]


def expired_by_step(result: Result) -> list[float]:
    """Expired groups per step."""
    return [float(_of(row, m.EXPIRED_GROUPS)) for row in result.steps]


def peak_step(result: Result, values: list[float]) -> int:
    """The first step with the largest value."""
    return result.steps[values.index(max(values))][TRAIN_STEP]


def _of(row: RowData, metric: Metric) -> int:
    return row.get(metric.name) or 0
