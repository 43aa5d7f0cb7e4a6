"""Time work on a log in turns with a bare decode, by one thread, of the columns it reads."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenaudit.log.batches import read_batches
from tokenaudit.log.files import open_log


def seconds_of(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of wall clock and of all cores that something takes."""
    wall, cores = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cores


def _decode(path: Path, columns: Sequence[str]) -> None:
    for _ in read_batches(open_log([path]), columns):
        pass


def beside_decode(
    name: str, work: Callable[[], object], path: Path, columns: Sequence[str], *, tokens: int, rounds: int
) -> str:
    """Print every turn, and give the medians of work over decode as a text.

    Args:
        name: what the work is.
        work: the work, on all of the log.
        path: the log.
        columns: what the decode reads.
        tokens: tokens of the log.
        rounds: turns.
    """
    ratios: list[tuple[float, float]] = []
    for _ in range(rounds):
        bare, own = seconds_of(lambda: _decode(path, columns)), seconds_of(work)
        ratios.append((own[0] / bare[0], own[1] / bare[1]))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        times = f"{name} {own[0]:.2f} s ({own[1]:.2f} s of cores), decode {bare[0]:.2f} s ({bare[1]:.2f} s)"
        print(f"{times}, {tokens / own[0] / 1e6:.1f} M tokens/s, peak {peak:.0f} MiB")
    wall, cores = (statistics.median(values) for values in zip(*ratios, strict=True))
    return f"median: {wall:.2f} x a bare decode, {cores:.2f} x its time of cores"
