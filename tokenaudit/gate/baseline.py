"""What may be judged and what it may be judged against."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.contracts.errors import NoticeLevel, Problem, ResultError
from tokenaudit.replay.notices import LOST_EVENTS
from tokenaudit.replay.result import Result

SAVE_AGAIN = "make it again with this release"


def check_baseline(result: Result, baseline: Result, source: str, *, allow_different_log: bool) -> None:
    """Refuse a baseline whose figures don't mean the same as those of the result.

    Args:
        result: what is judged.
        baseline: what it is judged against.
        source: what messages call the baseline.
        allow_different_log: accept a baseline from another log.

    Raises:
        ResultError: every reason at once.
    """
    problems = list(_baseline_problems(result, baseline, source, allow_different_log))
    if problems:
        raise ResultError(problems)


def check_judgeable(result: Result, source: str, *, allow_lost_events: bool) -> None:
    """Refuse a result that no verdict can rest on.

    Raises:
        ResultError: the log lacks events of its run, so that no rule could say what they would have changed; or its
            structure can't be meant.
    """
    hint = "mend what records them; --allow-lost-events judges what is there"
    problems = [
        Problem(notice.message, source, hint if notice.code == LOST_EVENTS else notice.cost)
        for notice in result.warnings
        if notice.level is NoticeLevel.ERROR or (notice.code == LOST_EVENTS and not allow_lost_events)
    ]
    if problems:
        raise ResultError(problems)


def _baseline_problems(result: Result, baseline: Result, source: str, allow_different_log: bool) -> Iterator[Problem]:
    if baseline.kind != result.kind:
        yield Problem(f"the baseline is a {baseline.kind}, the run a {result.kind}", source, SAVE_AGAIN)
    elif baseline.timeline != result.timeline:
        what = f"the baseline follows a {baseline.timeline} timeline, the run a {result.timeline} one"
        yield Problem(what, source, "replay both on the same timeline")
    if baseline.selection is not None:
        yield Problem(f"the baseline holds steps {baseline.selection} only", source, "save it without --steps")
    if not allow_different_log and not result.has_same_log(baseline):
        yield Problem("the baseline comes from another log", source, result.different_log_hint(baseline))
