"""What a metric, a rate or a setting is, how it moves, and where it stands in a log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenaudit.config.faults import SECTIONS, allowed_at
from tokenaudit.config.limits import SETTING_BEHIND, setting_of, setting_text
from tokenaudit.config.loading import DEFAULT, Settings
from tokenaudit.config.model import Config, Policy, Task, dotted_items
from tokenaudit.config.toml import dotted
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import METRICS, RATES, Better, Metric, Rate, Total, Unit
from tokenaudit.explain.losses import Losses, by_setting
from tokenaudit.replay.result import TASKS, TRAIN_STEP, Result, RowData
from tokenaudit.replay.session import LoadedLog, replay_loaded

_TOTALS = {
    Total.SUM: "tasks and steps add up",
    Total.LAST: "a level: tasks add up, a run has the value of its last row",
    Total.MAX: "the largest value of tasks and steps",
    Total.RANK: "taken anew over all the tokens behind it",
    Total.STATE: "belongs to a step as a whole: neither tasks nor totals have it",
    Total.STEP_SUM: "belongs to a step as a whole: a run has the sum, tasks don't have it",
    Total.END: "known at the end of a run: its ledger has it, steps don't",
}
_BETTER = {Better.LOWER: "less is better", Better.HIGHER: "more is better", Better.NEUTRAL: "neither"}
_FORMULAS = {
    "max_staleness": "a response is too old once train_step - oldest version - 1 >= (max_staleness + 1) · "
    "sync_weights_interval",
    "max_token_staleness": "a token is fresh while train_step - version - 1 < (max_token_staleness + 1) · "
    "sync_weights_interval; a response whose trainable tokens are all older expires",
    m.SEQ_STALENESS_SUM.name: "the sum of train_step - oldest version - 1",
    m.SEQ_STALENESS_MAX.name: "the largest train_step - oldest version - 1",
    m.DROPPED_TOKENS.name: " + ".join(metric.name for metric in m.DROPPED_PARTS),
}
_TASK_KEY = "tasks.NAME"
_CORRECTED: dict[str, Metric | Rate] = {one.name: one for one in (*m.CORRECTION_METRICS, *m.CORRECTION_RATES)}
"""What only off-policy corrections have: no row of a run holds them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where something stands in a log.

    Attributes:
        where: in the whole run ("total"), a task, a step, or by a setting.
        value: a metric, the numerator of a rate, or what a setting is.
        of: what it is a share of: produced tokens, or the denominator of a rate; None where it is no share.
        origin: where a setting comes from.
        lost: tokens that rest on a setting.
    """

    where: str
    value: int | float | str | None
    of: int | None = None
    origin: str = ""
    lost: int = 0


@dataclass(frozen=True, slots=True)
class NameExplanation:
    """What a name stands for.

    Attributes:
        name: the name, a setting with its section.
        kind: "metric", "rate" or "setting".
        facts: what is said of it: what about, and what.
        in_log: where it stands in a log; empty without a log, and where a replay of one doesn't have it.
    """

    name: str
    kind: str
    facts: tuple[tuple[str, str], ...]
    in_log: tuple[Standing, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplainedRun:
    """A replay that names are looked up in: its result, its settings, and what it lost."""

    result: Result
    settings: Settings
    losses: Losses

    @staticmethod
    def of(loaded: LoadedLog) -> ExplainedRun:
        """Replay a log that was read already."""
        losses = Losses(loaded.settings.config)
        return ExplainedRun(replay_loaded(loaded, losses.observe), loaded.settings, losses)


@cache
def setting_keys() -> dict[str, tuple[str, str]]:
    """Every key of a config as `-s` takes it, with its meaning and what it may hold; a task's name is NAME."""
    found: dict[str, tuple[str, str]] = {}
    for name, field in Config.model_fields.items():
        if name in SECTIONS:
            for key, inner in SECTIONS[name].model_fields.items():
                found[f"{name}.{key}"] = (inner.description or "", allowed_at((name, key)).text)
        elif name != TASKS:
            found[name] = (field.description or "", allowed_at((name,)).text)
    for key, field in Task.model_fields.items():
        meaning = Policy.model_fields[key].description if key in Policy.model_fields else field.description
        found[f"{_TASK_KEY}.{key}"] = (meaning or "", allowed_at((TASKS, "NAME", key)).text)
    return found


