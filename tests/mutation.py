"""Samples mutants of the rooms that decide, with a seed, and lists those that no test notices; needs `.[mutation]`.

    python -m tests.mutation                       # 40 mutants per room
    python -m tests.mutation --each 10 --room gate # 10 mutants of one room

Other mutants than before come with another `--seed`. `mutmut show NAME` prints what a mutant changes.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from pathlib import Path

MUTANTS = Path("mutants")
ROOMS = ("lifecycle", "replay", "masks", "gate", "compare")
NO_MUTANT = "no.such.mutant"
"""mutmut makes all mutants and notes which test calls which function before it looks for the names it was given."""


def mutmut(*names: str) -> int:
    """Runs mutants one after the other; each meets the tests that call its function, until one fails."""
    return subprocess.run(["mutmut", "run", "--max-children", "1", *names], check=False).returncode


def outcomes(room: str) -> dict[str, int | None]:
    """By mutant of a room: the exit code of its tests, nothing where they did not run."""
    files = sorted((MUTANTS / "tokenaudit" / room).glob("*.py.meta"))
    return {name: code for path in files for name, code in json.loads(path.read_text())["exit_code_by_key"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", action="append", choices=ROOMS, help="one room, in place of all; several times")
    parser.add_argument("--each", type=int, default=40, help="mutants per room")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rooms = options.room or ROOMS

    mutmut(NO_MUTANT)
    chosen: list[str] = []
    for room in rooms:
        every = list(outcomes(room))
        chosen += random.Random(f"{options.seed} {room}").sample(every, min(options.each, len(every)))
    mutmut(*chosen)
    for room in rooms:
        codes = outcomes(room)
        tried = [name for name in chosen if name in codes]
        survived = [name for name in tried if codes[name] in (0, 5, 33)]
        print(f"{room}: {len(tried)} of {len(codes)} mutants, {len(survived)} survived")
        print(*(f"  {name}" for name in survived), sep="\n")


if __name__ == "__main__":
    main()
