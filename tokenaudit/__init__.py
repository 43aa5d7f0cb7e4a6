"""Replay recorded rollout logs and account for every token under a staleness policy."""

__version__ = "0.1.0"
