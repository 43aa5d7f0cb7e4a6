"""The result of a run: plain data that renderers, comparisons and gates read.

There is no clock, host or path in it, so equal inputs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tokenaudit import __version__
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.definitions import metric_definitions
from tokenaudit.contracts.errors import Notice, Problem, UsageError, plural
from tokenaudit.contracts.metrics import ROW_METRICS, Metric, Total
from tokenaudit.replay.cost import RunCost
from tokenaudit.replay.ledger import Account, Ledger, Row, combined
from tokenaudit.replay.request import PromptOrder

KIND_REPLAY = "tokenaudit.replay"
KIND_SIMULATE = "tokenaudit.simulate"

TASKS = "tasks"
TRAIN_STEP = "train_step"
TAKEN_IDS = "taken_group_ids"
EXPIRED_IDS = "expired_group_ids"
RATIOS = "ratios"

RowData = dict[str, Any]
"""A row as saved: values by metric name, `tasks` with a row per task, and `train_step` on steps."""


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
        quarantined_tokens: new tokens in their puts, as far as their rows say.
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

    @property
    def is_for_simulation(self) -> bool:
        """Whether more than 5 % rest on counterfactual rules, so that a simulation decides what a replay can't."""
        return 20 * self.counterfactual_tokens > self.counterfactual_of_tokens


@dataclass(frozen=True, slots=True)
class StuckTask:
    """Why a task kept a simulated run from going on.

    Attributes:
        task: its name.
        reason: stable name.
        message: what it waits for.
        hint: what may help.
        train_step: the step whose row never closed.
        time_us: when it became certain, in simulated microseconds.
    """

    task: str
    reason: str
    message: str
    hint: str
    train_step: int
    time_us: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated run was made from, and whether it came to its end.

    Attributes:
        groups: groups of the workload.
        responses: responses of the workload.
        truncated_responses: responses of which the workload has only what was generated before the log ended or the
            response was lost.
        prompt_order: the order of the prompts, where the workload was derived from a log; None: that of its file.
        max_concurrency: responses that may be generated at once; None: any number.
        stuck: the tasks that kept the run from going on; empty for a run that closed its last row.
    """

    groups: int
    responses: int
    truncated_responses: int = 0
    prompt_order: PromptOrder | None = None
    max_concurrency: int | None = None
    stuck: tuple[StuckTask, ...] = ()


@dataclass(frozen=True, slots=True)
class Corrected:
    """What one correction does to a run: rows of `metrics.CORRECTION_METRICS`.

    Attributes:
        totals: all steps together, and its tasks.
        steps: one row per step, without tasks.
        not_run: why there are no rows; None where there are.
    """

    totals: RowData
    steps: list[RowData]
    not_run: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A run, counted and described.

    Attributes:
        kind: what made it, such as `tokenaudit.replay.open_loop`.
        inputs: the logs behind it.
        timeline: "recorded" or "simulated", or "closed loop" where the producer's decisions were simulated too.
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
        simulation: about a simulated run; None for a replay.
        metric_definitions: what each metric counts, by name; empty where a saved form doesn't say.
        intervals: totals by metric that depend on versions the log knows as spans only: least and largest of the two
            readings, in which every token is as old or as new as its source allows. Rows and totals are the oldest.
        cost: what the whole run cost in vain; None where its config has no [cost].
        corrections: what off-policy corrections do to the run, by method: `totals` and `steps` like its own.
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
    simulation: Simulation | None = None
    metric_definitions: dict[str, str] = field(default_factory=metric_definitions)
    intervals: dict[str, tuple[int | float, int | float]] = field(default_factory=dict)
    cost: RunCost | None = None
    corrections: dict[str, Corrected] = field(default_factory=dict)

    def covers(self, step: int) -> bool:
        """Whether the result would hold the row of a train step: no steps, or this one too, were selected."""
        if self.selection is None:
            return True
        first, last = map(int, self.selection.split(".."))
        return first <= step <= last

    def __repr__(self) -> str:
        produced, trained, dropped, expired = (
            self.totals.get(metric.name, 0)
            for metric in (m.PRODUCED_TOKENS, m.TRAINED_TOKENS, m.DROPPED_TOKENS, m.EXPIRED_GROUPS)
        )
        names = ", ".join(entry.name for entry in self.inputs)
        steps = f"steps {self.selection}" if self.selection else plural(len(self.steps), "step")
        return (
            f"Result({self.kind} of {names}, {self.config_source}: {steps}, {plural(produced, 'token')} produced,"
            f" {trained:,} trained, {dropped:,} dropped, {plural(expired, 'group')} expired;"
            f" warnings: {len(self.warnings)})"
        )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of its rows, in order."""
        return ROW_METRICS if self.simulation is None else (*ROW_METRICS, *m.SIMULATED_METRICS)

    @property
    def tasks(self) -> list[str]:
        """Task names in order."""
        return list(self.totals[TASKS])

    def corrected(self, method: str) -> Result | None:
        """What a correction does to the run, in the place of its own figures; None where that isn't known."""
        found = self.corrections.get(method)
        if found is None or found.not_run is not None:
            return None
        return replace(self, totals=found.totals, steps=found.steps, tail={TASKS: {}})

    def has_same_log(self, other: Result) -> bool:
        """Whether both stand on the same rows of logs; names don't matter."""
        return [entry.content_hash for entry in self.inputs] == [entry.content_hash for entry in other.inputs]

    def different_log_hint(self, other: Result) -> str:
        """What to do about a result that doesn't stand on the same rows."""
        orders = dict.fromkeys(one.simulation.prompt_order for one in (self, other) if one.simulation)
        hint = "--allow-different-log compares them all the same"
        if len(orders) == 1 or None in orders:
            return hint
        return f"prompts stand by {' and by '.join(map(str, orders))}, --prompt-order makes them alike; {hint}"


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
    simulation: Simulation | None = None,
    newest: Ledger | None = None,
) -> Result:
    """Turn a counted run into a result.

    Args:
        ledger: the counted run.
        kind: what made it.
        inputs: the logs behind it.
        timeline: as in `Result`.
        config_source: where the config came from.
        config: the resolved config.
        warnings: what to know about config and log.
        coverage: how much of the log the run stands on, without the counterfactual share.
        with_groups: add the ids of taken and expired groups to every row.
        simulation: about a simulated run; its rows have more metrics.
        newest: the same run with every token as new as the source allows, where versions are spans.
    """
    tasks = ledger.tasks
    total = combined(ledger.totals.values())
    metrics = ROW_METRICS if simulation is None else (*ROW_METRICS, *m.SIMULATED_METRICS)
    totals = _values(ledger.totals, tasks, metrics)
    if simulation is not None:
        totals |= _whole_run(ledger, totals)
    return Result(
        kind=kind,
        inputs=tuple(inputs),
        timeline=timeline,
        config_source=config_source,
        config=config,
        warnings=tuple(warnings),
        coverage=replace(
            coverage,
            counterfactual_tokens=total.count(m.COUNTERFACTUAL_TOKENS),
            counterfactual_of_tokens=total.count(m.PRODUCED_TOKENS) + total.count(m.AVOIDED_TOKENS),
        ),
        totals=totals,
        ledger={
            "total": _conservation(total),
            TASKS: {task: _conservation(ledger.totals[task]) for task in tasks},
        },
        steps=[_row(row, tasks, metrics, with_groups) for row in ledger.rows],
        tail=_row(ledger.tail, tasks, metrics, with_groups),
        simulation=simulation,
        intervals={} if newest is None else _intervals(total, combined(newest.totals.values())),
    )


