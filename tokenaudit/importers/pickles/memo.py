"""What a pickle remembers, to recall it by number."""

from __future__ import annotations

from typing import Any

from tokenaudit.importers.pickles.values import PickleFault

_MAX_OTHERS = 1_000
"""Objects under other numbers than 0, 1, 2 and so on, which no writer has: a table of them could be made to collide."""


class Memo:
    """Objects by number; as every writer numbers them in order, a list keeps them."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._others: dict[int, Any] = {}

    def put(self, index: int, value: Any) -> None:
        """Remember an object under a number.

        Raises:
            PickleFault: far too many that are numbered in no order.
        """
        if index == len(self._values):
            self._values.append(value)
        elif index < len(self._values):
            self._values[index] = value
        elif len(self._others) < _MAX_OTHERS:
            self._others[index] = value
        else:
            raise PickleFault("the pickle numbers what it remembers in no order")

    def put_next(self, value: Any) -> None:
        """Remember an object under the next number. Raises like `put`."""
        self.put(len(self._values) + len(self._others), value)

    def get(self, index: int) -> Any:
        """The object of a number.

        Raises:
            PickleFault: there is none.
        """
        if index < len(self._values):
            return self._values[index]
        if index in self._others:
            return self._others[index]
        raise PickleFault("the pickle recalls what it never remembered")
