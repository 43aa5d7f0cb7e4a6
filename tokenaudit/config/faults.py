"""How faults in a config are reported: which key, which value, what is allowed, and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from typing import Any, get_args, get_type_hints

from pydantic import ValidationError

from tokenaudit.config.model import Allowed, Buffer, Config, Cost, Gate, Mode, Policy, Section, Task, Timeline
from tokenaudit.config.toml import dotted, shown
from tokenaudit.contracts.errors import Problem, nearest_hint
from tokenaudit.lifecycle.buffer import ReplayPolicy

_MOST_PROBLEMS = 20


def config_problems(error: ValidationError, data: Mapping[str, Any], source: str) -> list[Problem]:
    """What is wrong with a config, up to 20 faults and then their count.

    Args:
        error: what validation found.
        data: what was validated.
        source: what messages call it, such as "async.toml".
    """
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    # One wrong value can be several faults to pydantic, one per allowed type: a path is reported once.
    unknown = {_path(fault["loc"]): fault["type"] == "extra_forbidden" for fault in faults}
    problems = [
        (_unknown_key if is_unknown else _wrong_value)(path, data, source)
        for path, is_unknown in list(unknown.items())[:_MOST_PROBLEMS]
    ]
    if len(unknown) > _MOST_PROBLEMS:
        problems.append(Problem(f"{len(unknown) - _MOST_PROBLEMS} more faults", source))
    return problems


SECTIONS: dict[str, type[Section]] = {
    "timeline": Timeline,
    "buffer": Buffer,
    "policy": Policy,
    "gate": Gate,
    "cost": Cost,
}
_ENUMS: dict[tuple[str, ...], type[StrEnum]] = {("mode",): Mode, ("buffer", "replay_policy"): ReplayPolicy}
_HOMES = (
    dict.fromkeys(Task.model_fields, "[tasks.NAME]")
    | {name: f"[{section}]" for section, model in SECTIONS.items() for name in model.model_fields}
    | {section: f"the top level, as [{section}]" for section in SECTIONS}
    | {"mode": "the top of the file, before any section", "tasks": "the top level, as [tasks.NAME]"}
)


def _path(loc: tuple[int | str, ...]) -> tuple[str, ...]:
    """The key a fault is about, without what pydantic appends for elements and alternatives."""
    return tuple(str(part) for part in loc[: 3 if loc[0] == "tasks" else 2])


def _value_at(data: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = data
    for part in path:
        value = value[part]
    return value


def _model_of(path: tuple[str, ...]) -> type[Section]:
    """The section that holds the key at `path`."""
    if len(path) == 1:
        return Config
    return Task if path[0] == "tasks" else SECTIONS[path[0]]


def _unknown_key(path: tuple[str, ...], data: Mapping[str, Any], source: str) -> Problem:
    is_section = isinstance(_value_at(data, path), Mapping)
    name = path[-1]
    what = f"unknown section [{dotted(path)}]" if is_section else f"unknown key {shown(name)}"
    return Problem(what, f"{source}: {dotted(path)}", _unknown_hint(path, is_section))


def _unknown_hint(path: tuple[str, ...], is_section: bool) -> str:
    name = path[-1]
    siblings = list(_model_of(path).model_fields)
    if name in _HOMES:
        return f"{name} belongs to {_HOMES[name]}"
    if path == ("tool",):
        return "the prefix tool.tokenaudit is for pyproject.toml; here write [policy] and so on"
    if path[0] == "policy" and is_section:
        return f"values of a single task go to [tasks.{dotted([name])}]"
    elsewhere = get_close_matches(name, _HOMES, n=1)
    if elsewhere and not get_close_matches(name, siblings, n=1):
        return f"did you mean {elsewhere[0]!r}? It belongs to {_HOMES[elsewhere[0]]}"
    return nearest_hint(name, siblings, "keys")


def _wrong_value(path: tuple[str, ...], data: Mapping[str, Any], source: str) -> Problem:
    value = _value_at(data, path)
    allowed = allowed_at(path)
    what = f"{dotted(path[-1:])} is {shown(value)}; it must be {allowed.text}"
    return Problem(what, f"{source}: {dotted(path)}", _value_hint(path, value) or allowed.hint)


def allowed_at(path: tuple[str, ...]) -> Allowed:
    """What the key at `path` may hold."""
    match path:
        case ("tasks",):
            return Allowed("sections, [tasks.NAME]")
        case ("tasks", name):
            hint = f"{name} belongs to [tasks.NAME]" if name in Task.model_fields else None
            return Allowed(f"a section, [{dotted(path)}]", hint)
        case (section,) if section in SECTIONS:
            return Allowed(f"a section, [{section}]")
    return _allowed_values(_model_of(path))[path[-1]]


@cache
def _allowed_values(model: type[Section]) -> dict[str, Allowed]:
    hints = get_type_hints(model, include_extras=True)
    return {
        name: next(_notes_in(hints[name])) for name in model.model_fields if name not in SECTIONS and name != "tasks"
    }


def _notes_in(annotation: Any) -> Iterator[Allowed]:
    """Notes in an annotation, the outermost first."""
    yield from (note for note in getattr(annotation, "__metadata__", ()) if isinstance(note, Allowed))
    for part in get_args(annotation):
        yield from _notes_in(part)


def _value_hint(path: tuple[str, ...], value: object) -> str | None:
    """What was probably meant, where the value itself gives it away."""
    if path in _ENUMS and isinstance(value, str):
        return nearest_hint(value, [member.value for member in _ENUMS[path]], "values")
    meant = _meant(value)
    if meant is None:
        return None
    data: Any = meant
    for part in reversed(path):
        data = {part: data}
    try:
        Config.model_validate(data)
    except ValidationError:
        return None
    return f"write {shown(meant)}" + (", without quotes" if isinstance(value, str) else "")


def _meant(value: object) -> int | float | bool | None:
    """The number or switch that a value of another type stands for; None if it stands for none."""
    match value:
        case str() if value.lower() in ("true", "false"):
            return value.lower() == "true"
        case str() if re.fullmatch(r"-?[0-9]{1,19}", value):
            return int(value)
        case str() if re.fullmatch(r"-?[0-9]{1,19}\.[0-9]{1,19}", value):
            return float(value)
        case float() if value.is_integer():
            return int(value)
        case int() if type(value) is int and value in (0, 1):
            return bool(value)
    return None
