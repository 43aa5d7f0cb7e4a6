"""What a correction does to responses that steps took, token by token: an obvious twin of the figures of a report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenaudit.corrections.arrays import NumpyArrays
from tokenaudit.corrections.correction import Correction
from tokenaudit.corrections.tokens import Tokens

Row = dict[str, Any]


@dataclass
class Token:
    """A token of a response that can be judged."""

    step: int
    response: int
    task: str
    age: int
    place: str
    sign: str
    exempt: bool
    masked: bool
    in_loss: bool
    kept: bool
    weight: float | None


def place_of(index: int, length: int) -> str:
    if index * 10 < length:
        return "first tenth"
    return "last tenth" if (length - 1 - index) * 10 < length else "middle"


def sign_of(advantage: float | None) -> str:
    if advantage is None:
        return "unknown"
    return "zero" if advantage == 0 else "positive" if advantage > 0 else "negative"


def is_odd(value: float | None) -> bool:
    return value is None or not math.isfinite(value) or abs(value) >= 1000


def advantages(rows: Sequence[Row]) -> list[float | None]:
    """Of the responses of one step."""
    scores: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        if row.get("reward") is not None:
            scores[row["task_name"], row["group_id"]].append(row["reward"])
    found: list[float | None] = []
    for row in rows:
        group = scores[row["task_name"], row["group_id"]]
        if row.get("advantage") is not None:
            found.append(row["advantage"])
        elif row.get("reward") is None:
            found.append(None)
        else:
            found.append(row["reward"] - sum(group) / len(group))
    return found


def tokens_of(batches: dict[int, list[Row]], correction: Correction, dtype: str) -> tuple[list[Token], dict[int, Any]]:
    """Every token that can be judged, or is masked beside such, and the trainer's figures by step."""
    tokens: list[Token] = []
    metrics: dict[int, Any] = {}
    number = 0
    for step, rows in sorted(batches.items()):
        of_rows = advantages(rows)
        agentic = {(row["task_name"], row["group_id"]) for row in rows if row.get("agentic")}
        used = [
            (row, advantage)
            for row, advantage in zip(rows, of_rows, strict=True)
            if all(len(row[name] or ()) == row["response_len"] for name in ("logprobs", "train_logprobs"))
        ]
        sides: list[list[float]] = [[], []]
        mask: list[bool] = []
        judged: list[bool] = []
        for row, advantage in used:
            for index in range(row["response_len"]):
                pair = [row[name][index] for name in ("logprobs", "train_logprobs")]
                judged.append(not any(map(is_odd, pair)))
                for side, value in zip(sides, pair, strict=True):
                    side.append(value if judged[-1] else 0.0)
                in_loss = row["response_mask"] is None or row["response_mask"][index] != 0
                unknown = correction.needs_advantage and advantage is None
                mask.append(in_loss and judged[-1] and not unknown)
        lengths = np.array([row["response_len"] for row, _ in used], dtype=np.int64)
        values = np.array([math.nan if advantage is None else advantage for _, advantage in used])
        made = Tokens(NumpyArrays(), dtype, lengths, *(np.array(s) for s in sides), np.array(mask, dtype=bool), values)
        applied = correction.apply(made)
        if any(mask):
            metrics[step] = correction.metrics(applied.stats)
        at = 0
        for row, advantage in used:
            key = row["task_name"], row["group_id"]
            for index, version in enumerate(row["response_model_steps"]):
                in_loss = row["response_mask"] is None or row["response_mask"][index] != 0
                tokens.append(
                    Token(
                        step, number, row["task_name"], step - version - 1, place_of(index, row["response_len"]),
                        sign_of(advantage), key in agentic, not in_loss, mask[at], bool(applied.keep[at]),
                        None if applied.weight is None else float(applied.weight[at]),
                    )
                )  # fmt: skip
                at += 1
            number += 1
    return tokens, metrics


def counts(tokens: Sequence[Token]) -> tuple[int, ...]:
    """As `TokenCounts`."""
    by_response: dict[int, list[Token]] = defaultdict(list)
    for token in tokens:
        by_response[token.response].append(token)
    whole = sum(any(t.in_loss for t in own) and not any(t.kept for t in own) for own in by_response.values())
    in_loss, kept = sum(t.in_loss for t in tokens), sum(t.kept for t in tokens)
    return sum(t.masked for t in tokens), in_loss, kept, in_loss - kept, len(by_response), whole


def parts(tokens: Sequence[Token], key: Callable[[Token], Any]) -> dict[Any, tuple[int, ...]]:
    return {value: counts([t for t in tokens if key(t) == value]) for value in {key(t) for t in tokens}}


def limit(tokens: Sequence[Token], threshold: int) -> tuple[int, int, int]:
    """Tokens dropped by both, by the method only, by the limit only."""
    in_loss = [t for t in tokens if t.in_loss]
    stale = [t.age >= threshold and not t.exempt for t in in_loss]
    both = sum(is_stale and not t.kept for t, is_stale in zip(in_loss, stale, strict=True))
    return both, sum(not t.kept for t in in_loss) - both, sum(stale) - both


def cut(weight: float) -> float:
    """A weight cut to 8 binary digits behind the first."""
    if weight == 0:
        return 0.0
    fraction, exponent = math.frexp(float(np.float32(weight)))
    return math.ldexp(math.floor(fraction * 512) / 512, exponent)


def percentile(weights: Sequence[float], share: int) -> float:
    ordered = sorted(weights)
    return cut(ordered[max(math.ceil(share * len(ordered) / 100), 1) - 1])
