"""What the checks look at, and how structural faults become findings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from tokenaudit.audit.engine import EngineVerdict
from tokenaudit.audit.files import FileFacts
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.offpolicy import AgeEvidence
from tokenaudit.audit.puts import PutRuns
from tokenaudit.audit.replayed_run import ReplayedRun
from tokenaudit.audit.rule import Fact
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.taken import RecordedTake, TrainedMasks, has_recorded_takes
from tokenaudit.audit.taken_groups import TakenGroups
from tokenaudit.config.model import Config
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE
from tokenaudit.log.structural_checks import Rows, StructuralCheck
from tokenaudit.replay.request import TimelineKind

if TYPE_CHECKING:
    from tokenaudit.audit.parity import Parity


@dataclass(frozen=True, slots=True)
class Case:
    """Everything known about the audited log.

    Attributes:
        table: its rows.
        files: its files.
        config: the config it is held against; None where neither the user nor the log names one.
        recorded_interval: the sync interval in the log's own config; None if it has none.
        puts: the version runs of its puts; None where replay can't read the log.
        run: the replay of that config; None where there is none.
        why_no_replay: why there is none; empty where there is one.
        takes: the responses that its take rows name.
        taken: the groups that they make up.
        trained: what the trainer's masks add up to; empty where none is recorded, or no step is known.
        evidence: how off-policy each age is; empty without log-probabilities of both sides.
        engine: what is wrong between these; None without them.
        shared_ids: see `prefixes.shared_prefixes`.
        parity: the curves that the run logged beside what the log gives; None where no curves are given.
    """

    table: LogTable
    files: FileFacts
    config: Config | None
    recorded_interval: int | None
    puts: PutRuns | None
    run: ReplayedRun | None
    why_no_replay: str
    takes: list[RecordedTake]
    taken: TakenGroups
    trained: TrainedMasks
    evidence: tuple[AgeEvidence, ...]
    engine: EngineVerdict | None
    shared_ids: Int64s
    parity: tuple[Parity, ...] | None = None

    @property
    def facts(self) -> set[str]:
        """The columns and facts that rules may need and that are there."""
        table, config, run = self.table, self.config, self.run

        def of_kind(kind: EventKind) -> Bools:
            return table["kind"] == KIND_CODE[kind]

        facts = {
            Fact.CONFIG: config is not None,
            Fact.CURVES: self.parity is not None,
            Fact.READABLE: self.puts is not None,
            Fact.REPLAY: run is not None,
            Fact.RECORDED_TAKES: has_recorded_takes(table),
            Fact.SYNCS: bool((of_kind(EventKind.SYNC) & table.present("model_step")).any()),
            Fact.SAMPLES: bool(of_kind(EventKind.SAMPLE).any()),
            Fact.TIMELINE: run is not None and run.timeline is TimelineKind.RECORDED,
            Fact.TAKES: run is not None and bool(run.steps),
        }
        if config is not None:
            policies = [config.task_policy(task) for task in table.used_tasks]
            is_retryable = [config.expiry_policy(task).retryable for task in table.used_tasks]
            timeline = config.timeline
            facts |= {
                Fact.GROUP_SIZE: any(policy.group_size is not None for policy in policies),
                Fact.TOKEN_RULE: any(policy.max_token_staleness is not None for policy in policies),
                Fact.RETRY: any(is_retryable),
                Fact.NO_RETRY: not all(is_retryable),
                Fact.STEPS: timeline.steps is not None and timeline.train_batch_size is not None,
            }
        columns = self.files.log.columns if self.files.log else ()
        return {*columns, *(str(fact) for fact, is_there in facts.items() if is_there)}

    @property
    def facts_behind_config(self) -> set[str]:
        """The facts that are missing only because no config is known: whether they hold, a config would show."""
        if self.config is not None or self.puts is None:
            return set()
        facts = {*Fact} - {Fact.READABLE, Fact.RECORDED_TAKES, Fact.SYNCS, Fact.SAMPLES, Fact.CURVES}
        if (self.table["kind"] == KIND_CODE[EventKind.PUT]).all():
            facts -= {Fact.TIMELINE}
        return {*map(str, facts)}

    @property
    def readable(self) -> PutRuns:
        """The version runs, for checks that run only where there are some."""
        assert self.puts is not None
        return self.puts

    @property
    def replayed(self) -> ReplayedRun:
        """The replay, for checks that run only where there is one."""
        assert self.run is not None
        return self.run

    @property
    def compared_curves(self) -> tuple[Parity, ...]:
        """The curves, for checks that run only where some are given."""
        assert self.parity is not None
        return self.parity

    @property
    def known_config(self) -> Config:
        """The config, for checks that run only where there is one."""
        assert self.config is not None
        return self.config


def add_faults(case: Case, findings: Findings, *checks: StructuralCheck, rows: Rows | None = None) -> None:
    """Add a finding for every row that a structural check finds faulty, those of one column in the order of rows.

    Checks that are neighbours and look at one column have one message. They look at `rows`; None: those of the log.
    """
    looked_at = case.table if rows is None else rows
    for _, group in groupby(checks, key=lambda check: check.column):
        same = list(group)
        where = np.logical_or.reduce([check.where(looked_at) for check in same])
        findings.add_rows(case.table.subject, where, partial(same[0].message, looked_at))