def known_names() -> list[str]:
    """Everything that `explain_name` knows: metrics, rates, and settings with and without their section."""
    keys = setting_keys()
    return list(dict.fromkeys((*METRICS, *RATES, *_CORRECTED, *(key.rpartition(".")[2] for key in keys), *keys)))


def explain_name(name: str, run: ExplainedRun | None = None) -> NameExplanation | None:
    """What a name stands for; None if it is neither a metric nor a rate nor a setting.

    Args:
        name: a metric, a rate, or the key of a setting, with or without its section.
        run: a replay to look it up in.
    """
    if name in METRICS:
        metric = METRICS[name]
        return NameExplanation(
            name, "metric", tuple(_metric_facts(metric)), tuple(_metric_in(metric, run) if run else ())
        )
    if name in RATES:
        rate = RATES[name]
        return NameExplanation(name, "rate", tuple(_rate_facts(rate)), tuple(_rate_in(rate, run) if run else ()))
    if name in _CORRECTED:
        one = _CORRECTED[name]
        kind, facts = ("rate", _rate_facts(one)) if isinstance(one, Rate) else ("metric", _metric_facts(one))
        seen = ("seen in", f"gate rules about a correction, {name}{{method=NAME}} (tokenaudit help corrections)")
        return NameExplanation(name, kind, (*facts, seen))
    key = _setting_key(name)
    if key is None:
        return None
    return NameExplanation(key, "setting", tuple(_setting_facts(key)), tuple(_setting_in(key, run) if run else ()))


def _setting_key(name: str) -> str | None:
    """The key that a name means: of [policy] before that of a task."""
    keys = setting_keys()
    section, _, last = name.rpartition(".")
    if section.startswith(f"{TASKS}."):
        name = f"{_TASK_KEY}.{last}"
    if name in keys:
        return name
    return next((key for key in keys if not section and key.rpartition(".")[2] == last), None)


def _metric_facts(metric: Metric) -> Iterator[tuple[str, str]]:
    yield "meaning", metric.help
    yield "unit", metric.unit
    if metric.name in _FORMULAS:
        yield "formula", _FORMULAS[metric.name]
    elif metric in m.QUANTILES:
        yield "formula", f"nearest rank, {m.QUANTILES[metric]} %, of train_step - version - 1 over the trained tokens"
    yield "better", _BETTER[metric.better]
    yield "sums", _TOTALS[metric.total]
    if metric in (*m.LEDGER_SOURCES, *m.LEDGER_FATES):
        side = "where tokens come from" if metric in m.LEDGER_SOURCES else "where tokens end"
        yield "ledger", f"one of the places {side} (tokenaudit help ledger)"
    if metric in m.SIMULATED_METRICS:
        yield "seen in", "simulations only"
    settings = _settings_behind(metric)
    if settings:
        yield "moves with", ", ".join(settings)
    rates = [
        rate.name for rate in (*RATES.values(), *m.CORRECTION_RATES) if metric in (*rate.numerator, *rate.denominator)
    ]
    if rates:
        yield "rates", ", ".join(rates)


def _rate_facts(rate: Rate) -> Iterator[tuple[str, str]]:
    yield "meaning", rate.help
    numerator, denominator = (" + ".join(one.name for one in side) for side in (rate.numerator, rate.denominator))
    if len(rate.denominator) > 1:
        denominator = f"({denominator})"
    yield "formula", f"{numerator} / {denominator}"
    yield "unit", "percent" if rate.is_share else "a ratio"
    yield "better", _BETTER[rate.better]
    settings = dict.fromkeys(name for metric in rate.numerator for name in _settings_behind(metric))
    if settings:
        yield "moves with", ", ".join(settings)


