"""Overrides of a config: `key=value` texts as on the command line, and what they set."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import Enum
from numbers import Integral, Real
from typing import Any

from tokenaudit.config.toml import MOST_DOTS, dotted, quoted, shown
from tokenaudit.contracts.errors import ConfigError, Problem
from tokenaudit.contracts.errors import shown as short

OVERRIDE = "-s"
"""The origin of a value that an override sets, and the option of the command line."""


def override_texts(overrides: Mapping[str, Any]) -> list[str]:
    """Overrides given as nested tables of Python values, as `key=value` texts.

    Args:
        overrides: dotted keys such as "policy.max_staleness" to values, or to tables of them; keys inside of a table
            are names, whatever characters they hold.

    Raises:
        ConfigError: values that TOML can't spell; holds all of them.
    """
    problems: list[Problem] = []
    texts: list[str] = []
    for key, value in _items(overrides):
        try:
            texts.append(f"{key}={_toml(value)}")
        except TypeError:
            what = f"{key} is {short(value)}, which no config can hold"
            hint = 'values are switches, numbers, texts and lists; "off" stands for no token rule'
            problems.append(Problem(what, f"{OVERRIDE} {key}", hint))
    if problems:
        raise ConfigError(problems)
    return texts


def _items(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested tables."""
    for name, value in table.items():
        key = f"{above}.{dotted([str(name)])}" if above else str(name)
        if isinstance(value, Mapping):
            yield from _items(value, key)
        else:
            yield key, value


def _toml(value: Any) -> str:
    """A value as TOML spells it."""
    match value:
        case bool():
            return "true" if value else "false"
        case Enum():
            return _toml(value.value)
        case str():
            return quoted(value)
        case Integral():
            return str(int(value))
        case Real():
            return repr(float(value))
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
    raise TypeError


def override_source(text: str) -> str:
    """What messages call one `key=value`."""
    return f"{OVERRIDE} {text}".encode(errors="backslashreplace").decode()


def override_data(text: str) -> dict[str, Any]:
    """The nested tables that one `key=value` sets: a dotted TOML key, a TOML value or a bare word.

    Raises:
        ConfigError: it is none.
    """
    source = override_source(text)
    if source != f"{OVERRIDE} {text}":
        raise ConfigError(Problem("the option is not UTF-8 text", source))
    # The first "=" outside of quotes; a quoted part of a key may hold one.
    parts = re.fullmatch(r"""((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^"'=])*)=(.*)""", text, re.DOTALL)
    if parts is None:
        raise ConfigError(Problem('there is no "="', source, "write -s KEY=VALUE"))
    path = _key_path(parts[1].strip(), source)
    data: Any = _override_value(parts[2].strip(), source)
    for part in reversed(path):
        data = {part: data}
    return data


def _key_path(key: str, source: str) -> list[str]:
    """The parts of a dotted TOML key."""
    path = []
    try:
        data: Any = None if key.count(".") > MOST_DOTS else tomllib.loads(f"{key} = 0")
    except ValueError:
        data = None
    while isinstance(data, dict) and len(data) == 1:
        ((part, data),) = data.items()
        path.append(part)
    if data != 0 or "\n" in key:
        what = f"{quoted(key)} is not a dotted key" if key else 'there is no key before the "="'
        raise ConfigError(Problem(what, source, "write -s policy.max_staleness=2"))
    return path


def _override_value(text: str, source: str) -> Any:
    """A TOML value, or a bare word as a string."""
    try:
        data = tomllib.loads(f"value = {text}")
        if data.keys() == {"value"}:
            return data["value"]
    except (ValueError, RecursionError):
        if re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", text):
            return text
    what = f"{shown(text)} is not a TOML value" if text else 'there is no value after the "="'
    raise ConfigError(Problem(what, source, 'values are TOML: 2, 0.5, true, "text", ["a", "b"]'))
