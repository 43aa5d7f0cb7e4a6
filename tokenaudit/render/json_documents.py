"""What the JSON that commands write holds: the objects that no dataclass of another room stands for, field by field.

JSON Schemas are made from these declarations; a test holds what is written against them. A field with a default may be
absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tokenaudit.audit.identities import Identities
from tokenaudit.audit.offpolicy import AgeEvidence
from tokenaudit.audit.parity import Parity
from tokenaudit.audit.rule import Severity
from tokenaudit.compare.compare import Effect, SettingChange
from tokenaudit.compare.group_outcomes import GroupChanges
from tokenaudit.contracts.errors import Notice
from tokenaudit.gate.rule import Level
from tokenaudit.replay.result import Coverage, InputInfo

PlainNumber = int | float | str | None
"""A number as JSON holds it: a text where no float is as large, null where there is none."""


@dataclass
class CostJson:
    """What a run cost in vain; null is unknown.

    Attributes:
        tokens: tokens that came in.
        untrained_tokens: those of them that were never trained.
        rollout_missing: what the GPU-hours of rollouts lack; empty where they are known.
        wait_missing: what those of the trainer lack.
        is_for_simulation: whether the times are those of a log that this config would have run otherwise.
        untrained_gpu_hours: GPU-hours of rollouts by the share of the tokens that were never trained.
        wait_gpu_hours: GPU-hours in which the trainer waited.
    """

    rollout_gpus: int | None
    train_gpus: int | None
    usd_per_gpu_hour: float | None
    tokens: int
    untrained_tokens: int
    rollout_us: int | None
    wait_us: int | None
    rollout_missing: str
    wait_missing: str
    is_for_simulation: bool
    rollout_gpu_hours: float | None
    untrained_gpu_hours: float | None
    untrained_usd: float | None
    wait_gpu_hours: float | None
    wait_usd: float | None


@dataclass
class AmountChangeJson:
    """GPU-hours or US dollars of both sides, and B minus A."""

    a: PlainNumber
    b: PlainNumber
    change: PlainNumber


@dataclass
class FigureChangeJson:
    """A metric or rate on both sides.

    Attributes:
        a: its value on side A; "absent" where the side doesn't know it.
        b: the same of side B.
        change: B minus A; null unless both have a value.
        relative: the change as a share of A; null where A is 0.
        effect: whether it is a gain.
    """

    a: PlainNumber
    b: PlainNumber
    change: PlainNumber
    relative: PlainNumber
    effect: Effect


@dataclass
class SideJson:
    """One of two compared runs; `steps` counts its steps, `label` is its config or file."""

    label: str
    kind: str
    inputs: list[InputInfo]
    timeline: str
    selection: str | None
    steps: int
    coverage: Coverage
    warnings: list[Notice]
    cost: CostJson | None = None


@dataclass
class FirstDifferenceJson:
    """Where two runs part; `train_step` is null behind the last step."""

    train_step: int | None
    metrics: list[str]
    why: list[str]


@dataclass
class DiffJson:
    """A comparison of two runs.

    Attributes:
        settings: settings that differ.
        totals: figures of the whole runs, by name.
        tasks: the same by task.
        ranked_by: the figure by which steps are ranked.
        largest_steps: the steps where it changed most.
        steps: the figures that differ, by name, of every step where one does, beside its `train_step`.
        groups: groups that changed fate; null where that isn't known.
        groups_missing: why it isn't known.
    """

    tool: str
    a: SideJson
    b: SideJson
    differs: bool
    settings: list[SettingChange]
    totals: dict[str, FigureChangeJson]
    tasks: dict[str, dict[str, FigureChangeJson]]
    first_difference: FirstDifferenceJson | None
    ranked_by: str | None
    largest_steps: list[int]
    steps_only_in_a: list[int]
    steps_only_in_b: list[int]
    steps: list[dict[str, FigureChangeJson | int]]
    groups: GroupChanges | None
    groups_missing: str
    cost: dict[str, AmountChangeJson] | None = None


@dataclass
class ChangedSettingJson:
    """A setting that differs from the baseline's."""

    key: str
    baseline: Any
    run: Any


@dataclass
class ObservationJson:
    """A figure at one step, or of one task there; null: the whole run, all tasks together."""

    train_step: int | None
    task: str | None
    value: PlainNumber
    baseline: PlainNumber


