"""Kills recorders at random points and prints, for each, what it had accepted: `recorder_kill.py FOLDER KILLS SEED`."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from tokenaudit import Recorder
from tokenaudit.record.part_files import load_writer

SEAL_ROWS = 20
QUEUED_EVENTS = 5
TOKENS = 30
RESPONSES = 2
LOSS_BOUND = SEAL_ROWS // RESPONSES + QUEUED_EVENTS
EVENT_COST = RESPONSES * (64 + 2 * TOKENS)


def record_without_closing(folder: Path) -> None:
    """What a worker does that ends by itself."""
    Recorder(folder).refresh(1)


def record_forever(folder: Path, told: int) -> None:
    """Put groups until killed; tells each put once it was accepted."""
    recorder = Recorder(
        folder, token_columns=True, seal_rows=SEAL_ROWS, seal_seconds=3600, queue_elements=QUEUED_EVENTS * EVENT_COST
    )
    group_id = 0
    while True:
        group_id += 1
        group = [
            {
                "rollout_id": 2 * group_id + member,
                "response_model_steps": [group_id] * TOKENS,
                "response_mask": [1] * TOKENS,
            }
            for member in range(RESPONSES)
        ]
        recorder.put(group, group_id=group_id, train_step=group_id + 1)
        os.write(told, b".")


def main() -> None:
    base, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    load_writer()
    for number in range(kills):
        heard, told = os.pipe()
        child = os.fork()
        if child == 0:
            record_forever(base / f"run{number:02}", told)
        os.close(told)
        accepted = 0
        for _ in range(chance.randint(1, 60)):
            accepted += len(os.read(heard, 1))
        time.sleep(chance.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while piece := os.read(heard, 1 << 16):
            accepted += len(piece)
        os.close(heard)
        print(accepted)


if __name__ == "__main__":
    main()
