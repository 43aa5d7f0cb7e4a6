"""What responses hold and how they end, token by token: the slow twin of the fingerprints and numbers of the audit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.builders import Row


def alike(rows: Iterable[Row], least: int) -> set[int]:
    """Rollouts of which another rollout of the group holds the same ids and log-probabilities in some put."""
    holders: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for row in rows:
        if row["event"] == "put" and len(row["response_ids"]) >= least:
            contents = tuple(row["response_ids"]), tuple(row["logprobs"])
            holders[row.get("task_name"), row["group_id"], *contents].add(row["rollout_id"])
    return set().union(*(rollouts for rollouts in holders.values() if len(rollouts) > 1))


def changed_prefixes(rows: Iterable[Row]) -> list[int]:
    """Places of the puts whose first `prior_len` ids aren't those that the rollout's put before had."""
    last: dict[tuple[object, ...], list[int]] = {}
    changed: list[int] = []
    for place, row in enumerate(rows):
        if row["event"] != "put":
            continue
        key = (row.get("task_name"), row["group_id"], row["rollout_id"])
        before, prior = last.get(key), row["prior_len"]
        if before is not None and 0 < prior == len(before) and row["response_ids"][:prior] != before:
            changed.append(place)
        last[key] = row["response_ids"]
    return changed


def tail(ids: list[int]) -> tuple[int, bool]:
    """Length of the run of one id at the end, and whether that id also stands before it."""
    run = 0
    while run < len(ids) and ids[-1 - run] == ids[-1]:
        run += 1
    return run, bool(ids) and ids[-1] in ids[: len(ids) - run]
