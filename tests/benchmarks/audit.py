"""Time the audit of a log against a bare decode, by one thread, of the columns it reads, and watch its memory.

    python tests/benchmarks/audit.py [rollouts.parquet]

Without a log, one of 20 M tokens with ids and log-probabilities is made first. Decode and audit take turns; seconds are
of wall clock and of all cores together. Beside others at work, threads gain little wall clock, hence the load average.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.beside_decode import beside_decode
from tests.benchmarks.make_log import LogShape, write_log
from tokenaudit.audit.session import READ_COLUMNS, audit_log

ROUNDS = 5
RESPONSES = 9_000


def main(path: Path) -> None:
    print(f"load average at the start {os.getloadavg()[0]:.1f}")
    tokens = audit_log([path], isolated=True).tokens
    print(
        beside_decode(
            "audit", lambda: audit_log([path], isolated=True), path, READ_COLUMNS, tokens=tokens, rounds=ROUNDS
        )
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "rollouts.parquet")
            write_log(made, LogShape(RESPONSES, steps=60, ids=True, logprobs=True))
            main(made)
