"""Whatever becomes of the recording, a trainer does what it does without it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.record.stand_ins.prime_rl import Orchestrator
from tests.record.stand_ins.skyrl import FullyAsyncTrainer
from tests.record.stand_ins.trl import AsyncGRPOTrainer
from tokenaudit import Recorder, RecordError
from tokenaudit.record.prime_rl import attach_prime_rl
from tokenaudit.record.skyrl import attach_skyrl
from tokenaudit.record.trl import attach_trl


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")


def skyrl(*, is_judging: bool) -> tuple[Any, Callable[[], Any]]:
    trainer = FullyAsyncTrainer(12, 2, 3, sample_full_batch=is_judging, seed=2)
    return trainer, lambda: asyncio.run(trainer.train())


def prime_rl() -> tuple[Any, Callable[[], Any]]:
    orchestrator = Orchestrator(1, 6, 8, 8)
    return orchestrator, lambda: asyncio.run(orchestrator.start())


def trl() -> tuple[Any, Callable[[], Any]]:
    trainer = AsyncGRPOTrainer(1, 6, max_staleness=1)
    return trainer, trainer.train


RUNS: dict[str, tuple[Callable[[], tuple[Any, Callable[[], Any]]], Callable[[Any, Recorder], Any]]] = {
    "SkyRL": (lambda: skyrl(is_judging=False), attach_skyrl),
    "SkyRL, full batches": (lambda: skyrl(is_judging=True), attach_skyrl),
    "prime-rl": (prime_rl, attach_prime_rl),
    "TRL": (trl, attach_trl),
}


def closed(recorder: Recorder, _: pytest.MonkeyPatch) -> None:
    recorder.close()


def deleted(recorder: Recorder, _: pytest.MonkeyPatch) -> None:
    shutil.rmtree(recorder._parts.path)


def raising(_: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods of the recorder that fail now and then, each in its way."""
    errors = random.Random(4)
    for name in ("put", "take", "sync", "refresh", "note_limit"):
        own = getattr(Recorder, name)

        def call(self: Recorder, *args: Any, own: Callable[..., Any] = own, **kwargs: Any) -> Any:
            if errors.random() < 0.4:
                raise errors.choice([Unspeakable(), MemoryError(), RecursionError(), KeyError("x"), StopIteration()])
            return own(self, *args, **kwargs)

        monkeypatch.setattr(Recorder, name, call)


@pytest.mark.parametrize("fails", [closed, deleted, raising])
@pytest.mark.parametrize("trainer", RUNS)
def test_a_run_goes_on_as_it_does_without_a_recorder(
    trainer: str,
    fails: Callable[[Recorder, pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    make, attach = RUNS[trainer]
    alone, run = make()
    run()
    recorded, run = make()
    recorder = Recorder(tmp_path / "log", seal_rows=1)
    detach = attach(recorded, recorder)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fails(recorder, monkeypatch)
        run()
        detach()
        monkeypatch.undo()
    assert Counter(entry[0] for entry in recorded.journal) == Counter(entry[0] for entry in alone.journal)
    # events that come before the recorder sees that its folder is gone are lost with it
    messages = [str(one.message) for one in told if "not recorded: " in str(one.message)]
    assert len(messages) == (recorder.rejected_events > 0)
    assert messages or fails is deleted
    with contextlib.suppress(RecordError):
        recorder.close()
