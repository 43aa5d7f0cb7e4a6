"""What the JSON of `explain` holds, declared as in `json_documents`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokenaudit.config.limits import Looser
from tokenaudit.explain.history import HistoryEntry
from tokenaudit.explain.losses import Place
from tokenaudit.explain.names import Standing
from tokenaudit.explain.step import TakenGroup, WaitingGroup
from tokenaudit.explain.trials import Figures
from tokenaudit.lifecycle.buffer import ReplayPolicy
from tokenaudit.lifecycle.events import Fate, Where
from tokenaudit.lifecycle.staleness import ExpiryReason
from tokenaudit.render.json_documents import CostJson
from tokenaudit.replay.result import InputInfo


@dataclass
class CauseJson:
    """A way in which tokens were lost: the metric that counts them, why, where, and the setting that bound."""

    task: str
    metric: str
    reason: ExpiryReason | None
    place: Place
    tokens: int
    groups: int
    setting: str | None
    value: int | float | bool | None


@dataclass
class GroupLossJson:
    """What a group lost; `by_setting` by the settings that bound."""

    expired: int
    tokens: int
    longest: int
    samples: int
    taken_at: int | None
    by_setting: dict[str, int]


@dataclass
class LosingGroupJson(GroupLossJson):
    """The same of one of many."""

    task: str
    group_id: int


@dataclass
class TrialJson:
    """A run with one setting loosened from `value` to `to`: `override` for -s; `problem` says why it has no end."""

    setting: str
    value: int | float | bool | None
    to: int | bool | None
    looser: Looser
    override: str
    figures: Figures | None
    problem: str
    gpu_hours_saved: float | None = None


@dataclass
class TrialsJson:
    """Runs with one setting loosened, beside the `base` run; `possible` is how many there are."""

    is_simulated: bool
    not_simulated: str
    possible: int
    base: Figures
    tried: list[TrialJson]


@dataclass
class ExplainLogJson:
    """Why a log lost its tokens, the most costly cause first; `next` is the change to try."""

    tool: str
    inputs: list[InputInfo]
    config_source: str
    ledger: dict[str, int]
    causes: list[CauseJson]
    losing_groups: int
    groups: list[LosingGroupJson]
    trials: TrialsJson
    next: TrialJson | None
    cost: CostJson | None = None


@dataclass
class ExplainGroupJson:
    """What happened to a group, in order, and where it is at the end of the log: `ending`."""

    tool: str
    task: str
    group_id: int
    stale_threshold: int
    token_stale_threshold: int | None
    retryable: bool
    order: ReplayPolicy
    loss: GroupLossJson | None
    trained_tokens: int
    entries: list[HistoryEntry]
    ending: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenGroupJson(TakenGroup):
    """A group of the batch."""

    list: Literal["taken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGroupJson(WaitingGroup):
    """A group that waits behind the take."""

    list: Literal["waits"]


@dataclass
class ExpiredGroupJson:
    """A group that expired, or of which further members did; `reason` joins several by +."""

    list: Literal["expired"]
    task: str
    group_id: int
    status: Fate
    where: Where | Place
    reason: str
    tokens: int


@dataclass
class ExplainStepJson:
    """A step: its counts that aren't 0, groups asked for by task, and the groups taken, expired or waiting."""

    tool: str
    train_step: int | None
    model_step: int | None
    counts: dict[str, int | float]
    asked: dict[str, int]
    groups: list[TakenGroupJson | ExpiredGroupJson | WaitingGroupJson]


@dataclass
class ExplainedNameJson:
    """A metric, rate, setting or audit rule; `facts` say what it is, `in_log` where it stands in a log."""

    name: str
    kind: str
    facts: dict[str, str]
    in_log: list[Standing]


@dataclass
class ExplainNamesJson:
    """What names stand for."""

    tool: str
    names: list[ExplainedNameJson]