@dataclass
class VerdictJson:
    """A rule, judged.

    Attributes:
        source: where the rule comes from, with `line` where that is a file.
        value: the figure that came nearest to the limit, or went furthest beyond it; null where none could be judged.
        numerator: of that figure, where it is a rate.
        denominator: of that figure, where it is a rate.
        beyond_limit: how far the value is beyond the limit; negative within it.
        judged: how many values were held against the limit.
        beyond: how many of them are beyond it.
        message: all of it in words.
    """

    rule: str
    metric: str
    outcome: Literal["failed", "warning", "not_judged", "passed"]
    level: Level
    source: str
    line: int | None
    value: PlainNumber
    numerator: PlainNumber
    denominator: PlainNumber
    limit: PlainNumber
    beyond_limit: PlainNumber
    baseline: PlainNumber
    improved: bool
    worst_step: ObservationJson | None
    worst_task: ObservationJson | None
    judged: int
    beyond: int
    message: str


@dataclass
class GateJson:
    """A run judged by rules, the worst first.

    Attributes:
        baseline: the logs behind the baseline; null without one.
        settings: settings that changed since the baseline.
        exit_code: 0 all hold, 1 one fails, 2 could not judge.
        rules: how many rules were judged; what became of them: `failed`, `warned`, `not_judged`, `passed`.
        steps: steps of the run.
    """

    tool: str
    inputs: list[InputInfo]
    baseline: list[InputInfo] | None
    settings: list[ChangedSettingJson]
    exit_code: Literal[0, 1, 2]
    rules: int
    failed: int
    warned: int
    not_judged: int
    passed: int
    steps: int
    tasks: list[str]
    verdicts: list[VerdictJson]
    warnings: list[Notice]


@dataclass
class LostJson:
    """Events, ranks or parts of a recording that a log lacks."""

    kind: str
    size: int


@dataclass
class ExtentJson:
    """How far the cause of a finding reaches.

    Attributes:
        first_put: number of the first put concerned among all puts of the log, from 1.
        last_put: that of the last one.
        first_event_id: event id of the first put concerned.
        last_event_id: that of the last one.
        count: responses concerned, each counted once.
        members: task and rollout_id of the first 10,000 of them, in log order.
    """

    first_put: int
    last_put: int
    first_event_id: int
    last_event_id: int
    count: int
    members: list[tuple[str, int]]


@dataclass
class FindingJson:
    """What an audit rule found, and in which rows.

    Attributes:
        put: number of the put of that rollout, or of the group, from 1.
        identity: the same for the same finding in another log.
        is_new: whether the baseline doesn't know it.
        lost: what the log lacks, and how much of it.
        extent: how far its cause reaches, for findings about many rows.
        stands_for: how many of one cause it stands for, where these have no puts.
    """

    code: str
    name: str
    severity: Severity
    task: str | None
    group_id: int | None
    rollout_id: int | None
    put: int | None
    first_token: int | None
    tokens: int | None
    train_step: int | None
    file: str | None
    event_id: int | None
    message: str
    is_new: bool
    identity: str
    lost: LostJson | None = None
    extent: ExtentJson | None = None
    stands_for: int = 1


@dataclass
class AuditRuleJson:
    """An audit rule and how it ran.

    Attributes:
        missing: what it lacked; empty where it ran.
        checked: how many of `checked_unit` it looked at.
        counts: findings by severity; empty where it didn't run.
        kept: how many of them are listed.
        identities: those of all findings, where only some are listed.
    """

    code: str
    name: str
    severity: Severity
    ran: bool
    missing: list[str]
    checked: int
    checked_unit: str
    counts: dict[Severity, int]
    kept: int
    identities: dict[Severity, Identities] | None = None


@dataclass
class AuditJson:
    """An audit of a log.

    Attributes:
        config: where the config came from; null without one.
        why_no_replay: why the log was not replayed; empty where it was.
        exit_code: 0 no new error, 1 new errors, 2 nothing audited.
        counts: findings by severity, those not listed included.
        new_counts: those that the baseline doesn't know.
        off_policy: log-probabilities by staleness; empty without them.
        parity: curves that the run logged beside what the log gives, where curves were given.
        unknown_curves: names of others in their files, the first few thousand.
    """

    tool: str
    log: str
    files_named: int
    files_audited: int
    rows: int
    tokens: int
    config: str | None
    why_no_replay: str
    left_out_groups: int
    exit_code: Literal[0, 1, 2]
    counts: dict[Severity, int]
    new_counts: dict[Severity, int]
    rules: list[AuditRuleJson]
    findings: list[FindingJson]
    off_policy: list[AgeEvidence]
    log_notes: list[str] | None = None
    parity: list[Parity] | None = None
    unknown_curves: list[str] | None = None
