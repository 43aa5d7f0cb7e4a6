"""The result of a run: plain data that renderers, comparisons and gates read, and the JSON it is saved as.

There is no clock, host or path in it, so equal inputs give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tokenaudit import __version__
from tokenaudit import metrics as m
from tokenaudit.errors import Problem, ResultError
from tokenaudit.ledger import Account, Ledger, Row, combined
from tokenaudit.metrics import ROW_METRICS, Metric, Total

RESULT_SCHEMA_VERSION = 1
"""Version of the saved form."""
KIND_REPLAY = "tokenaudit.replay"
RESULT_KINDS = (KIND_REPLAY,)
"""Kinds of saved files that hold a run."""

TASKS = "tasks"
TRAIN_STEP = "train_step"
TAKEN_IDS = "taken_group_ids"
EXPIRED_IDS = "expired_group_ids"

_SAVE_HINT = "give a log, or a result saved with -o result.json"
_AGAIN_HINT = "make the result again"

RowData = dict[str, Any]
"""A row as saved: values by metric name, `tasks` with a row per task, and `train_step` on steps."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know before trusting a result.

    Attributes:
        code: stable name.
        message: what is the case.
        cost: what it costs or what to do about it; empty where the message says it.
    """

    code: str
    message: str
    cost: str = ""


@dataclass(frozen=True, slots=True)
class InputInfo:
    """The log behind a result: its name without folders, its rows and the hash of what replay read."""

    name: str
    rows: int
    content_hash: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the log the result stands on.

    Attributes:
        quarantined_groups: groups left out because of structural faults.
        quarantined_tokens: new tokens in their puts, as far as their rows tell.
        left_out_puts: puts outside the steps of a simulated timeline.
        stamped_tokens: tokens without a version that got one from `stamp_missing`.
        unscored_rewards: rewards that aren't finite.
        counterfactual_tokens: tokens that rest on the rules for puts that went another way in the log.
        counterfactual_of_tokens: produced and avoided tokens, of which they are a share.
    """

    quarantined_groups: int = 0
    quarantined_tokens: int = 0
    left_out_puts: int = 0
    stamped_tokens: int = 0
    unscored_rewards: int = 0
    counterfactual_tokens: int = 0
    counterfactual_of_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """A run, counted and described.

    Attributes:
        kind: what made it, such as `tokenaudit.replay`.
        inputs: the logs behind it.
        timeline: "recorded" or "simulated".
        config_source: where the config came from: a file's name, the log's metadata, or defaults.
        config: the resolved config.
        warnings: what to know about config and log.
        coverage: how much of the log it stands on.
        totals: all rows and the tail together.
        ledger: where tokens came from and where they ended; `total`, and `tasks` by name.
        steps: one row per step.
        tail: what came after the last row.
        tool: name and version of what made it.
        selection: the steps that were selected, such as "10..20"; None for all of them.
    """

    kind: str
    inputs: tuple[InputInfo, ...]
    timeline: str
    config_source: str
    config: dict[str, Any]
    warnings: tuple[Notice, ...]
    coverage: Coverage
    totals: RowData
    ledger: dict[str, Any]
    steps: list[RowData]
    tail: RowData
    tool: str = f"tokenaudit {__version__}"
    selection: str | None = None

    @property
    def tasks(self) -> list[str]:
        """Task names in order."""
        return list(self.totals[TASKS])


def build_result(
    ledger: Ledger,
    *,
    kind: str,
    inputs: Sequence[InputInfo],
    timeline: str,
    config_source: str,
    config: dict[str, Any],
    warnings: Iterable[Notice],
    coverage: Coverage,
    with_groups: bool = False,
) -> Result:
    """Turn a counted run into a result.

    Args:
        ledger: the counted run.
        kind: what made it.
        inputs: the logs behind it.
        timeline: "recorded" or "simulated".
        config_source: where the config came from.
        config: the resolved config.
        warnings: what to know about config and log.
        coverage: how much of the log the run stands on, without the counterfactual share.
        with_groups: add the ids of taken and expired groups to every row.
    """
    tasks = ledger.tasks
    total = combined(ledger.totals.values())
    counterfactual = _count(total, m.COUNTERFACTUAL_TOKENS)
    return Result(
        kind=kind,
        inputs=tuple(inputs),
        timeline=timeline,
        config_source=config_source,
        config=config,
        warnings=tuple(warnings),
        coverage=_with_counterfactual(
            coverage, counterfactual, _count(total, m.PRODUCED_TOKENS) + _count(total, m.AVOIDED_TOKENS)
        ),
        totals=_values(ledger.totals, tasks),
        ledger={
            "total": _conservation(total),
            TASKS: {task: _conservation(ledger.totals[task]) for task in tasks},
        },
        steps=[_row(row, tasks, with_groups) for row in ledger.rows],
        tail=_row(ledger.tail, tasks, with_groups),
    )


