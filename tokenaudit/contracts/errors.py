"""What a person should know: a `Problem` keeps something from being judged, a `Notice` only qualifies what was judged.

Code that can't go on raises a `TokenauditError` that holds every problem it found, so that a user mends them in one go.
Two rooms have a word of their own: a fault is what is wrong with a row of a log, a finding what an audit rule reports.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Problem:
    """An error that is the user's to mend.

    Attributes:
        what: what is wrong, with the offending value.
        where: file, row and column, or file and key; None where the sentence already says it.
        hint: what to do about it; None where there is nothing to add.
    """

    what: str
    where: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        """Three short lines at most, safe to show: what, where, what to do."""
        lines = (self.what, self.where and f"  at: {self.where}", self.hint and f"  hint: {self.hint}")
        return "\n".join(printable(line) for line in lines if line)


class NoticeLevel(StrEnum):
    """How much a notice says about an answer."""

    WARNING = "warning"
    """It qualifies the answer; --quiet hides it."""
    CAUTION = "caution"
    """It changes what the answer means, so --quiet shows it too."""
    ERROR = "error"
    """The answer is most likely wrong, so no verdict can rest on it; --quiet shows it too."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know before trusting a result or a config, which is valid all the same.

    Attributes:
        code: stable name.
        message: what is the case.
        cost: what it costs or what to do about it; empty where the message says it.
        level: how much it says about the answer.
    """

    code: str
    message: str
    cost: str = ""
    level: NoticeLevel = NoticeLevel.WARNING


class TokenauditError(Exception):
    """A fault that is the user's to mend. Exit code 2: nothing could be judged."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        """A few problems in full, and how many more there are; for one line there is `summary`."""
        more = len(self.problems) - _MOST_SHOWN
        # where there are many, the last one often sums them up
        few = self.problems if more <= 0 else (*self.problems[: _MOST_SHOWN - 1], self.problems[-1])
        shown_ones = [str(problem) for problem in few]
        return "\n".join([*shown_ones, f"and {plural(more, 'more problem')}"] if more > 0 else shown_ones)

    @property
    def summary(self) -> str:
        """What is wrong, all of it in one line, without places and hints."""
        return "; ".join(problem.what for problem in self.problems)


class UsageError(TokenauditError):
    """Arguments that contradict each other or name what isn't there."""


class KeywordError(UsageError, TypeError):
    """A keyword that a function doesn't take; a `TypeError` too, as Python's own word for that."""


class ConfigError(TokenauditError):
    """A config that can't be read, or holds unknown keys or values out of range."""


class LogError(TokenauditError):
    """A log that can't be read, or holds structural faults."""


class RecordError(TokenauditError):
    """An event that can't be recorded, or a recording that can't be written."""


class SourceError(TokenauditError):
    """A file of another framework that can't be read, or isn't what it was taken for."""


class ResultError(TokenauditError):
    """A saved result that can't be read or isn't one."""


class RuleError(TokenauditError):
    """A gate rule that can't be read, or doesn't fit what it judges."""


class LedgerError(AssertionError):
    """Tokens were lost or counted twice: a fault of tokenaudit itself, never of the input."""


NOTHING = "–"
"""Shown where there is no value."""
_LONGEST_NAME = 200
"""Characters of a name that are compared with those that exist, and that a hint quotes."""
_MOST_SHOWN = 5
"""Problems that an uncaught error shows."""
_MOST_LISTED = 100
"""Names that a hint lists; a log may have a thousand tasks."""


def nearest_hint(name: str, known: Iterable[str], label: str) -> str:
    """A hint that names the entry of `known` closest to `name`, or lists them.

    Args:
        name: what the user wrote.
        known: what exists.
        label: the plural noun for what exists, such as "keys" or "columns".
    """
    options = list(known)
    # what is longer is no slip of the pen, and comparing millions of characters takes gigabytes
    close = get_close_matches(name[:_LONGEST_NAME], options, n=1)
    if close:
        return f"did you mean {shortened(close[0])!r}?"
    listed = ", ".join(shortened(option) for option in options[:_MOST_LISTED])
    more = f" and {len(options) - _MOST_LISTED} more" if len(options) > _MOST_LISTED else ""
    return f"{label}: {listed}{more}" if options else f"there are no {label}"


def shortened(name: str) -> str:
    """A name for a message, cut where it is so long that nobody reads on."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def shown(value: object) -> str:
    """A value of any kind for a message.

    Only a few levels of it, so that one that holds itself a million times takes no time. A number of thousands of
    digits, which Python doesn't print, is shown by its type.
    """
    try:
        return _SHORT.repr(value)[:60]
    except ValueError:
        return type(value).__name__


def plural(count: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Text from a file, safe to show: control and other unprintable characters as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def without_commands(text: str) -> str:
    """Lines of text in which names from files can't pass for commands to what runs a CI job.

    GitHub obeys lines that begin with `::`, it and Azure Pipelines `##[` and `##vso[` anywhere in a line.
    """
    return _COMMAND_IN_LINE.sub(" ", _COMMAND_LINE.sub("'", text))


_COMMAND_LINE = re.compile(r"^(?=[^\S\n]*::)", re.MULTILINE)
_COMMAND_IN_LINE = re.compile(r"(?<=##)(?=(?:vso)?\[)", re.IGNORECASE)

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
