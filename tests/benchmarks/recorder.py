"""What recording costs a trainer: seconds of the caller and of the writer per step that makes a million tokens.

    python tests/benchmarks/recorder.py

A step takes at least `STEP_SECONDS`: a million tokens at 100,000 tokens a second, which is a fast engine. The target
is under 1 % of it, for caller and writer together, because both hold the interpreter's lock.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tokenaudit import Recorder

STEP_SECONDS = 10.0
STEPS = 5
GROUPS, MEMBERS, TOKENS = 16, 8, 7813


def groups() -> list[list[dict[str, object]]]:
    """A million tokens, each response made by two versions, as lists like those a trainer holds."""
    steps = [3] * (TOKENS // 2) + [4] * (TOKENS - TOKENS // 2)
    return [
        [
            {
                "rollout_id": group * MEMBERS + member,
                "response_model_steps": list(steps),
                "response_mask": [1] * TOKENS,
                "reward": 0.5,
            }
            for member in range(MEMBERS)
        ]
        for group in range(GROUPS)
    ]


def main() -> None:
    made = groups()
    for token_columns in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(Path(folder), token_columns=token_columns)
            before_cpu, calling = time.process_time(), 0.0
            for step in range(1, STEPS + 1):
                before = time.perf_counter()
                for group_id, group in enumerate(made):
                    recorder.put(group, group_id=step * GROUPS + group_id, train_step=step + 5)
                recorder.take(step + 5, GROUPS)
                calling += time.perf_counter() - before
            recorder.close()
            cpu = (time.process_time() - before_cpu) / STEPS
            size = sum(part.stat().st_size for part in Path(folder).iterdir()) / STEPS
            share = 100 * cpu / STEP_SECONDS
            kind = "token columns" if token_columns else "version runs"
            print(
                f"{kind}: caller {1e3 * calling / STEPS:.1f} ms, caller and writer {1e3 * cpu:.1f} ms of CPU per step, "
                f"{share:.2f} % of a step, {size:,.0f} bytes"
            )


if __name__ == "__main__":
    main()
