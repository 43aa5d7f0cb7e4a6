"""Time the audit of a log against a bare decode, by one thread, of the columns it reads, and watch its memory.

    python tests/benchmarks/audit.py [rollouts.parquet]

Without a log, one of 20 M tokens with ids and log-probabilities is made first. Decode and audit take turns; seconds are
of wall clock and of all cores together. Beside others at work, threads gain little wall clock, hence the load average.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.make_log import LogShape, write_log
from tokenaudit.audit.session import READ_COLUMNS, audit_log
from tokenaudit.log.batches import read_batches
from tokenaudit.log.files import open_log

ROUNDS = 5
RESPONSES = 9_000


def seconds_of(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of wall clock and of all cores that something takes."""
    wall, cores = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cores


def decode(path: Path) -> None:
    for _ in read_batches(open_log([path]), READ_COLUMNS):
        pass


def main(path: Path) -> None:
    print(f"load average at the start {os.getloadavg()[0]:.1f}")
    tokens = audit_log([path], isolated=True).tokens
    ratios: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        bare = seconds_of(lambda: decode(path))
        audit = seconds_of(lambda: audit_log([path], isolated=True))
        ratios.append((audit[0] / bare[0], audit[1] / bare[1]))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        times = f"audit {audit[0]:.2f} s ({audit[1]:.2f} s of cores), decode {bare[0]:.2f} s ({bare[1]:.2f} s)"
        print(f"{times}, {tokens / audit[0] / 1e6:.1f} M tokens/s, peak {peak:.0f} MiB")
    wall, cores = (statistics.median(values) for values in zip(*ratios, strict=True))
    print(f"median: {wall:.2f} x a bare decode, {cores:.2f} x its time of cores")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "rollouts.parquet")
            write_log(made, LogShape(RESPONSES, steps=60, ids=True, logprobs=True))
            main(made)
