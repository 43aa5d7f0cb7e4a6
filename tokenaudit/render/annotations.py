"""What a GitHub Actions job reads from a command's output: annotations, then text that can't pass for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tokenaudit.render.text import count_text, printable

MOST_ANNOTATIONS = 9
"""Annotations of one level. GitHub shows ten per step and drops the rest without a word; the tenth tells how many."""


def annotation(level: str, text: str, properties: Mapping[str, str | None]) -> str:
    """The command that makes an annotation; properties without a value are left out."""
    told = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value is not None)
    return f"::{level} {told}::{_data(text)}"


def more_annotation(level: str, title: str, more: int, noun: str) -> str:
    """The annotation that says how many have none of their own."""
    return annotation(level, f"{count_text(more, f'more {noun}')} in the log of this step", {"title": title})


def job_text(annotations: Iterable[str], text: str) -> str:
    """Annotations and a report as text, with a line feed at the end."""
    return "".join(f"{line}\n" for line in (*annotations, *map(_harmless, text.splitlines())))


def _harmless(line: str) -> str:
    """A line of text in which names from files can't pass for commands to the job's runner."""
    line = line.replace("##[", "## [")
    return f"'{line}" if line.lstrip().startswith("::") else line


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
