"""TOML: how keys and values are spelled, and how a file, hostile or not, is read, with the place of what is wrong."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tokenaudit.contracts.errors import ConfigError, Problem, nearest_hint
from tokenaudit.contracts.files import read_bounded

MOST_DOTS = 64
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
    return "{" in bare and bare.count(".") > MOST_DOTS


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
    if any(line.partition("=")[0].count(".") > MOST_DOTS or _is_deep_table(line) for line in text.split("\n")):
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
