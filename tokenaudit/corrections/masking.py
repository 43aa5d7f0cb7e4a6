"""A correction in a file of masks: which tokens it keeps and what it weighs them with, in the order of the log."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.corrections.advantages import advantages_of
from tokenaudit.corrections.applying import Asked, applied_chunks
from tokenaudit.corrections.arrays import Arrays
from tokenaudit.corrections.batches import TakenBatch, taken_batches
from tokenaudit.corrections.methods import Method
from tokenaudit.corrections.taken import taken_responses
from tokenaudit.lifecycle.staleness import is_fresh
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.files import Log
from tokenaudit.masks.filters import Filtered, TokenFilter
from tokenaudit.masks.plan import MaskPlan


class MethodMasking:
    """Masks by a method, of the responses that `corrections` looks at.

    Args:
        method: the method.
        xp: the functions on arrays, of the device that computes.
    """

    plan = staticmethod(taken_responses)

    def __init__(self, method: Method, xp: Arrays) -> None:
        self._method = method
        self._xp = xp
        self.description = method.name
        self.weight_type = method.dtype

    def begin(self, log: Log, plan: MaskPlan) -> TokenFilter:
        """Begin to correct the responses of a plan.

        Raises:
            UsageError: the method can't be run on this log or device.
        """
        reason = self._method.why_not(log.columns, self._xp)
        if reason is not None:
            hint = "`tokenaudit help corrections` says how to record what it needs"
            raise UsageError(Problem(f"--correction {self._method.name}: {reason}", log.name, hint))
        return _MethodFilter(log, plan, self._method, self._xp)


class _MethodFilter:
    """What a method does to the responses of a plan, held from when their step is complete until it is asked for."""

    def __init__(self, log: Log, plan: MaskPlan, method: Method, xp: Arrays) -> None:
        self._plan = plan
        self._asked = Asked(method.correction, method.dtype)
        self._xp = xp
        self._batches = taken_batches(log, plan)
        self._known: dict[int, tuple[Bools, np.ndarray[Any, Any] | None, Bools]] = {}
        self._loss_tokens: dict[int, int] = {}
        self._lengths = plan.tokens()
        self.judged_tokens = self.unjudged_tokens = 0

    def of(self, entries: slice) -> Filtered:
        """What it does to some responses of the plan; each can be asked for once."""
        steps = self._plan.train_step[entries]
        while any(step not in self._loss_tokens for step in np.unique(steps).tolist()):
            self._add(next(self._batches))
        lengths = self._lengths[entries]
        size = int(lengths.sum())
        keep, is_judged = np.ones(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
        weights = np.ones(size, dtype=self._asked.dtype)
        end = 0
        for entry, length in zip(range(entries.start, entries.stop), lengths.tolist(), strict=True):
            begin, end = end, end + length
            found = self._known.pop(entry, None)
            if found is not None:
                keep[begin:end], is_judged[begin:end] = found[0], found[2]
                if found[1] is not None:
                    weights[begin:end] = found[1]
        loss_tokens = np.array([self._loss_tokens[step] for step in steps.tolist()], dtype=np.int64)
        return Filtered(keep, weights, is_judged, loss_tokens)

    def _add(self, batch: TakenBatch) -> None:
        """Correct the batch of a step. Tokens that can't be judged are kept, and have no weight."""
        advantages, _ = advantages_of(batch, self._plan)
        host = self._xp.host
        counted: list[Bools] = []
        for chunk in applied_chunks(batch, advantages, [self._asked], self._xp):
            (tokens,), (applied,) = chunk.of, chunk.applied
            judged = host(tokens.mask)
            unjudged = batch.mask.part(chunk.tokens.start, chunk.tokens.stop) & ~judged
            if batch.unjudged is not None:
                unjudged |= batch.unjudged.part(chunk.tokens.start, chunk.tokens.stop)
            dropped = judged & ~host(applied.keep)
            weights = None if applied.weight is None else host(applied.weight)
            counted.append(host(applied.divides) | unjudged)
            self.judged_tokens += int(np.count_nonzero(judged))
            self.unjudged_tokens += int(unjudged.sum())
            ends = np.cumsum(batch.lengths[chunk.responses]).tolist()
            begin = 0
            for entry, end in zip(batch.entries[chunk.responses].tolist(), ends, strict=True):
                part = slice(begin, end)
                self._known[entry] = (
                    ~dropped[part],
                    None if weights is None else weights[part],
                    ~unjudged[part],
                )
                begin = end
        odd = batch.not_judged
        # the others were counted above, in responses of which some tokens can be judged
        self.unjudged_tokens += odd.no_logprobs + odd.no_train_logprobs + odd.other_length
        self._loss_tokens[batch.train_step] = self._fresh(
            batch.entries, np.concatenate(counted or [np.zeros(0, dtype=np.bool_)])
        )

    def _fresh(self, entries: Int64s, counted: Bools) -> int:
        """Fresh tokens among those that the loss divides by."""
        plan = self._plan.of(entries)
        oldest = np.repeat(plan.oldest_fresh, np.diff(plan.first_run))
        fresh = np.repeat(is_fresh(plan.run_version, oldest), plan.run_tokens)
        return int(np.count_nonzero(fresh & counted))
