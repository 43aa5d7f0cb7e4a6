"""Masks: equal bits from plain Python, numpy and torch, on every device, padded or flat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokenaudit.lifecycle.staleness import ALWAYS_FRESH, oldest_fresh_version
from tokenaudit.masks import torch_backend
from tokenaudit.masks.backends import MaskBatch, Masks, NumpyBackend
from tokenaudit.masks.torch_backend import CudaBackend, TorchBackend, effective_mask, exempt_responses

CPU = torch.device("cpu")
STEPS = st.integers(1, 2**31 - 1)
VERSIONS = st.one_of(st.integers(0, 12), st.integers(2**31 - 12, 2**31 - 1))


@st.composite
def responses(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Versions and mask of some responses, with the step and the threshold of each."""
    made = []
    with_mask = draw(st.booleans())
    for _ in range(draw(st.integers(0, 8))):
        versions = draw(st.lists(VERSIONS, max_size=12))
        tokens = len(versions)
        mask = draw(st.lists(st.booleans(), min_size=tokens, max_size=tokens)) if with_mask else [True] * tokens
        step = draw(st.one_of(st.integers(1, 14), STEPS))
        threshold = draw(st.one_of(st.none(), st.integers(1, 6), st.integers(1, 2**31 - 1)))
        made.append({"versions": versions, "mask": mask, "step": step, "threshold": threshold})
    return made


def plain(response: dict[str, Any]) -> list[int]:
    """The rule, token by token."""
    step, threshold = response["step"], response["threshold"]
    return [
        int(trained and (threshold is None or step - version - 1 < threshold))
        for version, trained in zip(response["versions"], response["mask"], strict=True)
    ]


def batch_of(made: list[dict[str, Any]], *, with_mask: bool = True) -> MaskBatch:
    lengths = [len(response["versions"]) for response in made]
    semantic = np.array([entry for response in made for entry in response["mask"]], dtype=bool)
    return MaskBatch(
        versions=np.array([version for response in made for version in response["versions"]], dtype=np.int32),
        semantic=semantic if with_mask else None,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        oldest_fresh=np.array(
            [oldest_fresh_version(response["step"], response["threshold"]) for response in made], dtype=np.int32
        ),
    )


def expected(made: list[dict[str, Any]]) -> list[list[int]]:
    masks = [plain(response) for response in made]
    trained = [sum(mask) for mask in masks]
    trainable = [sum(response["mask"]) for response in made]
    lengths = [len(mask) for mask in masks]
    stale = [total - kept for total, kept in zip(trainable, trained, strict=True)]
    semantic = [length - total for length, total in zip(lengths, trainable, strict=True)]
    return [[entry for mask in masks for entry in mask], trained, stale, semantic]


def as_lists(masks: Masks) -> list[list[int]]:
    assert masks.effective.dtype == np.int8
    assert {counts.dtype for counts in masks[1:]} == {np.dtype(np.int64)}
    return [array.tolist() for array in masks]


@given(responses(), st.integers(1, 7))
def test_numpy_and_torch_agree_with_the_plain_rule(made: list[dict[str, Any]], chunk: int):
    with_mask = not all(all(response["mask"]) for response in made)
    batch = batch_of(made, with_mask=with_mask)
    assert as_lists(NumpyBackend().submit(batch).result()) == expected(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_backend, "MAX_CHUNK_TOKENS", chunk)
        assert as_lists(TorchBackend(CPU).submit(batch).result()) == expected(made)


def flat_arguments(made: list[dict[str, Any]], device: torch.device = CPU) -> dict[str, Any]:
    batch = batch_of(made)
    return {
        "model_steps": torch.from_numpy(batch.versions).to(device),
        "train_step": torch.tensor([response["step"] for response in made], dtype=torch.int64, device=device),
        "token_stale_threshold": torch.tensor(
            [response["threshold"] or 1 for response in made], dtype=torch.int64, device=device
        ),
        "response_mask": torch.tensor(batch.semantic, device=device),
        "offsets": torch.from_numpy(batch.offsets).to(device),
        "exempt": torch.tensor([response["threshold"] is None for response in made], dtype=torch.bool, device=device),
    }


def padded(values: list[list[int]], dtype: torch.dtype) -> torch.Tensor:
    width = max((len(row) for row in values), default=0)
    return torch.tensor([row + [1] * (width - len(row)) for row in values], dtype=dtype).reshape(len(values), width)


