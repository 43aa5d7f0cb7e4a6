"""Whose advantage has another sign without the members of a group that train nothing, member by member."""

from __future__ import annotations

from fractions import Fraction


def _sign(number: Fraction) -> int:
    return (number > 0) - (number < 0)


def slow_turned(groups: list[list[tuple[float | None, bool]]]) -> list[tuple[int, int]]:
    """(group, member) of those turned, from each member's reward and whether it trains something."""
    turned: list[tuple[int, int]] = []
    for number, group in enumerate(groups):
        scored = [
            (place, Fraction(reward), trains) for place, (reward, trains) in enumerate(group) if reward is not None
        ]
        trained = [reward for _, reward, trains in scored if trains]
        for place, reward, trains in scored:
            if trains:
                whole = reward - sum(one for _, one, _ in scored) / len(scored)
                if _sign(whole) != _sign(reward - sum(trained) / len(trained)):
                    turned.append((number, place))
    return turned
