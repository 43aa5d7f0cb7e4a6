"""From a log to why its tokens were lost: replay it, find the causes, and loosen one setting after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from tokenaudit.explain.losses import Cause, GroupLoss, Losses
from tokenaudit.explain.trials import Trials, tried
from tokenaudit.replay.events import Key
from tokenaudit.replay.request import Paths, RunOptions, RunRequest
from tokenaudit.replay.result import Result
from tokenaudit.replay.session import LoadedLog, load_log, replay_loaded

MOST_GROUPS = 10
"""Groups that are listed; all are counted."""


@dataclass(frozen=True, slots=True)
class LogExplanation:
    """Why tokens of a log were lost.

    Attributes:
        result: the replay of the log.
        causes: the ways in which tokens were lost, the most costly first; their sums are those of the result's ledger.
        groups: the groups that lost most to settings.
        losing_groups: how many groups lost any.
        trials: how much each setting binds.
    """

    result: Result
    causes: tuple[Cause, ...]
    groups: tuple[tuple[Key, GroupLoss], ...]
    losing_groups: int
    trials: Trials

    def __repr__(self) -> str:
        best = self.trials.best
        names = ", ".join(entry.name for entry in self.result.inputs)
        return f"LogExplanation({names}: {len(self.causes)} causes; to try: {best.override if best else 'nothing'})"


def explain_log(paths: Paths | RunRequest, **options: Unpack[RunOptions]) -> LogExplanation:
    """Say why tokens of a log were lost, and which settings bound.

    Args:
        paths: files, folders or glob patterns that make up one log; or a whole request.
        options: what else a `RunRequest` holds: `config`, `overrides`, `isolated`, `quarantine`, `cache`,
            `token_time_us`, `prompt_order`, `working_dir`, `on_progress`.

    Raises:
        TokenauditError: as for `replay_log`.
    """
    return explain_loaded(load_log(RunRequest.of(paths, options, "explain_log")))


def explain_loaded(loaded: LoadedLog) -> LogExplanation:
    """The same of a log that was read already."""
    losses = Losses(loaded.settings.config)
    result = replay_loaded(loaded, losses.observe)
    losing = sum(group.tokens > 0 for group in losses.groups.values())
    return LogExplanation(
        result,
        tuple(losses.causes()),
        tuple(losses.worst_groups(MOST_GROUPS)),
        losing,
        tried(loaded, result, losses),
    )
