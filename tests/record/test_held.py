"""What hooks hold until their trainers come back to it: in order, and in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.record.stand_ins.trl import AsyncGRPOTrainer
from tokenaudit import Recorder
from tokenaudit.record import held
from tokenaudit.record.held import Held
from tokenaudit.record.hooks import Hooks
from tokenaudit.record.response_columns import mask_bits, response_of
from tokenaudit.record.run_steps import pushes_between
from tokenaudit.record.trl import attach_trl


def test_the_oldest_are_given_up_and_counted_where_too_much_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(held, "MOST_ELEMENTS", 1000)
    with Recorder(tmp_path) as recorder:
        kept: Held[str, int] = Held(Hooks(recorder))
        # an entry and a row count 64 each
        row = {"response_ids": [0] * 200}
        for number, name in enumerate("abc"):
            kept.hold(name, number, [row])
        kept.hold("a", 3, [row])
        assert (dict(kept), recorder.rejected_events) == ({"b": 1, "c": 2, "a": 3}, 0)
        with pytest.warns(RuntimeWarning, match="not recorded: the trainer never came back to what waits for it"):
            kept.hold("d", 4, [row])
        assert (dict(kept), recorder.rejected_events) == ({"c": 2, "a": 3, "d": 4}, 1)
        assert (kept.drop("a"), kept.drop("a"), kept.drop_oldest()) == (3, None, 2)
        kept.hold("e", 5, [row])
        kept.hold("f", 6, [{"response_ids": [0] * 5000}])
        assert (dict(kept), recorder.rejected_events) == ({"f": 6}, 3)
        assert kept.drop_oldest() == 6
        with pytest.raises(LookupError, match="never seen"):
            kept.drop_oldest()
        for number in range(7):
            kept.hold(str(number), number)
        assert (len(kept), recorder.rejected_events) == (7, 3)


def test_a_trainer_whose_batches_are_never_seen_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(held, "MOST_ELEMENTS", 2_000)
    holding: list[Held[object, object]] = []
    monkeypatch.setattr("tokenaudit.record.trl.Held", lambda hooks: holding.append(Held(hooks)) or holding[-1])
    trainer = AsyncGRPOTrainer(1, 20, max_staleness=4)
    with Recorder(tmp_path) as recorder:
        detach = attach_trl(trainer, recorder)
        loader = trainer.get_train_dataloader
        trainer.get_train_dataloader = lambda: loader.__wrapped__()  # type: ignore[method-assign, attr-defined]
        with pytest.warns(RuntimeWarning, match="not recorded: ") as told:
            trainer.train()
        assert len(told) == 1
        assert 0 < sum(map(len, holding)) < 40
        detach()
    assert trainer.state.global_step == 20


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.float32, torch.bfloat16])
def test_a_response_is_copied_from_any_tensor(kind: torch.dtype):
    tokens, mask = torch.tensor([5, 6, 7, 8], dtype=kind), torch.tensor([0, 1, 0, 1], dtype=kind)
    logprobs = torch.tensor([0.0, -0.5, -1.0, -1.5], requires_grad=True)
    row = response_of(tokens, mask, logprobs)
    tokens.zero_()
    assert [*row["response_ids"]] == [6, 7, 8]
    assert (row["response_mask"].tolist(), row["prompt_len"], row["response_len"]) == ([1, 0, 1], 1, 3)
    assert [*row["logprobs"]] == [-0.5, -1.0, -1.5]
    assert (
        mask_bits([True, False, 2, 0]).tolist() == mask_bits([1.0, 0.0, 0.5, 0]).tolist() == [True, False, True, False]
    )


def test_pushes_that_nobody_named():
    assert [*pushes_between(2, 8, 2)] == [4, 6, 8]
    assert [*pushes_between(8, 8)] == [*pushes_between(9, 8)] == []
    many = pushes_between(1, 10**18)
    assert (len(many), many[-1]) == (1000, 10**18)
