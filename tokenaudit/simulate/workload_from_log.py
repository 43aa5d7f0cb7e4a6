"""Derive a workload from a recorded log: what its responses came to, and how long their tokens took."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.schema import VERSION_RUNS, EventKind
from tokenaudit.lifecycle.types import Status
from tokenaudit.log import columns as col
from tokenaudit.log.batches import read_batches
from tokenaudit.log.columns import ABSENT, Bools, Int64s
from tokenaudit.log.digest import KIND_CODE, PRIOR_UNKNOWN, STATUS_CODE, Digest, kind_code, sorted_rows
from tokenaudit.log.files import Log
from tokenaudit.log.pieces import LogBatch
from tokenaudit.log.reading import outside_quarantine
from tokenaudit.log.semantic_masks import SemanticMasks, joined, masks_of, masks_of_runs
from tokenaudit.log.version_runs import recorded_runs
from tokenaudit.replay.recorded_puts import RecordedPuts
from tokenaudit.replay.request import PromptOrder
from tokenaudit.simulate.workload import ResponseColumns, Workload, grouped_by_task

_PUT = KIND_CODE[EventKind.PUT]
_LONGEST_US = 2**53


def workload_from_log(
    log: Log,
    digest: Digest,
    token_time_us: int | None = None,
    prompt_order: PromptOrder = PromptOrder.AUTO,
    on_progress: Callable[[int], None] | None = None,
) -> Workload:
    """Derive a workload.

    Tasks, and the responses of a group, stand in the order of their first put. A response has the longest length seen;
    mask, reward and marks are those of its last put, and tokens behind that mask are in the loss. Its token time is
    the time of all its rounds by its new tokens in them; where a response has none, that of its task, else of the log.

    Args:
        log: the log.
        digest: its digest.
        token_time_us: time per token of every response, microseconds; None: derived from `generate_time_us`.
        prompt_order: the order of the groups of each task.
        on_progress: called with the number of rows read so far.

    Raises:
        LogError: the log has no generation times and no `token_time_us` is given, it doesn't say when groups began
            and that order is asked for, its ids can't be recycled, or its version runs don't say which tokens are in
            the loss.
    """
    if len(digest.responses.tokens) == 0:
        what, hint = "the log has no put to derive a workload from", "record at least one put"
        if digest.quarantined_groups:
            what = "every group is left out because of structural faults, so there is no workload"
            hint = "tokenaudit inspect shows the faults; mend the log"
        raise LogError(Problem(what, log.name, hint))
    puts = _Puts(digest)
    last_put = puts.last_of_response
    read = _read_again(log, digest, last_put, on_progress)
    responses = digest.responses
    tokens = np.zeros(len(last_put), dtype=np.int64)
    np.maximum.at(tokens, puts.response, responses.tokens)
    whole = (STATUS_CODE[Status.COMPLETED], STATUS_CODE[Status.FILTERED])
    is_whole = col.marked(len(last_put), puts.response[np.isin(responses.status, whole)])
    task = puts.task[last_put]
    if token_time_us is None:
        token_times = _token_times(log, puts, read.generate_time_us, task)
    else:
        token_times = np.full(len(last_put), token_time_us, dtype=np.int64)
    columns = ResponseColumns(
        group_id=puts.group_id[puts.first_of_response],
        rollout_id=responses.rollout_id[last_put],
        response_len=tokens,
        token_time_us=token_times,
        agentic=responses.agentic[last_put],
        reward=responses.reward[last_put],
        failed=responses.status[last_put] == STATUS_CODE[Status.FAILED],
        filtered=responses.status[last_put] == STATUS_CODE[Status.FILTERED],
    )
    _check_ids(log, columns)
    chosen, began = _chosen_order(log, prompt_order, puts, read)
    order = _order(chosen, began, task, columns.group_id, puts.first_of_response)
    return Workload(
        name=log.name,
        rows=digest.rows,
        tasks=grouped_by_task(task[order], list(digest.tasks), columns.take(order), read.masks.take(order)),
        truncated_responses=int((~is_whole).sum()),
        unscored_rewards=digest.unscored_rewards,
        prompt_order=chosen,
    )


def _chosen_order(
    log: Log, prompt_order: PromptOrder, puts: _Puts, read: _SecondReading
) -> tuple[PromptOrder, Int64s | None]:
    """What `AUTO` comes to, and when the group of each response began where prompts are ordered by that."""
    if prompt_order not in (PromptOrder.AUTO, PromptOrder.START):
        return prompt_order, None
    began = _began_at(puts, read)
    unknown = int((began == ABSENT).sum())
    if not unknown:
        return PromptOrder.START, began[puts.group[puts.first_of_response]]
    if prompt_order is PromptOrder.AUTO:
        return PromptOrder.FIRST_PUT, None
    what = f"the first puts of {unknown} of {len(began)} groups don't say when they began (time_us, generate_time_us)"
    raise LogError(Problem(what, log.name, "leave out --prompt-order start, or record both from 0 to 2^53"))


def _began_at(puts: _Puts, read: _SecondReading) -> Int64s:
    """When the first round of each group began, microseconds: its put minus the longest of its rows; else `ABSENT`."""
    put_at, longest = (
        _largest_known(puts, column[puts.is_first_of_group]) for column in (read.time_us, read.generate_time_us)
    )
    return np.where((put_at == ABSENT) | (longest == ABSENT), ABSENT, put_at - longest)


def _largest_known(puts: _Puts, times: Int64s) -> Int64s:
    """The largest of the times that rows of each group's first put have; `ABSENT` where none has one that can be."""
    largest = np.full(puts.groups, ABSENT)
    np.maximum.at(largest, puts.group[puts.is_first_of_group], np.where(_is_time(times), times, ABSENT))
    return largest


