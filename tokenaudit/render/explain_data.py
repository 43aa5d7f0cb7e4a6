"""What `explain` found as plain data: JSON, and one table of it as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tokenaudit import __version__
from tokenaudit.config.limits import Setting
from tokenaudit.contracts.files import json_text
from tokenaudit.contracts.metrics import ROW_METRICS
from tokenaudit.explain.history import GroupHistory
from tokenaudit.explain.losses import Cause, GroupLoss, Place
from tokenaudit.explain.names import NameExplanation
from tokenaudit.explain.session import LogExplanation
from tokenaudit.explain.step import StepReport
from tokenaudit.explain.trials import Trial, Trials
from tokenaudit.lifecycle.events import Fate, GroupExpired, MembersExpired
from tokenaudit.render.blocks import csv_lines, json_lines
from tokenaudit.replay.events import Key

EXPLAIN_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Plain:
    """An explanation for programs.

    Attributes:
        kind: which one, such as "tokenaudit.explain.log".
        data: all of it, for JSON.
        columns: those of its main list.
        records: that list, for CSV; keys are names of columns, and further ones are left out.
    """

    kind: str
    data: Mapping[str, Any]
    columns: Sequence[str]
    records: Sequence[Mapping[str, Any]]

    def json(self) -> str:
        """JSON with a line feed at the end; equal explanations give equal bytes."""
        head = {"kind": self.kind, "schema_version": EXPLAIN_SCHEMA_VERSION, "tool": f"tokenaudit {__version__}"}
        return json_text(head | dict(self.data))

    def csv(self) -> str:
        """The list as CSV; a text from a log does no harm in a spreadsheet."""
        return csv_lines(self.columns, self.records)

    def jsonl(self) -> str:
        """The list as JSON Lines."""
        return json_lines({name: record.get(name) for name in self.columns} for record in self.records)


def log_plain(explanation: LogExplanation) -> Plain:
    """Why tokens of a log were lost; the list holds the causes."""
    result, best, causes = explanation.result, explanation.trials.best, cause_records(explanation.causes)
    data = {
        "inputs": [asdict(entry) for entry in result.inputs],
        "config_source": result.config_source,
        "ledger": result.ledger["total"],
        "causes": causes,
        "losing_groups": explanation.losing_groups,
        "groups": [_group_data(key, loss) for key, loss in explanation.groups],
        "trials": _trials_data(explanation.trials),
        "next": None if best is None else _trial_data(best, explanation.trials),
    }
    if result.cost is not None:
        data["cost"] = result.cost.data()
    return Plain("tokenaudit.explain.log", data, CAUSE_COLUMNS, causes)


CAUSE_COLUMNS = ("task", "metric", "reason", "place", "tokens", "groups", "setting", "value")
"""The columns of an explained log's causes."""


def cause_records(causes: Iterable[Cause]) -> list[dict[str, Any]]:
    """A record per cause, in order, with the names of `CAUSE_COLUMNS`."""
    return [
        {
            "task": cause.key.task,
            "metric": cause.key.metric.name,
            "reason": cause.key.reason,
            "place": cause.key.place,
            "tokens": cause.loss.tokens,
            "groups": cause.loss.groups,
            **_setting_data(cause.setting),
        }
        for cause in causes
    ]


def _group_data(key: Key, loss: GroupLoss) -> dict[str, Any]:
    task, group_id = key
    return {"task": task, "group_id": group_id} | _loss_data(loss)


def _loss_data(loss: GroupLoss) -> dict[str, Any]:
    by_setting = {setting.key: tokens for setting, tokens in loss.by_setting.items()}
    return asdict(replace(loss, by_setting={})) | {"by_setting": by_setting}


def _setting_data(setting: Setting | None) -> dict[str, Any]:
    """The key and the value of a setting; a token rule that is off has the value null."""
    return {"setting": None, "value": None} if setting is None else {"setting": setting.key, "value": setting.value}


def _trials_data(trials: Trials) -> dict[str, Any]:
    return {
        "is_simulated": trials.is_simulated,
        "not_simulated": trials.not_simulated,
        "possible": trials.possible,
        "base": asdict(trials.base),
        "tried": [_trial_data(trial, trials) for trial in trials.trials],
    }


