"""List and read the help topics: the Markdown files beside this module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from tokenaudit.contracts.errors import Problem, UsageError, nearest_hint

TOPICS = (
    "commands",
    "columns",
    "config",
    "metrics",
    "rules",
    "replay",
    "ledger",
    "explain",
    "diff",
    "simulate",
    "masks",
    "corrections",
    "audit",
    "record",
    "import",
    "gate",
    "ci",
    "big-logs",
    "performance",
    "python",
    "contributing",
    "changelog",
)
"""Names of the topics, in the order in which they are listed."""

TRAINERS = ("xtuner", "areal", "prime-rl", "slime", "verl", "nemo-rl", "skyrl", "roll", "tinker", "trl", "generic")
"""Second words of `import`: one topic for each trainer, in the order of `tokenaudit import --list`."""

_ALIASES = {
    "workload": "simulate",
    "inspect": "columns",
    "lint": "config",
    "mask": "masks",
    "compact": "big-logs",
    "xtuner-buffer": "xtuner",
    "xtuner-trajectories": "xtuner",
    "miles": "slime",
    "verl-queue": "verl",
    "nemo-rl-train": "nemo-rl",
}
"""Commands and formats that another topic explains."""


def format_names() -> list[str]:
    """What `import --from` takes: trainers, and the aliases of their formats."""
    return [*TRAINERS, *(alias for alias, target in _ALIASES.items() if target in TRAINERS)]


_RULE_CODE = re.compile(r"[A-Za-z][0-9]{3}")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic.

    Attributes:
        name: what follows `tokenaudit help`, such as `columns` or `import slime`.
        line: what it is about, in one line.
        text: all of it, as Markdown.
    """

    name: str
    line: str
    text: str


def topics() -> list[Topic]:
    """Every topic, in order, without those of single trainers."""
    return [_read(name) for name in TOPICS]


def trainer_topics() -> list[Topic]:
    """The topics of single trainers: `import xtuner` and so on."""
    return [_read(f"import {name}") for name in TRAINERS]


def find_topic(words: Sequence[str]) -> Topic:
    """The topic that words name: `columns`, `import slime`, or a trainer, format or command alone.

    Raises:
        UsageError: there is none; names the nearest one.
    """
    name = _ALIASES.get(words[-1], words[-1])
    if name in TRAINERS and list(words[:-1]) in ([], ["import"]):
        return _read(f"import {name}")
    if name in TOPICS and len(words) == 1:
        return _read(name)
    asked, known = (words[1], TRAINERS) if words[0] == "import" and len(words) == 2 else (" ".join(words), TOPICS)
    options = [*known, *(alias for alias, target in _ALIASES.items() if target in known)]
    hint = nearest_hint(asked.lower(), options, "topics")
    if _RULE_CODE.fullmatch(asked):
        hint = f"`tokenaudit explain {asked.upper()}` shows an audit rule."
    elif not hint.endswith("?"):
        hint += "."
    raise UsageError(
        Problem(f"there is no help topic {' '.join(words)!r}", None, f"{hint} `tokenaudit help` lists all")
    )


def _read(name: str) -> Topic:
    """A topic from its file, whose first line is `# NAME: LINE`."""
    file = files("tokenaudit.help").joinpath(*name.split()[:-1], f"{name.split()[-1]}.md")
    text = file.read_text(encoding="utf-8")
    return Topic(name, text.split("\n", 1)[0].removeprefix(f"# {name}: "), text)
