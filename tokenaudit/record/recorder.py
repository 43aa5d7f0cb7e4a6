"""Record a run's rollout log while it trains: events go into memory, a thread seals them in part files."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Self

from tokenaudit.contracts.errors import KeywordError, Problem, RecordError, TokenauditError, plural
from tokenaudit.contracts.schema import DEFAULT_TASK, META_CLOCK_ORIGIN, META_DROPPED, META_REJECTED, EventKind
from tokenaudit.log.losses import loss_text
from tokenaudit.log.writer import Row, limit_metadata, log_table
from tokenaudit.record.event_rows import event_row, put_rows, take_rows
from tokenaudit.record.event_times import CallerTimes, RunClock
from tokenaudit.record.part_files import PartFolder, RunConfig, load_writer, run_metadata
from tokenaudit.record.ranks import checked_rank
from tokenaudit.record.waiting_rows import EventQueue, UnsealedRows, WhenFull, cost_of

SOURCE = "tokenaudit.Recorder"
_RETRY_SECONDS = 5.0


class Recorder:
    """Writes the events of a run to `part-000001.parquet`, `part-000002.parquet`, … in a folder.

    With `rank` and `world_size`, every rank of a distributed run has a recorder on the same folder, which writes
    `part-rank0003-000001.parquet`, …; readers merge them by the clocks of the ranks.

    Every method only copies its arguments into a queue; a thread converts, writes and flushes. They may be called
    from any thread and from coroutines, and take effect in the order of the calls. Every sealed part is whole and
    readable, so a process that is killed loses at most what came after the last sealed part: the events of the last
    `seal_seconds`, or fewer if `seal_rows` rows came sooner, and what still waits in the queue.

    Args:
        path: the folder.
        config: the run's own config, as a TOML file or a mapping like it; kept in the metadata.
        token_columns: write one entry per token (versions, mask, ids, log-probabilities) in place of version runs.
        append: go on behind the parts that are there, as a resumed run does; with a rank, behind its own.
        overwrite: remove the parts that are there; with a rank, its own.
        when_full: what happens when the queue is full.
        queue_elements: elements of lists, plus 64 per row, that may wait in the queue.
        seal_rows: rows after which a part is sealed.
        seal_seconds: seconds after which rows that wait are sealed.
        source: what the log's metadata names as its source.
        rank: the rank that this recorder writes for, from 0.
        world_size: how many ranks record into the folder.
        stamp_time: give an event without `time_us` the time of its call, microseconds since the run began. Without
            it, every event of a rank needs a `time_us` of the caller, microseconds of the Unix epoch.
        force: refused; `overwrite` was called so.

    Attributes:
        clock_origin_us: microseconds of the Unix epoch at which `time_us` is 0, for a caller that gives it; or None.
        first_event_id: the id of the first event that it records; above 1 where it goes on behind parts.

    Raises:
        RecordError: no such rank can be, or the folder can't be used; ConfigError: the config can't be used;
            UsageError: options that exclude each other, or `force`.
    """

    def __init__(
        self,
        path: Path | str,
        config: RunConfig = None,
        *,
        token_columns: bool = False,
        append: bool = False,
        overwrite: bool = False,
        when_full: WhenFull | str = WhenFull.BLOCK,
        queue_elements: int = 32_000_000,
        seal_rows: int = 50_000,
        seal_seconds: float = 30.0,
        source: str = SOURCE,
        rank: int | None = None,
        world_size: int | None = None,
        stamp_time: bool = True,
        force: object = None,
    ) -> None:
        if force is not None:
            hint = "overwrite=True (--overwrite) removes the parts that are there"
            raise KeywordError(Problem("force is called overwrite", None, hint))
        of_rank = checked_rank(rank, world_size)
        self._metadata = run_metadata(config, source, of_rank)
        self._when_full = WhenFull(when_full)
        load_writer()
        self._parts = PartFolder(Path(path), of_rank, append=append, overwrite=overwrite)
        self._token_columns, self._seal_rows, self._seal_seconds = token_columns, seal_rows, seal_seconds
        resumed = self._parts.resumed
        self.first_event_id = self._next_id = resumed.event_id + 1
        try:
            origin_us = resumed.clock_origin_us
            self._times = RunClock(origin_us, resumed.time_us) if stamp_time else CallerTimes(origin_us, of_rank)
        except RecordError:
            self._parts.close()
            raise
        self.clock_origin_us = self._times.origin_us
        if self.clock_origin_us is not None:
            self._metadata[META_CLOCK_ORIGIN] = str(self.clock_origin_us)
        self._process = os.getpid()
        self._state = threading.Condition()
        self._queue = EventQueue(queue_elements)
        self._limits: dict[str, None] = {}
        self._closing = False
        self._failure: Exception | None = None
        self._accepted = 0
        self._lost: Counter[str] = Counter()
        self._noted: Counter[str] = Counter()
        """The losses that sealed parts count."""
        self.sealed_events = 0
        """Events in sealed parts."""
        self._thread = threading.Thread(target=self._write, name="tokenaudit-recorder", daemon=True)
        self._thread.start()
        atexit.register(self._end)
        # these end without what is registered at exit
        self._finalizer = Finalize(None, self._end, exitpriority=0) if parent_process() is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Recorder({self._parts.path}: {plural(self.sealed_events, 'event')} sealed)"

    def put(
        self,
        group: Sequence[Mapping[str, Any]],
        *,
        group_id: int,
        train_step: int,
        model_step: int | None = None,
        task_name: str = DEFAULT_TASK,
        time_us: int | None = None,
    ) -> None:
        """A group enters the replay buffer; see `event_rows.put_rows` for the arguments.

        Raises:
            RecordError: values that can't be recorded, or the recorder is closed or can't write.
        """
        shared: dict[str, Any] = {"group_id": group_id, "train_step": train_step, "model_step": model_step}
        self._record(lambda: put_rows(group, **shared, task_name=task_name, time_us=time_us))

    def sample(self, group_id: int, status: str, *, task_name: str = DEFAULT_TASK, time_us: int | None = None) -> None:
        """A group leaves the pool `status` to be generated again. Raises like `put`."""
        values = {"group_id": group_id, "status": status, "task_name": task_name, "time_us": time_us}
        self._record(lambda: [event_row(EventKind.SAMPLE, **values)])

    def refresh(self, train_step: int, *, time_us: int | None = None) -> None:
        """The buffer recomputes staleness for `train_step`. Raises like `put`."""
        self._record(lambda: [event_row(EventKind.REFRESH, train_step=train_step, time_us=time_us)])

    def take(
        self,
        train_step: int,
        batch_size: int,
        *,
        task_name: str = DEFAULT_TASK,
        time_us: int | None = None,
        rollout_ids: Sequence[int] | None = None,
        responses: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """The trainer asks for `batch_size` groups of a task; see `event_rows.take_rows` for the arguments.

        `rollout_ids` or `responses` name what it got, so that audits need not replay it. Raises like `put`.
        """
        values = {"train_step": train_step, "batch_size": batch_size, "task_name": task_name, "time_us": time_us}
        self._record(lambda: take_rows(values, rollout_ids, responses))

    def sync(self, train_step: int, model_step: int, *, time_us: int | None = None) -> None:
        """The rollout engine got the weights `model_step` after `train_step`. Raises like `put`."""
        self._record(lambda: [event_row(EventKind.SYNC, train_step=train_step, model_step=model_step, time_us=time_us)])

    @property
    def dropped_events(self) -> int:
        """Events dropped because the queue was full."""
        return self._lost[META_DROPPED]

    @property
    def rejected_events(self) -> int:
        """Events refused with a `RecordError`; the log counts them, for whoever goes on without them."""
        return self._lost[META_REJECTED]

    def count_rejected(self) -> None:
        """Count an event of the run that can't even be handed to the recorder; not in a process forked from its own."""
        if not self._is_foreign():
            self._lose(META_REJECTED)

    def note_limit(self, what: str) -> None:
        """Say in the log what its source leaves out, which holds for what is recorded from now on."""
        self._limits = dict.fromkeys((*self._limits, what))

    @property
    def is_failed(self) -> bool:
        """Whether the last part couldn't be written."""
        return self._failure is not None

    def close(self) -> None:
        """Seal what is left and stop. A second call does nothing. Warns if events were dropped.

        Raises:
            RecordError: a part couldn't be written; what was written before stays.
        """
        if self._thread.is_alive():
            self._stop()
            if self.dropped_events:
                warnings.warn(loss_text(META_DROPPED, self.dropped_events), RuntimeWarning, stacklevel=2)
            if self._failure is not None:
                raise self._cannot_write()

    def _stop(self) -> None:
        if self._is_foreign():
            return
        atexit.unregister(self._end)
        if self._finalizer is not None:
            self._finalizer.cancel()
        with self._state:
            self._closing = True
            self._state.notify_all()
        self._thread.join()
        self._parts.close()

    def _end(self) -> None:
        """Seal what is left as the process ends without `close`; nobody is there to catch what goes wrong."""
        self._stop()
        if self._is_foreign() or sys.stderr is None:
            return
        said = [loss_text(key, count) for key, count in self._lost.items()]
        if self._failure is not None:
            unsealed = self._accepted - self.sealed_events
            said.append(f"the recorder lost the last {unsealed} events: {self._cannot_write().summary}")
        with suppress(OSError, ValueError):
            sys.stderr.writelines(f"tokenaudit: {self._parts.path}: {line}\n" for line in said)

    def _record(self, make_rows: Callable[[], list[Row]]) -> None:
        if self._is_foreign():
            what = "the recorder belongs to another process, which this one was forked from"
            raise RecordError(Problem(what, str(self._parts.path), "make a recorder of its own for each process"))
        called_us = self._times.now_us()
        try:
            self._enqueue(make_rows(), called_us)
        except RecordError:
            self.count_rejected()
            raise

    def _enqueue(self, rows: list[Row], called_us: int) -> None:
        cost = cost_of(rows)
        with self._state:
            while not self._has_room(cost):
                if self._when_full is WhenFull.DROP:
                    self._next_id += 1
                    self._lose(META_DROPPED)
                    return
                self._state.wait()
            self._times.stamp(rows, called_us)
            self._accepted += 1
            for row in rows:
                row["event_id"] = self._next_id
            self._next_id += 1
            self._queue.add(rows, cost)
            self._state.notify_all()

    def _lose(self, key: str) -> None:
        """Count an event that isn't recorded; the next part says so."""
        with self._state:
            self._lost[key] += 1
            self._state.notify_all()

    def _unnoted(self) -> Counter[str]:
        """The losses that no part counts yet; where nothing was ever recorded there is nothing to add to."""
        with self._state:
            return self._lost - self._noted if self._accepted or self._parts.has_parts else Counter()

    def _is_foreign(self) -> bool:
        """Whether this process was forked from the recorder's; the lock may then be held forever, so ask before."""
        return os.getpid() != self._process

    def _has_room(self, cost: int) -> bool:
        """Whether an event fits the queue."""
        if self._closing:
            raise RecordError(Problem("the recorder is closed", str(self._parts.path), "record before close"))
        if self._failure is not None and self._when_full is WhenFull.BLOCK:
            raise self._cannot_write()
        return self._queue.has_room(cost)

    def _cannot_write(self) -> RecordError:
        failure = self._failure.summary if isinstance(self._failure, TokenauditError) else self._failure
        what = f"can't write: {failure}"
        return RecordError(Problem(what, str(self._parts.path), "free the disk, or record elsewhere"))

    def _write(self) -> None:
        """The thread: gather rows, and seal them when there are enough or they have waited long enough."""
        unsealed = UnsealedRows()
        # until everything is sealed, or closing is asked for and the last part can't be written
        while not self._is_ending() or ((unsealed.rows or self._unnoted()) and self._failure is None):
            if self._failure is not None:
                with self._state:
                    self._state.wait_for(lambda: self._closing, _RETRY_SECONDS)
                self._seal(unsealed)
                continue
            if self._unnoted():
                unsealed.start_clock()
            event = self._next_event(unsealed.seconds_left(self._seal_seconds))
            if event is not None:
                unsealed.add(event)
            if unsealed.is_due(self._seal_rows, self._seal_seconds) or self._is_ending():
                self._seal(unsealed)
        if self._parts.lacks_rank and not self._lost and self._failure is None:
            # a rank that had nothing to record is no rank whose parts got lost
            self._seal(unsealed, even_empty=True)

    def _is_ending(self) -> bool:
        with self._state:
            return self._closing and (not self._queue or self._failure is not None)

    def _next_event(self, seconds: float | None) -> list[Row] | None:
        """The next event; None if there is none within `seconds`, or closing is asked for."""
        with self._state:
            if not self._queue and not self._closing:
                self._state.wait(seconds)
            if not self._queue:
                return None
            self._state.notify_all()
            return self._queue.pop()

    def _seal(self, unsealed: UnsealedRows, *, even_empty: bool = False) -> None:
        """Write a part, without rows where only losses are to be noted; on failure they stay, and callers see it."""
        losses = self._unnoted()
        if not unsealed.rows and not losses and not even_empty:
            return
        metadata = self._metadata | limit_metadata(self._limits) | {key: str(count) for key, count in losses.items()}
        try:
            self._parts.seal(log_table(unsealed.rows, token_columns=self._token_columns, metadata=metadata))
        except Exception as error:  # noqa: BLE001 - whatever kept the part from being written is raised in callers
            with self._state:
                self._failure = error
                self._state.notify_all()
            return
        self._failure = None
        self._noted += losses
        self.sealed_events += unsealed.events
        unsealed.clear()
