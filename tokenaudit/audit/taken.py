"""What was taken: the responses that take rows name, and the masks that the trainer used for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.puts import PutRun
from tokenaudit.audit.replayed_run import NEVER, ReplayedRun
from tokenaudit.audit.table import LogTable
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.staleness import is_fresh, oldest_fresh_version, staleness
from tokenaudit.log import columns as col
from tokenaudit.log.batches import read_batches
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE
from tokenaudit.log.files import Log
from tokenaudit.log.row_checks import ABSENT

_COLUMN, _SEMANTIC = "trained_mask", "response_mask"
_PUT, _TAKE = KIND_CODE[EventKind.PUT], KIND_CODE[EventKind.TAKE]


class RecordedTake(NamedTuple):
    """A response that a take row names, and its rows in its last put before; none where there is no such put."""

    row: int
    train_step: int
    put_rows: tuple[int, ...]


def has_recorded_takes(table: LogTable) -> bool:
    """Whether take rows name the responses taken."""
    return bool(((table["kind"] == _TAKE) & table.present("rollout_id")).any())


def recorded_takes(table: LogTable) -> list[RecordedTake]:
    """The responses that take rows name, in log order."""
    if not has_recorded_takes(table):
        return []
    of_interest = np.flatnonzero(np.isin(table["kind"], (_PUT, _TAKE)) & table.present("rollout_id"))
    names = ("kind", "task", "rollout_id", "train_step")
    columns = (of_interest, *(table[name][of_interest] for name in names), table.segment[of_interest])
    last_put: dict[tuple[int, int], list[int]] = {}
    takes: list[RecordedTake] = []
    for row, kind, task, rollout_id, step, segment in zip(*(column.tolist() for column in columns), strict=True):
        if kind == _TAKE:
            if step != ABSENT:
                takes.append(RecordedTake(row, step, tuple(last_put.get((task, rollout_id), ()))))
        elif segment == 0:
            last_put[task, rollout_id] = [row]
        else:
            last_put[task, rollout_id].append(row)
    return takes


def trained_at(table: LogTable, replayed: ReplayedRun | None, takes: Sequence[RecordedTake]) -> Int64s:
    """The step of the take of every put row: as recorded, else as replayed, else the step of the put."""
    step = np.where(table.is_put & table.present("train_step"), table["train_step"], -1)
    if replayed is not None:
        taken = replayed.taken_step
        step[replayed.puts.rows[taken >= 0]] = taken[taken >= 0]
    rows, train_step = taken_rows(takes)
    # of several takes of a row the last one stays
    step[rows] = train_step
    return step


def taken_rows(takes: Sequence[RecordedTake]) -> tuple[Int64s, Int64s]:
    """Put rows of the responses taken, take by take, and the step of each take."""
    steps = np.array([take.train_step for take in takes], dtype=np.int64)
    rows = np.array([row for take in takes for row in take.put_rows], dtype=np.int64)
    return rows, np.repeat(steps, [len(take.put_rows) for take in takes])


class TrainedRun(NamedTuple):
    """Consecutive tokens of one version, at the take.

    Attributes:
        age: their staleness at the take.
        is_stale: whether the token rule masks them.
        trainable: those that the semantic mask trains.
        trained: those of them that the trainer's mask kept.
        extra: tokens out of the loss that the trainer's mask kept.
    """

    age: int
    is_stale: bool
    trainable: int
    trained: int
    extra: int

    @property
    def is_wrong(self) -> bool:
        """Whether the trainer's mask isn't the recomputed one."""
        return self.extra > 0 or self.trained != (0 if self.is_stale else self.trainable)


class TrainedResponse(NamedTuple):
    """A response whose mask at the take is recorded: its put row, and the runs where it isn't the recomputed one."""

    row: int
    train_step: int
    limit: int | None
    wrong: tuple[TrainedRun, ...]


