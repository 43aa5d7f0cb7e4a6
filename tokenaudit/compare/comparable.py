"""Whether two results may be held against each other."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.contracts.errors import Problem, ResultError
from tokenaudit.replay.result import Result

_SAVE_AGAIN = "make it again with this release"


def same_log(one: Result, other: Result) -> bool:
    """Whether replay read the same rows for both; names don't matter."""
    return [entry.content_hash for entry in one.inputs] == [entry.content_hash for entry in other.inputs]


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


def _baseline_problems(result: Result, baseline: Result, source: str, allow_different_log: bool) -> Iterator[Problem]:
    if baseline.kind != result.kind:
        yield Problem(f"the baseline is a {baseline.kind}, the run a {result.kind}", source, _SAVE_AGAIN)
    elif baseline.timeline != result.timeline:
        what = f"the baseline follows a {baseline.timeline} timeline, the run a {result.timeline} one"
        yield Problem(what, source, "replay both on the same timeline")
    if baseline.definitions != result.definitions:
        yield Problem("the baseline was made with other metric definitions", source, _SAVE_AGAIN)
    if baseline.selection is not None:
        yield Problem(f"the baseline holds steps {baseline.selection} only", source, "save it without --steps")
    if not allow_different_log and not same_log(result, baseline):
        yield Problem("the baseline comes from another log", source, "--allow-different-log compares them all the same")