def _settings_behind(metric: Metric) -> list[str]:
    """The policy keys that tokens of a metric may rest on."""
    names: dict[str, None] = {}
    for part in _parts(metric):
        behind = SETTING_BEHIND.get(part, {})
        names |= dict.fromkeys((behind,) if isinstance(behind, str) else behind.values())
    return list(names)


def _parts(metric: Metric) -> tuple[Metric, ...]:
    return m.DROPPED_PARTS if metric is m.DROPPED_TOKENS else (metric,)


def _setting_facts(key: str) -> Iterator[tuple[str, str]]:
    name = key.rpartition(".")[2]
    meaning, allowed = setting_keys()[key]
    yield "meaning", meaning
    yield "value", allowed
    yield "default", _default(key)
    if name in _FORMULAS:
        yield "formula", _FORMULAS[name]
    moved = [metric.name for metric in SETTING_BEHIND if name in _settings_behind(metric)]
    if moved:
        yield "moves", ", ".join(moved)
    if name in Policy.model_fields:
        yield "set by", f"-s policy.{name}=… for every task, -s {_TASK_KEY}.{name}=… for one"
    else:
        yield "set by", f"-s {key}=…"


def _default(key: str) -> str:
    name = key.rpartition(".")[2]
    if name in Policy.model_fields:
        return setting_text(getattr(Policy(), name))
    return _text(getattr(Task(), name) if key.startswith(_TASK_KEY) else dotted_items(Config()).get(key))


def _metric_in(metric: Metric, run: ExplainedRun) -> Iterator[Standing]:
    result = run.result
    if metric.total is Total.END:
        yield Standing("total", result.ledger["total"].get(metric.name))
        return
    if metric not in result.metrics:
        return
    in_tokens = metric.unit is Unit.TOKENS and metric is not m.PRODUCED_TOKENS
    if metric.total is not Total.STATE:
        for where, part in _totals_by_place(result).items():
            if metric.name in part:
                yield Standing(where, part[metric.name], part[m.PRODUCED_TOKENS.name] if in_tokens else None)
    known = [(row[metric.name], -row[TRAIN_STEP]) for row in result.steps if row.get(metric.name) is not None]
    for name, (value, step) in (("lowest", min(known)), ("highest", max(known))) if known else ():
        yield Standing(f"{name}, step {-step}", value)
    for setting, loss in by_setting(
        cause for cause in run.losses.causes() if cause.key.metric in _parts(metric)
    ).items():
        yield Standing(f"by {setting}", loss.tokens)


def _totals_by_place(result: Result) -> dict[str, RowData]:
    """The totals of the run, and those of each task."""
    return {"total": result.totals} | {f"task {task}": part for task, part in result.totals[TASKS].items()}


def _rate_in(rate: Rate, run: ExplainedRun) -> Iterator[Standing]:
    if any(metric not in run.result.metrics for metric in (*rate.numerator, *rate.denominator)):
        return
    for where, part in _totals_by_place(run.result).items():
        above, below = (sum(part[metric.name] for metric in side) for side in (rate.numerator, rate.denominator))
        yield Standing(where, above, below)


def _setting_in(key: str, run: ExplainedRun) -> Iterator[Standing]:
    config, origins, name = run.settings.config, run.settings.origins, key.rpartition(".")[2]
    if name in Policy.model_fields:
        for task in run.result.tasks:
            setting = setting_of(config, task, name)
            lost = run.losses.by_setting(task).get(setting)
            origin = origins.get(setting.key, DEFAULT)
            yield Standing(f"task {task}", setting_text(setting.value), None, origin, lost.tokens if lost else 0)
    elif key.startswith(_TASK_KEY):
        for task in run.result.tasks:
            value = getattr(config.task_policy(task), name)
            yield Standing(f"task {task}", _text(value), None, origins.get(dotted((TASKS, task, name)), DEFAULT))
    else:
        yield Standing(key, _text(dotted_items(config).get(key)), None, origins.get(key, DEFAULT))


def _text(value: Any) -> str:
    """A value outside of policies; None is one that is left out."""
    return "unset" if value is None or value == [] else setting_text(value)
