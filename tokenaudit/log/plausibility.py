"""Whether a whole log can mean what its structure says; what is wrong in single rows is for `structural_checks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Int64s
from tokenaudit.log.digest import KIND_CODE, STATUS_CODE, Digest, sorted_rows

_PUT, _TAKE = KIND_CODE[EventKind.PUT], KIND_CODE[EventKind.TAKE]
_MOST_PREFILLED = 2
"""Steps whose batches may come from puts of one step: a buffer that was filled before training began."""


class ImplausibleStructure(NamedTuple):
    """A reading of a log that can't be meant.

    Attributes:
        code: stable name.
        message: what the log says.
        fix: what to do about it.
    """

    code: str
    message: str
    fix: str


PUT_PER_ROW = "put-per-row"
"""Code of a log in which every row is a put of its own."""


def implausible_structures(digest: Digest) -> Iterator[ImplausibleStructure]:
    """What can't be meant in a whole log; versions from the future aside, which `future_tokens` counts."""
    events, responses = digest.events, digest.responses
    puts = np.flatnonzero(events.kind == _PUT)
    rows = np.diff(events.first_response)[puts]
    if len(puts) < 2:
        return
    if (rows == 1).all():
        groups, with_several = _groups(digest, puts)
        if 2 * with_several > groups:
            message = f"each of {plural(len(puts), 'put')} has one row, though {with_several} of"
            message += f" {plural(groups, 'group')} have several rollouts"
            fix = "The rows of one group's put are one event: give them the same event_id."
            yield ImplausibleStructure(PUT_PER_ROW, message, fix)
    is_made = responses.status != STATUS_CODE[Status.FAILED]
    if is_made.any() and not responses.tokens.any():
        message = f"none of {plural(int(is_made.sum()), 'response')} has a token"
        yield ImplausibleStructure("no-tokens", message, "Record response_len, or response_ids.")
    steps = events.train_step[puts]
    is_take = events.kind == _TAKE
    if steps.min() == steps.max() and len(np.unique(events.train_step[is_take])) > _MOST_PREFILLED:
        taken_before = np.maximum.accumulate(np.where(is_take, events.train_step, -1))[puts]
        late = int((taken_before > steps).sum())
        if 2 * late > len(puts):
            message = (
                f"every put has train_step {steps[0]}, though {late} of {len(puts)} come after takes of later steps"
            )
            fix = "Record the step that takes next when the group is put: t + 1 after the take of step t."
            yield ImplausibleStructure("constant-train-step", message, fix)


def _groups(digest: Digest, puts: Int64s) -> tuple[int, int]:
    """Groups of puts of one row, and those of them that have several rollouts."""
    events = digest.events
    rollout_id = digest.responses.rollout_id[events.first_response[puts]]
    order, is_new = sorted_rows(rollout_id, events.group_id[puts], events.task[puts])
    members = puts[order[is_new]]
    _, is_group = sorted_rows(events.group_id[members], events.task[members])
    rollouts = np.diff(np.append(np.flatnonzero(is_group), len(members)))
    return len(rollouts), int((rollouts > 1).sum())


def newest_possible(train_step: Int64s) -> Int64s:
    """The newest version that the trainer can have made before a step; at step 0 nothing was trained."""
    return np.maximum(train_step - 1, 0)


def future_tokens(digest: Digest) -> tuple[int, int]:
    """Tokens with a version that the trainer had not made when they were put, of all tokens that have a version."""
    events, responses, runs = digest.events, digest.responses, digest.runs
    row = np.searchsorted(responses.first_run, np.arange(len(runs.tokens)), side="right") - 1
    event = np.searchsorted(events.first_response, row, side="right") - 1
    is_future = runs.model_step > newest_possible(events.train_step[event])
    future, known = (int(runs.tokens[which].sum(dtype=np.int64)) for which in (is_future, runs.model_step >= 0))
    return future, known
