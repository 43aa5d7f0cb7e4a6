"""What became of every group of a run, and which groups ended otherwise in the other of two runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import polars as pl

from tokenaudit.compare.group_events import GroupEvents, Kind
from tokenaudit.config.model import Config
from tokenaudit.replay.result import EXPIRED_IDS, TAKEN_IDS, TRAIN_STEP, Result


class Ending(StrEnum):
    """How a group ended."""

    TRAINED = "trained"
    """It was taken by a step."""
    DISCARDED = "discarded"
    """It expired and was lost."""
    FAILED = "failed"
    """It was discarded at put because it failed."""
    FILTERED = "filtered"
    """It was discarded at put because the run's own filter rejected it."""
    WAITING = "still waiting at the end"
    """It is in the buffer, or being generated again."""
    ABSENT = "never put"
    """It isn't in the run."""
    NOT_TRAINED = "not trained"
    """No step took it; group ids alone don't say more."""


_ENDINGS = {
    Kind.PUT: Ending.WAITING,
    Kind.RESET: Ending.WAITING,
    Kind.TAKEN: Ending.TRAINED,
    Kind.DISCARDED: Ending.DISCARDED,
    Kind.FAILED: Ending.FAILED,
    Kind.FILTERED: Ending.FILTERED,
}
_COUNTS = ("trained", "masked", "fresh_lost", "reset", "expired")


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Groups whose outcome changed in one way.

    Attributes:
        change: the way, in words.
        groups: how many.
        tokens: the tokens concerned; None where it concerns none, or only ids are known.
        ids: the groups by task, in order; empty unless asked for.
    """

    change: str
    groups: int
    tokens: int | None
    ids: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """All groups of two runs, compared.

    Attributes:
        compared: groups that one of the runs knows.
        changed: groups whose outcome is another; one may have changed in several ways.
        changes: the ways.
        missing: why there is no such comparison, or what it lacks; empty where it is complete.
    """

    compared: int
    changed: int
    changes: tuple[GroupChange, ...]
    missing: str = ""


def outcomes_of_run(events: GroupEvents) -> pl.DataFrame:
    """One row per group of a run.

    Columns: task, group_id, ending, step (the one that took it), the tokens trained, masked (as stale), fresh_lost and
    reset, and expired (how often).
    """
    kind = pl.col("kind")
    is_expiry = kind.is_in([Kind.RESET, Kind.DISCARDED])

    def tokens(column: int, *kinds: Kind) -> pl.Expr:
        return pl.col(f"tokens_{column}").filter(kind.is_in(list(kinds))).sum()

    return (
        events.frame()
        .lazy()
        .group_by("task", "group_id", maintain_order=True)
        .agg(
            kind.filter(kind.is_in(list(_ENDINGS))).last().alias("last"),
            pl.col("train_step").filter(kind == Kind.TAKEN).first().alias("step"),
            tokens(0, Kind.TAKEN).alias("trained"),
            tokens(1, Kind.TAKEN).alias("masked"),
            tokens(1, Kind.DISCARDED).alias("fresh_lost"),
            tokens(0, Kind.RESET, Kind.MEMBERS_RESET).alias("reset"),
            is_expiry.sum().cast(pl.Int64).alias("expired"),
        )
        .with_columns(
            pl.col("last")
            .replace_strict({int(code): str(ending) for code, ending in _ENDINGS.items()}, return_dtype=pl.String)
            .alias("ending")
        )
        .select("task", "group_id", "ending", "step", *_COUNTS)
        .collect()
    )


def outcomes_of_ids(result: Result, config: Config) -> pl.DataFrame | None:
    """The same from the group ids of a saved result, tokens null; None if it was saved without them."""
    if not result.steps or any(TAKEN_IDS not in row or EXPIRED_IDS not in row for row in (*result.steps, result.tail)):
        return None
    taken: dict[tuple[str, int], int] = {}
    expired: dict[tuple[str, int], int] = {}
    for row in (*result.steps, result.tail):
        for task, ids in row[TAKEN_IDS].items():
            taken |= {(task, group_id): row[TRAIN_STEP] for group_id in ids if TRAIN_STEP in row}
        for task, ids in row[EXPIRED_IDS].items():
            for group_id in ids:
                expired[(task, group_id)] = expired.get((task, group_id), 0) + 1
    keys = list(dict.fromkeys((*taken, *expired)))
    endings = [
        Ending.TRAINED
        if key in taken
        else Ending.NOT_TRAINED
        if config.expiry_policy(key[0]).retryable
        else Ending.DISCARDED
        for key in keys
    ]
    nothing = pl.Series([None] * len(keys), dtype=pl.Int64)
    return pl.DataFrame(
        {
            "task": pl.Series([task for task, _ in keys], dtype=pl.String),
            "group_id": pl.Series([group_id for _, group_id in keys], dtype=pl.Int64),
            "ending": pl.Series([str(ending) for ending in endings], dtype=pl.String),
            "step": pl.Series([taken.get(key) for key in keys], dtype=pl.Int64),
            **dict.fromkeys(("trained", "masked", "fresh_lost", "reset"), nothing),
            "expired": pl.Series([expired.get(key, 0) for key in keys], dtype=pl.Int64),
        }
    )


def compare_outcomes(a: pl.DataFrame, b: pl.DataFrame, *, from_ids: bool, with_ids: bool) -> GroupChanges:
    """Which groups have another outcome in run B than in run A.

    Args:
        a: outcomes in run A.
        b: outcomes in run B.
        from_ids: they come from group ids alone, so that a group without any was merely not trained.
        with_ids: list the groups.
    """
    absent = str(Ending.NOT_TRAINED if from_ids else Ending.ABSENT)
    joined = (
        a.join(b, on=["task", "group_id"], how="full", suffix="_b", coalesce=True)
        .with_columns(pl.col("ending", "ending_b").fill_null(absent))
        .with_columns(pl.col("expired", "expired_b").fill_null(0))
    )
    if not from_ids:
        joined = joined.with_columns(pl.col(*_COUNTS, *(f"{name}_b" for name in _COUNTS)).fill_null(0))
    changes: list[GroupChange] = []
    parts: list[pl.DataFrame] = []
    for label, part, tokens in _changes(joined):
        if part.height:
            parts.append(part.select("task", "group_id"))
            total = None if from_ids or tokens is None else int(part.select(tokens.sum()).item())
            changes.append(GroupChange(label, part.height, total, _ids(part) if with_ids else {}))
    changed = pl.concat(parts).unique().height if parts else 0
    missing = "saved group ids give no tokens, no masks and no fresh members" if from_ids else ""
    return GroupChanges(joined.height, changed, tuple(changes), missing)


def _changes(joined: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame, pl.Expr | None]]:
    """Every way to change: its label, its groups, and the tokens concerned, if it concerns any."""
    trained_a, trained_b = pl.col("ending") == str(Ending.TRAINED), pl.col("ending_b") == str(Ending.TRAINED)
    for ending in Ending:
        lost = joined.filter(trained_a & ~trained_b & (pl.col("ending_b") == str(ending)))
        yield f"trained in A, {ending} in B", lost, pl.col("trained")
    for ending in Ending:
        gained = joined.filter(~trained_a & trained_b & (pl.col("ending") == str(ending)))
        yield f"trained in B, {ending} in A", gained, pl.col("trained_b")
    for a in Ending:
        for b in Ending:
            if Ending.TRAINED not in (a, b) and a is not b:
                other = joined.filter((pl.col("ending") == str(a)) & (pl.col("ending_b") == str(b)))
                yield f"{a} in A, {b} in B", other, None
    both = joined.filter(trained_a & trained_b)
    yield "trained later in B", both.filter(pl.col("step_b") > pl.col("step")), pl.col("trained_b")
    yield "trained earlier in B", both.filter(pl.col("step_b") < pl.col("step")), pl.col("trained_b")
    more, less = pl.col("masked_b") - pl.col("masked"), pl.col("masked") - pl.col("masked_b")
    yield "masked more in B", both.filter(more > 0), more
    yield "masked less in B", both.filter(less > 0), less
    for name, words in (("fresh_lost", "fresh members lost"), ("reset", "rolled again")):
        more, less = pl.col(f"{name}_b") - pl.col(name), pl.col(name) - pl.col(f"{name}_b")
        yield f"{words}, more tokens in B", joined.filter(more > 0), more
        yield f"{words}, fewer tokens in B", joined.filter(less > 0), less
    more, less = pl.col("expired_b") - pl.col("expired"), pl.col("expired") - pl.col("expired_b")
    yield "expired more often in B", joined.filter(more > 0), None
    yield "expired less often in B", joined.filter(less > 0), None


def _ids(part: pl.DataFrame) -> dict[str, list[int]]:
    listed = part.sort("task", "group_id").group_by("task", maintain_order=True).agg("group_id")
    return dict(listed.iter_rows())
