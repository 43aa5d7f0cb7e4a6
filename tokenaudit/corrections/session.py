"""From a request to a report of what corrections do to a log, in one pass for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from pathlib import Path
from typing import Any, Unpack, get_args

import numpy as np

from tokenaudit.config.loading import Settings
from tokenaudit.contracts.errors import Notice, Problem, UsageError, shown
from tokenaudit.corrections.advantages import advantages_of, group_of, source_of
from tokenaudit.corrections.ages import Grouping
from tokenaudit.corrections.applying import Asked, Chunk, applied_chunks
from tokenaudit.corrections.arrays import Arrays
from tokenaudit.corrections.batches import TakenBatch, added, taken_batches
from tokenaudit.corrections.correction import Dtype
from tokenaudit.corrections.devices import choose_arrays
from tokenaudit.corrections.logprobs import BOTH
from tokenaudit.corrections.method_sums import SIGNS, BatchParts, MethodSums, sign_codes
from tokenaudit.corrections.methods import Method, methods_of
from tokenaudit.corrections.result import CorrectionsReport, MethodOverlap, MethodResult, NotJudged
from tokenaudit.corrections.stretches import Stretches, parts_of, stretches_of
from tokenaudit.corrections.taken import has_takes, taken_responses
from tokenaudit.log.columns import Bools, Floats, Int64s
from tokenaudit.log.files import Log
from tokenaudit.masks.plan import MaskPlan, Selection
from tokenaudit.replay.notices import quarantine_notices, settings_notices
from tokenaudit.replay.open_loop import timeline_of
from tokenaudit.replay.request import Paths, RunOptions, RunRequest
from tokenaudit.replay.session import load_log, no_collections

_OVER_BATCH = "computed over the whole batch of a step; a trainer with micro-batches computes it over each of them"


@dataclass(frozen=True, slots=True)
class CorrectedLog:
    """What corrections do to a log, the settings it was replayed with, and what a person should know about it."""

    report: CorrectionsReport
    settings: Settings
    notices: tuple[Notice, ...]


def correct_log(
    paths: Paths | RunRequest,
    methods: str | Iterable[str] = (),
    *,
    methods_file: Path | str | None = None,
    dtype: Dtype | None = None,
    device: str = "auto",
    train_steps: int | tuple[int, int] | None = None,
    tasks: str | Iterable[str] | None = None,
    **options: Unpack[RunOptions],
) -> CorrectionsReport:
    """Preview off-policy corrections on the recorded tokens of a log, as `tokenaudit corrections` does.

    Args:
        paths: files, folders or glob patterns that make up one log; or a whole request.
        methods: each a preset, a preset with options, such as "verl: rollout_is=token, rollout_is_threshold=2.0", or a
            name in `methods_file`; none: all of the file, else one well-known setting of each kind.
        methods_file: TOML or JSON that lists methods.
        dtype: "float32" or "float64", to compute all of them in; None: the types of their trainers.
        device: "auto", "cpu", "cuda", "cuda:N" or "mps".
        train_steps: only what this step takes, or those from the first to the last of two; None: all.
        tasks: only these; None: all.
        options: `config`, `overrides`, `isolated`, `timeline`, `quarantine`, `cache`, `working_dir` and `on_progress`,
            as for `replay_log`.

    Raises:
        TokenauditError: a method, the log, the config or their combination can't be used.
    """
    if dtype is not None and dtype not in get_args(Dtype):
        raise UsageError(Problem(f"dtype is {shown(dtype)}", None, f"it is {' or '.join(get_args(Dtype))}"))
    asked = methods_of(_listed(methods), None if methods_file is None else Path(methods_file), dtype)
    steps = (train_steps, train_steps) if isinstance(train_steps, int) else train_steps
    selection = Selection(steps, None if tasks is None else frozenset(_listed(tasks)))
    return corrections_of_log(paths, asked, choose_arrays(device), selection=selection, **options).report


def _listed(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def corrections_of_log(
    paths: Paths | RunRequest,
    methods: Sequence[Method],
    xp: Arrays,
    *,
    selection: Selection | None = None,
    **options: Unpack[RunOptions],
) -> CorrectedLog:
    """What corrections do to the responses that the steps of a log took; without takes, to all completed ones.

    Args:
        paths: files, folders or glob patterns that make up one log; or a whole request.
        methods: the corrections, with names that differ.
        xp: the functions on arrays, of the device that computes.
        selection: steps and tasks that are looked at; None: all.
        options: as for `correct_log`.

    Raises:
        TokenauditError: the log, the config or their combination can't be used.
    """
    request = RunRequest.of(paths, options, "correct_log")
    loaded = load_log(request)
    log, digest, settings = loaded.log, loaded.digest, loaded.settings
    config = settings.config
    kind = timeline_of(digest, request.timeline)
    progress = request.stage("replaying", len(digest.events.kind))
    with no_collections():
        plan = taken_responses(digest, config, request.timeline, selection, progress)
    why_not = {method.name: method.why_not(log.columns, xp) for method in methods}
    thresholds = (config.token_stale_threshold(task) for task in plan.tasks)
    stale_from = np.array([math.inf if threshold is None else threshold for threshold in thresholds])
    run = _Run(plan, [method for method in methods if why_not[method.name] is None], xp, stale_from)
    if run.methods:
        for batch in taken_batches(log, plan, request.stage(f"correcting {log.name}", log.rows)):
            run.add(batch)
    else:
        run.not_judged = _of_lacking(log, plan)
    interval = config.timeline.sync_weights_interval
    report = CorrectionsReport(
        name=digest.name,
        is_taken=has_takes(digest, request.timeline),
        steps=len(np.unique(plan.train_step)),
        responses=len(plan.train_step),
        tokens=int(plan.tokens().sum()),
        in_loss=run.in_loss,
        not_judged=run.not_judged,
        sync_weights_interval=interval,
        max_token_staleness={task: config.task_policy(task).max_token_staleness for task in plan.tasks},
        advantage_source=source_of(run.advantages_of_column, run.advantages_of_rewards),
        unknown_advantages=run.unknown_advantages,
        notes=(),
        methods=tuple(_result(method, why_not[method.name], run, interval) for method in methods),
        between=run.overlaps(),
        device=xp.description,
    )
    notices = (*quarantine_notices(digest), *settings_notices(settings, digest.tasks, kind))
    return CorrectedLog(report, settings, notices)


def _of_lacking(log: Log, plan: MaskPlan) -> NotJudged:
    """What isn't judged where no method was run."""
    in_loss, responses = int(plan.run_trainable.sum(dtype=np.int64)), len(plan.train_step)
    if BOTH[0] not in log.columns:
        return NotJudged(no_logprobs=in_loss, responses=responses)
    return NotJudged(no_train_logprobs=in_loss, responses=responses) if BOTH[1] not in log.columns else NotJudged()


