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
    MethodsOption,
    PromptOrderOption,
    QuarantineOption,
    QuietOption,
    SetOption,
    SimulateOption,
    TimelineOption,
    TokenTimeOption,
    VerboseOption,
    check_kind,
    chosen_figures,
    command_text,
    is_saved_result,
    metrics_option,
    note_config,
    output_option,
    run_request,
    saved_result,
)
from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.contracts.files import ci_repository, from_repository_root

if TYPE_CHECKING:
    from tokenaudit.cli.output import Renderers
    from tokenaudit.config.loading import Settings
    from tokenaudit.gate.report import GateReport
    from tokenaudit.replay.request import RunRequest
    from tokenaudit.replay.result import Result


class GateFormat(StrEnum):
    """What standard output gets."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"
    GITHUB = "github"


def gate(
    log: LogPaths,
    config: ConfigOption = None,
    set_: SetOption = None,
    rule: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="A rule such as 'expired_groups <= 0'; repeatable.")
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML whose [gate] holds rules; a config will do.")
    ] = None,
    methods: MethodsOption = None,
    metrics: Annotated[
        str | None,
        metrics_option(
            "Without rules: none of these metrics and rates may be worse than in the baseline. Default: the outcomes."
        ),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Saved result that signed limits such as +2% are counted from.")
    ] = None,
    write_baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Save the run as a baseline, if its absolute rules hold and something was replayed."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file that --write-baseline names, if there is one.")
    ] = False,
    allow_different_log: Annotated[
        bool, typer.Option("--allow-different-log", help="Accept a baseline from another log.")
    ] = False,
    allow_fewer_steps: Annotated[
        bool, typer.Option("--allow-fewer-steps", help="Accept a run that lacks steps of the baseline.")
    ] = False,
    allow_lost_events: Annotated[
        bool, typer.Option("--allow-lost-events", help="Judge a log whose recorder lost events by what is there.")
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
    output: Annotated[list[Path] | None, output_option(".json, .md, .txt, .xml (JUnit) or .sarif")] = None,
    cache: CacheOption = None,
    quarantine: QuarantineOption = False,
    isolated: IsolatedOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit gate`."""
    del quiet
    from tokenaudit.cli.output import check_outputs, emit, summary_file
    from tokenaudit.gate.baseline import check_judgeable
    from tokenaudit.gate.judge import baseline_fault, judge_for_baseline, rules_of_metrics
    from tokenaudit.gate.report import FAIL, Origin
    from tokenaudit.gate.rule_sources import collect_rules
    from tokenaudit.gate.session import gate_result, with_corrections
    from tokenaudit.replay.saved_result import result_to_json

    if baseline is not None and write_baseline is not None:
        hint = "judge against the old one first, then write the new one"
        raise UsageError(Problem("--baseline and --write-baseline exclude each other", None, hint))
    if force and write_baseline is None:
        raise UsageError(Problem("--force is for --write-baseline", None, "leave it out, or name the file to replace"))
    figures = chosen_figures(metrics)
    if figures is not None and (rule or rules or write_baseline):
        raise _metrics_beside("--write-baseline" if write_baseline else "--rule" if rule else "--rules")
    outputs = output or []
    read = [*log, *(path for path in (config, rules, methods, baseline) if path is not None)]
    check_outputs(outputs, read, GateFormat)
    if write_baseline is not None:
        check_outputs([write_baseline], [*read, *outputs], (GateFormat.JSON,), "--write-baseline")
        if write_baseline.exists() and not force:
            hint = "--force replaces it; --baseline judges against it"
            raise UsageError(Problem("--write-baseline names a file that is there", str(write_baseline), hint))
    summary_path = summary_file() if summary else None
    request = run_request(
        log,
        config=config,
        overrides=set_,
        timeline=timeline,
        quarantine=quarantine,
        isolated=isolated,
        simulate=simulate,
        prompt_order=prompt_order,
        token_time_us=token_time_us,
        cache=cache,
    )
    run = _judged_run(request)
    located = collect_rules(rule or [], rules, run.settings, run.saved, Path.cwd())
    if figures is not None:
        if located:
            raise _metrics_beside(located[0].origin.place)
        located = rules_of_metrics(figures, Origin("--metrics"))
    if run.saved is None:
        run = run._replace(result=with_corrections(run.result, request, located, methods))
    if write_baseline is not None:
        check_judgeable(run.result, str(log[0]), allow_lost_events=allow_lost_events)
        report = judge_for_baseline(run.result, located)
    else:
        report = gate_result(
            run.result,
            located,
            baseline=baseline,
            allow_different_log=allow_different_log,
            allow_fewer_steps=allow_fewer_steps,
            allow_lost_events=allow_lost_events,
        )
    streams.show_notices(report.notices)
    fault = baseline_fault(report) if write_baseline is not None else None
    further: list[tuple[Path, bytes]] = []
    if write_baseline is not None and fault is None:
        further.append((write_baseline, result_to_json(run.result).encode(errors="backslashreplace")))
    renderers = _renderers(report, log[0].as_posix(), all_rules=verbose)
    emit(renderers, format_, outputs, further=further, job_summary=summary_path)
    code = report.exit_code(exit_zero=exit_zero)
    if write_baseline is not None:
        code = _report_baseline(write_baseline, run.result, fault, code)
    if code == FAIL and run.saved is None and not simulate:
        explain = command_text(request, ["explain", *map(str, request.paths)])
        streams.note(f"note: `{explain}` says why tokens were lost")
    if code:
        raise typer.Exit(code)


