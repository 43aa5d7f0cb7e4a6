"""Time eight corrections of a log against a bare decode of both log-probabilities and the mask, and watch the memory.

    python tests/benchmarks/corrections.py [rollouts.parquet] [--device auto]

Without a log, one of 30 M tokens in 30 steps is made first. Decode and corrections take turns; seconds are of wall
clock and of all cores together. Beside that, three corrections of one batch are timed against the way of the trainers:
tensors of torch, padded to the longest response.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.beside_decode import beside_decode, seconds_of
from tests.benchmarks.make_log import LogShape, write_log
from tokenaudit.corrections.applying import Asked
from tokenaudit.corrections.arrays import NumpyArrays
from tokenaudit.corrections.devices import choose_arrays
from tokenaudit.corrections.methods import methods_of
from tokenaudit.corrections.session import corrections_of_log
from tokenaudit.corrections.tokens import Tokens
from tokenaudit.log.columns import bounded_spans

SPECS = (
    "verl: rollout_is=token, rollout_is_threshold=2.0",
    'verl: rollout_is=token, rollout_is_threshold="0.5_5.0"',
    "verl: rollout_rs=token_k1, rollout_rs_threshold=0.5_2.0",
    "slime-mis: tis_mode=mask, use_rs=false",
    "skyrl: sequence_mask_metric=geometric",
    "trl",
    "prime-rl",
    "areal: m2_threshold=0.04",
)
COLUMNS = ("logprobs", "train_logprobs", "response_mask")
ROUNDS = 3
RESPONSES = 30_000


def of_log(path: Path, device: str) -> None:
    methods, xp = methods_of(SPECS), choose_arrays(device)

    def correct() -> int:
        # every completed response is looked at, whatever the steps took
        return corrections_of_log([path], methods, xp, overrides="policy.max_staleness=99").report.tokens

    median = beside_decode("corrections", correct, path, COLUMNS, tokens=correct(), rounds=ROUNDS)
    print(f"{median}, {xp.description}")


def against_padding() -> None:
    """Time single corrections of one batch of 512 responses against padded tensors."""
    import torch

    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(7.0, 0.9, 512), 16, 16_000).astype(np.int64)
    total, longest = int(lengths.sum()), int(lengths.max())
    rollout = -rng.exponential(0.5, total).astype(np.float32)
    trained = np.minimum(rollout + rng.normal(0, 0.05, total), 0).astype(np.float32)
    mask = np.ones(total, dtype=np.bool_)
    is_there = np.arange(longest) < lengths[:, None]

    def padded(values: np.ndarray) -> torch.Tensor:
        rows = np.zeros(is_there.shape, dtype=values.dtype)
        rows[is_there] = values
        return torch.from_numpy(rows)

    old, new, kept = (padded(values) for values in (rollout, trained, mask))

    def token_mask() -> None:
        ratio = torch.exp(torch.clamp(new - old, -20, 20))
        inside = (ratio >= 0.5) & (ratio <= 2)
        (ratio * kept).sum(), (kept & inside).sum()

    def geometric_mask() -> None:
        ratio = torch.exp(((new - old) * kept).sum(-1) / kept.sum(-1).clamp(min=1))
        (kept & ((ratio >= 0.99) & (ratio <= 1.01))[:, None]).sum()

    def product_mask() -> None:
        ratio = torch.exp(((new - old) * kept).sum(-1, keepdim=True))
        (torch.where(ratio > 3, 0, ratio) * kept).sum()

    xp = NumpyArrays()
    ways = {SPECS[3]: token_mask, SPECS[4]: geometric_mask, SPECS[5]: product_mask}
    for spec, way in ways.items():
        (method,) = methods_of([spec])
        asked = Asked(method.correction, method.dtype)

        def flat(asked: Asked = asked) -> None:
            start = 0
            for low, high in bounded_spans(lengths, len(lengths), xp.chunk_tokens):
                stop = start + int(lengths[low:high].sum())
                parts = (values[start:stop] for values in (rollout, trained, mask))
                asked.correction.apply(Tokens(xp, asked.dtype, lengths[low:high], *parts))
                start = stop

        times = [(seconds_of(flat)[1], seconds_of(way)[1]) for _ in range(9)]
        own, theirs = (statistics.median(values) * 1e3 for values in zip(*times, strict=True))
        print(f"{spec}: {own:.1f} ms for {total:,} tokens, {theirs:.1f} ms padded to {is_there.size:,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", nargs="?", type=Path)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    against_padding()
    if arguments.log is not None:
        of_log(arguments.log, arguments.device)
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "rollouts.parquet")
            write_log(made, LogShape(RESPONSES, steps=30, logprobs=True))
            of_log(made, arguments.device)
