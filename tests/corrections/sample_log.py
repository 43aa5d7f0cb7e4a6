"""The log of `sample_data/probabilities.parquet`: a small model of a run, with both log-probabilities of every token.

Engine and trainer differ little for fresh tokens and more for older ones; one token in a hundred is far off, as those
of other kernels and quantized weights are. `python -m tests.corrections.sample_log` writes it anew.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.audit.model import Run, log_of
from tests.builders import Row, write_log
from tokenaudit.log.writer import log_metadata

FILE = Path(__file__).parent.parent.parent / "sample_data" / "probabilities.parquet"
RUN = Run(
    steps=16, batch=6, group_size=4, in_flight=18, round_tokens=10, mean_tokens=30, most_tokens=80, names_takes=False
)
CONFIG = {
    "mode": "disaggregated",
    "timeline": {"sync_weights_interval": 1, "train_batch_size": RUN.batch},
    "buffer": {"replay_policy": "fifo"},
    "policy": {
        "max_staleness": 8,
        "max_token_staleness": 3,
        "tail_batch_trigger_size": -1,
        "enable_partial_rollout": True,
    },
    "tasks": {RUN.task: {"group_size": RUN.group_size}},
}
_LEFT_OUT = ("response_ids", "start_model_step", "prompt_len")


def rows() -> list[Row]:
    """The rows of the log."""
    rng = random.Random(5)
    found: list[Row] = []
    for row in log_of(RUN):
        kept = {name: value for name, value in row.items() if name not in _LEFT_OUT}
        if kept["event"] == "put":
            off = [rng.gauss(0, 1.2) if rng.random() < 0.01 else 0.0 for _ in kept["train_logprobs"]]
            moved = zip(kept["train_logprobs"], off, strict=True)
            kept["train_logprobs"] = [round(min(value + step, -1e-6), 4) for value, step in moved]
            kept["logprobs"] = [round(value, 4) for value in kept["logprobs"]]
        found.append(kept)
    return found


def write(path: Path) -> Path:
    """Write the log."""
    metadata = log_metadata(json.dumps(CONFIG), "model")
    return write_log(path, rows(), metadata=metadata, compression="zstd", compression_level=19, use_dictionary=True)


if __name__ == "__main__":
    write(FILE)
