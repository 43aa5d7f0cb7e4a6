"""`tokenaudit audit`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenaudit.audit.rule import Severity
from tokenaudit.cli import completion
from tokenaudit.cli.options import (
    ConfigOption,
    IsolatedOption,
    LogPaths,
    QuietOption,
    SetOption,
    VerboseOption,
    output_option,
    run_request,
)
from tokenaudit.contracts.errors import Problem, ResultError, UsageError, shown
from tokenaudit.contracts.files import ci_repository, from_repository_root, read_bounded

if TYPE_CHECKING:
    from tokenaudit.audit.report import AuditReport
    from tokenaudit.cli.output import Renderers


class AuditFormat(StrEnum):
    """What standard output gets."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"
    GITHUB = "github"


MOST_BASELINE_BYTES = 2**28
"""Size of a baseline that is still read."""


def audit(
    log: LogPaths,
    config: ConfigOption = None,
    set_: SetOption = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE",
            help="Run these rules only: a code, its beginning or a name.",
            autocompletion=completion.rule_codes,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE",
            help="Leave rules out, in the same way.",
            autocompletion=completion.rule_codes,
        ),
    ] = None,
    severity: Annotated[Severity, typer.Option(help="Report findings of at least this severity.")] = Severity.INFO,
    max_findings: Annotated[int, typer.Option(min=0, metavar="N", help="Findings to list; all are counted.")] = 50,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Saved findings; only others fail the audit.")
    ] = None,
    curves: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Compare curves that the run logged: .jsonl, .csv or .parquet; repeatable."),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="THEIRS=OURS", help="What a curve is, where its name isn't known; repeatable."),
    ] = None,
    clip_epsilon: Annotated[
        float, typer.Option(min=0.0, metavar="E", help="Importance ratios should be in [1 - E, 1 + E].")
    ] = 0.2,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit with 0 where errors are found; still 2 where nothing was audited.")
    ] = False,
    format_: Annotated[AuditFormat, typer.Option("--format", help="Format of standard output.")] = AuditFormat.TABLE,
    output: Annotated[
        list[Path] | None, output_option(".json, .csv, .jsonl, .md, .txt, .xml (JUnit) or .sarif")
    ] = None,
    isolated: IsolatedOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit audit`."""
    del quiet
    from tokenaudit.audit.baseline import compared
    from tokenaudit.audit.checks import RULES
    from tokenaudit.audit.report import of_severity
    from tokenaudit.audit.rule import select_rules
    from tokenaudit.audit.session import audit_log
    from tokenaudit.cli.output import check_outputs, emit

    outputs = output or []
    read = [*log, *(curves or []), *(path for path in (config, baseline) if path is not None)]
    check_outputs(outputs, read, AuditFormat)
    rules = select_rules(select or [], ignore or [], RULES)
    known = None if baseline is None else _read_baseline(baseline)
    request = run_request(log, config=config, overrides=set_, isolated=isolated)
    report = audit_log(request, rules=rules, epsilon=clip_epsilon, curves=curves or (), curve_map=_mapped(map_ or []))
    if known is not None:
        report = compared(report, known, str(baseline))
    report = of_severity(report, severity)
    renderers = _renderers(report, from_repository_root(log[0].as_posix()), max_findings, verbose)
    emit(renderers, format_, outputs)
    code = report.exit_code(exit_zero=exit_zero)
    if code:
        raise typer.Exit(code)


def _mapped(texts: Sequence[str]) -> dict[str, str]:
    """What --map says, by the curve's name, which may hold an equals sign."""
    pairs = [text.rpartition("=") for text in texts]
    wrong = [text for text, (theirs, _, ours) in zip(texts, pairs, strict=True) if not theirs or not ours]
    if wrong:
        hint = "write THEIRS=OURS, such as --map batch/tokens=taken_tokens"
        raise UsageError(Problem(f"--map {shown(text)} is no pair", None, hint) for text in wrong)
    return {theirs: ours for theirs, _, ours in pairs}


def _read_baseline(path: Path) -> dict[str, Any]:
    hint = "give a file saved with `tokenaudit audit LOG -o findings.json`"
    try:
        content = read_bounded(path, MOST_BASELINE_BYTES + 1)
        if len(content) > MOST_BASELINE_BYTES:
            raise ResultError(Problem(f"a baseline of more than {MOST_BASELINE_BYTES // 2**20} MiB", str(path), hint))
        data = json.loads(content)
    except OSError as error:
        raise UsageError(Problem(f"can't read the baseline: {error.strerror or error}", str(path), hint)) from error
    except (ValueError, RecursionError) as error:
        raise ResultError(Problem("the baseline is not valid JSON", str(path), hint)) from error
    if not isinstance(data, dict):
        raise ResultError(Problem("the baseline is no saved audit", str(path), hint))
    return data


def _renderers(report: AuditReport, log_path: str, most: int, verbose: bool) -> Renderers:
    from tokenaudit.audit.report import report_json
    from tokenaudit.cli.output import in_render
    from tokenaudit.render.audit import audit_blocks, audit_csv, audit_jsonl
    from tokenaudit.render.console import console_text
    from tokenaudit.render.markdown import markdown_text

    return {
        "table": lambda terminal: console_text(audit_blocks(report, most=most, verbose=verbose), terminal),
        "json": lambda _: report_json(report),
        "csv": lambda _: audit_csv(report),
        "jsonl": lambda _: audit_jsonl(report),
        "markdown": lambda _: markdown_text(audit_blocks(report, most=most, verbose=verbose)),
        "junit": lambda _: in_render("junit.audit_junit")(report, most=most),
        "sarif": lambda _: in_render("sarif.audit_sarif")(report, log_path, most=most, repository=ci_repository()),
        "github": lambda _: in_render("github.audit_github")(report, log_path, most=most),
    }
