"""What a log holds, before any config is applied to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import COLUMNS, EventKind
from tokenaudit.log.columns import Int64s
from tokenaudit.log.digest import KIND_CODE, KINDS, STATUSES, Digest
from tokenaudit.log.files import Log
from tokenaudit.log.version_runs import MISSING_VERSION

KIND_INSPECT = "tokenaudit.inspect"
OVERVIEW_SCHEMA_VERSION = 1
QUANTILES = (0, 5, 25, 50, 75, 95, 99, 100)
"""Percentages of the response lengths that are known, nearest rank."""


@dataclass(frozen=True, slots=True)
class Span:
    """Smallest and largest value, and how many different ones there are."""

    first: int
    last: int
    distinct: int


@dataclass(frozen=True, slots=True)
class Overview:
    """What a log holds. Everything but `rows` and `faults` leaves out groups with structural faults.

    Attributes:
        name: name of the log, without folders.
        content_hash: hash of what replay reads.
        files: Parquet files.
        rows: rows in them.
        timeline: "recorded" if there is more than puts, else "simulated".
        source: what wrote the log.
        has_config: whether the run's own config is in the metadata.
        events: number of events by kind.
        tasks: groups, responses and tokens of the puts by task.
        groups: different groups put.
        responses: responses put, and by status.
        train_steps: of all events but samples; None without any.
        model_steps: versions of the tokens; None without any.
        tokens: sum of response lengths over all puts.
        trainable_tokens: of those, the ones whose semantic mask is not 0.
        unversioned_tokens: of those, the ones without any version.
        version_runs: runs of one version.
        group_sizes: number of puts by number of rollouts.
        response_len: nearest-rank quantiles by percentage.
        columns: columns of the schema that are there.
        absent_columns: optional columns that are not.
        faults: rows with structural faults, by kind.
        faulty_groups: groups with such rows.
        notes: what else to know about the files.
    """

    name: str
    content_hash: str
    files: int
    rows: int
    timeline: str
    source: str | None
    has_config: bool
    events: dict[str, int]
    tasks: dict[str, dict[str, int]]
    groups: int
    responses: dict[str, int]
    train_steps: Span | None
    model_steps: Span | None
    tokens: int
    trainable_tokens: int
    unversioned_tokens: int
    version_runs: int
    group_sizes: dict[str, int]
    response_len: dict[str, int]
    columns: tuple[str, ...]
    absent_columns: tuple[str, ...]
    faults: dict[str, int]
    faulty_groups: int
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"Overview({self.name}: {plural(self.rows, 'row')}, {plural(self.groups, 'group')},"
            f" {plural(self.tokens, 'token')}, tasks: {len(self.tasks)}, files: {self.files},"
            f" {self.timeline} timeline, faulty groups: {self.faulty_groups})"
        )


def overview(log: Log, digest: Digest) -> Overview:
    """Describe a log, digested with `quarantine` and `allow_missing_versions`."""
    events, responses, runs = digest.events, digest.responses, digest.runs
    is_put = events.kind == KIND_CODE[EventKind.PUT]
    with_step = events.kind != KIND_CODE[EventKind.SAMPLE]
    tasks = {name: _task(digest, code) for code, name in enumerate(digest.tasks)}
    status_counts = np.bincount(responses.status, minlength=len(STATUSES)).tolist()
    return Overview(
        name=digest.name,
        content_hash=digest.content_hash(),
        files=len(log.files),
        rows=digest.rows,
        timeline="recorded" if digest.has_timeline else "simulated",
        source=log.source,
        has_config=log.config_json is not None,
        events={kind.value: int((events.kind == code).sum()) for code, kind in enumerate(KINDS)},
        tasks=tasks,
        groups=sum(task["groups"] for task in tasks.values()),
        responses={"all": len(responses.tokens)}
        | {status.value: n for status, n in zip(STATUSES, status_counts, strict=True) if n},
        train_steps=_span(events.train_step[with_step]),
        model_steps=_span(runs.model_step[runs.model_step != MISSING_VERSION]),
        tokens=int(responses.tokens.sum()),
        trainable_tokens=int(runs.trainable.sum(dtype=np.int64)),
        unversioned_tokens=digest.unversioned_tokens,
        version_runs=len(runs.tokens),
        group_sizes=_group_sizes(digest, is_put),
        response_len=_quantiles(responses.tokens),
        columns=log.columns,
        absent_columns=tuple(column.name for column in COLUMNS if column.name not in log.columns),
        faults=digest.faults,
        faulty_groups=digest.quarantined_groups,
        notes=(*log.rank_notes, *log.notes, *log.loss_texts, *log.unread_notes),
    )


def overview_data(view: Overview) -> dict[str, Any]:
    """The saved form: plain data with kind and schema version."""
    return {"kind": KIND_INSPECT, "schema_version": OVERVIEW_SCHEMA_VERSION} | asdict(view)


def _span(values: np.ndarray[Any, Any]) -> Span | None:
    if len(values) == 0:
        return None
    distinct = np.unique(values)
    return Span(int(distinct[0]), int(distinct[-1]), len(distinct))


def _task(digest: Digest, code: int) -> dict[str, int]:
    events = digest.events
    puts = np.flatnonzero((events.kind == KIND_CODE[EventKind.PUT]) & (events.task == code))
    tokens_before = np.concatenate([[0], np.cumsum(digest.responses.tokens)])
    first, last = events.first_response[puts], events.first_response[puts + 1]
    return {
        "groups": len(np.unique(events.group_id[puts])),
        "puts": len(puts),
        "responses": int((last - first).sum()),
        "tokens": int((tokens_before[last] - tokens_before[first]).sum()),
    }


def _group_sizes(digest: Digest, is_put: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, int]:
    values, counts = np.unique(digest.group_sizes[is_put], return_counts=True)
    return {str(value): count for value, count in zip(values.tolist(), counts.tolist(), strict=True)}


def _quantiles(lengths: Int64s) -> dict[str, int]:
    if len(lengths) == 0:
        return {}
    ordered = np.sort(lengths)
    return {f"p{percent}": int(ordered[max(0, -(-percent * len(ordered) // 100) - 1)]) for percent in QUANTILES}
