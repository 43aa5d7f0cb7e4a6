"""What of a source can't be read: which records are left out for it, and when it refuses the import."""

from __future__ import annotations

from tokenaudit.contracts.errors import Problem, SourceError, plural
from tokenaudit.record.json_lines import SHOWN_PROBLEMS


class Problems:
    """The first faults of a source, how many there are, and how many records have some."""

    def __init__(self) -> None:
        self.shown: list[Problem] = []
        self.count = 0
        self.records = 0

    def add(self, *problems: Problem, records: int = 1) -> None:
        """Note the faults of one more record, or of several."""
        self.records += records
        self.count += len(problems)
        self.shown += problems[: max(0, SHOWN_PROBLEMS - len(self.shown))]

    def all(self) -> list[Problem]:
        """The first ones, then the count if there are more."""
        more = self.count - len(self.shown)
        return [*self.shown, Problem(f"{more} more faults", None, "mend the source")] if more else self.shown

    def limit(self) -> str | None:
        """What is left out for them, as a log keeps it; None where nothing is."""
        if not self.count:
            return None
        first = self.shown[0]
        place = f" ({first.where})" if first.where else ""
        return f"left out: {plural(self.records, 'record')} that can't be read, the first: {first.what}{place}"


class TooOld:
    """Records that are left out since their versions lie before the initial weights.

    They are the oldest of a run, so that leaving them out is no loss like others: what is left looks too fresh.
    """

    def __init__(self) -> None:
        self.records = 0
        self.oldest = 0

    def add(self, version: int) -> None:
        """Note one more record, and its version as the source counts."""
        self.oldest = min(version, self.oldest) if self.records else version
        self.records += 1

    def limit(self, initial: int) -> str | None:
        """What is left out for them, as a log keeps it, where `initial` stands for the initial weights; or None."""
        if not self.records:
            return None
        return (
            f"the oldest of the run is missing, so it looks fresher than it was: {plural(self.records, 'record')} with "
            f"versions before {initial}, which stands for the initial weights, as far back as {self.oldest}; if that "
            f"one does, import again with --version-offset {self.oldest}"
        )


def check(damaged: Problems, odd: Problems, *, is_strict: bool, has_responses: bool) -> None:
    """Refuse a source with files that can't be read, or records where no other is left, or where nobody wants that.

    Raises:
        SourceError: all faults.
    """
    refused = [*damaged.all()]
    if is_strict or not has_responses:
        refused += odd.all()
    if refused:
        raise SourceError(refused)
