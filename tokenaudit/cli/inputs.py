"""What commands judge or show: logs to replay, or results saved before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenaudit.cli import streams
from tokenaudit.config.loading import Settings
from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.replay.result import Result
from tokenaudit.replay.session import load_result


def is_saved_result(paths: Sequence[Path]) -> bool:
    """Whether the arguments name a saved result and no log."""
    return any(path.suffix.lower() == ".json" for path in paths)


def saved_result(paths: Sequence[Path], replaying: Mapping[str, object]) -> Result:
    """Read the saved result that is given in place of a log.

    Args:
        paths: the arguments.
        replaying: options that need a log, with their values.

    Raises:
        UsageError: more than one path, or such an option.
        ResultError: the file is no result.
    """
    path = paths[0]
    if len(paths) > 1:
        what = "a saved result stands alone; it can't be combined with other paths"
        raise UsageError(Problem(what, ", ".join(map(str, paths)), "give one result, or logs only"))
    given = [name for name, value in replaying.items() if value]
    if given:
        what = f"{path.name} is a saved result, and {', '.join(given)} would need the log"
        raise UsageError(Problem(what, str(path), "give the log instead"))
    return load_result(path)


def note_config(settings: Settings, named: Path | None) -> None:
    """Say which config file was found, if none was named."""
    if settings.file is not None and named is None:
        streams.note(f"note: config from {settings.source}")
