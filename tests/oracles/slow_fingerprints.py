"""Fingerprints of rows of numbers, from their definition: slow and obvious."""

from __future__ import annotations

from collections.abc import Sequence

BASE = 0x9E3779B97F4A7C15


def fingerprint(values: Sequence[int]) -> int:
    """The sum of value x BASE ** place, modulo 2**64."""
    return sum(value * pow(BASE, place, 2**64) for place, value in enumerate(values)) % 2**64
