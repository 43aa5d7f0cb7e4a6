"""Groups as a log records them, many at a time: their sums in numpy, a response only where somebody looks at one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from tokenaudit.lifecycle.members import (
    GroupMeasures,
    GroupMembers,
    MemberFacts,
    facts_after_reset,
    group_status,
    measured_together,
)
from tokenaudit.lifecycle.types import Response, Status, VersionRun
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import STATUS_CODE, STATUSES, Digest
from tokenaudit.log.version_runs import Int32s

_BLOCK = 256
"""Groups made at a time: a numpy call for each would cost more than what it measures."""
_NOTHING = 2**62
"""Stands for no version where the smallest is looked for."""
_EXPIRED = Status.EXPIRED
"""Python 3.11 looks an enum's member up ten times as slowly as a global name."""


class RecordedGroups:
    """The puts of a digest under some timeline.

    Args:
        digest: the log.
        model_step: version of every run, int32, in the order of the digest's runs.

    A prior length that isn't recorded counts as 0 here.
    """

    def __init__(self, digest: Digest, model_step: Int32s) -> None:
        self.digest = digest
        self.model_step = model_step
        self.oldest, self.newest_trainable, self.trainable_tokens = _measures(digest, model_step)

    def in_order(self, puts: Int64s) -> Iterator[GroupMembers]:
        """The members of each of these put events, given by index."""
        for first in range(0, len(puts), _BLOCK):
            block = _Block(self, puts[first : first + _BLOCK])
            for place, measures in enumerate(block.measures()):
                yield _RecordedMembers(block, place, measures)

    def keys(self, put: int) -> Iterator[tuple[int, int]]:
        """Rollout and segment of every response of a put event."""
        columns, rows = self.digest.responses, self._rows(put)
        return zip(columns.rollout_id[rows].tolist(), columns.segment[rows].tolist(), strict=True)

    def responses(self, put: int, facts: Sequence[MemberFacts]) -> tuple[Response, ...]:
        """The responses of a put event, given what is known of each."""
        columns, all_runs, rows = self.digest.responses, self.digest.runs, self._rows(put)
        offsets = columns.first_run[rows.start : rows.stop + 1]
        of_group = slice(int(offsets[0]), int(offsets[-1]))
        parts = (self.model_step, all_runs.tokens, all_runs.trainable)
        runs: tuple[VersionRun, ...] = tuple(zip(*(part[of_group].tolist() for part in parts), strict=True))
        bounds = pairwise((offsets - of_group.start).tolist())
        rewards = columns.reward[rows].tolist()
        values = zip(self.keys(put), facts, bounds, rewards, range(rows.start, rows.stop), strict=True)
        return tuple(
            [
                Response(
                    rollout_id,
                    status,
                    runs[low:high],
                    prior_len,
                    segment,
                    agentic,
                    None if reward != reward else reward,
                    row,
                    (tokens, trainable_tokens, oldest, newest_trainable),
                )
                for (
                    (rollout_id, segment),
                    (status, tokens, trainable_tokens, prior_len, agentic, oldest, newest_trainable),
                    (low, high),
                    reward,
                    row,
                ) in values
            ]
        )

    def _rows(self, put: int) -> slice:
        first_response = self.digest.events.first_response
        return slice(int(first_response[put]), int(first_response[put + 1]))


class _PutMembers(GroupMembers):
    """The members of a put event."""

    __slots__ = ()

    def _source(self) -> tuple[RecordedGroups, int]:
        """Where they are recorded, and their put event."""
        raise NotImplementedError

    def made(self) -> tuple[Response, ...]:
        """All of them."""
        groups, put = self._source()
        return groups.responses(put, self.facts)

    def reset(self, lost: Sequence[bool]) -> GroupMembers:
        """See `GroupMembers`."""
        pairs = zip(self.facts, lost, strict=True)
        facts = [facts_after_reset(own) if is_lost else own for own, is_lost in pairs]
        return _ResetMembers(*self._source(), facts, measured_together(facts))

    def tokens_by_key(self) -> dict[tuple[int, int], int]:
        tokens = [tokens for _, tokens, _, _, _, _, _ in self.facts]
        groups, put = self._source()
        return dict(zip(groups.keys(put), tokens, strict=True))