def _order(
    prompt_order: PromptOrder, began: Int64s | None, task: Int64s, group_id: Int64s, first_put: Int64s
) -> Int64s:
    """Responses in the order of a workload; tasks and the members of a group by their first put in any case."""
    if prompt_order is PromptOrder.FIRST_PUT:
        return np.argsort(first_put)
    first_of_task = np.full(int(task.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_of_task, task, first_put)
    by_time = () if began is None else (began,)
    return np.lexsort((first_put, group_id, *by_time, first_of_task[task]))


class _Puts:
    """Rows of puts, tied to the responses that they are rounds of.

    Attributes:
        task: index of the task of each row.
        group_id: group of each row.
        group: index of the group of each row; any order.
        groups: number of groups.
        is_first_of_group: whether each row is of its group's first put.
        response: index of the response of each row; any order.
        first_of_response: first row of each response.
        last_of_response: last row of each response.
        new_tokens: tokens that each row adds.
    """

    def __init__(self, digest: Digest) -> None:
        events, responses = digest.events, digest.responses
        counts = np.diff(events.first_response)
        self.task = np.repeat(events.task, counts)
        self.group_id = np.repeat(events.group_id, counts)
        event = np.repeat(np.arange(len(counts)), counts)
        order, is_new = sorted_rows(self.group_id, self.task)
        self.group = np.empty(len(order), dtype=np.int64)
        self.group[order] = np.cumsum(is_new) - 1
        first_event = event[order[is_new]]
        self.groups = len(first_event)
        self.is_first_of_group = event == first_event[self.group]
        order, is_new = sorted_rows(responses.segment, responses.rollout_id, self.task)
        self.response = np.empty(len(order), dtype=np.int64)
        self.response[order] = np.cumsum(is_new) - 1
        starts = np.flatnonzero(is_new)
        self.first_of_response = order[starts]
        self.last_of_response = order[np.append(starts[1:], len(order)) - 1]
        self.new_tokens = responses.tokens - _prior_lens(digest)


def _prior_lens(digest: Digest) -> Int64s:
    prior = digest.responses.prior_len.copy()
    unknown = np.flatnonzero(prior == PRIOR_UNKNOWN)
    if len(unknown):
        recorded = RecordedPuts(digest, 1, resync=False)
        prior[unknown] = [recorded.prior_len_from_log(row) for row in unknown.tolist()]
    return prior


def no_token_time(log: Log) -> Problem:
    """That a log doesn't say how long tokens took."""
    what = "no put says how long its tokens took (generate_time_us), so there is no token time"
    return Problem(what, log.name, "give one with --token-time-us")


def _token_times(log: Log, puts: _Puts, times: Int64s, task_of_response: Int64s) -> Int64s:
    """Time per token of every response: of its own rounds, else of its task, else of the log."""
    _check_times(log, times)
    timed = times != ABSENT
    spent = np.where(timed, times, 0).astype(np.float64)
    made = np.where(timed, puts.new_tokens, 0)
    if made.sum() == 0:
        raise LogError(no_token_time(log))
    count = len(task_of_response)
    total_time = np.zeros(count, dtype=np.int64)
    total_made = np.zeros(count, dtype=np.int64)
    np.add.at(total_time, puts.response, np.where(timed, times, 0))
    np.add.at(total_made, puts.response, made)
    tasks = int(puts.task.max()) + 1
    task_made = np.bincount(puts.task, weights=made, minlength=tasks)
    task_time = np.bincount(puts.task, weights=spent, minlength=tasks)
    of_log = spent.sum() // made.sum()
    of_task = np.where(task_made > 0, task_time // np.maximum(task_made, 1), of_log)
    own = total_time // np.maximum(total_made, 1)
    return np.maximum(np.where(total_made > 0, own, of_task[task_of_response].astype(np.int64)), 1)


class _SecondReading(NamedTuple):
    """What the digest of a log doesn't keep; times are `ABSENT` where there is none.

    Attributes:
        generate_time_us: of every row of a put, microseconds.
        time_us: of every row of a put, microseconds.
        masks: the last mask of every response.
    """

    generate_time_us: Int64s
    time_us: Int64s
    masks: SemanticMasks


def _read_again(
    log: Log, digest: Digest, last_put: Int64s, on_progress: Callable[[int], None] | None
) -> _SecondReading:
    response_at = np.full(len(digest.responses.tokens), -1, dtype=np.int64)
    response_at[last_put] = np.arange(len(last_put))
    generate_times: list[Int64s] = []
    put_times: list[Int64s] = []
    masks: list[SemanticMasks] = []
    order: list[Int64s] = []
    names = ("event", "task_name", "group_id", "generate_time_us", "time_us", "response_mask", VERSION_RUNS)
    done = 0
    for batch in read_batches(log, names, on_progress):
        kept = _kept_puts(batch, digest)
        for name, times in (("generate_time_us", generate_times), ("time_us", put_times)):
            times.append(col.integers(batch.columns.get(name), batch.rows, fill=ABSENT)[kept])
        response = response_at[done : done + len(kept)]
        done += len(kept)
        is_last = response >= 0
        masks.append(_masks_at(batch, kept[is_last]))
        order.append(response[is_last])
    masks_in_order = joined(masks).take(np.argsort(np.concatenate(order)))
    return _SecondReading(np.concatenate(generate_times), np.concatenate(put_times), masks_in_order)


def _kept_puts(batch: LogBatch, digest: Digest) -> Int64s:
    """Rows of the puts that are in the digest, which lacks the groups that were quarantined."""
    is_put = col.text_codes(batch.columns.get("event"), batch.rows, kind_code) == _PUT
    return np.flatnonzero(is_put & outside_quarantine(batch, digest))


def _masks_at(batch: LogBatch, rows: Int64s) -> SemanticMasks:
    picked = pa.array(rows)
    mask, runs = (batch.columns.get(name) for name in ("response_mask", VERSION_RUNS))
    masks = masks_of(col.lists(None if mask is None else mask.take(picked), len(rows)))
    recorded = None if runs is None else recorded_runs(runs.take(picked), len(rows))
    if recorded is None:
        return masks
    of_runs = masks_of_runs(recorded)
    if of_runs.is_unknown.any():
        path, row = batch.places.at(int(rows[np.argmax(of_runs.is_unknown)]))
        what = "a run says how many of its tokens are in the loss, and not which"
        raise LogError(
            Problem(
                what,
                f"{path}, row {row}, column {VERSION_RUNS}",
                "let runs end where the mask changes, or use the log they were made from",
            )
        )
    # No row has both, so the other kind is all ones there.
    both = joined([masks, of_runs.masks])
    return both.take(np.arange(len(rows)) + np.where(recorded.has_runs, len(rows), 0))


def _is_time(times: Int64s) -> Bools:
    return (times >= 0) & (times <= _LONGEST_US)


def _check_times(log: Log, times: Int64s) -> None:
    wrong = (times != ABSENT) & ~_is_time(times)
    if wrong.any():
        what = f"generate_time_us is negative or above {_LONGEST_US} in {int(wrong.sum())} puts, such as"
        hint = "microseconds are meant; or give --token-time-us"
        raise LogError(Problem(f"{what} {int(times[wrong][0])}", log.name, hint))


def _check_ids(log: Log, responses: ResponseColumns) -> None:
    for name, ids in (("group_id", responses.group_id), ("rollout_id", responses.rollout_id)):
        if ids.min() < 0:
            hint = "a workload has ids of 0 or more, so that further passes over it can count on from them"
            raise LogError(Problem(f"{name} {int(ids.min())} is negative", log.name, hint))
