"""`tokenaudit explain`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenaudit.cli import completion, streams
from tokenaudit.cli.options import (
    CacheOption,
    ConfigOption,
    Format,
    FormatOption,
    IsolatedOption,
    QuarantineOption,
    QuietOption,
    SetOption,
    VerboseOption,
    command_text,
    note_config,
    output_option,
    run_request,
    with_command,
)
from tokenaudit.contracts.errors import Problem, UsageError, nearest_hint

if TYPE_CHECKING:
    from tokenaudit.explain.trials import Trials
    from tokenaudit.render.blocks import Block
    from tokenaudit.render.explain_data import Plain
    from tokenaudit.replay.request import RunRequest
    from tokenaudit.replay.session import LoadedLog


def explain(
    subject: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG|NAME...",
            autocompletion=completion.log_or_rule,
            help="A log; and the name of a metric, a setting or an audit rule, with or without a log. What exists as a "
            "file or folder, or is written like one, is a log.",
        ),
    ],
    group: Annotated[str | None, typer.Option(metavar="TASK/ID", help="Show the life of this group.")] = None,
    step: Annotated[int | None, typer.Option(metavar="N", min=0, help="Show this step of the run.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    format_: FormatOption = Format.TABLE,
    output: Annotated[list[Path] | None, output_option(".json, .csv, .jsonl, .md or .txt")] = None,
    cache: CacheOption = None,
    quarantine: QuarantineOption = False,
    isolated: IsolatedOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit explain`."""
    del quiet, verbose
    from tokenaudit.cli.output import check_outputs, emit
    from tokenaudit.render.console import console_text
    from tokenaudit.render.markdown import markdown_text

    if group is not None and step is not None:
        raise UsageError(Problem("--group and --step exclude each other", None, "run it twice"))
    outputs = output or []
    logs = [path for path in subject if _is_log(path)]
    names = [str(path) for path in subject if not _is_log(path)]
    _note_doubtful(logs)
    check_outputs(outputs, logs if config is None else [*logs, config], Format)
    request = run_request(logs, config=config, overrides=set_, quarantine=quarantine, isolated=isolated, cache=cache)
    blocks, plain = _explained(request, names, group, step)
    emit(
        {
            "table": lambda terminal: console_text(blocks, terminal),
            "json": lambda _: plain.json(),
            "csv": lambda _: plain.csv(),
            "jsonl": lambda _: plain.jsonl(),
            "markdown": lambda _: markdown_text(blocks),
        },
        format_,
        outputs,
    )


def _is_log(path: Path) -> bool:
    """Whether an argument is a log: it exists, or it is written like a path or a pattern."""
    return path.exists() or bool(path.suffix == ".parquet" or len(path.parts) != 1 or set("*?[") & set(str(path)))


def _note_doubtful(logs: Sequence[Path]) -> None:
    """Say so where a file or folder has the name of something that could be meant too."""
    from tokenaudit.explain.names import known_names

    for path in logs:
        if str(path) in known_names():
            streams.note(f"note: {path} is a file or folder here, so it is read as a log, not explained as a name")


def _explained(
    request: RunRequest, names: Sequence[str], group: str | None, step: int | None
) -> tuple[list[Block], Plain]:
    """What is asked for, for people and for programs."""
    if not request.paths:
        if group is not None or step is not None:
            what = f"{names[0]} is no file or folder, and --group and --step are for a log"
            raise UsageError(Problem(what, None, "give a Parquet file, a folder or a glob pattern"))
        return _explained_names(names, None)
    from tokenaudit.replay.notices import settings_notices
    from tokenaudit.replay.open_loop import timeline_of
    from tokenaudit.replay.session import load_log

    if names and (group is not None or step is not None):
        raise UsageError(Problem(f"--group and --step don't go with a name: {names[0]}", None, "run it twice"))
    loaded = load_log(request)
    note_config(loaded.settings, request)
    config = loaded.settings.config
    if names or group is not None or step is not None:
        kind = timeline_of(loaded.digest, None)
        streams.show_notices(settings_notices(loaded.settings, loaded.digest.tasks, kind))
    if names:
        return _explained_names(names, loaded)
    if group is not None:
        from tokenaudit.explain.group import group_history
        from tokenaudit.render.explain_data import group_plain
        from tokenaudit.render.history import history_blocks

        history = group_history(loaded.digest, config, *_group_key(group, loaded.digest.tasks))
        return list(history_blocks(history)), group_plain(history)
    if step is not None:
        from tokenaudit.explain.step import step_report
        from tokenaudit.render.explain import step_blocks
        from tokenaudit.render.explain_data import step_plain

        report = step_report(loaded.digest, config, step)
        return list(step_blocks(report)), step_plain(report)
    from tokenaudit.explain.session import explain_loaded
    from tokenaudit.render.explain_data import log_plain
    from tokenaudit.render.explain_log import log_blocks

    explanation = explain_loaded(loaded)
    simulated = ["simulate", *map(str, request.paths)]
    streams.show_notices(with_command(explanation.result, request, simulated))
    return list(log_blocks(explanation, _next_command(explanation.trials, request))), log_plain(explanation)


def _next_command(trials: Trials, request: RunRequest) -> str:
    """How to run the change that saves most, under the same config and options; empty where none does."""
    if trials.best is None:
        return ""
    changed = replace(request, overrides=(*request.overrides, trials.best.override))
    return command_text(changed, ["simulate" if trials.is_simulated else "replay", *map(str, request.paths)])


def _explained_names(names: Sequence[str], loaded: LoadedLog | None) -> tuple[list[Block], Plain]:
    """Metrics, rates, settings and audit rules, with where they stand in a log."""
    from tokenaudit.audit.checks import RULES
    from tokenaudit.explain.names import ExplainedRun, explain_name, known_names
    from tokenaudit.render.explain import name_blocks, rule_explanation
    from tokenaudit.render.explain_data import names_plain

    rules = {text: rule for rule in RULES for text in (rule.code.lower(), rule.name)}
    run = None if loaded is None else ExplainedRun.of(loaded)
    explained = {
        name: rule_explanation(rules[name.lower()]) if name.lower() in rules else explain_name(name, run)
        for name in names
    }
    problems = [
        Problem(
            f"nothing is called {name!r}: no file or folder, metric, rate, setting or audit rule",
            None,
            _near(name, [*known_names(), *rules]),
        )
        for name, found in explained.items()
        if found is None
    ]
    if problems:
        raise UsageError(problems)
    found = [one for one in explained.values() if one is not None]
    return list(name_blocks(found)), names_plain(found)


def _near(name: str, known: Sequence[str]) -> str:
    """The nearest name; where none is near, where they are listed: there are hundreds."""
    hint = nearest_hint(name, known, "names")
    listed = "tokenaudit help metrics, tokenaudit help config and tokenaudit help rules list the names"
    return hint if hint.startswith("did you mean") else listed


def _group_key(text: str, tasks: tuple[str, ...]) -> tuple[str, int]:
    """Parse TASK/ID, or ID alone where the log has one task."""
    task, _, number = text.rpartition("/")
    if not re.fullmatch(r"-?\d{1,19}", number, flags=re.ASCII):
        raise UsageError(Problem(f"--group {text!r} names no group", None, "write TASK/ID, such as math/12"))
    if "/" not in text:
        if len(tasks) != 1:
            hint = f"write TASK/{number}; tasks: {', '.join(tasks)}"
            raise UsageError(Problem(f"--group {text!r} names no task", None, hint))
        task = tasks[0]
    return task, int(number)
