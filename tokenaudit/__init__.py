"""Replay recorded rollout logs and account for every token under a staleness policy.

In a notebook: `load_log` reads a log once, and its `replay` runs it under one config after the other; `steps_frame`
makes a polars table of the steps, `diff_results` compares two results, `gate_result` judges one, and `gate_log` a log.
`audit_log` looks for what is wrong with a log, `explain_log` for why it lost its tokens, `correct_log` previews
off-policy corrections, `inspect_log` says what a log holds, `simulate_workload` runs the closed loop, and a `Recorder`
writes a log. They load what they need when they are first used: importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenaudit.audit.session import audit_log
    from tokenaudit.compare.session import diff_results
    from tokenaudit.contracts.errors import ConfigError, RecordError, TokenauditError
    from tokenaudit.corrections.session import correct_log
    from tokenaudit.explain.session import explain_log
    from tokenaudit.gate.session import gate_log, gate_result
    from tokenaudit.record.recorder import Recorder
    from tokenaudit.render.frames import rows_frame, steps_frame
    from tokenaudit.render.json_schemas import json_schema
    from tokenaudit.replay.session import inspect_log, load_log, load_result, replay_log
    from tokenaudit.simulate.session import simulate_workload

__version__ = "0.1.0"

_HOMES = {
    "load_log": "tokenaudit.replay.session",
    "replay_log": "tokenaudit.replay.session",
    "load_result": "tokenaudit.replay.session",
    "inspect_log": "tokenaudit.replay.session",
    "simulate_workload": "tokenaudit.simulate.session",
    "diff_results": "tokenaudit.compare.session",
    "gate_log": "tokenaudit.gate.session",
    "gate_result": "tokenaudit.gate.session",
    "audit_log": "tokenaudit.audit.session",
    "correct_log": "tokenaudit.corrections.session",
    "explain_log": "tokenaudit.explain.session",
    "steps_frame": "tokenaudit.render.frames",
    "rows_frame": "tokenaudit.render.frames",
    "json_schema": "tokenaudit.render.json_schemas",
    "Recorder": "tokenaudit.record.recorder",
    "RecordError": "tokenaudit.contracts.errors",
    "ConfigError": "tokenaudit.contracts.errors",
    "TokenauditError": "tokenaudit.contracts.errors",
}
"""The module of every public name; none of them is the name of a room."""

__all__ = [
    "ConfigError",
    "RecordError",
    "Recorder",
    "TokenauditError",
    "__version__",
    "audit_log",
    "correct_log",
    "diff_results",
    "explain_log",
    "gate_log",
    "gate_result",
    "inspect_log",
    "json_schema",
    "load_log",
    "load_result",
    "replay_log",
    "rows_frame",
    "simulate_workload",
    "steps_frame",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
