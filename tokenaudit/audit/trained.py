"""The masks that the trainer used, added up per version run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.findings import Subject
from tokenaudit.audit.life import NEVER, Life
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.takes import RecordedTake
from tokenaudit.lifecycle.staleness import is_fresh, oldest_fresh_version, staleness
from tokenaudit.log import columns as col
from tokenaudit.log.batches import read_batches
from tokenaudit.log.columns import Bools
from tokenaudit.log.files import Log

_COLUMN, _SEMANTIC = "trained_mask", "response_mask"


class TrainedRun(NamedTuple):
    """Consecutive tokens of one version, at the take.

    Attributes:
        first_token: position of the first.
        tokens: how many there are.
        age: their staleness at the take.
        is_stale: whether the token rule masks them.
        trainable: those that the semantic mask trains.
        trained: those of them that the trainer's mask kept.
        extra: tokens out of the loss that the trainer's mask kept.
    """

    first_token: int
    tokens: int
    age: int
    is_stale: bool
    trainable: int
    trained: int
    extra: int


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
    for row, mask, semantic in _masks(log):
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
        limit = life.config.expiry_policy(task).token_threshold(bool(spared[put_row]))
        differing = tuple(run for run in _runs(runs, mask, semantic, step, limit) if _is_wrong(run))
        if differing:
            wrong.append(TrainedResponse(table.subject(put_row), step, limit, differing))
    return TrainedMasks(responses, tuple(wrong), tuple(misfits))


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


def _taken_step(life: Life, row: int) -> int:
    response = life.puts.response(row)
    return NEVER if response < 0 else int(life.taken_step[response])


def _runs(
    runs: Sequence[tuple[int, int, int]], mask: Bools, semantic: Bools | None, train_step: int, limit: int | None
) -> Iterator[TrainedRun]:
    """The runs of a response; without its semantic mask, numbers per run have to do."""
    bounds = np.cumsum([0, *(tokens for _, tokens, _ in runs)]).tolist()
    no_token_trained = not any(trainable for _, _, trainable in runs)
    oldest = oldest_fresh_version(train_step, limit)
    for (version, tokens, trainable), (first, last) in zip(runs, pairwise(bounds), strict=True):
        # The rule spares a response whose own mask is all zero; nothing of it is trained either way.
        is_stale = not is_fresh(version, oldest) and not no_token_trained
        ones = int(mask[first:last].sum())
        trained = min(ones, trainable) if semantic is None else int((mask & semantic)[first:last].sum())
        yield TrainedRun(first, tokens, staleness(version, train_step), is_stale, trainable, trained, ones - trained)


def _is_wrong(run: TrainedRun) -> bool:
    return run.extra > 0 or run.trained != (0 if run.is_stale else run.trainable)
