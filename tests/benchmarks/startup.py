"""Prints start-up times: medians of whole commands, and their ratio to a Python that does nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 7
SAMPLE = Path(__file__).parents[2] / "sample_data" / "rollouts.parquet"
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "tokenaudit --help": ["-m", "tokenaudit", "--help"],
    "tokenaudit replay (sample)": ["-m", "tokenaudit", "replay", str(SAMPLE)],
    "tokenaudit inspect (sample)": ["-m", "tokenaudit", "inspect", str(SAMPLE)],
}


def seconds(arguments: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    timings: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, arguments in COMMANDS.items():
            timings[name].append(seconds(arguments))
    bare = statistics.median(timings["python -c pass"])
    print(f"{'command':<30} {'median s':>9} {'ratio':>7}   ({RUNS} runs, interleaved)")
    for name, values in timings.items():
        median = statistics.median(values)
        print(f"{name:<30} {median:>9.3f} {median / bare:>7.1f}")


if __name__ == "__main__":
    main()
