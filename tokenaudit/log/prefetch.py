"""Items that threads make ahead of whoever reads them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Runs iterables in threads; whoever iterates gets their items, one part after the other.

    A thread that ends a part begins the next one, whether or not anybody has come that far. It waits while the items
    that wait weigh `limit` or more, so that one item a thread may exceed it; the part that is being read always has
    room for an item. An exception is raised at the place in the order where it happened. Leaving the `with` block
    ends the threads.

    Args:
        parts: what to run; one thread at a time touches a part.
        workers: threads.
        weigh: the weight of an item, such as its bytes.
        limit: the weight that may wait, all parts together.
    """

    def __init__(self, parts: Sequence[Iterable[T]], workers: int, weigh: Callable[[T], int], limit: int) -> None:
        self._parts = parts
        self._weigh = weigh
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: list[deque[tuple[T, int]]] = [deque() for _ in parts]
        self._is_done = [False for _ in parts]
        self._errors: list[BaseException | None] = [None for _ in parts]
        self._weight = self._next = self._reading = 0
        self._is_abandoned = False
        threads = min(workers, len(parts))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Prefetch[T]:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __iter__(self) -> Iterator[T]:
        for part, waiting in enumerate(self._waiting):
            with self._changed:
                self._reading = part
                self._changed.notify_all()
            yield from self._items(part, waiting)
            error = self._errors[part]
            if error is not None:
                raise error

    def _items(self, part: int, waiting: deque[tuple[T, int]]) -> Iterator[T]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: waiting or self._is_done[part])
                if not waiting:
                    return
                item, weight = waiting.popleft()
                self._weight -= weight
                self._changed.notify_all()
            yield item

    def _work(self) -> None:
        while True:
            with self._changed:
                part = self._next
                if self._is_abandoned or part == len(self._parts):
                    return
                self._next += 1
            self._run(part)

    def _run(self, part: int) -> None:
        waiting = self._waiting[part]
        try:
            for item in self._parts[part]:
                weight = self._weigh(item)
                with self._changed:
                    self._changed.wait_for(lambda: self._has_room(part))
                    if self._is_abandoned:
                        return
                    waiting.append((item, weight))
                    self._weight += weight
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the items are read
            self._errors[part] = error
        finally:
            with self._changed:
                self._is_done[part] = True
                self._changed.notify_all()

    def _has_room(self, part: int) -> bool:
        is_read_next = part == self._reading and not self._waiting[part]
        return self._weight < self._limit or is_read_next or self._is_abandoned
