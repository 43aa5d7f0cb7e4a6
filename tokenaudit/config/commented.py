"""A config as commented TOML: every key with what it means, as `model.py` says it, and what a remark adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from textwrap import wrap

from pydantic.fields import FieldInfo

from tokenaudit.config.model import EXAMPLES, OFF, Allowed, Config, Policy, Section, Task
from tokenaudit.config.toml import dotted, toml_value
from tokenaudit.contracts.errors import printable

_WIDTH = 100
_A_TASK = "NAME"
"""Stands for the name of a task where a config names none."""


def commented_toml(config: Config, heading: Sequence[str] = (), remarks: Mapping[str, str] | None = None) -> str:
    """A config with every key: those that are not set are commented out, and so is a task where there is none.

    `parse_config` makes the same config of it.

    Args:
        config: the values.
        heading: paragraphs at the top of the file.
        remarks: what else to say of single keys, by dotted key; `tasks.NAME.KEY` stands for a key of every task.
    """
    remarks = remarks or {}
    fields = Config.model_fields
    sections = [name for name in fields if isinstance(getattr(config, name), Section)]
    lines = [line for paragraph in heading for line in _comment(paragraph)]
    for name in (name for name in fields if name not in (*sections, "tasks")):
        lines += ["", *_key((name,), getattr(config, name), fields[name], remarks)]
    for name in sections:
        section: Section = getattr(config, name)
        lines += ["", *_comment(fields[name].description), f"[{name}]"]
        for key, field in type(section).model_fields.items():
            lines += _key((name, key), getattr(section, key), field, remarks)
        if name == "policy":
            lines += _tasks(config, remarks)
    return "\n".join(lines).lstrip("\n") + "\n"


def _tasks(config: Config, remarks: Mapping[str, str]) -> Iterator[str]:
    """The tasks. Only the first one explains its own keys, and none explains those of [policy] again."""
    yield ""
    yield from _comment(Config.model_fields["tasks"].description)
    if not config.tasks:
        yield f"# [tasks.{_A_TASK}]"
        for line in _task(_A_TASK, Task(), remarks, is_first=True):
            yield line if line.startswith("#") else f"# {line}"
    for index, (name, task) in enumerate(config.tasks.items()):
        yield from [""] * (index > 0)
        yield f"[{dotted(('tasks', name))}]"
        yield from _task(name, task, remarks, is_first=index == 0)


def _task(name: str, task: Task, remarks: Mapping[str, str], *, is_first: bool) -> Iterator[str]:
    for key, field in Task.model_fields.items():
        value = getattr(task, key)
        if key not in Policy.model_fields:
            if is_first:
                yield from _comment(field.description)
                yield from _comment(remarks.get(dotted(("tasks", _A_TASK, key))))
            if name != _A_TASK:
                yield from _comment(remarks.get(dotted(("tasks", name, key))))
            yield _assignment(key, value)
        elif value is not None:
            yield _assignment(key, value)


def _key(path: tuple[str, ...], value: object, field: FieldInfo, remarks: Mapping[str, str]) -> Iterator[str]:
    choices = [f"{note.text}." for note in field.metadata if isinstance(note, Allowed)] * isinstance(value, Enum)
    yield from _comment(field.description, *choices)
    yield from _comment(remarks.get(dotted(path)))
    # without a value, the token rule is the only key that a config can spell as absent
    yield _assignment(path[-1], OFF if value is None and path[-1] in Policy.model_fields else value)


def _assignment(key: str, value: object) -> str:
    """A line that sets a key; a comment where it has no value."""
    return f"{key} = {toml_value(value)}" if value is not None else f"# {key} = {EXAMPLES.get(key, '...')}"


def _comment(*sentences: str | None) -> list[str]:
    text = printable(" ".join(filter(None, sentences)))
    return [f"# {line}" for line in wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)]