class _RecordedMembers(_PutMembers):
    """The members of a recorded put; what is known of each is worked out for a block of puts at a time."""

    __slots__ = ("_block", "_facts", "_place")

    def __init__(self, block: _Block, place: int, measures: GroupMeasures) -> None:
        self._block = block
        self._place = place
        self._facts: Sequence[MemberFacts] | None = None
        self.measures = measures

    def _source(self) -> tuple[RecordedGroups, int]:
        return self._block.groups, self._block.puts[self._place]

    @property
    def facts(self) -> Sequence[MemberFacts]:
        """See `GroupMembers`."""
        if self._facts is None:
            first, last = self._block.bounds[self._place : self._place + 2]
            self._facts = self._block.facts[first:last]
        return self._facts

    def rewards(self) -> Iterable[float]:
        bounds, rewards = self._block.scored
        return rewards[bounds[self._place] : bounds[self._place + 1]]

    def trainable_by_version(self) -> Iterable[tuple[int, int]]:
        bounds, pairs = self._block.versions
        return pairs[bounds[self._place] : bounds[self._place + 1]]


class _ResetMembers(_PutMembers):
    """The members of a recorded put of which some have lost their tokens: every expired one.

    They may be held until the run ends, and hold on to nothing that is worked out for other groups.
    """

    __slots__ = ("_facts", "_groups", "_put")

    def __init__(self, groups: RecordedGroups, put: int, facts: Sequence[MemberFacts], measures: GroupMeasures) -> None:
        self._groups = groups
        self._put = put
        self._facts = facts
        self.measures = measures

    def _source(self) -> tuple[RecordedGroups, int]:
        return self._groups, self._put

    @property
    def facts(self) -> Sequence[MemberFacts]:
        """See `GroupMembers`."""
        return self._facts

    def made(self) -> tuple[Response, ...]:
        """All of them."""
        return tuple([one.reset() if one.status is _EXPIRED else one for one in super().made()])


