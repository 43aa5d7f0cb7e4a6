"""Collect gate rules from the command line, rules files, configs and saved results, and say where each one stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenaudit.config.loading import DEFAULT, LOG_METADATA, Settings, load_settings
from tokenaudit.config.model import parse_config
from tokenaudit.config.toml import OVERRIDE, quoted
from tokenaudit.contracts.errors import ConfigError, Problem, RuleError
from tokenaudit.contracts.files import from_folder
from tokenaudit.gate.grammar import parse_rule
from tokenaudit.gate.report import LocatedRule, Origin
from tokenaudit.replay.result import Result

MOST_RULES = 1000
"""Rules that one gate judges at most."""

_Written = tuple[str, Origin]
"""A rule's text and where it stands."""


def collect_rules(
    texts: Sequence[str],
    rules_file: Path | None,
    settings: Settings | None,
    result: Result | None,
    working_dir: Path,
    *,
    called: str = "--rule",
) -> list[LocatedRule]:
    """Rules of all sources together, each once: texts, a rules file, and the config.

    Args:
        texts: rules from the command line, or the argument of a function.
        rules_file: a TOML file whose [gate] holds rules; a whole config will do.
        settings: the config of a replay.
        result: the saved result that is judged instead; the rules of its config count.
        working_dir: where relative paths begin.
        called: what messages call the place of `texts`.

    Raises:
        ConfigError: the rules file or the saved config can't be used.
        RuleError: rules that can't be read, all of them at once.
    """
    written: list[_Written] = [(text, Origin(called)) for text in texts]
    if rules_file is not None:
        written += _of_file(rules_file, working_dir)
    if settings is not None:
        written += _of_settings(settings, working_dir)
    if result is not None:
        source = "the saved config"
        written += [(text, Origin(source)) for text in parse_config(result.config, source).gate.rules]
    if len(written) > MOST_RULES:
        raise RuleError(Problem(f"{len(written)} rules", None, f"a gate judges {MOST_RULES} at most"))
    return _parsed(written)


def _of_file(path: Path, working_dir: Path) -> list[_Written]:
    settings = load_settings(config_path=path, working_dir=working_dir, isolated=True)
    if not settings.config.gate.rules:
        raise ConfigError(Problem("there is no rule in it", str(path), '[gate] and rules = ["expired_groups <= 0"]'))
    return _of_settings(settings, working_dir)


def _of_settings(settings: Settings, working_dir: Path) -> list[_Written]:
    rules = settings.config.gate.rules
    source = settings.origins["gate.rules"]
    if settings.file is None or source in (DEFAULT, LOG_METADATA, OVERRIDE):
        return [(text, Origin(source)) for text in rules]
    shown = from_folder(settings.file, working_dir).as_posix()
    content = settings.file.read_text(encoding="utf-8-sig")
    lines = _toml_lines(content)
    return [
        (text, Origin(settings.file.name, shown, line, tuple(lines[max(0, line - 2) : line + 1])))
        for text, line in zip(rules, rule_lines(content, rules), strict=True)
    ]


def rule_lines(text: str, rules: Iterable[str]) -> list[int]:
    """Lines, from 1, at which the rules of a TOML file stand; where the spelling hides one, that of `rules`."""
    lines = _toml_lines(text)
    start = next((at for at, line in enumerate(lines) if line.split("=")[0].strip() in ("rules", "gate.rules")), 0)
    found: list[int] = []
    at = start
    for rule in rules:
        spellings = (quoted(rule), f"'{rule}'")
        match = next((n for n in range(at, len(lines)) if _holds(lines[n], spellings)), None)
        found.append((start if match is None else match) + 1)
        at = at if match is None else match
    return found


def _toml_lines(text: str) -> list[str]:
    """Lines as TOML and editors count them: only a line feed ends one, and comments may hold what else would."""
    return text.removesuffix("\n").split("\n")


def _holds(line: str, spellings: Iterable[str]) -> bool:
    return not line.lstrip().startswith("#") and any(spelling in line for spelling in spellings)


def _parsed(written: Iterable[_Written]) -> list[LocatedRule]:
    rules: dict[str, LocatedRule] = {}
    problems: list[Problem] = []
    for text, origin in written:
        try:
            rule = parse_rule(text, origin.place)
        except RuleError as error:
            problems += error.problems
        else:
            rules.setdefault(str(rule), LocatedRule(rule, origin))
    if problems:
        raise RuleError(problems)
    return list(rules.values())
