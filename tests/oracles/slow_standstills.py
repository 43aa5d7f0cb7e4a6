"""Where the newest version of puts stands still, step by step."""

from __future__ import annotations


def slow_standstills(puts: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(version, first step, last step) of every stretch without a newer version, from (step, newest) of puts."""
    stretches: list[tuple[int, int, int]] = []
    for step in sorted({step for step, _ in puts}):
        newest = max(version for at, version in puts if at == step)
        if stretches and newest <= stretches[-1][0]:
            version, first, _ = stretches.pop()
            stretches.append((version, first, step))
        else:
            stretches.append((newest, step, step))
    return stretches
