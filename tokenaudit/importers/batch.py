"""The groups of one step, gathered while their records come in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from tokenaudit.importers.base import Context, FieldFault, Imported, ImportedEvent, ImportedPut, take_event
from tokenaudit.log.writer import Row

MAX_GROUP_TOKENS = 2**27
"""Tokens of all responses of a group, which is written at once; no group is that long, a crafted one is."""


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


class Members:
    """Responses of one step by task and group, whose rows are made when their group is written and not before.

    Args:
        train_step: the step.
    """

    def __init__(self, train_step: int) -> None:
        self.train_step = train_step
        self._groups: dict[tuple[str, int], list[int]] = {}

    def add(self, task_name: str, group_id: int, index: int) -> None:
        """Add the response of a number."""
        self._groups.setdefault((task_name, group_id), []).append(index)

    def trained(
        self, row_of: Callable[[int], Row], where_of: Callable[[int], str], where: str, context: Context
    ) -> Iterator[Imported]:
        """One put per group in order of first appearance, then one take per task.

        Args:
            row_of: makes the row of a number; what it refuses with a `FieldFault` is noted and left out.
            where_of: where a response stands.
            where: where the batch does.
            context: where faults are noted.
        """

        def read(indices: list[int]) -> Iterator[Row]:
            for index in indices:
                try:
                    yield row_of(index)
                except FieldFault as fault:
                    context.fault(fault, where_of(index))

        sizes: Counter[str] = Counter()
        for (task_name, group_id), indices in self._groups.items():
            try:
                rows = bounded(read(indices))
            except FieldFault as fault:
                context.fault(fault, where_of(indices[0]))
                continue
            if rows:
                sizes[task_name] += 1
                yield ImportedPut(self.train_step, task_name, group_id, rows, where_of(indices[0]))
        for task_name, size in sizes.items():
            yield take_event(self.train_step, task_name, size, where)


def bounded(rows: Iterable[Row]) -> list[Row]:
    """The rows of a group, as long as memory can be expected to hold them.

    Raises:
        FieldFault: more than `MAX_GROUP_TOKENS` in all.
    """
    kept: list[Row] = []
    tokens = 0
    for row in rows:
        kept.append(row)
        tokens += row["response_len"]
        if tokens > MAX_GROUP_TOKENS:
            raise FieldFault("a group too long", f"groups of up to {MAX_GROUP_TOKENS} tokens are read")
    return kept


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