def _metrics_beside(other: str) -> UsageError:
    """The error where rules hold besides --metrics, which could hide one of them, or none is judged."""
    what = f"--metrics is for a gate without rules, and there is {other}"
    return UsageError(Problem(what, None, "leave --metrics out; a rule such as --rule 'dropped_tokens <= +0' adds one"))


class _Run(NamedTuple):
    """What is judged, and where rules of its config come from: settings, or the saved result itself."""

    result: Result
    settings: Settings | None
    saved: Result | None


def _judged_run(request: RunRequest) -> _Run:
    from tokenaudit.gate.session import run_to_judge

    if is_saved_result(request.paths):
        result = saved_result(request)
        if result.selection is not None:
            what = f"the result holds steps {result.selection} only, so the others can't be judged"
            raise UsageError(Problem(what, str(request.paths[0]), "save it without --steps"))
        return _Run(result, None, result)
    check_kind(request)
    run = run_to_judge(request)
    note_config(run.settings, request)
    return _Run(run.result, run.settings, None)


def _report_baseline(path: Path, result: Result, fault: str | None, code: int) -> int:
    """Say whether the run became the baseline and what it holds, and give the exit code."""
    from tokenaudit.gate.report import COULD_NOT_JUDGE, PASS
    from tokenaudit.render.gate import baseline_line

    if fault is not None:
        streams.show_problems([Problem(f"no baseline written: {fault}", str(path), "mend that first")])
        return code or COULD_NOT_JUDGE
    streams.note(f"note: baseline written to {path}: {baseline_line(result)}")
    return PASS


def _renderers(report: GateReport, judged: str, *, all_rules: bool) -> Renderers:
    from tokenaudit.cli.output import in_render
    from tokenaudit.render.console import console_text
    from tokenaudit.render.gate import gate_blocks, gate_json
    from tokenaudit.render.markdown import markdown_text

    return {
        "table": lambda terminal: console_text(gate_blocks(report, all_rules=all_rules), terminal),
        "json": lambda _: gate_json(report),
        "markdown": lambda _: markdown_text(gate_blocks(report)),
        "junit": lambda _: in_render("junit.gate_junit")(report),
        "sarif": lambda _: in_render("sarif.gate_sarif")(report, judged, from_repository_root, ci_repository()),
        "github": lambda _: in_render("github.gate_github")(report, from_repository_root, all_rules=all_rules),
    }
