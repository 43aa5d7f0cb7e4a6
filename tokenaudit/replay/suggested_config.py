"""The config that a log suggests: its own, with every task and group size; without one, what its events show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.config.model import Config, parse_config, resolved
from tokenaudit.config.toml import dotted
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.digest import KIND_CODE, Digest
from tokenaudit.replay.open_loop import timeline_of
from tokenaudit.replay.request import TimelineKind


class SuggestedConfig(NamedTuple):
    """A config, what to say of single keys, by dotted key, and whether a replay waits for the size of a batch."""

    config: Config
    remarks: dict[str, str]
    lacks_batch: bool = False


def suggested_config(digest: Digest, own: Config | None, base: Mapping[str, Any]) -> SuggestedConfig:
    """The config to begin with for a log. Where the log has its own, replay gives the same with it.

    Args:
        digest: the log.
        own: the config in its metadata.
        base: the values to lay what its events show over, where there is none.
    """
    remarks: dict[str, str] = {}
    data = resolved(parse_config(base, "base") if own is None else own)
    if own is None:
        _add_syncs(data, digest, remarks)
    for code, task in enumerate(digest.tasks):
        of_task = digest.events.task == code
        values = data["tasks"].setdefault(task, {})
        if values.get("group_size") is None:
            _add_group_size(values, digest.group_sizes[of_task & _is(digest, EventKind.PUT)], task, remarks)
    if own is None:
        _add_batch(data, digest, remarks)
    config = parse_config(data, digest.name)
    lacks_batch = timeline_of(digest, None) is TimelineKind.SIMULATED and config.timeline.train_batch_size is None
    if lacks_batch:
        remarks["timeline.train_batch_size"] = "The log holds only puts, so a replay needs this."
    return SuggestedConfig(config, remarks, lacks_batch)


def _is(digest: Digest, kind: EventKind) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return digest.events.kind == KIND_CODE[kind]


def _add_group_size(
    task: dict[str, Any], sizes: np.ndarray[Any, np.dtype[np.int64]], name: str, remarks: dict[str, str]
) -> None:
    found = np.unique(sizes)
    if len(found) == 1:
        task["group_size"] = int(found[0])
    elif len(found):
        remarks[dotted(("tasks", name, "group_size"))] = f"Groups of this log have {found[0]} to {found[-1]} responses."


def _add_syncs(data: dict[str, Any], digest: Digest, remarks: dict[str, str]) -> None:
    """K, where the log syncs at its multiples; a run may also sync when it ends."""
    steps = np.unique(digest.events.train_step[_is(digest, EventKind.SYNC)])
    for regular in (steps, steps[:-1]):
        interval = int(np.gcd.reduce(regular)) if len(regular) > 1 else 0
        if interval and (np.diff(regular) == interval).all():
            data["timeline"]["sync_weights_interval"] = interval
            remarks["timeline.sync_weights_interval"] = "As the log's sync events say."
            return


def _add_batch(data: dict[str, Any], digest: Digest, remarks: dict[str, str]) -> None:
    """The size of a batch and the shares of the tasks, where every take of a task asks for the same number."""
    takes = _is(digest, EventKind.TAKE)
    steps = np.unique(digest.events.train_step[takes])
    sizes: dict[str, int] = {}
    for code, task in enumerate(digest.tasks):
        asked = digest.events.batch_size[takes & (digest.events.task == code)]
        if len(asked) not in (0, len(steps)) or len(np.unique(asked)) > 1:
            return
        sizes[task] = int(asked[0]) if len(asked) else 0
    if sum(sizes.values()) < 1:
        return
    data["timeline"]["train_batch_size"] = sum(sizes.values())
    remarks["timeline.train_batch_size"] = "As the log's takes say."
    for task, size in sizes.items() if len(sizes) > 1 else ():
        data["tasks"][task]["weight"] = float(size)