def _trial_data(trial: Trial, trials: Trials) -> dict[str, Any]:
    saved = None if trial.figures is None else trials.gpu_hours_saved(trial.figures)
    return {
        **_setting_data(trial.setting),
        "to": trial.value,
        "looser": trial.looser,
        "override": trial.override,
        "figures": None if trial.figures is None else asdict(trial.figures),
        "problem": trial.problem,
        **({} if saved is None else {"gpu_hours_saved": float(saved)}),
    }


MEMBER_COLUMNS = (
    "entry", "train_step", "kind", "detail", "expires_at", "rollout_id", "segment", "status", "tokens", "age",
    "outcome", "runs",
)  # fmt: skip
"""The columns of an explained group's history: a row per member of an entry, or one for an entry without members."""


def group_plain(history: GroupHistory) -> Plain:
    """What happened to a group, in order; runs are (version, tokens, trainable tokens)."""
    loss = None if history.loss is None else _loss_data(history.loss)
    data = asdict(replace(history, loss=None)) | {"loss": loss}
    return Plain("tokenaudit.explain.group", data, MEMBER_COLUMNS, list(member_records(history)))


def member_records(history: GroupHistory) -> Iterator[dict[str, Any]]:
    """A record per member of every entry, with the names of `MEMBER_COLUMNS`."""
    for number, entry in enumerate(history.entries, 1):
        common = {
            "entry": number,
            "train_step": entry.train_step,
            "kind": entry.kind,
            "detail": entry.detail,
            "expires_at": entry.expires_at,
        }
        if not entry.members:
            yield common
        for member in entry.members:
            runs = " ".join(f"v{version}x{tokens}" for version, tokens, _ in member.runs)
            yield common | asdict(member) | {"tokens": member.tokens, "runs": runs}


STEP_COLUMNS = ("list", "task", "group_id", "status", "where", "reason", "tokens", "trained", "stale", "expires_at")
"""The columns of an explained step's lists: a row per group that was taken, expired or waits."""


def step_plain(report: StepReport) -> Plain:
    """A step: its counts that aren't 0, and the groups that were taken, expired or wait."""
    row, total, groups = report.row, report.total, list(step_records(report))
    data = {
        "train_step": row.train_step,
        "model_step": row.model_step,
        "counts": {metric.name: total.value(metric) for metric in ROW_METRICS if total.value(metric)},
        "asked": report.asked,
        "groups": groups,
    }
    return Plain("tokenaudit.explain.step", data, STEP_COLUMNS, groups)


def step_records(report: StepReport) -> Iterator[dict[str, Any]]:
    """A record per group that was taken, expired or waits, with names of `STEP_COLUMNS`."""
    for taken in report.taken:
        yield {"list": "taken"} | asdict(taken)
    for event in report.expired:
        yield {"list": "expired"} | _expired_record(event)
    for waiting in report.waiting:
        yield {"list": "waits"} | asdict(waiting)


def _expired_record(event: GroupExpired | MembersExpired) -> dict[str, Any]:
    common = {"task": event.task_name, "group_id": event.group_id}
    if isinstance(event, MembersExpired):
        return common | {
            "status": Fate.RESET,
            "where": Place.WAITING,
            "reason": "+".join(sorted(set(event.reasons))),
            "tokens": event.expired.tokens,
        }
    tokens = event.lost_tokens
    return common | {"status": event.fate, "where": event.where, "reason": event.reason, "tokens": tokens}


STANDING_COLUMNS = ("name", "kind", "where", "value", "of", "origin", "lost")
"""The columns of names that are explained: a row per place in the log, or one without a log."""


def names_plain(explained: Sequence[NameExplanation]) -> Plain:
    """What names stand for, and where they stand in a log."""
    data = {"names": [asdict(one) | {"facts": dict(one.facts)} for one in explained]}
    records = [
        {"name": one.name, "kind": one.kind} | asdict(standing) if standing else {"name": one.name, "kind": one.kind}
        for one in explained
        for standing in one.in_log or (None,)
    ]
    return Plain("tokenaudit.explain.names", data, STANDING_COLUMNS, records)
