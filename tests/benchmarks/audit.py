"""Time the audit of a log against a bare decode of its token columns, and watch its memory.

python tests/benchmarks/audit.py rollouts.parquet
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from tokenaudit.audit.session import audit_log
from tokenaudit.log.batches import read_batches
from tokenaudit.log.files import open_log

ROUNDS = 3


def decode_seconds(path: Path) -> float:
    begin = time.perf_counter()
    for _ in read_batches(open_log([path]), ("response_model_steps", "response_mask")):
        pass
    return time.perf_counter() - begin


def main(path: Path) -> None:
    for _ in range(ROUNDS):
        decode = decode_seconds(path)
        begin = time.perf_counter()
        report = audit_log([path], isolated=True)
        seconds = time.perf_counter() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        speed = f"{report.tokens / seconds / 1e6:.1f} M tokens/s"
        print(f"audit {seconds:.2f} s, {speed}, {seconds / decode:.1f} x a bare decode, peak {peak:.0f} MiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
