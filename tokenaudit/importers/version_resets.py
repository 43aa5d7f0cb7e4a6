"""Notices when versions begin anew while train steps go on, as after a resume that reset the source's counter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.writer import Row

_SHOWN_RESETS = 5


class _StepVersions(NamedTuple):
    """The oldest and the newest version of what one train step put in."""

    train_step: int
    low: int
    high: int


class VersionResets:
    """Looks at the rows of each event in order."""

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