def _result(method: Method, why_not: str | None, run: _Run, sync_weights_interval: int) -> MethodResult:
    correction = method.correction
    notes = (*method.notes, _OVER_BATCH) if correction.over_batch else method.notes
    figures: dict[str, Any] = {"not_run": why_not} if why_not else run.figures(method, sync_weights_interval)
    return MethodResult(
        name=method.name,
        setting=method.setting,
        trainer=correction.TRAINER,
        dtype=method.dtype,
        options=correction.model_dump(mode="json"),
        source=correction.SOURCE,
        divides_by=correction.DIVIDES_BY,
        notes=notes,
        **figures,
    )


class _Run:
    """The sums of all methods.

    Args:
        plan: the responses.
        methods: the methods to run.
        xp: the functions on arrays.
        stale_from: the staleness from which the config masks tokens of each task.
    """

    def __init__(self, plan: MaskPlan, methods: Sequence[Method], xp: Arrays, stale_from: Floats) -> None:
        self._plan = plan
        self._stale_from = stale_from
        self._xp = xp
        self.methods = methods
        self._asked = [Asked(method.correction, method.dtype) for method in methods]
        self._sums = [MethodSums(asked, len(plan.tasks)) for asked in self._asked]
        self._both = np.zeros((len(methods), len(methods)), dtype=np.int64)
        self.in_loss = 0
        """Tokens in the loss that can be judged."""
        self.advantages_of_column = self.advantages_of_rewards = self.unknown_advantages = 0
        self.not_judged = NotJudged()
        self._unknown_tokens = 0

    def add(self, batch: TakenBatch) -> None:
        """Look at the batch of a step."""
        plan, xp = self._plan, self._xp
        advantages, from_column = advantages_of(batch, plan)
        is_unknown = np.isnan(advantages)
        self.advantages_of_column += int(from_column.sum())
        self.advantages_of_rewards += int((~from_column & ~is_unknown).sum())
        self.unknown_advantages += int(is_unknown.sum())
        self.not_judged = added((self.not_judged, batch.not_judged))
        stretches = stretches_of(plan, batch.entries, batch.lengths, batch.train_step)
        in_loss = np.zeros(len(stretches.response))
        unjudged = np.zeros(len(stretches.response))
        for chunk in applied_chunks(batch, advantages, self._asked, xp):
            span = slice(*np.searchsorted(stretches.begins, [chunk.tokens.start, chunk.tokens.stop]).tolist())
            begins = stretches.begins[span]
            lengths = np.diff(begins, append=chunk.tokens.stop)
            mask = xp.of(batch.mask.part(chunk.tokens.start, chunk.tokens.stop), "bool")
            in_loss[span] = xp.host(xp.counts(mask, lengths))
            if batch.unjudged is not None:
                flags = xp.of(batch.unjudged.part(chunk.tokens.start, chunk.tokens.stop), "bool")
                unjudged[span] = xp.host(xp.counts(flags, lengths))
            self._add_chunk(chunk, lengths)
        self.in_loss += int(in_loss.sum())
        of_unknown = is_unknown[stretches.response]
        self._unknown_tokens += int(in_loss[of_unknown].sum())
        parts = self._parts(batch, stretches, advantages, np.diff(stretches.begins) - in_loss - unjudged)
        for sums in self._sums:
            sums.end_batch(parts)

    def _add_chunk(self, chunk: Chunk, lengths: Int64s) -> None:
        """Add a chunk, cut into stretches of `lengths`, to every method and every pair of methods."""
        xp = self._xp
        dropped = []
        for index, (sums, tokens, applied) in enumerate(zip(self._sums, chunk.of, chunk.applied, strict=True)):
            if sums.add_chunk(xp, tokens, applied, lengths):
                dropped.append((index, tokens.mask ^ applied.keep))
        for (first, flags), (second, others) in combinations_with_replacement(dropped, 2):
            self._both[first, second] += xp.total(flags if first == second else flags & others)

    def _parts(self, batch: TakenBatch, stretches: Stretches, advantages: Floats, masked: Floats) -> BatchParts:
        plan = self._plan
        task, sign = plan.task[batch.entries], sign_codes(advantages)
        return BatchParts(
            batch.train_step,
            parts_of(stretches, self._exempt(batch), self._stale_from[task]),
            Grouping(task, len(plan.tasks)),
            Grouping(sign, len(SIGNS)),
            task,
            sign,
            batch.lengths > 0,
            masked,
        )

    def _exempt(self, batch: TakenBatch) -> Bools:
        """Which responses no token rule applies to: an agentic member exempts its group."""
        if not batch.agentic.any():
            return np.zeros(len(batch.entries), dtype=np.bool_)
        group = group_of(self._plan, batch.all_entries)
        is_agentic = np.bincount(group, batch.agentic) > 0
        return is_agentic[group][np.searchsorted(batch.all_entries, batch.entries)]

    def figures(self, method: Method, sync_weights_interval: int) -> dict[str, Any]:
        """The figures of a `MethodResult`."""
        if self.in_loss == 0:
            return {"not_run": "no token in the loss can be judged"}
        needs_advantage = method.correction.needs_advantage
        if needs_advantage and self._unknown_tokens == self.in_loss:
            return {"not_run": "needs the sign of advantages; the log has no advantage, and no group has rewards"}
        unknown = self._unknown_tokens if needs_advantage else 0
        sums = self._sums[self.methods.index(method)]
        found = sums.figures(self._plan.tasks, sync_weights_interval)
        return {"unknown_advantage_tokens": unknown, **found}

    def overlaps(self) -> tuple[MethodOverlap, ...]:
        """What each pair of methods drops."""
        both = self._both.tolist()
        return tuple(
            MethodOverlap(
                self.methods[first].name,
                self.methods[second].name,
                both[first][second],
                both[first][first] - both[first][second],
                both[second][second] - both[first][second],
            )
            for first, second in combinations(range(len(self.methods)), 2)
        )
