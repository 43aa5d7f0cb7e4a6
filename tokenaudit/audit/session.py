"""Audit a log: open what can be opened, read it once, replay it, and run the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Unpack

from tokenaudit.audit.case import Case
from tokenaudit.audit.checks import RULES
from tokenaudit.audit.curves import compared_curves, named_curves
from tokenaudit.audit.differences import Differences, joined_differences
from tokenaudit.audit.engine import judged_engine
from tokenaudit.audit.explained import explain
from tokenaudit.audit.files import FileFacts, open_for_audit, without_damage
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.offpolicy import age_evidence
from tokenaudit.audit.prefixes import shared_prefixes
from tokenaudit.audit.puts import PutRuns
from tokenaudit.audit.replayed_run import ReplayedRun, follow
from tokenaudit.audit.report import AuditReport, RuleRun
from tokenaudit.audit.rule import AuditRule, Fact, select_rules
from tokenaudit.audit.scan import Scanned, scan_batch
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.taken import TrainedMasks, recorded_takes, trained_at, trained_masks
from tokenaudit.audit.taken_groups import taken_groups
from tokenaudit.config.loading import DEFAULT, Settings, check_overridden_tasks
from tokenaudit.config.model import Config
from tokenaudit.config.toml import OVERRIDE
from tokenaudit.contracts.errors import LogError, NoticeLevel, TokenauditError
from tokenaudit.contracts.schema import COLUMNS
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import Log
from tokenaudit.log.reading import read_digest
from tokenaudit.replay.notices import recorded_sync_weights_interval, settings_notices
from tokenaudit.replay.request import Paths, RunOptions, RunRequest, TimelineKind
from tokenaudit.replay.session import no_collections, settings_for

CLIP_EPSILON = 0.2
"""Half the width of the range that importance ratios should be in, unless another one is given."""

READ_COLUMNS = tuple(column.name for column in COLUMNS if column.name not in ("generate_time_us", "time_us"))
"""Columns that an audit reads."""


def audit_log(
    paths: Paths | RunRequest,
    *,
    rules: Sequence[AuditRule | str] | None = None,
    epsilon: float = CLIP_EPSILON,
    curves: Sequence[str | Path] = (),
    curve_map: Mapping[str, str] | None = None,
    **options: Unpack[RunOptions],
) -> AuditReport:
    """Audit a log.

    Args:
        paths: files, folders or glob patterns that make up one log; or a whole request.
        rules: the rules to run; texts are codes, beginnings of codes, or names; None: all.
        epsilon: half the width of the range that importance ratios should be in.
        curves: files of curves that the run logged, to compare with what the log gives.
        curve_map: what curves are that aren't known by name: the log's series by the curve's name.
        options: what else a `RunRequest` holds: `config` (without one: what is found, else the log's own),
            `overrides`, `isolated`, `working_dir`, `on_progress`.

    Raises:
        LogError: a path names no file.
        ConfigError: the config can't be used, or an override names a task that the log lacks.
        UsageError: a text names no rule, there is no such option, or no such file, series or curve.
        SourceError: a file of curves can't be read.
    """
    request = RunRequest.of(paths, options, "audit_log")
    asked = RULES if rules is None else rules
    named = [rule for rule in asked if isinstance(rule, str)]
    chosen = [rule for rule in asked if isinstance(rule, AuditRule)]
    chosen += select_rules(named, (), RULES) if named else ()
    logged = named_curves([Path(file) for file in curves], curve_map or {})
    files = open_for_audit(request.paths)
    settings = settings_for(files.log, request)
    read = _read(files, request, epsilon)
    if read.files.log is not None:
        check_overridden_tasks(settings, read.table.used_tasks, read.files.log.name)
    source = _config_source(settings)
    name = ", ".join(path.name or str(path) for path in request.paths)
    with no_collections():
        case = _replayed(read, settings.config if source else None)
        if curves:
            case = replace(case, parity=compared_curves(logged, case))
        runs = _run_rules(case, chosen)
        table = case.table
        return AuditReport(
            name=name,
            files_named=case.files.named,
            files_audited=case.files.audited,
            rows=table.rows,
            puts=int(table.is_put.sum()),
            tokens=int(table["tokens"][table.known].sum()),
            config_source=source,
            why_no_replay=case.why_no_replay,
            left_out_groups=case.run.digest.quarantined_groups if case.run else 0,
            runs=runs,
            findings=tuple(finding for run in runs if run.findings for finding in run.findings.kept),
            evidence=case.evidence,
            parity=case.parity,
            unknown_curves=logged.unknown,
            log_notes=(*_log_notes(case.files.log), *_ignored_overrides(settings, case)),
        )


class _Read(NamedTuple):
    """What was read of a log: the files left, their rows, their digest; without one, why replay refuses the log."""

    files: FileFacts
    table: LogTable
    digest: Digest | None
    why_unreadable: str
    differences: Differences | None = None


def _read(files: FileFacts, request: RunRequest, epsilon: float) -> _Read:
    """Read the files once; where one turns out to be damaged, again without it."""
    while files.log is not None:
        log, scans = files.log, list[Scanned]()
        names = [name for name in READ_COLUMNS if name in log.columns]
        digest, why = None, ""
        try:
            digest = read_digest(
                log,
                quarantine=True,
                allow_missing_versions=True,
                also=names,
                on_batch=lambda columns, scans=scans: scans.append(scan_batch(columns, epsilon)),
                on_progress=request.stage(f"reading {log.name}", log.rows),
            )
        except LogError as error:
            if sum(scan.rows for scan in scans) < log.rows:
                files = without_damage(files, names)
                continue
            why = error.problems[0].what
        scans.sort(key=lambda scan: scan.first_row)
        found = joined_differences((scan.first_row, scan.differences) for scan in scans)
        return _Read(files, LogTable(scans, log.row_ranks), digest, why, found)
    return _Read(files, LogTable([]), None, "no file of the log can be read")


def _config_source(settings: Settings) -> str | None:
    """Where the config comes from; None where nothing says more than the defaults."""
    origins = set(settings.origins.values()) - {DEFAULT}
    if not origins:
        return None
    return OVERRIDE if origins == {OVERRIDE} else settings.source


def _replayed(read: _Read, config: Config | None) -> Case:
    """The log beside its replay, as far as it can be replayed."""
    files, table, digest, why, found = read
    puts = PutRuns(table, digest, config) if digest is not None else None
    run: ReplayedRun | None = None
    if config is None:
        why = why or "no config is known: give one with -c FILE"
    elif digest is not None and puts is not None:
        try:
            run = follow(digest, config, puts)
        except TokenauditError as error:
            why = error.problems[0].what
    takes = recorded_takes(table)
    step = trained_at(table, run, takes)
    return Case(
        table=table,
        files=files,
        config=config,
        recorded_interval=recorded_sync_weights_interval(files.log) if files.log else None,
        puts=puts,
        run=run,
        why_no_replay=why,
        takes=takes,
        taken=taken_groups(table, takes),
        trained=trained_masks(files.readable, table, run, takes) if run else TrainedMasks(),
        evidence=age_evidence(found, step) if found is not None else (),
        engine=judged_engine(table, found, step) if found is not None else None,
        shared_ids=shared_prefixes(files.log, table, puts),
    )


def _log_notes(log: Log | None) -> tuple[str, ...]:
    """What a person should know about the files that are audited, whatever rules run."""
    if log is None:
        return ()
    return (*log.loss_texts, *log.limits, *log.notes, *log.unread_notes)


def _ignored_overrides(settings: Settings, case: Case) -> list[str]:
    """That values given with `-s` change nothing, in sentences."""
    kind = TimelineKind.SIMULATED if case.run is None else case.run.timeline
    notices = settings_notices(settings, case.table.used_tasks, kind)
    return [f"{notice.message}. {notice.cost}" for notice in notices if notice.level is NoticeLevel.CAUTION]


def _run_rules(case: Case, rules: Sequence[AuditRule]) -> tuple[RuleRun, ...]:
    facts, behind_config = case.facts, case.facts_behind_config
    runs: list[RuleRun] = []
    found: dict[str, Findings] = {}
    for rule in rules:
        missing = rule.missing(facts)
        if missing and behind_config:
            others = rule.missing(facts | behind_config)
            missing = missing if others == missing else (Fact.CONFIG, *others)
        if missing:
            runs.append(RuleRun(rule, None, missing, {}))
            continue
        findings = Findings(rule, case.table)
        rule.check(case, findings)
        findings.table = None
        found[rule.code] = findings
        runs.append(RuleRun(rule, findings, (), {}))
    explain(found)
    return tuple(replace(run, new=dict(run.findings.counts)) if run.findings else run for run in runs)
