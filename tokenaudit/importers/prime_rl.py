"""prime-rl: the traces that its orchestrator writes as episodes arrive and are shipped, in each of its layouts.

- `rollouts/step_<N>/train/{all,effective}/traces.jsonl`: `all` holds what arrived while batch N was collected and
  `effective` what was trained.
- `monitors/file/traces/stream.jsonl`, later `stream/<NNNNN>.jsonl[.zst]`: every episode once, in the order of arrival.
  Annotations beside it name the traces that were shipped, and what the trainer made of their tokens.
- `token_exports/step_<N>/rank_<R>.jsonl`: the same of every sequence that was trained, without its name.

A group is put when the last of its episodes arrives. Versions are spans; cancelled generation leaves no record. Read in
PrimeIntellect-ai/prime-rl: `FileMonitor` (src/prime_rl/monitors/file.py) of 559b447, `save_rollouts`
(orchestrator/utils.py) of v0.8.0 (60bc295), `FileMonitor` (monitors/file/monitor.py) of 048a6e2, `ChunkedJsonl`
(monitors/file/traces/chunks.py) of 551bfc3, `prepare_batch` (trainer/batch.py) of 559b447.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, groupby
from pathlib import Path
from typing import Any

from tokenaudit.contracts.errors import plural
from tokenaudit.importers.base import (
    USUAL_READS,
    Context,
    FieldFault,
    Imported,
    ImportedPut,
    Importer,
    Lack,
    Precision,
)
from tokenaudit.importers.batch import MAX_GROUP_TOKENS, GroupKey, PromptGroups, TrainedResponse, takes, trained_batches
from tokenaudit.importers.left_out import Problems
from tokenaudit.importers.packed import plain_name
from tokenaudit.importers.prime_episodes import Episode, Holds, holds, looks_like, records_of
from tokenaudit.importers.prime_exports import (
    TrainedSequences,
    branch_key,
    export_row,
    exported,
    exported_step,
    sequence_key,
)
from tokenaudit.importers.prime_survey import (
    BatchOf,
    Run,
    lines_of,
    survey_annotations,
    survey_exports,
    survey_groups,
    survey_trained,
)
from tokenaudit.importers.prime_traces import duration_of, reward_of, samples
from tokenaudit.importers.repeats import Writing
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.log.writer import Row

_MOST_HELD = 2 * MAX_GROUP_TOKENS
"""Tokens of all groups that wait for their last episodes; a crafted file could let all of them wait."""


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    """Episodes as they arrived where that is known, else as they were trained; what was trained is a take."""
    by_kind: dict[Holds, list[Path]] = {kind: [] for kind in Holds}
    for path in files:
        by_kind[holds(plain_name(path))].append(path)
    arrived, trained, exports = by_kind[Holds.ARRIVED], by_kind[Holds.TRAINED], by_kind[Holds.EXPORTS]
    streams = by_kind[Holds.STREAM]
    # a batch may be full before anything arrives for it, so that nothing of its step did
    sources = arrived or trained
    if not sources and not streams:
        yield from _read_exports(exports, context)
        return
    with tempfile.TemporaryFile() as spool:
        named, unnamed = TrainedSequences(spool), TrainedSequences(spool)
        run = Run(named, unnamed, in_parts=None if arrived or streams else {})
        # what is read again says what is wrong with it then
        quiet = replace(context, problems=Problems(), damaged=Problems(), advance=lambda _: None)
        survey_trained(trained, run, context if arrived else quiet)
        survey_annotations(by_kind[Holds.ANNOTATIONS], run, context)
        survey_exports(exports, run, context)
        survey_groups(sources, streams, run, quiet)
        if not run.shipped:
            context.limit(Lack.TIMELINE)
        yield from _events(sources, streams, run, context)
    context.limit(Lack.DROPPED if run.in_parts is not None else Lack.CANCELLED)
    if unnamed.unmatched:
        what = plural(unnamed.unmatched, "sequence")
        context.limit(f"{what} of the token exports left out: no trace that was trained in their step has their tokens")


def _events(sources: Sequence[Path], streams: Sequence[Path], run: Run, context: Context) -> Iterator[Imported]:
    """Each group when the last of its episodes is there, and each take behind what arrived for its batch."""
    waiting: dict[GroupKey, tuple[list[Row], str]] = {}
    held = 0
    due = deque(sorted(run.sizes))
    for episode, batch in lines_of(sources, streams, run, context):
        group = run.group_of(episode.group, batch)
        with context.noting(episode.where):
            rows = [row for trace in episode.traces for row in _rows(episode, trace, run)]
            tokens = sum(row["response_len"] for row in rows)
            if held + tokens > _MOST_HELD:
                raise FieldFault(
                    "groups too long", f"groups of up to {_MOST_HELD} tokens may wait for their last episodes"
                )
            held += tokens
            waiting.setdefault(group, ([], episode.where))[0].extend(rows)
        run.lines[group] -= 1
        if run.lines[group] > 0 or group not in waiting:
            continue
        rows, where = waiting.pop(group)
        held -= sum(row["response_len"] for row in rows)
        while due and due[0] < batch:
            yield from _takes(due.popleft(), run)
        if rows:
            yield ImportedPut(batch.train_step, *group, rows, where, _writing(batch))
    for batch in due:
        yield from _takes(batch, run)


def _takes(batch: BatchOf, run: Run) -> Iterator[Imported]:
    where = f"the batch of train step {batch.train_step}"
    yield from takes(batch.train_step, run.sizes[batch], where, _writing(batch))


def _writing(batch: BatchOf) -> Writing:
    """A batch is one writing of its step, which a resumed run writes again."""
    return Writing(batch.train_step, f"run {batch.run}, batch {batch.again}")


def _rows(episode: Episode, trace: dict[str, Any], run: Run) -> list[Row]:
    """One row per training sample of a trace."""
    batch = run.shipped_in(episode, trace)
    is_trained = episode.is_trained(trace)
    calls = trace.get("calls")
    shared: Row = {
        "rollout_id": episode.rollout_id(trace),
        "status": "completed" if is_trained else "failed",
        "reward": reward_of(trace),
        "agentic": episode.is_joint or (isinstance(calls, list) and len(calls) > 1),
    }
    rows: list[Row] = []
    for sample in samples(trace, run.unnamed.longest or None):
        reason = sample.calls[-1].get("finish_reason") if sample.calls else None
        row: Row = shared | {
            "response_len": len(sample.mask),
            "prompt_len": sample.prompt_len,
            "response_mask": sample.mask,
            "logprobs": sample.logprobs,
            "generate_time_us": duration_of(sample.calls),
            "finish_reason": reason if isinstance(reason, str) else None,
        }
        found = run.named.newest(branch_key(trace.get("id"), sample.branch))
        if is_trained and (batch is not None or not run.shipped):
            # exports are exact, and tell weights of 0
            keys = [sequence_key(digest, batch.train_step if batch else None) for digest in sample.digests]
            found = run.unnamed.take(keys, sample.logprobs) or found
        rows.append(row | episode.versions | (found.columns(sample) if found else {}))
    return rows


def _read_exports(paths: Sequence[Path], context: Context) -> Iterator[Imported]:
    """The sequences that were trained, where nothing else is there; a group are those of a step with equal prompts."""
    groups = PromptGroups(is_reordered=True)
    context.limit(Lack.PROMPTS)
    context.limit(Lack.DROPPED)
    context.limit_of(Precision.NONE)
    rollouts = count()

    def response_of(data: dict[str, Any]) -> TrainedResponse:
        step = exported_step(data)
        sequence = exported(data)
        env = data.get("env_name")
        group = GroupKey(context.task(env), groups.group_of((env, sequence.prompt)))
        return TrainedResponse(step, group, export_row(sequence, next(rollouts)))

    for _, of_step in groupby(paths, key=lambda path: path.parent):
        ranks = [*of_step]
        yield from trained_batches(records_of(ranks, context), response_of, str(ranks[-1]), context)
        groups.end(context)


_OF_TRACES = (Gives.LENGTHS, Gives.MASKS, Gives.REWARDS, Gives.TASKS, Gives.LOGPROBS)
_OF_EXPORTS = (
    Gives.LENGTHS,
    Gives.MASKS,
    Gives.TASKS,
    Gives.LOGPROBS,
    Gives.TRAINED_MASKS,
    Gives.TRAIN_LOGPROBS,
)

IMPORTER = Importer(
    name="prime-rl",
    title="prime-rl episode traces",
    files=(
        "rollouts/step_<N>/train/{all,effective}/traces.jsonl, monitors/file/traces/stream/<NNNNN>.jsonl[.zst] and "
        "token_exports/step_<N>/rank_<R>.jsonl"
    ),
    looks_like=looks_like,
    read=_read,
    suffixes=(".jsonl",),
    precisions=(Precision.EXACT, Precision.SPAN, Precision.START, Precision.NONE),
    reads=(
        "task_name",
        *USUAL_READS,
        "response_mask",
        "reward",
        "agentic",
        "finish_reason",
        "generate_time_us",
        "logprobs",
        "train_logprobs",
        "trained_mask",
    ),
    lacks=(),
    shapes=(
        Shape(
            "prime-rl",
            "after v0.8.0",
            "rollouts/step_<N>/train/{all,effective}/traces.jsonl",
            (Gives.EXACT, Gives.SPAN, *_OF_TRACES, Gives.TAKES),
        ),
        Shape(
            "prime-rl",
            "v0.8.0",
            "rollouts/step_<N>/train/{all,effective}/traces.jsonl, a trace a line",
            (Gives.EXACT, Gives.START, *_OF_TRACES, Gives.TAKES),
        ),
        Shape(
            "prime-rl",
            "048a6e2",
            "monitors/file/traces/{stream,annotations/*}/<NNNNN>.jsonl[.zst]",
            (Gives.EXACT, Gives.SPAN, *_OF_TRACES, Gives.TAKES, Gives.TRAINED_MASKS, Gives.TRAIN_LOGPROBS),
        ),
        Shape(
            "prime-rl",
            "559b447",
            "token_exports/step_<N>/rank_<R>.jsonl",
            (*_OF_EXPORTS, Gives.TAKES),
        ),
    ),
)
