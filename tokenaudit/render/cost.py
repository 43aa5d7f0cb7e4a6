"""What a run cost in vain: GPU-hours and dollars in lines, and two runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from tokenaudit.render.blocks import NOTHING, Block, Gap, Lines, Table, TableColumn, TableRow, share_text
from tokenaudit.replay.cost import RunCost
from tokenaudit.replay.run_times import COLOCATED_WAIT

_ELSEWHERE = "times are those of the recorded run, which this config would have changed: a simulation decides"
_LABELS = {
    "rollout_gpu_hours": "GPU-hours of rollouts",
    "untrained_gpu_hours": "GPU-hours on tokens never trained",
    "untrained_usd": "US dollars on tokens never trained",
    "wait_gpu_hours": "GPU-hours the trainer waited",
    "wait_usd": "US dollars the trainer waited",
}


def amount_text(amount: Fraction | None) -> str:
    """GPU-hours or dollars with two decimals; never 0 of something that isn't."""
    if amount is None:
        return NOTHING
    sign = "-" if amount < 0 else ""
    return f"{sign}<0.01" if 0 < abs(amount) < Fraction(1, 100) else f"{float(amount):,.2f}"


def cost_lines(cost: RunCost | None, of_run: str = "") -> list[str]:
    """What a run cost in vain, or what is missing to say it; nothing without a [cost].

    Args:
        cost: the cost.
        of_run: what it is the cost of, in brackets, where that isn't plain.
    """
    if cost is None:
        return []
    untrained, whole = cost.untrained_gpu_hours, cost.rollout_gpu_hours
    share = f" of {amount_text(whole)} ({share_text(cost.untrained_tokens, cost.tokens)})"
    lines = [
        _line("untrained_gpu_hours", of_run, untrained, share, cost.usd(untrained), cost.rollout_missing),
        _line("wait_gpu_hours", of_run, cost.wait_gpu_hours, "", cost.usd(cost.wait_gpu_hours), cost.wait_missing),
    ]
    return [*lines, _ELSEWHERE] if cost.is_for_simulation else lines


def _line(name: str, of_run: str, hours: Fraction | None, share: str, usd: Fraction | None, missing: str) -> str:
    price = "" if usd is None else f", ${amount_text(usd)}"
    text = f"{amount_text(hours)}{share}{price}"
    if hours is None:
        text = f"none, {missing}" if missing == COLOCATED_WAIT else f"unknown, {missing}"
    return f"{_LABELS[name]}{of_run}: {text}"


def cost_changes(a: RunCost | None, b: RunCost | None) -> Iterator[tuple[str, Fraction | None, Fraction | None]]:
    """Every amount that a side knows, by name, with its value on both sides."""
    sides = [{} if cost is None else cost.amounts for cost in (a, b)]
    for name in _LABELS:
        left, right = (side.get(name) for side in sides)
        if left is not None or right is not None:
            yield name, left, right


def cost_blocks(a: RunCost | None, b: RunCost | None) -> Iterator[Block]:
    """Both sides of a comparison and the difference, and what is missing; nothing without a [cost]."""
    rows = [
        TableRow((_LABELS[name], amount_text(left), amount_text(right), _change_text(left, right)))
        for name, left, right in cost_changes(a, b)
    ]
    if rows:
        yield Table([TableColumn("cost", "left", is_label=True), *map(TableColumn, ("A", "B", "change"))], rows)
    notes: dict[str, list[str]] = {}
    for side, cost in (("A", a), ("B", b)):
        amounts = [] if cost is None else [cost.untrained_gpu_hours, cost.wait_gpu_hours, None]
        for line, amount in zip(cost_lines(cost), amounts, strict=False):
            if amount is None:
                notes.setdefault(line, []).append(side)
    if notes:
        yield Lines([f"{' and '.join(sides)}: {line}" for line, sides in notes.items()])
    if rows or notes:
        yield Gap()


def _change_text(a: Fraction | None, b: Fraction | None) -> str:
    if a is None or b is None:
        return NOTHING
    return ("+" if b > a else "") + amount_text(b - a)
