"""`tokenaudit gate`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import (
    CacheOption,
    ConfigOption,
    IsolatedOption,
    LogPaths,
    PromptOrderOption,
    QuarantineOption,
    QuietOption,
    SetOption,
    SimulateOption,
    TimelineOption,
    TokenTimeOption,
    VerboseOption,
    digest_cache,
)
from tokenaudit.errors import Problem, UsageError

if TYPE_CHECKING:
    from tokenaudit.cache import DigestCache
    from tokenaudit.prompt_order import PromptOrder
    from tokenaudit.result import Result
    from tokenaudit.settings import Settings
    from tokenaudit.timeline import TimelineKind
    from tokenaudit.verdicts import GateReport, LocatedRule


class GateFormat(StrEnum):
    """What standard output gets."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"
    GITHUB = "github"


SUFFIXES = {
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "table",
    ".xml": "junit",
    ".sarif": "sarif",
}
"""Formats by file name extension."""


def gate(
    log: LogPaths,
    config: ConfigOption = None,
    set_: SetOption = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", show_default=False, help="A rule such as 'expired_groups <= 0'; repeatable."),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="TOML whose [gate] holds rules; a config will do."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, help="Saved result that signed limits such as +2% are counted from."
        ),
    ] = None,
    write_baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Save the run as a baseline, if its absolute rules hold and something was replayed.",
        ),
    ] = None,
    allow_different_log: Annotated[
        bool, typer.Option("--allow-different-log", help="Accept a baseline from another log.")
    ] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit with 0 where rules fail; still 2 where nothing could be judged.")
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Append Markdown to the file that GITHUB_STEP_SUMMARY names.")
    ] = False,
    simulate: SimulateOption = False,
    prompt_order: PromptOrderOption = None,
    token_time_us: TokenTimeOption = None,
    timeline: TimelineOption = None,
    format_: Annotated[GateFormat, typer.Option("--format", help="Format of standard output.")] = GateFormat.TABLE,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="Also write a file: .json, .md, .txt, .xml (JUnit) or .sarif; repeatable.",
        ),
    ] = None,
    cache: CacheOption = None,
    quarantine: QuarantineOption = False,
    isolated: IsolatedOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Fail when a run breaks its rules. Exit code 0: all hold; 1: one doesn't; 2: could not judge.

    LOG may also be a result saved with -o result.json. Rules come from [gate] in the config, --rules and --rule,
    all together. Without any, no metric may be worse than in the baseline.
    """
    del quiet, verbose
    from tokenaudit.cli.job_summary import append_summary, summary_file
    from tokenaudit.cli.output import check_outputs, write_all
    from tokenaudit.rule_sources import collect_rules

    if baseline is not None and write_baseline is not None:
        hint = "judge against the old one first, then write the new one"
        raise UsageError(Problem("--baseline and --write-baseline exclude each other", None, hint))
    outputs = output or []
    read = [*log, *(path for path in (config, rules, baseline) if path is not None)]
    check_outputs(outputs, read, SUFFIXES)
    if write_baseline is not None:
        check_outputs([write_baseline], [*read, *outputs], {".json": "json"}, "--write-baseline")
    summary_path = summary_file() if summary else None
    run = _judged_run(
        log,
        config,
        set_ or [],
        timeline,
        quarantine,
        isolated,
        simulate,
        prompt_order,
        token_time_us,
        digest_cache(cache),
    )
    located = collect_rules(rule or [], rules, run.settings, run.saved, Path.cwd())
    report = _report(run.result, located, baseline, allow_different_log, is_new_baseline=write_baseline is not None)
    for notice in report.notices:
        streams.show_warning(notice.message, notice.cost)
    judged = log[0].as_posix()
    contents = [
        (path, _render(report, GateFormat(SUFFIXES[path.suffix.lower()]), judged).encode(errors="backslashreplace"))
        for path in outputs
    ]
    if summary_path is not None:
        append_summary(summary_path, report)
    write = streams.write_result if format_ is GateFormat.TABLE else streams.write_data
    write_all(_stdout_text(report, format_, judged), contents, write)
    code = report.exit_code(exit_zero=exit_zero)
    if write_baseline is not None:
        code = _write_baseline(write_baseline, run.result, report, code)
    if code:
        raise typer.Exit(code)


class _Run(NamedTuple):
    """What is judged, and where rules of its config come from: settings, or the saved result itself."""

    result: Result
    settings: Settings | None
    saved: Result | None


def _judged_run(
    log: list[Path],
    config: Path | None,
    overrides: list[str],
    timeline: TimelineKind | None,
    quarantine: bool,
    isolated: bool,
    simulate: bool,
    prompt_order: PromptOrder | None,
    token_time_us: int | None,
    cache: DigestCache | None,
) -> _Run:
    from tokenaudit.cli.inputs import check_replay_only, is_saved_result, note_config, saved_result
    from tokenaudit.session import replay_log

    if is_saved_result(log):
        replaying = {
            "--config": config,
            "--set": overrides,
            "--timeline": timeline,
            "--quarantine": quarantine,
            "--isolated": isolated,
            "--simulate": simulate,
            "--prompt-order": prompt_order,
            "--token-time-us": token_time_us,
        }
        result = saved_result(log, replaying)
        if result.selection is not None:
            what = f"the result holds steps {result.selection} only, so the others can't be judged"
            raise UsageError(Problem(what, str(log[0]), "save it without --steps"))
        return _Run(result, None, result)
    if simulate:
        return _simulated_run(log, config, overrides, timeline, quarantine, isolated, prompt_order, token_time_us)
    check_replay_only({"--prompt-order": prompt_order, "--token-time-us": token_time_us})
    with streams.progress() as bar:
        replayed = replay_log(
            log,
            config_path=config,
            overrides=overrides,
            timeline=timeline,
            quarantine=quarantine,
            isolated=isolated,
            cache=cache,
            on_progress=bar.update if bar else None,
        )
    note_config(replayed.settings, config)
    return _Run(replayed.result, replayed.settings, None)


def _simulated_run(
    workload: list[Path],
    config: Path | None,
    overrides: list[str],
    timeline: TimelineKind | None,
    quarantine: bool,
    isolated: bool,
    prompt_order: PromptOrder | None,
    token_time_us: int | None,
) -> _Run:
    """Simulate what is judged; a run that can't go on has no figures to judge."""
    from tokenaudit.cli.inputs import note_config
    from tokenaudit.simulating import simulate_workload

    if timeline is not None:
        raise UsageError(Problem("--timeline is for replays", None, "leave it out, or leave out --simulate"))
    with streams.progress() as bar:
        simulated = simulate_workload(
            workload,
            config_path=config,
            overrides=overrides,
            token_time_us=token_time_us,
            prompt_order=prompt_order,
            quarantine=quarantine,
            isolated=isolated,
            on_progress=bar.update if bar else None,
        )
    note_config(simulated.settings, config)
    stuck = simulated.result.simulation.stuck if simulated.result.simulation else ()
    if stuck:
        raise UsageError(
            Problem(f"the run can't go on: {task.message}", f"task {task.task}, step {task.train_step}", task.hint)
            for task in stuck
        )
    return _Run(simulated.result, simulated.settings, None)


