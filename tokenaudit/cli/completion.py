"""What the shell completes: keys, tasks, metrics, devices, formats, rule codes, corrections, topics.

Nothing here may fail, take long or print: what can't be found completes nothing. Only names of tasks need a log, of
which the footers and the first batch of a few files are read.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable
from functools import wraps
from itertools import islice
from pathlib import Path

import typer

_WORDS = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""What shells hand over the words of the line in: bash, and the others."""
_MOST_FILES = 3
_MOST_NAMES = 100
_RULE_ROW = re.compile(r"^\| ([A-Z]\d{3}) \| `([a-z0-9-]+)` \|", flags=re.MULTILINE)

_METHOD_ROW = re.compile(
    r"^(?:\| `([a-z0-9-]+)` \| `[a-z-]+[:`]|- `([a-z-]+)`(?: \(or `([a-z]+)`\))?: )", flags=re.MULTILINE
)

Completion = Callable[[typer.Context, str], list[str]]


def _completing(find: Callable[[typer.Context, str], Iterable[str]]) -> Completion:
    """The names that begin with what was typed; none where they can't be found."""

    @wraps(find)
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return [name for name in find(ctx, incomplete) if name.startswith(incomplete) and name.isprintable()]
        except Exception:  # noqa: BLE001 - a shell that waits for names must not get a traceback
            return []

    # wraps would make typer look up the annotations in another module
    del complete.__wrapped__
    return complete


@_completing
def config_keys(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Keys for `-s`; those of tasks once `tasks` is typed."""
    from tokenaudit.config.model import Config, Section, Task
    from tokenaudit.config.toml import dotted

    if incomplete.startswith("tasks"):
        return [f"{dotted(('tasks', task, key))}=" for task in _tasks(ctx) for key in Task.model_fields]
    keys: list[str] = []
    for name in Config.model_fields:
        section = getattr(Config(), name)
        if isinstance(section, Section):
            keys += [f"{name}.{key}=" for key in type(section).model_fields]
        else:
            keys.append("tasks." if name == "tasks" else f"{name}=")
    return keys


@_completing
def metric_lists(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Metrics and rates behind the last comma."""
    from tokenaudit.contracts.metrics import METRICS, RATES

    before = incomplete[: incomplete.rfind(",") + 1]
    return [f"{before}{name}" for name in (*METRICS, *RATES) if name not in before.split(",")]


@_completing
def devices(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Devices that may compute masks, whether they are here or not."""
    return ("auto", "cpu", "cuda", "cuda:0", "mps")


@_completing
def formats(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Formats of imports."""
    from tokenaudit.help.topics import format_names

    return format_names()


@_completing
def trainers(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Trainers with defaults."""
    from tokenaudit.config.trainers import TRAINERS

    return TRAINERS


@_completing
def rule_codes(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Codes and names of audit rules, from their topic: the rules themselves load numpy."""
    from tokenaudit.help.topics import find_topic

    return [name for row in _RULE_ROW.findall(find_topic(["rules"]).text) for name in row]


@_completing
def methods(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Corrections, from their topic: presets, and names of settings."""
    from tokenaudit.help.topics import find_topic

    rows = _METHOD_ROW.findall(find_topic(["corrections"]).text)
    return sorted({name for row in rows for name in row if name})


@_completing
def log_or_rule(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Audit rules, once something is typed: with nothing typed, the shell offers files."""
    return rule_codes(ctx, incomplete) if incomplete else ()


@_completing
def topics(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Topics, and behind `import` the trainers."""
    from tokenaudit.help.topics import TOPICS, TRAINERS

    return TRAINERS if list(ctx.params.get("topic") or ()) == ["import"] else TOPICS


def _tasks(ctx: typer.Context) -> list[str]:
    """Tasks of the config in use and of the log that was named."""
    from tokenaudit.config.loading import load_settings

    # an option without its value ends the parsing, before arguments are looked at
    words = shlex.split(next((os.environ[name] for name in _WORDS if name in os.environ), ""))
    paths = [path for path in map(Path, words[2:]) if path.is_dir() or path.suffix.lower() == ".parquet"]
    named = ctx.params.get("config")
    log = seen = None
    if paths:
        from tokenaudit.contracts.errors import TokenauditError

        try:
            log, seen = _look_at(paths)
        except TokenauditError:
            log = seen = None
    settings = load_settings(
        config_path=Path(str(named)) if named else None,
        log_dir=paths[0].parent if paths else None,
        working_dir=Path.cwd(),
        log_config=log,
    )
    return list(dict.fromkeys((*settings.config.tasks, *(seen or ()))))[:_MOST_NAMES]


def _look_at(paths: list[Path]) -> tuple[str | None, list[str]]:
    """The own config of a log, and the tasks of the first rows of its first files."""
    from tokenaudit.log.batches import read_batches
    from tokenaudit.log.files import log_files, open_log

    log = open_log(log_files(paths)[:_MOST_FILES])
    seen: dict[str, None] = {}
    for batch in islice(read_batches(log, ["task_name"]), _MOST_FILES):
        column = batch.columns.get("task_name")
        if column is not None:
            seen.update(dict.fromkeys(name for name in column.unique().to_pylist() if name is not None))
    return log.config_json, list(seen)
