"""What a run comes to, in a line or a few: shared by the table and Markdown."""

from __future__ import annotations

from tokenaudit import metrics as m
from tokenaudit.metrics import Metric, Total
from tokenaudit.render.text import count_text, printable, share_text, value_text
from tokenaudit.result import TRAIN_STEP, Result, RowData

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

WIDTH_PRIORITY: tuple[Metric, ...] = (
    m.EXPIRED_GROUPS,
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
"""The same, in the order in which a narrow terminal keeps them."""


def step_values(part: RowData, row: RowData) -> dict[str, str]:
    """Texts of `STEP_METRICS` by name; what a part lacks is left out.

    Args:
        part: a row, or the row of one of its tasks.
        row: the whole row, which tells what belongs to the step.
    """
    sources = ((metric, row if metric.total is Total.STATE else part) for metric in STEP_METRICS)
    return {metric.name: value_text(metric, source[metric.name]) for metric, source in sources if metric.name in source}


def title(result: Result) -> str:
    """What was replayed."""
    names = ", ".join(printable(entry.name) for entry in result.inputs)
    rows = sum(entry.rows for entry in result.inputs)
    tasks = ", ".join(printable(task) for task in result.tasks)
    return f"{names} · {count_text(rows, 'row')} · {tasks} · {result.timeline} timeline"


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
    behind = _of(result.tail, m.EXPIRED_GROUPS)
    if behind and not result.selection:
        parts.append(f"{count_text(behind, 'more group')} expired after the last step")
    coverage = result.coverage
    if coverage.counterfactual_tokens:
        share = share_text(coverage.counterfactual_tokens, coverage.counterfactual_of_tokens)
        parts.append(f"{share} of tokens rest on counterfactual rules")
    return " · ".join(parts)


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
