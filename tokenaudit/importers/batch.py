"""The groups of one step, gathered while their records come in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tokenaudit.importers.base import Imported, ImportedEvent, ImportedPut, take_event
from tokenaudit.log_writer import Row


class Batch:
    """Responses of one step by task and group, in order of first appearance.

    Args:
        train_step: the step.
    """

    def __init__(self, train_step: int) -> None:
        self.train_step = train_step
        self._puts: dict[tuple[str, int], ImportedPut] = {}

    def add(self, task_name: str, group_id: int, row: Row, where: str) -> None:
        """Add one response."""
        put = self._puts.get((task_name, group_id))
        if put is None:
            put = self._puts[(task_name, group_id)] = ImportedPut(self.train_step, task_name, group_id, [], where)
        put.rows.append(row)

    def puts(self) -> Iterator[ImportedPut]:
        """One put per group."""
        yield from self._puts.values()

    def takes(self, where: str) -> Iterator[ImportedEvent]:
        """One take per task, of as many groups as there are."""
        sizes = Counter(task for task, _ in self._puts)
        for task, size in sizes.items():
            yield take_event(self.train_step, task, size, where)

    def trained(self, where: str) -> Iterator[Imported]:
        """Puts and takes of a batch that was trained as it is; a batch without a group leaves nothing."""
        yield from self.puts()
        yield from self.takes(where)


class Prompts:
    """Numbers groups where a source names none: consecutive equal prompts are one group.

    Prompts are compared by hash, so that none is kept.
    """

    def __init__(self) -> None:
        self._last: int | None = None
        self.group_id = -1

    def group_of(self, prompt: object) -> int:
        """The group of the next response."""
        here = hash(repr(prompt))
        if here != self._last:
            self._last = here
            self.group_id += 1
        return self.group_id

    def end(self) -> None:
        """The next response begins a new group, whatever its prompt."""
        self._last = None