def _intervals(oldest: Account, newest: Account) -> dict[str, tuple[int | float, int | float]]:
    """The metrics in whose totals two readings differ, with the lesser value first."""
    intervals: dict[str, tuple[int | float, int | float]] = {}
    for metric in ROW_METRICS:
        values = [account.value(metric) for account in (oldest, newest)] if metric.total is not Total.STATE else []
        known = sorted(value for value in values if value is not None)
        if len(known) == 2 and known[0] != known[1]:
            intervals[metric.name] = (known[0], known[1])
    return intervals


def _whole_run(ledger: Ledger, totals: RowData) -> RowData:
    """What the steps of a simulated run add up to, and the ratios of its totals as two integers each."""
    rows = (*ledger.rows, ledger.tail)
    sums = {
        metric.name: sum(row.facts.get(metric, 0) for row in rows)
        for metric in m.SIMULATED_METRICS
        if metric.total is Total.STEP_SUM
    }
    known = totals | sums
    ratios = {
        rate.name: {
            "numerator": sum(known[metric.name] for metric in rate.numerator),
            "denominator": sum(known[metric.name] for metric in rate.denominator),
        }
        for rate in m.SIMULATED_RATES
    }
    return sums | {RATIOS: ratios}


def _row(row: Row, tasks: Sequence[str], metrics: Sequence[Metric], with_groups: bool) -> RowData:
    data: RowData = {}
    if row.train_step is not None:
        data[TRAIN_STEP] = row.train_step
        data[m.MODEL_STEP.name] = row.model_step
    data |= _values(row.accounts, tasks, metrics)
    data |= {metric.name: value for metric, value in row.facts.items()}
    if with_groups:
        data[TAKEN_IDS] = {task: row.taken_group_ids.get(task, []) for task in tasks}
        data[EXPIRED_IDS] = {task: row.expired_group_ids.get(task, []) for task in tasks}
    return data


def _values(accounts: Mapping[str, Account], tasks: Sequence[str], metrics: Sequence[Metric]) -> RowData:
    by_task = {task: accounts.get(task, Account()) for task in tasks}
    data: RowData = _metrics(combined(by_task.values()), metrics)
    data[TASKS] = {task: _metrics(account, metrics) for task, account in by_task.items()}
    return data


def _metrics(account: Account, metrics: Sequence[Metric]) -> RowData:
    whole_step = (Total.STATE, Total.STEP_SUM)
    return {metric.name: account.value(metric) for metric in metrics if metric.total not in whole_step}


def _conservation(account: Account) -> dict[str, int]:
    return {metric.name: account.count(metric) for metric in (*m.LEDGER_SOURCES, *m.LEDGER_FATES)}


def intervals_text(intervals: Mapping[str, tuple[int | float, int | float]]) -> str:
    """Intervals by metric in one line."""
    return ", ".join(f"{name} {low:,} to {high:,}" for name, (low, high) in intervals.items())


def no_such_step(asked: str, steps: Sequence[int], where: str | None = None) -> UsageError:
    """The error for steps that a run doesn't have.

    Args:
        asked: the option with its value.
        steps: the steps that it has.
        where: the log, for messages.
    """
    hint = f"its steps are {min(steps)} to {max(steps)}" if steps else "it has no step at all"
    return UsageError(Problem(f"{asked}: the run has no such step", where, hint))


def select_steps(result: Result, first: int, last: int) -> Result:
    """The same run with the rows of some steps only, and no tail; totals and ledger stay those of the whole run."""
    steps = [row for row in result.steps if first <= row[TRAIN_STEP] <= last]
    return replace(result, steps=steps, selection=f"{first}..{last}")
