"""Files of slime and miles: what the trainer saw of a batch, spans of versions, and calls that were cut off."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.importers.importing import Imported, imported, trained
from tests.importers.shapes import real
from tests.importers.test_import_dumps import sample
from tests.importers.test_real_files import imported_real
from tokenaudit.contracts.errors import SourceError
from tokenaudit.importers import slime_train
from tokenaudit.importers.base import Context, Lack, VersionScale
from tokenaudit.importers.detect import detected
from tokenaudit.importers.slime_versions import versions_of


def noted(log: Imported, start: str) -> bool:
    return any(limit.startswith(start) for limit in log.imports.limits)


def seen(path: Path) -> list[dict[str, Any]]:
    return torch.load(path, weights_only=False)["samples"]


def test_what_the_trainer_saw_is_joined_by_place(tmp_path: Path):
    """Twelve samples over two balanced ranks; ten are a step of the trainer, which leaves out the last two."""
    log = imported_real("slime_train_data", tmp_path, "slime")
    batches = [real("slime_train_data", tmp_path) / "rollout_data" / f"{rollout}.pt" for rollout in (0, 1)]
    masks = [s["loss_mask"] for path in batches for s in seen(path)]
    assert log.column("logprobs") == [
        pytest.approx(s["rollout_log_probs"], rel=1e-6) for path in batches for s in seen(path)
    ]
    # the seventh of the first batch is a removed sample
    expected = [0 if place % 12 > 9 or place == 6 else sum(mask) for place, mask in enumerate(masks)]
    assert trained(log) == expected
    assert [len(mask) for mask in log.column("trained_mask")] == log.column("response_len")
    for place, (logprobs, tokens) in enumerate(
        zip(log.column("train_logprobs"), log.column("response_len"), strict=True)
    ):
        if place % 12 > 9:
            assert logprobs is None
        else:
            # the log-probabilities were numbered by place in the batch, and by token
            assert logprobs == pytest.approx([-(1000 * (place % 12) + token) / 1e4 for token in range(tokens)])
    assert {slime_train._TRIMMED, slime_train._LOSS} <= set(log.imports.limits)
    assert slime_train._UNPAIRED not in log.imports.limits


def test_streamed_calls_that_an_abort_cut_off_have_no_version_of_their_own(tmp_path: Path):
    log = imported_real("slime_train_data", tmp_path, "slime")
    # the first of each group of the second batch was cut off under version 1 and ended under version 2
    assert log.column("version_precision") == ["segment"] * 12 + ["span", "segment", "segment", "segment"] * 3
    rows = [(row["model_step"], row["model_step_end"]) for row in log.rows if row["version_precision"] == "span"]
    assert rows == [(0, 1)] * 3
    assert noted(log, "streamed calls that were cut off have no version")


def streamed(*lengths: int | None) -> dict[str, Any]:
    """A trace of streamed calls; None is one that was cut off."""
    events: list[dict[str, Any]] = []
    for tokens in lengths:
        attrs = {"max_new_tokens": 100}
        events.append({"type": "span_start", "name": "sglang_generate_stream", "attrs": attrs})
        end = {} if tokens is None else {"attrs": {"completion_tokens": tokens}}
        events.append({"type": "span_end", "name": "sglang_generate_stream"} | end)
    return {"trace_id": "t", "events": events}


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        # cut off in rollout 3, which may have begun one push of two steps late; version 4 is step 6
        ({"metadata": {"start_rollout_id": 3}, "trace": streamed(None, 4)}, (1, 6)),
        ({"trace": streamed(None, 4)}, (0, 6)),
        # cut off at the end: as new as the step allows
        ({"metadata": {"start_rollout_id": 8}, "trace": streamed(4, None)}, (6, 8)),
        # nothing came before the cut: every token belongs to the call that ended
        ({"trace": streamed(None, 6)}, None),
    ],
)
def test_bounds_of_calls_that_were_cut_off(values: dict[str, Any], bounds: tuple[int, int] | None, tmp_path: Path):
    torch.save({"rollout_id": 8, "samples": [sample(0, 0, 6, ["4"], **values)]}, tmp_path / "a.pt")
    (row, _) = imported("slime", tmp_path / "a.pt", interval=2).rows
    if bounds is None:
        assert (row["version_precision"], row["model_step"]) == ("segment", 6)
    else:
        assert (row["version_precision"], row["model_step"], row["model_step_end"]) == ("span", *bounds)


def test_files_of_ranks_are_joined_by_index(tmp_path: Path):
    """Four ranks a step, of which two each hold the same samples."""
    log = imported_real("miles_train_data_ranks", tmp_path, "slime")
    folder = real("miles_train_data_ranks", tmp_path) / "train_data"
    logprobs: dict[int, list[float]] = {}
    for path in folder.iterdir():
        data = torch.load(path, weights_only=False)["rollout_data"]
        logprobs |= zip(data["sample_indices"], [values.tolist() for values in data["log_probs"]], strict=True)
    assert len(logprobs) == 16
    assert log.column("train_logprobs") == [logprobs[index] for index in log.column("rollout_id")]
    # the fourth of each batch was removed
    lengths = log.column("response_len")
    assert trained(log) == [0 if place % 8 == 3 else tokens for place, tokens in enumerate(lengths)]


def test_versions_are_placed_by_their_spans(tmp_path: Path):
    log = imported_real("miles_version_spans", tmp_path, "slime")
    # a push in the call; one version; a push in the second of two calls, behind a tool's three tokens; an old engine
    assert log.column("response_model_steps") == [[0] * 4 + [1] * 6, None, [0] * 11 + [1] * 3, None] * 2
    assert log.column("model_step") == [None, 1, None, 1] * 2
    assert log.column("version_precision") == ["exact", "segment"] * 4
    # only the last stage of the pipeline has log-probabilities
    for index, logprobs in enumerate(log.column("train_logprobs")):
        assert logprobs == pytest.approx([-(100 * index + token) / 1000 for token in range(len(logprobs))], abs=1e-6)
    assert trained(log) == [10, 8, 11, 7] * 2
    result = log.replayed("policy.max_staleness=9", "policy.max_token_staleness=1")
    # step 2: version 1 has staleness 0, version 0 has 1
    assert result.totals["token_staleness_max"] == 1


def spans(*values: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [{"version": version, "abs_start": start, "abs_end": end} for version, start, end in values]


def test_spans_beside_those_of_the_prompt_and_spans_with_holes(tmp_path: Path):
    newer = {"spans": spans(("3", 2, 4), ("4", 4, 8)), "prefill_spans": spans(("1", 0, 2)), "output_start": 2}
    samples = [
        sample(0, 0, 6, [newer]),
        # the first two tokens lie in no span
        sample(1, 0, 6, [spans(("3", 4, 5), ("4", 5, 8))]),
        sample(2, 0, 6, [spans(("3", 4, 5), ("4", 5, 8))], loss_mask=[0, 0, 1, 1, 1, 1]),
        sample(3, 0, 6, [spans(("default", 2, 8))]),
        sample(4, 0, 6, [[]]),
        sample(5, 0, 6, [spans(("3", 2, 4), ("4", 4, 8))]) | {"tokens": None},
    ]
    torch.save({"rollout_id": 4, "samples": samples}, tmp_path / "a.pt")
    log = imported("slime", tmp_path / "a.pt")
    assert log.column("version_precision") == ["exact", "span", "exact", "none", "none", "span"]
    assert log.column("response_model_steps")[0] == [2, 2, 3, 3, 3, 3]
    assert log.column("response_model_steps")[2] == [2, 2, 2, 3, 3, 3]
    assert (log.column("model_step")[1], log.column("model_step_end")[1]) == (0, 3)
    assert noted(log, "some trained tokens lie in no span")
    assert Lack.RESUME not in log.imports.limits


@st.composite
def called(draw: st.DrawFn) -> tuple[list[list[tuple[int, int]]], int, int]:
    """Calls as lists of (version, tokens), what a tool writes behind each, and the length of the prompt."""
    parts = st.tuples(st.integers(1, 4), st.integers(1, 3))
    return draw(st.lists(st.lists(parts, min_size=1, max_size=3), min_size=1, max_size=3)), draw(st.integers(0, 2)), 3


@given(called())
def test_spans_give_each_token_the_version_that_was_written_for_it(case: tuple[list[list[tuple[int, int]]], int, int]):
    """Compared with versions that are written out token by token."""
    calls, tool_tokens, prompt = case
    written: list[int] = []
    mask: list[int] = []
    recorded: list[dict[str, Any]] = []
    for call in calls:
        of_call: list[dict[str, Any]] = []
        for version, tokens in call:
            start = prompt + len(written)
            of_call.append({"version": str(version), "abs_start": start, "abs_end": start + tokens})
            written += [version - 1] * tokens
            mask += [1] * tokens
        recorded.append({"spans": tuple(of_call)})
        written += [written[-1]] * tool_tokens
        mask += [0] * tool_tokens
    context = Context(VersionScale(1, 1))
    row = versions_of({"weight_versions": tuple(recorded)}, np.array(mask), len(mask), prompt, 9, context)
    if len(set(written)) == 1:
        assert row["model_step"] == written[0]
    else:
        assert row["response_model_steps"].tolist() == written
    assert row["version_precision"] == ("exact" if any(len(call) > 1 for call in calls) else "segment")


def test_spans_that_overlap_are_faults(tmp_path: Path):
    torch.save({"rollout_id": 4, "samples": [sample(0, 0, 6, [spans(("3", 2, 6), ("4", 5, 8))])]}, tmp_path / "a.pt")
    with pytest.raises(SourceError, match="a span of versions from 5 to 8, behind one up to 6"):
        imported("slime", tmp_path / "a.pt")


def dump_details(folder: Path, samples: list[dict[str, Any]], **files: dict[str, Any]) -> Path:
    """A folder of --dump-details with one batch, and files of what the trainer saw."""
    for name in ("rollout_data", "train_data"):
        (folder / name).mkdir(parents=True)
    torch.save({"rollout_id": 4, "samples": samples}, folder / "rollout_data" / "4.pt")
    for name, values in files.items():
        torch.save(values, folder / "train_data" / f"{name.removeprefix('_')}.pt")
    return folder


def rank(number: int, **columns: list[Any]) -> dict[str, Any]:
    """What one rank writes."""
    return {"rollout_id": 4, "rank": number, "rollout_data": {"tokens": [], **columns}}


def of_rank(number: int, *indices: int, logprobs: int = 6) -> dict[str, Any]:
    count = len(indices)
    return rank(
        number,
        sample_indices=list(indices),
        response_lengths=[6] * count,
        total_lengths=[8] * count,
        loss_masks=[torch.tensor([1, 1, 0, 1, 1, 1])] * count,
        log_probs=[torch.full((logprobs,), -float(index)) for index in indices],
    )


def test_what_cannot_be_joined_for_sure_is_left_out(tmp_path: Path):
    # siblings of one rollout share their index; index 3 has another length; 4 lies in slices over two ranks
    samples = [sample(index, 0, 5 if index == 3 else 6, ["4"]) for index in (1, 1, 2, 3, 4)]
    files = {"_4_0": of_rank(0, 1, 2, 3), "_4_1": of_rank(1, 1, 2, 3), "_4_2": of_rank(2, 4, logprobs=2)}
    log = imported("slime", dump_details(tmp_path / "dump", samples, **files, _7_0=rank(0)))
    assert log.column("train_logprobs") == [None, None, [-2.0] * 6, None, None]
    assert trained(log) == [None, None, 5, None, 5]
    notes = (slime_train._AMBIGUOUS, slime_train._MISFIT, slime_train._SLICES, slime_train._UNPAIRED)
    assert set(notes) <= set(log.imports.limits)


def test_gathered_files_are_checked_against_their_batch(tmp_path: Path):
    def gathered(place: int | None, index: int) -> dict[str, Any]:
        place_of = {} if place is None else {"rollout_position": place}
        mask, logprobs = torch.ones(6, dtype=torch.int32), torch.full((6,), -float(index))
        lengths = {"response_lengths": 6, "total_lengths": 8}
        return {"sample_index": index, **lengths, "loss_masks": mask, "log_probs": logprobs, **place_of}

    def log_of(name: str, *values: dict[str, Any]) -> Imported:
        samples = [sample(10, 0, 6, ["4"]), sample(11, 0, 6, ["4"])]
        file = {"format_version": 2, "rollout_id": 4, "rank": 0, "samples": list(values)}
        return imported("slime", dump_details(tmp_path / name, samples, _4=file))

    assert log_of("a", gathered(1, 11)).column("trained_mask") == [[0] * 6, [1] * 6]
    # places that name other samples don't count; indices do
    log = log_of("b", gathered(0, 11))
    assert (log.column("trained_mask"), log.column("train_logprobs")) == ([None, [1] * 6], [None, [-11.0] * 6])
    assert log_of("e", gathered(2, 10)).column("trained_mask") == [[1] * 6, None]
    log = log_of("f", gathered(2, 10), gathered(3, 10))
    assert (log.column("trained_mask"), noted(log, slime_train._AMBIGUOUS)) == ([None, None], True)
    # a file without a sample says nothing of any
    assert log_of("d").column("trained_mask") == [None, None]
    # without places, by index; what isn't there is unknown
    log = log_of("c", gathered(None, 11))
    assert (log.column("trained_mask"), log.column("train_logprobs")) == ([None, [1] * 6], [None, [-11.0] * 6])


def test_train_data_alone_is_refused(tmp_path: Path):
    folder = dump_details(tmp_path / "dump", [sample(0, 0, 6, ["4"])], _4_0=of_rank(0, 0))
    assert detected([folder / "train_data"]).name == "slime"
    with pytest.raises(SourceError, match="what a trainer saw of its batches, without the batches") as raised:
        imported("slime", folder / "train_data")
    assert raised.value.problems[0].hint == "give the folder of --dump-details, which holds rollout_data/ too"


def test_train_data_that_makes_no_sense_is_left_out(tmp_path: Path):
    values = rank(0, sample_indices=[0, 1], response_lengths=[6], total_lengths=[8])
    samples = [sample(index, 0, 6, ["4"]) for index in (0, 1)]
    dump = dump_details(tmp_path / "dump", samples, _4_0=values, _4_1=of_rank(1, 1))
    log = imported("slime", dump)
    assert (log.column("status"), trained(log)) == (["completed"] * 2, [None, 5])
    place = tmp_path / "dump" / "train_data" / "4_0.pt"
    left_out = f"left out: 1 record that can't be read, the first: columns of rollout_data differ in number ({place})"
    assert left_out in log.imports.limits
    with pytest.raises(SourceError, match="columns of rollout_data differ in number"):
        imported("slime", dump, is_strict=True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0, -6.0], dtype=torch.bfloat16),
            [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0],
        ),
        (np.linspace(-1, 0, 6), [-1.0, -0.8, -0.6, -0.4, -0.2, 0.0]),
        ([-1.0, 0, -3.0, 0, 0, 0], [-1.0, 0.0, -3.0, 0.0, 0.0, 0.0]),
        ([-1.0] * 5, None),
        (None, None),
    ],
)
def test_log_probabilities_of_the_engine(given: Any, expected: list[float] | None, tmp_path: Path):
    torch.save({"rollout_id": 4, "samples": [sample(0, 0, 6, ["4"], rollout_log_probs=given)]}, tmp_path / "a.pt")
    log = imported("slime", tmp_path / "a.pt")
    (logprobs,) = log.column("logprobs")
    assert logprobs == (None if expected is None else pytest.approx(expected, abs=1e-6))
    assert noted(log, "rollout_log_probs that aren't one for each token") == (given is not None and expected is None)


def test_log_probabilities_of_texts_are_faults(tmp_path: Path):
    torch.save({"rollout_id": 4, "samples": [sample(0, 0, 2, ["4"], rollout_log_probs=["a", "b"])]}, tmp_path / "a.pt")
    with pytest.raises(SourceError, match="rollout_log_probs is <list>"):
        imported("slime", tmp_path / "a.pt")


def test_train_data_without_log_probabilities_gives_masks(tmp_path: Path):
    log = imported_real("slime_dump_details_dir", tmp_path, "slime")
    assert Counter(map(tuple, log.column("trained_mask"))) == {(1,) * 20: 16}
    assert log.column("train_logprobs") == [None] * 16
