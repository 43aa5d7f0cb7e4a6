"""Measure tokenaudit and print a Markdown table for each question.

    python tests/benchmarks/run.py                      everything, a quarter of an hour on two cores
    python tests/benchmarks/run.py digest masks         some of it

Contenders take turns, so that a busy machine slows all of them; a ratio is the median of the ratios of each turn.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import startup
from make_log import LogShape, write_log

from tokenaudit.config.loading import load_settings
from tokenaudit.log.batches import worker_count
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest
from tokenaudit.masks.backends import MaskBatch, NumpyBackend
from tokenaudit.replay.request import RunRequest
from tokenaudit.replay.session import LoadedLog, replay_loaded

ROUNDS = 5
TOKEN_COLUMNS = ["response_model_steps", "response_mask"]
PLAIN_TOKENS = 400_000
MASK_TOKENS = 20_000_000

Contender = Callable[[], int]
"""Does the work once and returns how many tokens it was."""


def main() -> None:
    """Run what was asked for."""
    parts = {"digest": digest, "masks": masks, "replay": replay, "memory": memory, "startup": start}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    parser.add_argument("--keep", type=Path, help="folder for the logs, to use them again")
    given = parser.parse_args()
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.parts or parts:
            parts[name](given.keep or Path(folder))


def machine() -> str:
    """What this ran on."""
    models = {line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")}
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{', '.join(models) or platform.processor()}, {worker_count()} cores, {memory_gib:.0f} GiB, "
        f"Python {platform.python_version()}; load average at the start {os.getloadavg()[0]:.1f}"
    )


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def digest(folder: Path) -> None:
    """Tokens per second from Parquet, end to end, against the bare decode and other tools.

    The decodes read what the digest reads; the other tools read the token columns alone.
    """
    path = _log(folder, LogShape(responses=44_000), "100m.parquet")
    tokens = _tokens(path)
    contenders: dict[str, Contender] = {
        "tokenaudit: digest": lambda: _digest(path),
        "pyarrow: decode the same columns, row groups in threads": lambda: _decode(path),
        "pyarrow: decode the same columns, iter_batches": lambda: _decode_simply(path),
        "polars: list.min and list.sum": lambda: _polars(path),
    }
    if _has("duckdb"):
        contenders["duckdb: list_min and list_sum"] = lambda: _duckdb(path)
    plain_path = _log(folder, LogShape(responses=PLAIN_TOKENS // 2250), "plain.parquet")
    contenders["plain Python lists: version runs"] = lambda: _plain_runs(plain_path)
    _table(f"Digest of {tokens / 1e6:.0f} M tokens, {path.stat().st_size / 1e6:.1f} MB", contenders)


def masks(_: Path) -> None:
    """Tokens per second of masks in memory."""
    batch = _mask_batch(MASK_TOKENS)
    plain = _mask_batch(PLAIN_TOKENS)
    contenders: dict[str, Contender] = {
        "masks: numpy": lambda: len(NumpyBackend().submit(batch).result().effective),
        "plain Python lists: masks": lambda: _plain_masks(plain),
    }
    if _has("torch"):
        from tokenaudit.masks.backends import choose_backend

        for device in ("cpu", "auto"):
            backend = choose_backend(device)
            contenders.setdefault(
                f"masks: {backend.description}",
                lambda backend=backend: len(backend.submit(batch).result().effective),
            )
    _table(f"Masks and counts of {MASK_TOKENS / 1e6:.0f} M tokens in memory", contenders)


def replay(folder: Path) -> None:
    """Seconds of a replay after the digest, against responses."""
    print("| responses | events | replay, s | microseconds per response |\n| --- | --- | --- | --- |")
    for responses in (10_000, 100_000, 1_000_000):
        # a quarter of the groups is put twice
        path = _log(folder, LogShape(responses=responses * 4 // 5, mean_tokens=30), f"replay-{responses}.parquet")
        log = open_log([path])
        made = read_digest(log)
        settings = load_settings(
            config_path=None,
            overrides=[],
            log_dir=folder,
            working_dir=folder,
            isolated=True,
            log_config=log.config_json,
        )
        loaded = LoadedLog(log, made, settings, RunRequest())
        seconds = _median(lambda loaded=loaded: replay_loaded(loaded))
        count = len(made.responses.tokens)
        print(f"| {count:,} | {len(made.events.kind):,} | {seconds:.2f} | {seconds / count * 1e6:.1f} |")
    print()


def memory(folder: Path) -> None:
    """Peak memory of `tokenaudit replay`, against tokens."""
    print("| tokens | file | peak memory, MiB | seconds |\n| --- | --- | --- | --- |")
    shapes = {
        "row groups of 4096 rows": (10, 100, 1000),
        "one row group, with token ids": (1000,),
    }
    for what, sizes in shapes.items():
        for millions in sizes:
            is_one = "one" in what
            shape = LogShape(responses=millions * 444, ids=is_one)
            name = f"memory-{millions}{'-one' if is_one else ''}.parquet"
            path = _log(folder, shape, name, rows_per_group=None if is_one else 4096)
            begin = time.perf_counter()
            peak = _peak_memory(path)
            seconds = time.perf_counter() - begin
            size = f"{what}, {path.stat().st_size / 1e6:.0f} MB"
            print(f"| {_tokens(path) / 1e6:.0f} M | {size} | {peak:.0f} | {seconds:.1f} |")
    print()


def start(_: Path) -> None:
    """Seconds until a command is done, start of Python included."""
    startup.main()


def _peak_memory(path: Path) -> float:
    code = (
        "import sys; from tokenaudit.cli import _run; _run();"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')), file=sys.stderr)"
    )
    arguments = [sys.executable, "-c", code, "replay", str(path), "-q", "--isolated"]
    ran = subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return int(ran.stderr.split()[-2]) / 1024


def _log(folder: Path, shape: LogShape, name: str, *, rows_per_group: int | None = 4096) -> Path:
    path = folder / name
    if not path.exists():
        write_log(path, shape, rows_per_group=rows_per_group)
    return path


def _tokens(path: Path) -> int:
    lengths = pq.read_table(path, columns=["response_len"])["response_len"]
    return int(lengths.fill_null(0).to_numpy().sum())


def _median(work: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _table(title: str, contenders: dict[str, Contender]) -> None:
    """Speeds, and how many times the time of the first contender a token takes, turn by turn."""
    per_token: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(ROUNDS + 1):
        for name, work in contenders.items():
            begin = time.perf_counter()
            tokens = work()
            if turn:  # the first turn warms up
                per_token[name].append((time.perf_counter() - begin) / tokens)
    first = next(iter(per_token.values()))
    print(f"| {title} | M tokens/s | time, first line = 1 |\n| --- | --- | --- |")
    for name, times in per_token.items():
        ratio = statistics.median(mine / base for mine, base in zip(times, first, strict=True))
        print(f"| {name} | {1e-6 / statistics.median(times):,.1f} | {ratio:.2f} |")
    print()


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def _digest(path: Path) -> int:
    return int(read_digest(open_log([path])).responses.tokens.sum())


def _decode(path: Path) -> int:
    log = open_log([path])
    (file,) = log.files

    def decode(row_group: int) -> int:
        with pq.ParquetFile(path, metadata=file.metadata, pre_buffer=False) as parquet:
            batches = parquet.iter_batches(
                file.batch_rows, row_groups=[row_group], columns=list(file.columns), use_threads=False
            )
            return sum(len(batch[TOKEN_COLUMNS[0]].flatten()) for batch in batches)

    with ThreadPoolExecutor(worker_count()) as pool:
        return sum(pool.map(decode, range(file.metadata.num_row_groups)))


def _decode_simply(path: Path) -> int:
    columns = list(open_log([path]).files[0].columns)
    with pq.ParquetFile(path) as parquet:
        return sum(len(batch[TOKEN_COLUMNS[0]].flatten()) for batch in parquet.iter_batches(columns=columns))


def _polars(path: Path) -> int:
    import polars as pl

    reduced = pl.scan_parquet(path).select(
        pl.col("response_model_steps").list.min(),
        pl.col("response_mask").list.sum(),
        tokens=pl.col("response_model_steps").list.len(),
    )
    return int(reduced.collect()["tokens"].sum())


def _duckdb(path: Path) -> int:
    import duckdb

    query = (
        "SELECT list_min(response_model_steps), list_sum(response_mask), len(response_model_steps) AS tokens "
        f"FROM read_parquet('{path}')"
    )
    connection = duckdb.connect()
    connection.execute(f"SET threads = {worker_count()}")
    return int(np.ma.filled(connection.execute(query).fetchnumpy()["tokens"], 0).sum())


def _plain_runs(path: Path) -> int:
    """Version runs of every response, as one would write them down."""
    count = 0
    for row in pq.read_table(path, columns=TOKEN_COLUMNS).to_pylist():
        versions = row["response_model_steps"] or []
        mask = row["response_mask"] or [1] * len(versions)
        runs: list[list[int]] = []
        for version, trainable in zip(versions, mask, strict=True):
            if not runs or runs[-1][0] != version:
                runs.append([version, 0, 0])
            runs[-1][1] += 1
            runs[-1][2] += trainable
        count += len(versions)
    return count


def _mask_batch(tokens: int) -> MaskBatch:
    rng = np.random.default_rng(3)
    lengths = np.full(tokens // 2000, 2000)
    total = int(lengths.sum())
    return MaskBatch(
        versions=np.repeat(rng.integers(0, 9, total // 500, dtype=np.int32), 500),
        semantic=rng.random(total) < 0.9,
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        oldest_fresh=rng.integers(0, 9, len(lengths), dtype=np.int32),
    )


def _plain_masks(batch: MaskBatch) -> int:
    """Masks and counts of every response, token by token."""
    assert batch.semantic is not None
    versions, semantic, offsets = batch.versions.tolist(), batch.semantic.tolist(), batch.offsets.tolist()
    for first, last, oldest in zip(offsets, offsets[1:], batch.oldest_fresh.tolist(), strict=False):
        mask = [
            int(trainable and version >= oldest)
            for version, trainable in zip(versions[first:last], semantic[first:last], strict=True)
        ]
        _ = (sum(mask), sum(semantic[first:last]) - sum(mask))
    return len(versions)


if __name__ == "__main__":
    main()
