"""The steps of a run whose trainer names the version of its weights when it asks for groups."""

from __future__ import annotations

from tokenaudit.record.recorder import Recorder

MOST_PUSHES = 1_000


def pushes_between(before: int, newest: int, interval: int = 1) -> range:
    """Pushes that nobody named, up to the newest; the last ones where they are more than a batch can have missed."""
    return range(before + interval, newest + 1, interval)[-MOST_PUSHES:]


class RunSteps:
    """Records a sync and a refresh where a call first names a version; weights `w` are those after step `w`.

    Args:
        recorder: where events go.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._pushed = 0
        self._asked: int | None = None

    @property
    def train_step(self) -> int:
        """The step that groups were last asked for."""
        return 1 if self._asked is None else self._asked + 1

    def saw(self, version: int) -> None:
        """Weights that nobody named before are those of a push."""
        if version > self._pushed:
            self.recorder.sync(version, version)
            self._pushed = version

    def asked(self, version: int) -> None:
        """Groups are asked for with the trainer's weights; the first time, the buffer compares with them anew."""
        if version != self._asked:
            self.saw(version)
            self._asked = version
            self.recorder.refresh(version + 1)
