"""Kills recorders of all ranks of a folder at random points, round after round: `rank_kill.py FOLDER ROUNDS SEED`.

Prints a line for each recorder: its round and rank, the events it had accepted, and those it had reported as sealed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from tokenaudit import Recorder
from tokenaudit.record.part_files import load_writer

WORLD_SIZE = 3
SEAL_ROWS = 4
FIRST_GROUP = 10_000
"""Groups of a recorder count from this, times its number."""


def record_forever(folder: Path, rank: int, number: int, told: int) -> None:
    """Put groups until killed; tells after each how many events are sealed."""
    recorder = Recorder(folder, rank=rank, world_size=WORLD_SIZE, append=True, seal_rows=SEAL_ROWS, seal_seconds=3600)
    group_id = number * FIRST_GROUP
    while True:
        response = {"rollout_id": group_id, "response_len": 1 + group_id % 7}
        recorder.put([response], group_id=group_id, train_step=1, model_step=0)
        os.write(told, recorder.sealed_events.to_bytes(4, "little"))
        group_id += 1
        time.sleep(0.001)


def main() -> None:
    folder, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    load_writer()
    for turn in range(rounds):
        children, reports = [], []
        for rank in range(WORLD_SIZE):
            heard, told = os.pipe()
            child = os.fork()
            if child == 0:
                record_forever(folder, rank, turn * WORLD_SIZE + rank, told)
            os.close(told)
            children.append(child)
            reports.append(heard)
        heard_of = [b""] * WORLD_SIZE
        # one round in four ends while recorders are being made, the others once one of them has accepted some events
        if chance.random() < 0.25:
            time.sleep(chance.uniform(0, 0.1))
        else:
            rank, reads = chance.randrange(WORLD_SIZE), chance.randint(1, 40)
            heard_of[rank] = b"".join(os.read(reports[rank], 4) for _ in range(reads))
        for rank in chance.sample(range(WORLD_SIZE), WORLD_SIZE):
            os.kill(children[rank], signal.SIGKILL)
            time.sleep(chance.uniform(0, 0.02))
        for rank, heard in enumerate(reports):
            os.waitpid(children[rank], 0)
            while piece := os.read(heard, 1 << 16):
                heard_of[rank] += piece
            os.close(heard)
            print(turn, rank, len(heard_of[rank]) // 4, int.from_bytes(heard_of[rank][-4:], "little"))


if __name__ == "__main__":
    main()
