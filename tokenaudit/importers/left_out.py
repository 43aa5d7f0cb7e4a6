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
