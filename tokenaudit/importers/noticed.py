"""What is noticed about a source while its events go by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenaudit.contracts.errors import plural, printable
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.writer import Row

_SHOWN_RESETS = 5
_SHOWN_GROUPS = 5
_MOST_TASKS = 1000
"""Tasks of a step that are told apart; a crafted source could name a new one in every put."""


class _StepVersions(NamedTuple):
    """The oldest and the newest version of what one train step put in."""

    train_step: int
    low: int
    high: int


class VersionResets:
    """Notices when versions begin anew while train steps go on, as after a resume that reset the source's counter."""

    def __init__(self) -> None:
        self._current: _StepVersions | None = None
        self._floor: _StepVersions | None = None
        """The earlier step whose oldest version is the newest."""
        self._resets: list[str] = []

    def see(self, rows: Sequence[Row]) -> None:
        """Look at the rows of the next event."""
        if rows[0]["event"] != EventKind.PUT:
            return
        step = rows[0]["train_step"]
        if self._current is not None and self._current.train_step != step:
            self._close()
        for row in rows:
            versions = row.get("response_model_steps")
            found = [int(versions.min()), int(versions.max())] if versions is not None and len(versions) else []
            found += [row[name] for name in ("model_step", "model_step_end") if row.get(name) is not None]
            if self._current is not None:
                found += self._current[1:]
            if found:
                self._current = _StepVersions(step, min(found), max(found))

    def _close(self) -> None:
        """A step ends: its versions must not all lie below those of an earlier step."""
        step, self._current, floor = self._current, None, self._floor
        if step is None:
            return
        if floor is not None and step.high < floor.low and step.train_step > floor.train_step:
            self._resets.append(
                f"versions begin anew: train step {step.train_step} has none above {step.high}, although train step "
                f"{floor.train_step} had none below {floor.low}; a resumed run has reset its counter, so staleness "
                "behind it is wrong: import what each run wrote by itself, with its --version-offset"
            )
            floor = None
        if floor is None or step.low > floor.low:
            self._floor = step

    def found(self) -> list[str]:
        """What was noticed, the first few."""
        self._close()
        return self._resets[:_SHOWN_RESETS]


class _Size(NamedTuple):
    """The groups of a task in a step that have so many responses: how many, and the first of them."""

    groups: int
    first: tuple[int, ...]


class SmallerGroups:
    """Notices groups that are smaller than others of their task and step, where records were left out.

    Which group a record belongs to that can't be read, nobody knows.
    """

    def __init__(self) -> None:
        self._train_step: int | None = None
        self._sizes: dict[str, dict[int, _Size]] = {}
        self._before = self._last = 0
        """Records that were left out when the step before had ended, and so far."""
        self._count = 0
        self._named: list[str] = []

    def see(self, rows: Sequence[Row], left_out: int) -> None:
        """Look at the rows of the next event, when so many records have been left out."""
        if rows[0]["event"] == EventKind.PUT:
            if rows[0]["train_step"] != self._train_step:
                self._close(left_out)
                self._train_step, self._before = rows[0]["train_step"], self._last
            task = rows[0]["task_name"]
            if task in self._sizes or len(self._sizes) < _MOST_TASKS:
                sizes = self._sizes.setdefault(task, {})
                size = len({row["rollout_id"] for row in rows})
                known = sizes.get(size, _Size(0, ()))
                sizes[size] = _Size(known.groups + 1, (*known.first, rows[0]["group_id"])[:_SHOWN_GROUPS])
        self._last = left_out

    def _close(self, left_out: int) -> None:
        """A step ends: of its groups, most are whole."""
        if left_out > self._before:
            for task, sizes in self._sizes.items():
                usual = max(sizes, key=lambda size: (sizes[size].groups, size))
                for size in sorted(size for size in sizes if size < usual):
                    self._count += sizes[size].groups
                    place = f"of {printable(task)} in train step {self._train_step} ({size} of {usual} responses)"
                    room = _SHOWN_GROUPS - len(self._named)
                    self._named += [f"group {group} {place}" for group in sizes[size].first[:room]]
        self._sizes.clear()

    def found(self, left_out: int) -> list[str]:
        """What was noticed, with the first few groups, once so many records were left out in all."""
        self._close(left_out)
        if not self._count:
            return []
        more = f" and {self._count - len(self._named):,} more" if self._count > len(self._named) else ""
        return [
            f"members may be missing of {plural(self._count, 'group')}, smaller than others of the step, where records "
            f"were left out: {', '.join(self._named)}{more}"
        ]
