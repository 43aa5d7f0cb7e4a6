"""Seconds of a simulation against its responses: `python tests/benchmarks/simulate.py`.

Every run has the same batch and as many steps as use up its workload, so time should grow with the responses alone.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from tokenaudit.config.loading import Settings
from tokenaudit.config.model import Config, parse_config
from tokenaudit.log.columns import lists
from tokenaudit.log.files import Log
from tokenaudit.log.semantic_masks import masks_of
from tokenaudit.replay.request import RunRequest
from tokenaudit.simulate.session import LoadedWorkload, simulate_loaded
from tokenaudit.simulate.workload import ResponseColumns, Workload, grouped_by_task

GROUP_SIZE = 8
BATCH = 64


def workload(responses: int) -> Workload:
    random = np.random.default_rng(responses)
    index = np.arange(responses)
    columns = ResponseColumns(
        group_id=index // GROUP_SIZE,
        rollout_id=index,
        response_len=np.minimum(random.lognormal(6.2, 0.7, responses).astype(np.int64) + 1, 8192),
        token_time_us=random.integers(15_000, 40_000, responses),
        agentic=np.zeros(responses, dtype=np.bool_),
        reward=random.random(responses),
        failed=np.zeros(responses, dtype=np.bool_),
        filtered=random.random(responses) < 0.002,
    )
    tasks = grouped_by_task(np.zeros(responses, dtype=np.int64), ["math"], columns, masks_of(lists(None, responses)))
    return Workload("benchmark", responses, tasks)


def config(mode: str, steps: int) -> Config:
    timeline = {"train_batch_size": BATCH, "steps": steps}
    if mode == "disaggregated":
        timeline |= {"train_time_us": 12_000_000, "sync_time_us": 2_000_000, "poll_interval_us": 1_000_000}
    policy = {
        "max_staleness": 3,
        "max_token_staleness": 2,
        "tail_batch_trigger_size": 16,
        "over_sample_threshold": 1.0,
        "enable_partial_rollout": True,
    }
    return parse_config({"mode": mode, "timeline": timeline, "policy": policy}, "benchmark")


def measure(mode: str, responses: int, max_concurrency: int | None) -> tuple[int, int, float]:
    """Responses put, steps, and seconds from the workload in memory to the result."""
    steps = max(responses // (GROUP_SIZE * BATCH), 1)
    loaded = LoadedWorkload(workload(responses), Log("benchmark", (), responses, (), {}, ()))
    start = time.perf_counter()
    result = simulate_loaded(
        loaded, Settings(config(mode, steps), {}, "benchmark"), RunRequest(max_concurrency=max_concurrency)
    )
    return result.totals["produced_samples"], steps, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    sizes = parser.parse_args().responses
    print(
        f"{'mode':<15}{'concurrency':>12}{'responses':>12}{'steps':>8}{'puts':>12}{'seconds':>10}{'us/put':>8}{'ratio':>7}"
    )
    for mode, max_concurrency in (("colocated", None), ("disaggregated", None), ("disaggregated", 512)):
        before: float | None = None
        for responses in sizes:
            put, steps, seconds = measure(mode, responses, max_concurrency)
            each = 1e6 * seconds / put
            ratio = f"{each / before:.2f}" if before else ""
            limit = max_concurrency or "any"
            print(f"{mode:<15}{limit:>12}{responses:>12,}{steps:>8,}{put:>12,}{seconds:>10.2f}{each:>8.1f}{ratio:>7}")
            before = each
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


if __name__ == "__main__":
    main()
