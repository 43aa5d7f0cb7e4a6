"""Random runs: against the slow simulator, and through an event log and replay."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from simulated import Case, cases, ran, result_of
from slow_simulate import slow_entries

from tokenaudit import metrics as m
from tokenaudit.session import replay_log
from tokenaudit.simulate.entries import StuckReason

MANY = settings(max_examples=int(__import__('os').environ.get('N','400')))


@MANY
@given(cases())
def test_the_slow_simulator_agrees(case: Case):
    run = ran(case.rows, case.config, case.max_concurrency)
    slow, is_done = slow_entries(case.rows, case.config, case.max_concurrency, run.ended_at)
    if run.stuck is None:
        assert is_done
        assert run.entries == slow
    else:
        assert not is_done
        assert run.entries == slow[: len(run.entries)]
        if run.stuck.tasks[0].reason is StuckReason.PRODUCER_STOPPED:
            assert run.entries == slow
