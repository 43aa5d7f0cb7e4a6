"""The masks that the trainer used, added up per version run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tokenaudit import columns as col
from tokenaudit.audit.findings import Subject
from tokenaudit.audit.life import NEVER, Life
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.takes import RecordedTake
from tokenaudit.log import Log, read_batches

_COLUMN = "trained_mask"


class TrainedRun(NamedTuple):
    """Consecutive tokens of one version, at the take.

    Attributes:
        first_token: position of the first.
        tokens: how many there are.
        age: their staleness at the take.
        is_stale: whether the token rule masks them.
        trainable: those that the semantic mask trains.
        trained: those that the trainer's mask kept.
    """

    first_token: int
    tokens: int
    age: int
    is_stale: bool
    trainable: int
    trained: int


class TrainedResponse(NamedTuple):
    """A response whose mask at the take is recorded, with the runs where it isn't the recomputed one."""

    subject: Subject
    train_step: int
    limit: int | None
    wrong: tuple[TrainedRun, ...]


@dataclass(frozen=True, slots=True)
class TrainedMasks:
    """All masks that the trainer used.

    Attributes:
        responses: responses that have one and whose step and versions are known.
        wrong: those with runs that differ from the recomputed mask.
        misfits: (who, mask values, tokens) of masks on take rows that aren't as long as the response.
    """

    responses: int
    wrong: tuple[TrainedResponse, ...]
    misfits: tuple[tuple[Subject, int, int], ...]


def trained_masks(log: Log, table: LogTable, life: Life, takes: Sequence[RecordedTake]) -> TrainedMasks:
    """Read the masks and hold them against the token rule.

    Raises:
        LogError: a file is damaged behind its footer.
    """
    by_row = {take.row: (take.train_step, take.put_rows) for take in takes}
    step_of_put = {row: take.train_step for take in takes for row in take.put_rows}
    spared = table.spared
    responses = 0
    wrong: list[TrainedResponse] = []
    misfits: list[tuple[Subject, int, int]] = []
    for row, mask in _masks(log):
        if table.is_put[row]:
            put_row, step = row, step_of_put.get(row, _taken_step(life, row))
        else:
            step, put_rows = by_row.get(row, (NEVER, ()))
            put_row = put_rows[0] if len(put_rows) == 1 else -1
        runs = life.puts.full_runs(put_row) if put_row >= 0 and step != NEVER else []
        if not runs:
            continue
        tokens = sum(run[1] for run in runs)
        if tokens != len(mask):
            if put_row != row:
                misfits.append((table.subject(put_row), len(mask), tokens))
            continue
        responses += 1
        task = table.tasks[int(table["task"][put_row])]
        limit = None if spared[put_row] else life.config.token_stale_threshold(task)
        differing = tuple(run for run in _runs(runs, mask, step, limit) if _is_wrong(run))
        if differing:
            wrong.append(TrainedResponse(table.subject(put_row), step, limit, differing))
    return TrainedMasks(responses, tuple(wrong), tuple(misfits))


def _masks(log: Log) -> Iterator[tuple[int, np.ndarray]]:
    """(row of the log, mask as 0 and 1) of every row that has one."""
    first = 0
    for batch in read_batches(log, [_COLUMN]):
        masks = col.lists(batch.columns.get(_COLUMN), batch.rows)
        ends = np.cumsum(masks.lengths)
        for position in np.flatnonzero(~masks.is_null).tolist():
            values = masks.values[ends[position] - masks.lengths[position] : ends[position]]
            yield first + position, (values != 0).view(np.uint8)
        first += batch.rows


def _taken_step(life: Life, row: int) -> int:
    response = life.puts.response(row)
    return NEVER if response < 0 else int(life.taken_step[response])


def _runs(
    runs: Sequence[tuple[int, int, int]], mask: np.ndarray, train_step: int, limit: int | None
) -> Iterator[TrainedRun]:
    bounds = np.cumsum([0, *(tokens for _, tokens, _ in runs)]).tolist()
    no_token_trained = not any(trainable for _, _, trainable in runs)
    for (version, tokens, trainable), (first, last) in zip(runs, pairwise(bounds), strict=True):
        age = train_step - version - 1
        # The rule spares a response whose own mask is all zero; nothing of it is trained either way.
        is_stale = limit is not None and age >= limit and not no_token_trained
        yield TrainedRun(first, tokens, age, is_stale, trainable, int(mask[first:last].sum()))


def _is_wrong(run: TrainedRun) -> bool:
    return run.trained != (0 if run.is_stale else run.trainable)
