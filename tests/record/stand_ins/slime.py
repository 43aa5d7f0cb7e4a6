"""A sample of slime and who logs it, as THUDM/slime 624b824a has them (slime/utils/types.py, slime/observability)."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass
class Sample:
    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class WeightVersionSpan:
    """Tokens of a version, as newer miles keeps them (radixark/miles 688cf82b, miles/utils/types.py)."""

    version: str
    abs_start: int
    abs_end: int


@dataclass
class WeightVersionsPerCall:
    """An entry of `weight_versions` of newer miles."""

    spans: list[WeightVersionSpan] = field(default_factory=list)


def log_rollout_data(
    rollout_id: int, args: Namespace, samples: list[Sample], rollout_extra_metrics: Any, rollout_time: float
) -> bool:
    """Whether the trainer's own logging was reached."""
    if args.custom_rollout_log_function is not None:
        custom_log_func = args.custom_rollout_log_function
        if custom_log_func(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
            return False
    return True