def _report(
    result: Result,
    rules: list[LocatedRule],
    baseline: Path | None,
    allow_different_log: bool,
    *,
    is_new_baseline: bool,
) -> GateReport:
    from tokenaudit.comparable import check_baseline
    from tokenaudit.gate import judge, judge_for_baseline
    from tokenaudit.session import load_result

    if is_new_baseline:
        return judge_for_baseline(result, rules)
    if baseline is None:
        return judge(result, rules)
    against = load_result(baseline)
    check_baseline(result, against, str(baseline), allow_different_log=allow_different_log)
    return judge(result, rules, against)


def _write_baseline(path: Path, result: Result, report: GateReport, code: int) -> int:
    """Save the run unless something speaks against it, and give the exit code."""
    from tokenaudit.cli.output import write_file
    from tokenaudit.gate import baseline_fault
    from tokenaudit.result import result_to_json
    from tokenaudit.verdicts import COULD_NOT_JUDGE, PASS

    fault = baseline_fault(report)
    if fault is not None:
        streams.show_problems([Problem(f"no baseline written: {fault}", str(path), "mend that first")])
        return code or COULD_NOT_JUDGE
    write_file(path, result_to_json(result).encode(errors="backslashreplace"))
    streams.note(f"note: baseline written to {path}")
    return PASS


def _stdout_text(report: GateReport, format_: GateFormat, judged: str) -> str:
    if format_ is not GateFormat.TABLE:
        return _render(report, format_, judged)
    from tokenaudit.render.gate_table import render_gate_table

    return render_gate_table(report, color=streams.wants_color(), unicode=streams.is_unicode())


def _render(report: GateReport, format_: GateFormat, judged: str) -> str:
    match format_:
        case GateFormat.JSON:
            from tokenaudit.render.gate_data import gate_json

            return gate_json(report)
        case GateFormat.MARKDOWN:
            from tokenaudit.render.gate_markdown import render_gate_markdown

            return render_gate_markdown(report)
        case GateFormat.JUNIT:
            from tokenaudit.render.junit import render_junit

            return render_junit(report)
        case GateFormat.SARIF:
            from tokenaudit.render.sarif import render_sarif

            return render_sarif(report, judged)
        case GateFormat.GITHUB:
            from tokenaudit.render.github import render_github

            return render_github(report)
        case GateFormat.TABLE:
            from tokenaudit.render.gate_table import render_gate_table

            return render_gate_table(report)