class _Block:
    """Some put events, in the order they were asked for."""

    def __init__(self, groups: RecordedGroups, puts: Int64s) -> None:
        self.groups = groups
        self.puts: list[int] = puts.tolist()
        columns = groups.digest.responses
        first_response = groups.digest.events.first_response
        self._starts, self._rows = _spans(first_response[puts], first_response[puts + 1])
        self.bounds: list[int] = [*self._starts.tolist(), len(self._rows)]
        self._tokens = columns.tokens[self._rows]
        self._prior_len = np.maximum(columns.prior_len[self._rows], 0)
        self._status = columns.status[self._rows]
        self._agentic = columns.agentic[self._rows]
        self._oldest = groups.oldest[self._rows]
        self._newest_trainable = groups.newest_trainable[self._rows]
        self._trainable_tokens = groups.trainable_tokens[self._rows]

    def measures(self) -> Iterator[GroupMeasures]:
        """Those of every group."""
        starts, oldest = self._starts, self._oldest
        is_empty = oldest < 0
        is_alive = ~is_empty & (self._status != STATUS_CODE[Status.EXPIRED])
        statuses = [_STATUSES_OF[present] for present in np.bitwise_or.reduceat(1 << self._status, starts).tolist()]
        return map(
            GroupMeasures,
            np.diff(self.bounds).tolist(),
            np.add.reduceat(self._tokens, starts).tolist(),
            np.add.reduceat(self._tokens - self._prior_len, starts).tolist(),
            np.add.reduceat(self._trainable_tokens, starts).tolist(),
            [status for status, _, _ in statuses],
            [is_completed for _, is_completed, _ in statuses],
            np.logical_or.reduceat(self._agentic, starts).tolist(),
            [has_expired for _, _, has_expired in statuses],
            np.add.reduceat(is_empty, starts, dtype=np.int64).tolist(),
            np.add.reduceat(np.where(is_empty, 0, oldest), starts).tolist(),
            _smallest(oldest, ~is_empty, starts),
            _smallest(oldest, is_alive, starts),
            _smallest(self._newest_trainable, is_alive & (self._newest_trainable >= 0), starts),
        )

    @cached_property
    def scored(self) -> tuple[list[int], list[float]]:
        """The rewards that count, and where those of each group begin."""
        rewards = self.groups.digest.responses.reward[self._rows]
        is_scored = ~np.isnan(rewards)
        before = np.concatenate([[0], np.cumsum(is_scored)])
        return before[self.bounds].tolist(), rewards[is_scored].tolist()

    @cached_property
    def versions(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Trainable tokens of each group by version, and where a group's begin."""
        first_run = self.groups.digest.responses.first_run
        starts, runs = _spans(first_run[self._rows], first_run[self._rows + 1])
        run_bounds = np.append(starts, len(runs))
        trainable = self.groups.digest.runs.trainable[runs].astype(np.int64)
        group_bounds = run_bounds[self.bounds]
        group = np.repeat(np.arange(len(self._starts)), np.diff(group_bounds))
        version = self.groups.model_step[runs].astype(np.int64)
        is_trained = trainable > 0
        group, version, trainable = group[is_trained], version[is_trained], trainable[is_trained]
        # Versions fit 31 bits and a block holds few groups, so that both fit one sortable number.
        key = (group << 32) + version
        order = np.argsort(key, kind="stable")
        key, trainable = key[order], trainable[order]
        is_first = np.ones(len(key), dtype=np.bool_)
        is_first[1:] = key[1:] != key[:-1]
        firsts = np.flatnonzero(is_first)
        sums = np.add.reduceat(trainable, firsts) if len(firsts) else trainable
        pairs = list(zip((key[firsts] & 0xFFFFFFFF).tolist(), sums.tolist(), strict=True))
        return np.searchsorted(key[firsts] >> 32, np.arange(len(self._starts) + 1)).tolist(), pairs

    @cached_property
    def facts(self) -> list[MemberFacts]:
        """What is known of every response."""
        return list(
            zip(
                map(STATUSES.__getitem__, self._status.tolist()),
                self._tokens.tolist(),
                self._trainable_tokens.tolist(),
                self._prior_len.tolist(),
                self._agentic.tolist(),
                _or_none(self._oldest),
                _or_none(self._newest_trainable),
                strict=True,
            )
        )


def _spans(first: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """The indices `first` to `last - 1` of every span one after the other, and where each span begins in them."""
    counts = last - first
    starts = np.cumsum(counts) - counts
    return starts, np.repeat(first - starts, counts) + np.arange(int(counts.sum()))


def _smallest(versions: Int64s, where: Bools, starts: Int64s) -> list[int | None]:
    """The smallest version of each group in `where`; None if it has none there."""
    smallest = np.minimum.reduceat(np.where(where, versions, _NOTHING), starts).tolist()
    return [None if version == _NOTHING else version for version in smallest]


def _or_none(versions: Int64s) -> list[int | None]:
    return [None if version < 0 else version for version in versions.tolist()]


def _statuses_of(present: int) -> tuple[Status, bool, bool]:
    """Of a set of statuses, given as bits by code: the group's, whether all are completed, whether one is expired."""
    statuses = {status for code, status in enumerate(STATUSES) if present >> code & 1}
    return group_status(statuses), statuses <= {Status.COMPLETED}, Status.EXPIRED in statuses


_STATUSES_OF = tuple(_statuses_of(present) for present in range(1 << len(STATUSES)))


def _measures(digest: Digest, model_step: Int32s) -> tuple[Int64s, Int64s, Int64s]:
    """Oldest version (-1: no token), newest trainable version (-1: none) and trainable tokens of every response."""
    first_run = digest.responses.first_run
    has_runs = first_run[1:] > first_run[:-1]
    starts = first_run[:-1][has_runs]
    trainable = digest.runs.trainable
    oldest, newest_trainable = (np.full(len(has_runs), -1, dtype=np.int64) for _ in range(2))
    trainable_tokens = np.zeros(len(has_runs), dtype=np.int64)
    if len(starts):
        oldest[has_runs] = np.minimum.reduceat(model_step, starts)
        newest_trainable[has_runs] = np.maximum.reduceat(np.where(trainable > 0, model_step, -1), starts)
        trainable_tokens[has_runs] = np.add.reduceat(trainable, starts, dtype=np.int64)
    return oldest, newest_trainable, trainable_tokens
