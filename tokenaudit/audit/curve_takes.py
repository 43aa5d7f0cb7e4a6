"""What was taken at every step, measured in all the ways in which trainers log it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.curve_definitions import STATS
from tokenaudit.audit.curve_points import Float64s
from tokenaudit.audit.replayed_run import NEVER
from tokenaudit.audit.taken import has_recorded_takes
from tokenaudit.contracts import metrics as m
from tokenaudit.lifecycle.staleness import is_fresh, oldest_fresh, staleness
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.version_runs import MISSING_VERSION
from tokenaudit.replay.ledger import nearest_rank

_UNBOUNDED = 2**40
"""Token limit where there is no token rule."""


@dataclass(frozen=True, slots=True)
class TakenSeries:
    """Series of what was taken, by name of their definition.

    Attributes:
        steps: the steps with a take, of shape [S].
        values: by name, of shape [S]; NaN where a step has none.
        why_none: why others have no values, by name.
    """

    steps: Int64s
    values: dict[str, Float64s]
    why_none: dict[str, str]


def taken_series(case: Case) -> TakenSeries | str:
    """What the log's take rows name, else what the replay took; or why that isn't known."""
    recorded = has_recorded_takes(case.table)
    if case.puts is None:
        return f"no replay: {case.why_no_replay}"
    if recorded:
        pairs = [(row, take.train_step) for take in case.takes for row in take.put_rows]
        rows, step = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        unknown = [take.train_step for take in case.takes if not take.put_rows]
    elif case.run is None:
        return f"no take names rollouts, and no replay: {case.why_no_replay}"
    else:
        taken = np.flatnonzero(case.run.taken_step != NEVER)
        rows, step, unknown = case.puts.rows[taken], case.run.taken_step[taken], []
    # A step of which a part is unknown has no value.
    kept = ~np.isin(step, [*unknown, *step[~case.puts.is_kept(rows)].tolist()])
    if not kept.any():
        return "there is no step at which all that was taken is known"
    return _Measured(case, rows[kept], step[kept]).series(recorded)


class _Runs(NamedTuple):
    """The version runs of the rows taken: whose they are, their versions (NaN for none), and the tokens trained."""

    owner: Int64s
    version: Float64s
    trainable: Float64s
    trained: Float64s


class _Measured:
    """Rows that were taken, and the step of each; `place` is the position of its step in `steps`."""

    def __init__(self, case: Case, rows: Int64s, step: Int64s) -> None:
        self._case, self._rows = case, rows
        self.steps, self.place = np.unique(step, return_inverse=True)
        self.runs = self._runs_of(step)
        version, owner, size = self.runs.version, self.runs.owner, len(rows)
        self.oldest, self.newest = _least(version, owner, size), -_least(-version, owner, size)
        self.trainable = np.bincount(owner, self.runs.trainable, minlength=size)
        self.trained = np.bincount(owner, self.runs.trained, minlength=size)
        self.tokens = case.table["tokens"][rows].astype(np.float64)
        self.measures = self._measures()

    def series(self, recorded: bool) -> TakenSeries:
        """All series; those of the metrics of takes only where takes are recorded, as else the ledger has them."""
        values: dict[str, Float64s] = {}
        for name, (measured, place) in self.measures.items():
            values |= {f"{name}_{stat}": one for stat, one in _stats(measured, place, len(self.steps)).items()}
        values |= {f"token_staleness_{stat}": one for stat, one in self._token_staleness().items()}
        values |= self._totals()
        why: dict[str, str] = {}
        if recorded:
            values |= self._metrics(values)
            if self._case.config is None:
                for metric in (m.TRAINED_TOKENS, m.MASKED_STALE_TOKENS, *m.QUANTILES):
                    del values[metric.name]
                    why[metric.name] = "what is trained needs a config: give one with -c FILE"
        lacking = {"prompt_len": "prompt_len", "reward": "reward", "taken_all_tokens": "prompt_len"}
        for name in [name for name, one in values.items() if not np.isfinite(one).any()]:
            column = next((column for begin, column in lacking.items() if name.startswith(begin)), None)
            why[name] = f"the log has no {column} there" if column else "there is none in the log"
            del values[name]
        return TakenSeries(self.steps, values, why)

    def _column(self, name: str) -> Float64s:
        """An integer column of the rows taken; NaN for null."""
        table = self._case.table
        return np.where(table.present(name)[self._rows], table[name][self._rows], np.nan)

    def _runs_of(self, step: Int64s) -> _Runs:
        assert self._case.puts is not None
        owner, run = self._case.puts.runs_of(self._rows)
        runs = self._case.puts.digest.runs
        version = np.where(runs.model_step[run] == MISSING_VERSION, np.nan, runs.model_step[run])
        trainable = runs.trainable[run].astype(np.float64)
        fresh = is_fresh(version, oldest_fresh(step, self._limits())[owner]) | np.isnan(version)
        return _Runs(owner, version, trainable, trainable * fresh)

    def _limits(self) -> Int64s:
        """The staleness at which tokens of each row are no longer trained."""
        table, config = self._case.table, self._case.config
        limits = np.full((len(table.tasks), 2), _UNBOUNDED, dtype=np.int64)
        for code, task in enumerate(table.tasks if config else ()):
            assert config is not None
            limit = config.expiry_policy(task).token_threshold(False)
            limits[code, 0] = _UNBOUNDED if limit is None else limit
        return limits[table["task"][self._rows], table.spared[self._rows].astype(np.int64)]

    def _measures(self) -> dict[str, tuple[Float64s, Int64s]]:
        """What is measured of every response or group, and the place of its step."""
        table, place = self._case.table, self.place
        names = np.stack([place, table["task"][self._rows], table["group_id"][self._rows]])
        groups, group = np.unique(names, axis=1, return_inverse=True)
        self.group_place = groups[0]
        first = np.full(len(self._rows), np.nan)
        is_first = np.diff(self.runs.owner, prepend=-1) != 0
        first[self.runs.owner[is_first]] = self.runs.version[is_first]
        recorded_start = self._column("start_model_step")
        start = np.where(np.isnan(recorded_start), first, recorded_start)
        of_group = {
            name: _least(version, group.reshape(-1), len(self.group_place))
            for name, version in (("group_staleness", self.oldest), ("group_start_staleness", start))
        }
        of_rollout = table.segment[self._rows] == 0
        steps = self.steps.astype(np.float64)
        measures = {
            # A response without tokens has staleness 0, as where it is taken.
            "oldest_staleness": (np.where(self.tokens == 0, 0.0, staleness(self.oldest, steps[place])), place),
            "newest_staleness": (staleness(self.newest, steps[place]), place),
            "start_staleness": (staleness(start, steps[place]), place),
            "version_span": (self.newest - self.oldest + 1, place),
            "oldest_version": (self.oldest, place),
            "newest_version": (self.newest, place),
            "response_len": (self.tokens, place),
            "trainable_len": (self.trainable, place),
            "prompt_len": (self._column("prompt_len"), place),
            "reward": (table["reward"][self._rows][of_rollout], place[of_rollout]),
        }
        for name, version in of_group.items():
            measures[name] = (staleness(version, steps[self.group_place]), self.group_place)
        interval = 1 if self._case.config is None else self._case.config.timeline.sync_weights_interval
        for name, version in (("oldest", self.oldest), ("newest", self.newest)):
            syncs = (self.steps[place] - 1) // interval - version // interval
            measures[f"{name}_staleness_in_syncs"] = (syncs, place)
        return measures

    def _token_staleness(self) -> dict[str, Float64s]:
        """Mean, maximum and minimum over the trained tokens."""
        age, place, tokens = self._trained_ages()
        size = len(self.steps)
        total = np.bincount(place, tokens, minlength=size)
        with np.errstate(invalid="ignore"):
            mean = np.where(total > 0, np.bincount(place, tokens * age, minlength=size) / total, np.nan)
        return _stats(age, place, size) | {"mean": mean}

    def _trained_ages(self) -> tuple[Float64s, Int64s, Float64s]:
        """Staleness, place and tokens of the version runs that are trained."""
        place = self.place[self.runs.owner]
        age = staleness(self.runs.version, self.steps[place].astype(np.float64))
        there = np.isfinite(age) & (self.runs.trained > 0)
        return age[there], place[there], self.runs.trained[there]

    def _totals(self) -> dict[str, Float64s]:
        """Counts and shares of a step."""
        size, segment = len(self.steps), self._case.table.segment[self._rows]
        is_mixed = np.where(np.isfinite(self.oldest), self.newest > self.oldest, 0.0)
        began, group_place = self.measures["group_start_staleness"]
        is_stale = np.where(np.isfinite(began), began > 0, np.nan)
        return {
            "taken_samples": self._total(segment == 0),
            "taken_rows": self._total(np.ones(len(self._rows))),
            "taken_trainable_tokens": self._total(self.trainable),
            "taken_all_tokens": self._total(self.tokens + self._column("prompt_len")),
            "mixed_version_share": _stats(is_mixed, self.place, size)["mean"],
            "stale_group_share": _stats(is_stale, group_place, size)["mean"],
        }

    def _metrics(self, values: dict[str, Float64s]) -> dict[str, Float64s]:
        """The metrics of takes."""
        trained = self._total(self.trained)
        by_age: list[dict[int, int]] = [{} for _ in self.steps]
        for age, place, tokens in zip(*(one.astype(np.int64).tolist() for one in self._trained_ages()), strict=True):
            by_age[place][age] = by_age[place].get(age, 0) + tokens
        ranks = {
            metric.name: np.array([nearest_rank(ages, percent) for ages in by_age], dtype=np.float64)
            for metric, percent in m.QUANTILES.items()
        }
        return ranks | {
            m.TAKEN_GROUPS.name: np.bincount(self.group_place, minlength=len(self.steps)).astype(np.float64),
            m.TAKEN_TOKENS.name: self._total(self.tokens),
            m.TRAINED_TOKENS.name: trained,
            m.MASKED_STALE_TOKENS.name: self._total(self.trainable) - trained,
            m.MASKED_SEMANTIC_TOKENS.name: self._total(self.tokens - self.trainable),
            m.SEQ_STALENESS_MAX.name: values["oldest_staleness_max"],
            m.SEQ_STALENESS_SUM.name: self._total(self.measures["oldest_staleness"][0]),
        }

    def _total(self, values: Float64s | Int64s | Bools) -> Float64s:
        return np.bincount(self.place, values, minlength=len(self.steps)).astype(np.float64, copy=False)


def _least(values: Float64s, place: Int64s, size: int) -> Float64s:
    """The smallest value at each place; NaN where one of them is NaN, or there is none."""
    least = np.full(size, np.inf)
    np.minimum.at(least, place, values)
    return np.where(np.isinf(least), np.nan, least)


def _stats(values: Float64s, place: Int64s, size: int) -> dict[str, Float64s]:
    """Mean, maximum and minimum at each place of what is there; NaN where nothing is."""
    there = np.isfinite(values)
    values, place = values[there], place[there]
    count = np.bincount(place, minlength=size)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(place, values, minlength=size) / np.where(count > 0, count, np.nan)
    return dict(zip(STATS, (mean, -_least(-values, place, size), _least(values, place, size)), strict=True))
