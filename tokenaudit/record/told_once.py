"""What a hook can't record, in words for whoever runs the trainer."""

from __future__ import annotations

import itertools
import sys
import warnings
from contextlib import suppress

from tokenaudit.contracts.errors import RecordError

_LONGEST = 500


class ToldOnce:
    """Tells the first failure of a run, on standard error where a warning would be an error."""

    def __init__(self) -> None:
        self._failures = itertools.count()

    def __call__(self, what: str) -> None:
        """Tell what isn't recorded, if nothing was told before."""
        if next(self._failures):
            return
        text = f"not recorded: {what} (told once; the log counts what is not recorded)"
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        except Warning:
            with suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(f"tokenaudit: {text}\n")


def said(error: Exception) -> str:
    """An error in words, whatever its own text does."""
    try:
        text = error.summary if isinstance(error, RecordError) else f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - exceptions of a trainer may be anything
        return type(error).__name__
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