@given(responses())
def test_the_trainers_function_flat_and_padded(made: list[dict[str, Any]]):
    flat = flat_arguments(made)
    got = effective_mask(**flat)
    assert got.dtype == torch.int8
    assert got.tolist() == expected(made)[0]

    lengths = torch.tensor([len(response["versions"]) for response in made], dtype=torch.int64)
    arguments = flat | {
        "model_steps": padded([response["versions"] for response in made], torch.int64),
        "response_mask": padded([list(map(int, response["mask"])) for response in made], torch.int8),
    }
    del arguments["offsets"]
    got = effective_mask(**arguments, lengths=lengths)
    assert got.shape == arguments["model_steps"].shape
    for row, response in zip(got.tolist(), made, strict=True):
        mask = plain(response)
        assert row == mask + [0] * (len(row) - len(mask))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_one_step_and_one_threshold_for_all(dtype: torch.dtype):
    versions = torch.tensor([[0, 1, 2], [2, 3, 4]], dtype=dtype)
    assert effective_mask(versions, 4, 2).tolist() == [[0, 0, 1], [1, 1, 1]]
    assert effective_mask(versions, 4, None).tolist() == [[1, 1, 1], [1, 1, 1]]
    assert effective_mask(versions, torch.tensor(4), 1, exempt=torch.tensor([True, False])).tolist() == [
        [1, 1, 1],
        [0, 1, 1],
    ]


def test_an_agentic_member_exempts_its_whole_group():
    agentic = torch.tensor([False, True, False, False, False])
    group = torch.tensor([0, 0, 1, 2, 2])
    assert exempt_responses(agentic, group, 3).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model_steps": torch.zeros(3)}, "offsets"),
        ({"model_steps": torch.zeros(3, 2), "offsets": torch.tensor([0, 6])}, "offsets"),
        ({"model_steps": torch.zeros(1, 3), "response_mask": torch.zeros(1, 2)}, "response_mask"),
        ({"model_steps": torch.zeros(2, 3), "train_step": torch.zeros(3)}, "train_step"),
        ({"model_steps": torch.zeros(2, 3), "token_stale_threshold": torch.ones(1)}, "token_stale_threshold"),
        ({"model_steps": torch.zeros(2, 3), "exempt": torch.zeros(2, 1)}, "exempt"),
    ],
)
def test_shapes_that_do_not_fit(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        effective_mask(**({"train_step": 1, "token_stale_threshold": 1} | arguments))


@pytest.mark.parametrize(
    ("train_step", "threshold", "oldest"),
    [(5, 2, 3), (1, 1, 0), (5, None, ALWAYS_FRESH), (1, 2**40, ALWAYS_FRESH)],
)
def test_the_oldest_fresh_version(train_step: int, threshold: int | None, oldest: int):
    assert oldest_fresh_version(train_step, threshold) == oldest


def test_counts_are_exact_beyond_32_bits():
    tokens = 3 * 2**20
    batch = MaskBatch(
        np.zeros(tokens, dtype=np.int32), None, np.array([0, tokens]), np.array([ALWAYS_FRESH], dtype=np.int32)
    )
    for backend in (NumpyBackend(), TorchBackend(CPU)):
        assert backend.submit(batch).result().trained.tolist() == [tokens]


@pytest.mark.gpu
def test_cuda_gives_the_same_bits_from_small_and_large_chunks():
    rng = np.random.default_rng(7)
    device = torch.device("cuda", torch.cuda.current_device())
    for share in (1e-6, 0.1):
        backend = CudaBackend(device, memory_share=share)
        for _ in range(20):
            lengths = rng.integers(0, 5000, 40)
            tokens = int(lengths.sum())
            batch = MaskBatch(
                rng.integers(0, 9, tokens, dtype=np.int32),
                rng.random(tokens) < 0.8,
                np.concatenate([[0], np.cumsum(lengths)]),
                rng.integers(0, 9, 40, dtype=np.int32),
            )
            assert as_lists(backend.submit(batch).result()) == as_lists(NumpyBackend().submit(batch).result())


@pytest.mark.gpu
def test_the_trainers_function_does_not_wait_for_the_device():
    device = torch.device("cuda", torch.cuda.current_device())
    made = [
        {"versions": [0, 3, 4], "mask": [True, False, True], "step": 5, "threshold": 2},
        {"versions": [], "mask": [], "step": 5, "threshold": 2},
        {"versions": [0, 0], "mask": [True, True], "step": 5, "threshold": None},
    ]
    arguments = flat_arguments(made, device)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = effective_mask(**arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert got.device == device
    assert got.tolist() == expected(made)[0]
