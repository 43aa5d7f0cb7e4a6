"""Options of a method as one text, `KEY=VALUE, KEY=VALUE`: taken apart, read, and written."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_OPTION = re.compile(r"\s*[A-Za-z_][\w.-]*\s*=")
_GROUPED_NUMBER = re.compile(r"[+-]?\d[\d_.]*_[\d_.]*\d")


def parts_of_text(text: str) -> Iterator[str]:
    """Options, cut at commas outside of quotes and brackets that another option follows."""
    depth, quote, begin = 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0 and _OPTION.match(text, at + 1):
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]


def put(options: dict[str, Any], path: Sequence[str], value: Any) -> bool:
    """Set an option, unless it, or one that it is part of, has a value."""
    *above, last = path
    for part in above:
        options = options.setdefault(part, {})
        if not isinstance(options, dict):
            return False
    if last in options:
        return False
    options[last] = value
    return True


def value_of_text(text: str) -> tuple[Any, str]:
    """A value as the trainers' YAML would read it, and what is odd about that."""
    if text.lower() in ("null", "none", "~", ""):
        return None, ""
    if text.lower() in ("true", "false"):
        return text.lower() == "true", ""
    try:
        value = (
            json.loads(text) if text[:1] in ("[", "{") and ":" in text else tomllib.loads(f"value = {text}")["value"]
        )
    except (ValueError, RecursionError):
        return text, ""
    if isinstance(value, int | float) and not isinstance(value, bool) and _GROUPED_NUMBER.fullmatch(text):
        low, _, high = text.partition("_")
        other = f'"{text}"' if re.fullmatch(r"[\d.]+", high) and low else text
        return value, f"{text} reads as {value!r} without quotes, in YAML too; write {other} for two bounds"
    return value, ""


def written(options: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Options as `KEY=VALUE`, those of tables dotted."""
    for name, value in options.items():
        if isinstance(value, dict) and value:
            yield from written(value, f"{above}{name}.")
        else:
            is_word = (
                isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w-]*", value) and value_of_text(value)[0] == value
            )
            yield f"{above}{name}={value if is_word else _toml(value)}"


def _toml(value: Any) -> str:
    """A value as TOML has it."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items() if inner is not None) + "}"
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case float():
            return repr(value)
        case _:
            return json.dumps(value, ensure_ascii=False)