def _count(account: Account, metric: Metric) -> int:
    return account.counts.get(metric, 0)


def _with_counterfactual(coverage: Coverage, tokens: int, of_tokens: int) -> Coverage:
    return replace(coverage, counterfactual_tokens=tokens, counterfactual_of_tokens=of_tokens)


def _row(row: Row, tasks: Sequence[str], with_groups: bool) -> RowData:
    data: RowData = {}
    if row.train_step is not None:
        data[TRAIN_STEP] = row.train_step
        data[m.MODEL_STEP.name] = row.model_step
    data |= _values(row.accounts, tasks)
    if with_groups:
        data[TAKEN_IDS] = {task: row.taken_group_ids.get(task, []) for task in tasks}
        data[EXPIRED_IDS] = {task: row.expired_group_ids.get(task, []) for task in tasks}
    return data


def _values(accounts: Mapping[str, Account], tasks: Sequence[str]) -> RowData:
    by_task = {task: accounts.get(task, Account()) for task in tasks}
    data: RowData = _metrics(combined(by_task.values()))
    data[TASKS] = {task: _metrics(account) for task, account in by_task.items()}
    return data


def _metrics(account: Account) -> RowData:
    return {metric.name: account.value(metric) for metric in ROW_METRICS if metric.total is not Total.STATE}


def _conservation(account: Account) -> dict[str, int]:
    return {metric.name: _count(account, metric) for metric in (*m.LEDGER_SOURCES, *m.LEDGER_FATES)}


def result_to_json(result: Result) -> str:
    """The saved form, one value a line, with a line feed at the end."""
    envelope = {
        "kind": result.kind,
        "schema_version": RESULT_SCHEMA_VERSION,
        "tool": result.tool,
        "inputs": [asdict(entry) for entry in result.inputs],
        "timeline": result.timeline,
        "selection": result.selection,
        "config_source": result.config_source,
        "config": result.config,
        "warnings": [asdict(entry) for entry in result.warnings],
        "coverage": asdict(result.coverage),
        "totals": result.totals,
        "ledger": result.ledger,
        "steps": result.steps,
        "tail": result.tail,
    }
    return json.dumps(envelope, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def result_from_json(text: str, source: str) -> Result:
    """Read a saved result.

    Args:
        text: the JSON.
        source: name of the file, for messages.

    Raises:
        ResultError: not JSON, not a result, of another schema version, or with values of a wrong type.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ResultError(Problem(f"not valid JSON: {error}", source, _SAVE_HINT)) from error
    if not isinstance(data, dict) or not str(data.get("kind", "")).startswith("tokenaudit."):
        raise ResultError(Problem("not a saved result of tokenaudit", source, _SAVE_HINT))
    if data["kind"] not in RESULT_KINDS:
        raise ResultError(Problem(f"a {data['kind']} is no result of a run", source, _SAVE_HINT))
    if data.get("schema_version") != RESULT_SCHEMA_VERSION:
        hint = f"this release reads version {RESULT_SCHEMA_VERSION}; make the result again"
        raise ResultError(Problem(f"result schema version {data.get('schema_version')!r}", source, hint))
    del data["schema_version"]
    try:
        result = TypeAdapter(Result).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the result"
        raise ResultError(Problem(f"damaged result: {place}: {first['msg']}", source, _AGAIN_HINT)) from error
    for name, row in (
        ("totals", result.totals),
        ("tail", result.tail),
        *(("steps", row) for row in result.steps),
    ):
        fault = _row_fault(row)
        if fault is not None:
            raise ResultError(Problem(f"damaged result: {name}: {fault}", source, _AGAIN_HINT))
    return result


def _row_fault(row: RowData) -> str | None:
    """What is wrong with a row; a metric it lacks is no fault."""
    tasks = row.get(TASKS)
    if not isinstance(tasks, dict):
        return f"{TASKS} is {tasks!r:.60}"
    for part in (row, *tasks.values()):
        if not isinstance(part, dict):
            return f"a row is {part!r:.60}"
        for metric in ROW_METRICS:
            value = part.get(metric.name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                return f"{metric.name} is {value!r:.60}"
    return None


def select_steps(result: Result, first: int, last: int) -> Result:
    """The same run with the rows of some steps only, and no tail; totals and ledger stay those of the whole run."""
    steps = [row for row in result.steps if first <= row[TRAIN_STEP] <= last]
    return replace(result, steps=steps, selection=f"{first}..{last}")
