"""The groups of one step, gathered while their responses come in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, groupby
from typing import Any, NamedTuple

from tokenaudit.contracts.errors import Problem, SourceError
from tokenaudit.importers.base import Context, FieldFault, Imported, ImportedEvent, ImportedPut, Lack, Precision
from tokenaudit.importers.files import SourceRecord
from tokenaudit.importers.repeats import Writing
from tokenaudit.log.writer import Row

MAX_GROUP_TOKENS = 2**27
"""Tokens of all responses of a group, which is written at once; no group is that long, a crafted one is."""
MAX_STEP_TOKENS = 2**29
MAX_STEP_RESPONSES = 2**20
"""Tokens and responses of a step that is held until its last one; no trainer has such steps, a crafted file has."""
_STEPS = 2**31
"""Train steps that a log has room for."""


class GroupKey(NamedTuple):
    """What names a group inside of a step."""

    task_name: str
    group_id: int


class TrainedResponse(NamedTuple):
    """One response of a batch that was trained: the step it was trained in, its group, and its log columns."""

    train_step: int
    group: GroupKey
    row: Row


class _Batch:
    """Responses of one step by group, in order of first appearance.

    A batch is one writing of its step, which begins with its first response: of several batches of a step one is kept.
    """

    def __init__(self, train_step: int) -> None:
        self._train_step = train_step
        self._puts: dict[GroupKey, ImportedPut] = {}
        self._writing: Writing | None = None
        self._responses = self._tokens = 0

    def add(self, group: GroupKey, row: Row, where: str) -> None:
        """Add one response. Raises a `SourceError` for more of them than memory can be expected to hold."""
        if self._writing is None:
            self._writing = Writing(self._train_step, where)
        put = self._puts.get(group)
        if put is None:
            put = self._puts[group] = ImportedPut(self._train_step, *group, [], where, self._writing)
        put.rows.append(row)
        self._responses += 1
        self._tokens += row["response_len"]
        if self._responses > MAX_STEP_RESPONSES or self._tokens > MAX_STEP_TOKENS:
            what = f"train step {self._train_step} is too long to be one step"
            most = f"up to {MAX_STEP_RESPONSES} responses and {MAX_STEP_TOKENS} tokens of a step are read"
            raise SourceError(Problem(what, where, f"check the step that the records name; {most}"))

    def events(self, where: str) -> Iterator[Imported]:
        """One put per group, then one take per task, of as many groups as there are."""
        yield from self._puts.values()
        sizes = Counter(group.task_name for group in self._puts)
        yield from takes(self._train_step, sizes, where, self._writing)


def trained_batches(
    records: Iterable[SourceRecord],
    response_of: Callable[[dict[str, Any]], TrainedResponse | None],
    path: str,
    context: Context,
    is_kept: Callable[[int], bool] = lambda _: True,
) -> Iterator[Imported]:
    """Puts and takes of the batches of a file; consecutive responses of one step are a batch, and one writing of it.

    What `response_of` refuses with a `FieldFault` is noted and left out, a record for which it returns None is no
    response. A batch counts if `is_kept` says so of its step, once all of its responses were seen.

    Raises:
        SourceError: a step of more than `MAX_STEP_RESPONSES` or `MAX_STEP_TOKENS`.
    """
    responses = _responses(records, response_of, context)
    for train_step, of_step in groupby(responses, key=lambda placed: placed[0].train_step):
        batch = _Batch(train_step)
        for response, where in of_step:
            batch.add(response.group, response.row, where)
        if is_kept(train_step):
            yield from batch.events(path)


def _responses(
    records: Iterable[SourceRecord], response_of: Callable[[dict[str, Any]], TrainedResponse | None], context: Context
) -> Iterator[tuple[TrainedResponse, str]]:
    """The responses that can be read, with their places."""
    for data, where in records:
        response = None
        with context.noting(where):
            response = _with_step(response_of(data))
        if response is not None:
            yield response, where


def _with_step(response: TrainedResponse | None) -> TrainedResponse | None:
    """A response as it is: one odd step among others must not look like the end of their batch.

    Raises:
        FieldFault: its step is none that a log can hold.
    """
    if response is not None and response.train_step >= _STEPS:
        raise FieldFault(f"train_step is {response.train_step}", f"train steps are below {_STEPS}")
    return response


def trained_responses(
    train_step: int,
    size: int,
    group_of: Callable[[int], GroupKey],
    row_of: Callable[[int], Row],
    noun: str,
    path: str,
    context: Context,
) -> Iterator[Imported]:
    """Puts and takes of the batch of a step whose rows are made when their group is written and not before.

    Its `size` responses are numbered from 0, and called a `noun` in messages. What `group_of` or `row_of` refuses with
    a `FieldFault` is noted and left out. They are one writing of the step.
    """
    writing = Writing(train_step, path)

    def rows(indices: list[int]) -> Iterator[Row]:
        for index in indices:
            with context.noting(f"{path}, {noun} {index}"):
                yield row_of(index)

    groups: dict[GroupKey, list[int]] = {}
    for index in range(size):
        with context.noting(f"{path}, {noun} {index}"):
            groups.setdefault(group_of(index), []).append(index)
    sizes: Counter[str] = Counter()
    for group, indices in groups.items():
        where = f"{path}, {noun} {indices[0]}"
        with context.noting(where):
            if kept := bounded(rows(indices)):
                sizes[group.task_name] += 1
                yield ImportedPut(train_step, *group, kept, where, writing)
    yield from takes(train_step, sizes, path, writing)


def takes(train_step: int, sizes: Counter[str], where: str, writing: Writing | None = None) -> Iterator[ImportedEvent]:
    """The takes of a step whose batch the source holds, with so many groups of each task."""
    for task_name, size in sizes.items():
        values: Row = {"event": "take", "train_step": train_step, "task_name": task_name, "batch_size": size}
        yield ImportedEvent(values, where, writing)


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
        check_group(tokens)
    return kept


def check_group(tokens: int) -> None:
    """Raises a `FieldFault` for a group of more than `MAX_GROUP_TOKENS`, which no memory can be expected to hold."""
    if tokens > MAX_GROUP_TOKENS:
        raise FieldFault("a group too long", f"groups of up to {MAX_GROUP_TOKENS} tokens are read")


def unversioned_row(rollout_id: int, reward: float | None) -> Row:
    """The row of a completed response that a source records as text: without versions, and of unknown length."""
    return {
        "rollout_id": rollout_id,
        "status": "completed",
        "response_len": 0,
        "reward": reward,
        "version_precision": Precision.NONE,
    }


class PromptGroups:
    """Numbers groups where a source names none: consecutive equal prompts are one group.

    Prompts are compared by hash, so that none is kept.

    Args:
        is_reordered: the source reorders its batches before it writes them: all equal prompts of a step are one group.
    """

    def __init__(self, *, is_reordered: bool = False) -> None:
        self._is_reordered = is_reordered
        self._groups: dict[int, int] = {}
        self._sizes: Counter[int] = Counter()
        self._numbers = count()

    def group_of(self, prompt: object) -> int:
        """The group of the next response."""
        here = hash(repr(prompt))
        group = self._groups.get(here)
        if group is None:
            if not self._is_reordered:
                self._groups.clear()
            group = self._groups[here] = next(self._numbers)
        self._sizes[group] += 1
        return group

    def sizes(self) -> set[int]:
        """How many responses the groups of the step have so far."""
        return set(self._sizes.values())

    def end(self, context: Context) -> None:
        """The step is over: the next response begins a new group, whatever its prompt. Notes equal prompts."""
        note_equal_prompts(self._sizes, context)
        self._groups.clear()
        self._sizes.clear()


def note_equal_prompts(responses: Mapping[int, int], context: Context) -> None:
    """Note groups with several times as many responses as others of the step: several of its groups had one prompt."""
    sizes = Counter(responses.values())
    usual = max(sizes, key=lambda size: (sizes[size], -size), default=0)
    if any(size > usual and size % usual == 0 for size in sizes):
        context.limit(Lack.EQUAL_PROMPTS)