class Misfit(NamedTuple):
    """A mask on a take row that isn't as long as its response: the put row, its values, and the response's tokens."""

    row: int
    mask_values: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TrainedMasks:
    """The masks that the trainer used: how many, those that differ from the recomputed mask, those of another length.

    Counted are those whose response has a known step and known versions. `fresh` are their trainable tokens that the
    token rule keeps, by task; `untrained` are put rows of which the trainer trains no token.
    """

    responses: int = 0
    fresh: Mapping[str, int] = field(default_factory=dict)
    wrong: tuple[TrainedResponse, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    untrained: tuple[int, ...] = ()


def trained_masks(log: Log, table: LogTable, replayed: ReplayedRun, takes: Sequence[RecordedTake]) -> TrainedMasks:
    """Read the masks and hold them against the token rule.

    Raises:
        LogError: a file is damaged behind its footer.
    """
    if _COLUMN not in log.columns:
        return TrainedMasks()
    by_row = {take.row: (take.train_step, take.put_rows) for take in takes}
    step_of_put = {row: take.train_step for take in takes for row in take.put_rows}
    spared = table.spared
    responses, fresh = 0, Counter[str]()
    wrong: list[TrainedResponse] = []
    untrained: list[int] = []
    misfits: list[Misfit] = []
    for row, mask, semantic in _masks(log):
        if table.is_put[row]:
            put_row, response = row, replayed.puts.response(row)
            step = step_of_put.get(row, NEVER if response < 0 else int(replayed.taken_step[response]))
        else:
            step, put_rows = by_row.get(row, (NEVER, ()))
            put_row = put_rows[0] if len(put_rows) == 1 else -1
        runs = replayed.puts.runs(put_row) if put_row >= 0 and step != NEVER else []
        if not runs:
            continue
        tokens = sum(run.tokens for run in runs)
        if tokens != len(mask):
            if put_row != row:
                misfits.append(Misfit(put_row, len(mask), tokens))
            continue
        responses += 1
        if not mask.any():
            untrained.append(put_row)
        task = table.tasks[int(table["task"][put_row])]
        limit = replayed.config.expiry_policy(task).token_threshold(bool(spared[put_row]))
        found = list(_trained_runs(runs, mask, semantic, step, limit))
        fresh[task] += sum(run.trainable for run in found if not run.is_stale)
        differing = tuple(run for run in found if run.is_wrong)
        if differing:
            wrong.append(TrainedResponse(put_row, step, limit, differing))
    return TrainedMasks(responses, fresh, tuple(wrong), tuple(misfits), tuple(untrained))


def _masks(log: Log) -> Iterator[tuple[int, Bools, Bools | None]]:
    """(row of the log, trainer's mask, semantic mask) of every row that has the first; None: the row has no second."""
    first = 0
    for batch in read_batches(log, [_COLUMN, _SEMANTIC]):
        trained, semantic = (col.lists(batch.columns.get(name), batch.rows) for name in (_COLUMN, _SEMANTIC))
        ends, semantic_ends = np.cumsum(trained.lengths), np.cumsum(semantic.lengths)
        for position in np.flatnonzero(~trained.is_null).tolist():
            mask = trained.values[ends[position] - trained.lengths[position] : ends[position]] != 0
            own = None
            if not semantic.is_null[position] and semantic.lengths[position] == len(mask):
                end = semantic_ends[position]
                own = semantic.values[end - len(mask) : end] != 0
            yield first + position, mask, own
        first += batch.rows


def _trained_runs(
    runs: Sequence[PutRun], mask: Bools, semantic: Bools | None, train_step: int, limit: int | None
) -> Iterator[TrainedRun]:
    """The runs of a response; without its semantic mask, numbers per run have to do."""
    bounds = np.cumsum([0, *(run.tokens for run in runs)]).tolist()
    no_token_trained = not any(run.trainable for run in runs)
    oldest = oldest_fresh_version(train_step, limit)
    for run, (first, last) in zip(runs, pairwise(bounds), strict=True):
        # The rule spares a response whose own mask is all zero; nothing of it is trained either way.
        is_stale = not is_fresh(run.version, oldest) and not no_token_trained
        ones = int(mask[first:last].sum())
        trained = min(ones, run.trainable) if semantic is None else int((mask & semantic)[first:last].sum())
        yield TrainedRun(staleness(run.version, train_step), is_stale, run.trainable, trained, ones - trained)
