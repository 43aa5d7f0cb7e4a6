"""Replay recorded rollout logs and account for every token under a staleness policy.

In a notebook: `replay_log` and `simulate_workload` make a result, `rows_frame` a polars table of its steps, `audit_log`
a report of what is wrong with a log. They load what they need when they are first used, so that importing this package
costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenaudit.audit.session import audit_log
    from tokenaudit.record.recorder import Recorder
    from tokenaudit.render.frames import rows_frame
    from tokenaudit.replay.session import replay_log
    from tokenaudit.simulate.session import simulate_workload

__version__ = "0.1.0"
__all__ = ["Recorder", "__version__", "audit_log", "replay_log", "rows_frame", "simulate_workload"]

_HOMES = {
    "audit_log": "tokenaudit.audit.session",
    "Recorder": "tokenaudit.record.recorder",
    "replay_log": "tokenaudit.replay.session",
    "rows_frame": "tokenaudit.render.frames",
    "simulate_workload": "tokenaudit.simulate.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
