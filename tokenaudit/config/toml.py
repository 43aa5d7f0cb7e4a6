"""TOML: how keys and values are spelled, how a file, hostile or not, is read, and what `-s key=value` sets.

Faults are reported with their place.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from tokenaudit.contracts.errors import ConfigError, Problem, nearest_hint
from tokenaudit.contracts.errors import shown as short
from tokenaudit.contracts.files import read_bounded

OVERRIDE = "-s"
"""The origin of a value that an override sets, and the option of the command line."""

_MOST_DOTS = 64
"""Dots in a key above which it is refused."""
_MOST_BYTES = 2**20
_MOST_CHARACTERS = 60


def dotted(path: Sequence[str]) -> str:
    """A path as a dotted TOML key; parts that need quotes get them."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else quoted(part) for part in path)


def quoted(text: str) -> str:
    """A text as a one-line TOML string."""
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in escaped)


def shown(value: object) -> str:
    """A value as TOML spells it, in at most one line."""
    match value:
        case Mapping():
            return "a section"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return quoted(value if len(value) <= _MOST_CHARACTERS else value[:_MOST_CHARACTERS] + "...")
        case int() if value.bit_length() > 128:
            return "a number of more than 38 digits"
        case list():
            parts = ["[...]" if isinstance(part, list) else shown(part) for part in value[:4]]
            return f"[{', '.join(parts + ['...'] * (len(value) > 4))}]"
    return str(value)


def read_start(path: Path) -> bytes:
    """The first bytes of a file, one more than a config file may have."""
    return read_bounded(path, _MOST_BYTES + 1)


def read_toml(path: Path, source: str) -> dict[str, Any]:
    """The contents of a TOML file.

    Args:
        path: the file.
        source: what messages call it.

    Raises:
        ConfigError: it can't be read, or is no TOML.
    """
    try:
        content = read_start(path)
    except OSError as error:
        raise ConfigError(_unreadable(path, source, error)) from error
    return parse_toml(content, source)


def _is_deep_table(line: str) -> bool:
    """Whether an inline table may hold a key of very many parts."""
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", line)
    return "{" in bare and bare.count(".") > _MOST_DOTS


def parse_toml(content: bytes, source: str) -> dict[str, Any]:
    """The contents of a TOML file, given its bytes; see `read_toml`."""
    if content.startswith(b"PAR1"):
        raise ConfigError(Problem("a Parquet file is no config", source, "a config is TOML; is this the log?"))
    if len(content) > _MOST_BYTES:
        raise ConfigError(Problem("the config file is larger than 1 MiB", source, "is it a config at all?"))
    try:
        # utf-8-sig: some editors on Windows write a byte order mark, which TOML doesn't know.
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        what = f"the config file is not UTF-8 text (byte {error.start})"
        raise ConfigError(Problem(what, source, "a config is TOML, saved as UTF-8")) from error
    if any(line.partition("=")[0].count(".") > _MOST_DOTS or _is_deep_table(line) for line in text.split("\n")):
        # Reading such keys takes time and memory that grow with the square of their length.
        raise ConfigError(Problem("a key of more than 64 parts", source, "no key of a config has more than four"))
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(_not_toml(text, source, error)) from error


def _unreadable(path: Path, source: str, error: OSError) -> Problem:
    match error:
        case FileNotFoundError() if not path.parent.is_dir():
            return Problem("there is no such config file", source, f"there is no folder {path.parent}")
        case FileNotFoundError():
            names = sorted(other.name for other in path.parent.glob("*.toml"))
            near = get_close_matches(path.name, names, n=1) or names[:10]
            return Problem("there is no such config file", source, nearest_hint(path.name, near, "TOML files there"))
        case IsADirectoryError():
            return Problem("the config is a folder, not a file", source, "name the TOML file in it")
        case PermissionError():
            return Problem("the config file may not be read", source, "its permissions are in the way")
    return Problem(f"the config file can't be read: {error.strerror or error}", source)


def _not_toml(text: str, source: str, error: Exception) -> Problem:
    """A fault that the TOML parser found, with line and column."""
    hint = "this looks like JSON; a config is TOML" if text.lstrip().startswith("{") else None
    if not isinstance(error, tomllib.TOMLDecodeError):
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
        return Problem(f"not TOML: {reason}", source, hint)
    message, _, place = str(error).partition(" (at ")
    found = re.fullmatch(r"line ([0-9]+), column ([0-9]+)\)", place)
    if found:
        line, column = found.groups()
    else:
        lines = text.rstrip("\n").split("\n")
        line, column = len(lines), len(lines[-1]) + 1
    return Problem(f"not TOML: {message}", f"{source}, line {line}, column {column}", hint)


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
            texts.append(f"{key}={toml_value(value)}")
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


def toml_value(value: object) -> str:
    """A value as TOML spells it, whole and in one line.

    Raises:
        TypeError: TOML can't spell it.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case Enum():
            return toml_value(value.value)
        case str():
            return quoted(value)
        case Integral():
            return str(int(value))
        case Real():
            return repr(float(value))
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
    raise TypeError


def override_source(text: str) -> str:
    """What messages call one `key=value`."""
    return f"{OVERRIDE} {text}".encode(errors="backslashreplace").decode()


def override_data(text: str) -> dict[str, Any]:
    """The nested tables that one `key=value` sets: a dotted TOML key, a TOML value or a bare word.

    Raises:
        ConfigError: it is none.
    """
    path, data = _override_parts(text)
    for part in reversed(path):
        data = {part: data}
    return data


def last_overrides(texts: Iterable[str]) -> list[str]:
    """The overrides that count: of those that set one key, the last. Raises a ConfigError where one is none."""
    last: dict[tuple[str, ...], str] = {}
    tables: list[str] = []
    for text in texts:
        path, value = _override_parts(text)
        if isinstance(value, dict):
            # what it sets is merged with what others set, in the order in which they stand
            tables += [*last.values(), text]
            last = {}
            continue
        last.pop(tuple(path), None)
        last[tuple(path)] = text
    return [*tables, *last.values()]


def _override_parts(text: str) -> tuple[list[str], Any]:
    """The parts of the key, and the value, of one `key=value`."""
    source = override_source(text)
    if source != f"{OVERRIDE} {text}":
        raise ConfigError(Problem("the option is not UTF-8 text", source))
    # The first "=" outside of quotes; a quoted part of a key may hold one.
    parts = re.fullmatch(r"""((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^"'=])*)=(.*)""", text, re.DOTALL)
    if parts is None:
        raise ConfigError(Problem('there is no "="', source, "write -s KEY=VALUE"))
    path = _key_path(parts[1].strip(), source)
    return path, _override_value(parts[2].strip(), source)


def _key_path(key: str, source: str) -> list[str]:
    """The parts of a dotted TOML key."""
    path = []
    try:
        data: Any = None if key.count(".") > _MOST_DOTS else tomllib.loads(f"{key} = 0")
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
