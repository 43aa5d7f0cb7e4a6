"""What responses hold and how they end: numbers of rows against a slow twin, and every mistake in a whole run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.audit.audit_cases import audited, findings_of
from tests.audit.model import END, Run, changed, events_of, log_of, renumbered
from tests.builders import Row, put
from tests.conftest import examples
from tests.oracles.slow_contents import alike, changed_prefixes, tail
from tokenaudit.audit.contents import PAD_RUN, id_numbers, logprob_numbers
from tokenaudit.audit.findings import Finding
from tokenaudit.log.columns import Lists

BIG = Run(steps=20, batch=8, group_size=8, mean_tokens=40, most_tokens=90)
LISTS = ("response_ids", "response_model_steps", "logprobs", "train_logprobs")


def listed(rows: list[list[Any]], dtype: type) -> Lists:
    values = np.array([value for row in rows for value in row], dtype=dtype)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    return Lists(values, lengths, np.zeros(len(rows), dtype=np.bool_), np.zeros(0, dtype=np.int64))


def found(path: Path, rows: list[Row], name: str, run: Run = BIG, **options: Any) -> list[Finding]:
    return findings_of(audited(path, rows, run.config, **options), name)


def members(finding: Finding) -> set[int]:
    assert finding.extent is not None
    return {rollout_id for _, rollout_id in finding.extent.members}


def without(rows: list[Row], *names: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def chance(row: Row, share: float) -> bool:
    """The same for every put of a response."""
    return random.Random(row["rollout_id"]).random() < share


# ---- numbers of rows


@settings(examples(0.25))
@given(rows=st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=6), data=st.data())
def test_ends_of_rows_are_those_of_the_slow_twin(rows: list[list[int]], data: st.DataObject):
    masks = [data.draw(st.lists(st.integers(0, 1), min_size=len(row), max_size=len(row))) for row in rows]
    logprobs = [[data.draw(st.sampled_from((0.0, -0.5))) for _ in row] for row in rows]
    is_put = np.ones(len(rows), dtype=np.bool_)
    numbers = id_numbers(
        listed(rows, np.int32), listed(masks, np.int8), listed(logprobs, np.float32), None, is_put, is_put
    )
    for row, ids in enumerate(rows):
        run, before = tail(ids)
        assert bool(numbers["ids_last_before"][row]) == before
        assert numbers["ids_last"][row] == (ids[-1] if ids else 0)
        expected = (0, 0, 0, 0)
        if run >= PAD_RUN:
            ends = (sum(masks[row][-run:]), sum(value != 0 for value in logprobs[row][-run:]))
            expected = (run, ids[-1], *ends)
        assert tuple(numbers[f"tail_{what}"][row] for what in ("run", "id", "trained", "sampled")) == expected


def test_sums_of_log_probabilities_and_which_are_fill_values():
    rows = [[-0.5, -0.25], [], [-1.0, -1.0, -1.0], [-1.0, float("nan")], [-0.5, -0.25]]
    numbers = logprob_numbers(listed(rows, np.float64))
    assert numbers["logprobs_sum"].tolist()[:3] == [-0.75, 0.0, -3.0]
    assert np.isnan(numbers["logprobs_sum"][3])
    assert numbers["logprobs_alike"].tolist() == [False, True, True, False, False]
    prints = numbers["logprobs_print"].tolist()
    assert prints[0] == prints[4]
    assert len(set(prints)) == 4
    assert logprob_numbers(listed(rows, np.float32))["logprobs_print"].tolist() == prints


# ---- ends


def cut_off(reason: str, share: float, run: Run = BIG) -> list[Row]:
    """A run in which a share of the responses is completed by its first abort; what comes behind is left out."""
    cut: set[int] = set()
    events = []
    for event in events_of(log_of(run)):
        rows = [row for row in event if row.get("rollout_id") not in cut or row["event"] != "put"]
        for row in rows:
            if row["event"] == "put" and row["status"] == "aborted" and row["prior_len"] == 0 and chance(row, share):
                row |= {"status": "completed", "finish_reason": reason, "reward": 0.0}
                cut.add(row["rollout_id"])
        events.append(rows)
    return renumbered(filter(None, events))


def ends_wrong(rows: list[Row], reason: str) -> set[int]:
    return {
        row["rollout_id"] for row in rows
        if row["event"] == "put" and row["status"] == "completed" and row["finish_reason"] == reason
        and row["response_ids"][-1] != END
    }  # fmt: skip


@pytest.mark.parametrize(("share", "severity"), [(0.1, "error"), (1.0, "warning")])
@pytest.mark.parametrize("reason", ["stop", "eos_token"])
def test_responses_cut_off_that_say_stop_are_named(share: float, severity: str, reason: str, tmp_path: Path):
    rows = cut_off(reason, share)
    rows = changed(rows, lambda row: {"finish_reason": reason} if row["finish_reason"] == "stop" else None)
    (finding,) = found(tmp_path / "log", rows, "cut-called-stop")
    assert finding.severity == severity
    assert members(finding) == ends_wrong(rows, reason)


@pytest.mark.parametrize("reason", ["abort", "Cancelled", "engine_error"])
def test_completed_responses_with_a_reason_of_abort_are_named(reason: str, tmp_path: Path):
    rows = cut_off(reason, 0.1)
    (finding,) = found(tmp_path / "log", rows, "completed-but-aborted")
    assert members(finding) == ends_wrong(rows, reason)
    assert f"finish_reason is {reason}" in finding.message


def last_ids(choose: Callable[[Row], int], inside: int | None = None) -> list[Row]:
    def values(row: Row) -> Row | None:
        if row["status"] != "completed" or row["finish_reason"] != "stop":
            return None
        ids = list(row["response_ids"])
        if inside is not None:
            ids[len(ids) // 2] = inside
        return {"response_ids": [*ids[:-1], choose(row)]}

    return changed(log_of(BIG), values)


def test_a_second_end_token_is_none_of_a_cut(tmp_path: Path):
    rows = last_ids(lambda row: 3 if chance(row, 0.05) else END)
    assert found(tmp_path / "log", rows, "cut-called-stop") == []


def test_rare_end_tokens_are_none_of_a_cut(tmp_path: Path):
    rows = last_ids(lambda row: 3 if chance(row, 0.01) else 4 if chance(row, 0.025) else END)
    assert found(tmp_path / "log", rows, "cut-called-stop") == []


def test_responses_cut_off_at_a_few_words_are_named(tmp_path: Path):
    rows = last_ids(lambda row: 100 + row["rollout_id"] % 6 if chance(row, 0.08) else END)
    (finding,) = found(tmp_path / "log", rows, "cut-called-stop")
    assert members(finding) == ends_wrong(rows, "stop")


def test_answers_that_end_in_a_word_have_no_end_token(tmp_path: Path):
    rows = last_ids(lambda row: 7 if chance(row, 0.85) else row["rollout_id"], inside=7)
    assert found(tmp_path / "log", rows, "cut-called-stop") == []


def within_context(limit: int, since: int = 0) -> list[Row]:
    """A run whose responses end where the context does, and say stop."""

    def values(row: Row) -> Row | None:
        room = limit - row["prompt_len"]
        if row["train_step"] < since or room >= row["response_len"] or room <= row["prior_len"]:
            return None
        cut = {
            name: row[name][:room] for name in ("response_ids", "response_model_steps", "logprobs", "train_logprobs")
        }
        return cut | {"response_len": room, "finish_reason": "stop"}

    return changed(
        log_of(Run(steps=20, batch=8, group_size=8, mean_tokens=40, round_tokens=90, most_tokens=90)), values
    )


@pytest.mark.parametrize("since", [0, 8])
def test_a_limit_of_the_context_that_is_called_stop_shows_in_sums(since: int, tmp_path: Path):
    rows = within_context(100, since)
    (finding,) = found(tmp_path / "log", without(rows, "response_ids"), "limit-called-stop")
    assert "have exactly 100 tokens with their prompt" in finding.message
    at_limit = {
        row["rollout_id"] for row in rows
        if row["event"] == "put" and row["status"] == "completed" and row["prompt_len"] + row["response_len"] == 100
        and row["finish_reason"] == "stop"
    }  # fmt: skip
    assert members(finding) == at_limit


def at_limit_of(rows: list[Row], room: int) -> tuple[list[Row], set[int]]:
    """Rows whose prompts have 50 tokens and whose responses end after `room` and say stop; and what is cut so."""
    cut: set[int] = set()

    def values(row: Row) -> Row:
        kept = {"prompt_len": 50}
        if row["response_len"] >= room > row["prior_len"]:
            cut.add(row["rollout_id"])
            kept |= {"response_len": room, "finish_reason": "stop"} | {name: row[name][:room] for name in LISTS}
        return kept

    return without(changed(rows, values), "response_ids"), cut


def test_a_limit_shows_with_prompts_of_one_length_too(tmp_path: Path):
    run = Run(steps=20, batch=8, group_size=8, mean_tokens=40, round_tokens=90, most_tokens=90)
    rows, cut = at_limit_of(log_of(run), 50)
    (finding,) = found(tmp_path / "log", rows, "limit-called-stop", run)
    assert members(finding) == cut
    assert "have exactly 100 tokens with their prompt" in finding.message
    healthy = changed(log_of(run), lambda _: {"prompt_len": 50})
    assert found(tmp_path / "healthy", healthy, "limit-called-stop", run) == []


def test_answers_of_a_fixed_form_have_one_length_without_a_limit(tmp_path: Path):
    run = Run(steps=20, batch=8, group_size=8, mean_tokens=40, round_tokens=90, most_tokens=90)
    rows, cut = at_limit_of(log_of(run), 8)
    assert len(cut) > 1_000
    assert found(tmp_path / "log", rows, "limit-called-stop", run) == []


def test_several_limits_are_one_finding(tmp_path: Path):
    run = Run(steps=20, batch=8, group_size=8, mean_tokens=40, round_tokens=90, most_tokens=90)

    def values(row: Row) -> Row | None:
        room = (100 if row["group_id"] % 2 else 70) - row["prompt_len"]
        if not row["prior_len"] < room < row["response_len"]:
            return None
        return {"response_len": room, "finish_reason": "stop"} | {name: row[name][:room] for name in LISTS}

    rows = without(changed(log_of(run), values), "response_ids")
    (finding,) = found(tmp_path / "log", rows, "limit-called-stop", run)
    assert "have exactly 70 or 100 tokens with their prompt" in finding.message


def test_one_prompt_with_one_answer_is_no_limit(tmp_path: Path):
    def values(row: Row) -> Row | None:
        return {"prompt_len": 50} if row["group_id"] % 2 else None

    rows = [row for row in changed(log_of(BIG), values) if row["event"] != "put" or row["prior_len"] == 0]
    for row in rows:
        if row["event"] == "put" and row["group_id"] % 2 and row["status"] == "completed":
            row |= {name: row[name][:5] for name in ("response_ids", "response_model_steps", "logprobs")}
            row |= {"response_len": len(row["response_ids"]), "train_logprobs": None}
    assert found(tmp_path / "log", rows, "limit-called-stop") == []


def test_responses_that_get_a_new_budget_when_they_go_on_are_too_long(tmp_path: Path):
    run = Run(steps=20, batch=8, group_size=8, mean_tokens=40, round_tokens=40, most_tokens=40)
    began: dict[int, int] = {}

    def values(row: Row) -> Row | None:
        if row["finish_reason"] == "length" and 0 < row["prior_len"] < 40:
            began.setdefault(row["rollout_id"], row["prior_len"])
        more = began.get(row["rollout_id"])
        if more is None or row["response_len"] < 40:
            return None
        longer = {name: [*row[name], *row[name][-1:] * more] for name in LISTS}
        prior = row["prior_len"] + (more if row["prior_len"] == 40 else 0)
        return longer | {"response_len": 40 + more, "prior_len": prior}

    slow = Run(steps=20, batch=8, group_size=8, mean_tokens=15, round_tokens=12, most_tokens=40, first_group=500)
    healthy = [*events_of(log_of(run)), *events_of(log_of(slow))]
    assert found(tmp_path / "healthy", renumbered(healthy), "over-budget") == []
    (finding,) = found(tmp_path / "log", changed(renumbered(healthy), values), "over-budget")
    assert members(finding) == set(began)
    assert "cut at 40 or less" in finding.message


# ---- contents


def copied(share: float, **others: Any) -> list[Row]:
    """A run in which the second member of some groups holds what the first does."""
    events = events_of(log_of(BIG))
    for event in events:
        if event[0]["event"] == "put" and random.Random(event[0]["group_id"]).random() < share:
            kept = {name: event[1][name] for name in ("rollout_id", "reward")}
            event[1] |= event[0] | kept | others
    return renumbered(events)


@pytest.mark.parametrize("options", [{}, {"files": 3}, {"row_group_size": 7}])
def test_members_that_hold_the_same_are_named(options: dict[str, Any], tmp_path: Path):
    rows = copied(0.2)
    (finding,) = found(tmp_path / "log", rows, "members-alike", **options)
    assert (finding.severity, members(finding)) == ("error", alike(rows, 16))
    assert "the same ids and log-probabilities" in finding.message


def test_members_without_ids_are_alike_by_their_log_probabilities(tmp_path: Path):
    rows = copied(0.2)
    (finding,) = found(tmp_path / "log", without(rows, "response_ids"), "members-alike")
    assert (finding.severity, members(finding)) == ("error", alike(rows, 16))
    constant = changed(rows, lambda row: {"logprobs": [-1.0] * row["response_len"]})
    assert found(tmp_path / "constant", without(constant, "response_ids"), "members-alike") == []


def test_members_with_the_same_ids_alone_are_a_warning(tmp_path: Path):
    (finding,) = found(tmp_path / "log", without(copied(0.2), "logprobs"), "members-alike")
    assert finding.severity == "warning"


def test_answers_that_the_model_is_sure_of_are_equal_by_chance(tmp_path: Path):
    def values(row: Row) -> Row:
        tokens = row["response_len"]
        return {"response_ids": list(range(3, tokens + 3)), "logprobs": [-0.01 - 1e-4 * n for n in range(tokens)]}

    assert found(tmp_path / "log", changed(log_of(BIG), values), "members-alike") == []


# ---- kept prefixes


@pytest.mark.parametrize("place", [0, -1])
def test_kept_ids_that_changed_are_those_of_the_slow_twin(place: int, tmp_path: Path):
    def values(row: Row) -> Row | None:
        if row["prior_len"] == 0 or row["train_step"] < 8 or not chance(row, 0.3):
            return None
        ids = list(row["response_ids"])
        ids[place % row["prior_len"]] += 1
        return {"response_ids": ids}

    rows = changed(log_of(BIG), values)
    (finding,) = found(tmp_path / "log", rows, "prefix-changed")
    expected = {rows[row]["rollout_id"] for row in changed_prefixes(rows)}
    assert members(finding) == expected
    untold = without(rows, "prior_len")
    (finding,) = found(tmp_path / "untold", untold, "prefix-changed")
    assert members(finding) <= expected
    # Of what was put again complete, nothing says whether it was kept.
    assert len(members(finding)) > len(expected) / 2
    assert found(tmp_path / "untold", untold, "prefix-lost") == []


def spliced(new: list[int], old: int, share: float = 0.3) -> tuple[list[Row], set[int]]:
    """A run in which `old` ids in the middle of a prefix become others at the first abort, and what has these."""
    places: dict[int, int] = {}

    def values(row: Row) -> Row | None:
        prior, rollout_id = row["prior_len"], row["rollout_id"]
        begins = 8 <= prior < row["response_len"] and row["train_step"] > 5 and chance(row, share)
        if rollout_id not in places and not begins:
            return None
        at = places.setdefault(rollout_id, prior - old)
        lists = {name: [*row[name][:at], *row[name][at : at + 1] * len(new), *row[name][at + old :]] for name in LISTS}
        lists["response_ids"][at : at + len(new)] = new
        more = len(new) - old
        return lists | {"response_len": row["response_len"] + more, "prior_len": prior + more}

    return changed(log_of(BIG), values), {*places}


@pytest.mark.parametrize(("new", "old"), [([40_000], 2), ([40_000, 40_001], 1)])
@pytest.mark.parametrize("options", [{}, {"files": 3}, {"row_group_size": 7}])
def test_prefixes_that_are_tokenized_again_to_another_length_changed(
    new: list[int], old: int, options: dict[str, Any], tmp_path: Path
):
    rows, wrong = spliced(new, old)
    report = audited(tmp_path / "log", rows, BIG.config, **options)
    (finding,) = findings_of(report, "prefix-changed")
    assert members(finding) == wrong
    assert findings_of(report, "prefix-lost") == []


def test_a_prefix_without_its_last_token_lost_it(tmp_path: Path):
    rows, wrong = spliced([], 1)
    report = audited(tmp_path / "log", rows, BIG.config)
    (finding,) = findings_of(report, "prefix-lost")
    assert members(finding) == wrong
    assert "put again without" in finding.message
    assert findings_of(report, "prefix-changed") == []


def test_a_prior_len_that_is_too_small_loses_nothing_where_the_ids_are_there(tmp_path: Path):
    rows = changed(log_of(BIG), lambda row: {"prior_len": max(0, row["prior_len"] - 1)})
    report = audited(tmp_path / "log", rows, BIG.config)
    assert findings_of(report, "prefix-lost") == findings_of(report, "prefix-changed") == []


def test_prompts_that_count_what_a_response_has_are_not_mixed(tmp_path: Path):
    rows = changed(log_of(BIG), lambda row: {"prompt_len": row["prompt_len"] + row["prior_len"]})
    assert found(tmp_path / "log", rows, "prompts-mixed") == []


@pytest.mark.parametrize("left_out", [(), ("prior_len",), ("prior_len", "response_ids")])
@pytest.mark.parametrize("keeps_round", [False, True])
def test_a_second_abort_that_loses_tokens_is_named(keeps_round: bool, left_out: tuple[str, ...], tmp_path: Path):
    lost: dict[int, int] = {}

    def values(row: Row) -> Row | None:
        rollout_id, prior = row["rollout_id"], row["prior_len"]
        if rollout_id not in lost and row["status"] == "aborted" and prior > 0 and chance(row, 0.3):
            lost[rollout_id] = prior if keeps_round else row["response_len"]
        gone = lost.get(rollout_id)
        if gone is None:
            return None
        shorter = {name: row[name][gone:] for name in LISTS}
        return shorter | {"response_len": row["response_len"] - gone, "prior_len": max(0, prior - gone)}

    # Puts of a response before its second abort come earlier in the log, so they stay as they are.
    rows = changed(log_of(BIG), values)
    (finding,) = found(tmp_path / "log", without(rows, *left_out), "prefix-lost")
    assert lost
    assert members(finding) == set(lost)


@pytest.mark.parametrize(
    ("now", "lost"),
    [([5], 6), ([5, 2], 4), ([11], 0), ([5, 6], 0), ([3], 8)],
)
def test_rows_of_a_rollout_that_are_gone_at_a_second_abort_are_lost(now: list[int], lost: int, tmp_path: Path):
    """[11]: the rows were joined."""

    def rows_of(event_id: int, tokens: list[int], prior: list[int]) -> list[Row]:
        return [
            put(event_id, 3, rollout, tokens=count, prior_len=had, status="aborted", task_name="math")
            for rollout in (30, 31)
            for count, had in zip(tokens, prior, strict=True)
        ]

    rows = [*rows_of(1, [5, 6], [0, 0]), *rows_of(2, now, [min(*one) for one in zip(now, (5, 6), strict=False)])]
    found_in = findings_of(audited(tmp_path / "log", rows, BIG.config), "prefix-lost")
    if lost == 0:
        assert found_in == []
        return
    (finding,) = found_in
    assert f"aborted again without {2 * lost} tokens that the put before had" in finding.message
    assert members(finding) == {30, 31}


def test_responses_that_expired_or_always_begin_again_lose_nothing(tmp_path: Path):
    run = Run(steps=12, batch=4, group_size=4, partial=False)
    assert found(tmp_path / "log", log_of(run), "prefix-lost", run) == []


# ---- false alarms


def with_tails(reason: str, logprobs: list[float], share: float = 0.3) -> list[Row]:
    """A run in which some responses with a finish reason end in one id six times."""

    def values(row: Row) -> Row | None:
        if row["status"] != "completed" or row["finish_reason"] != reason or not chance(row, share):
            return None
        cut = row["response_len"] - 6
        tails = {"response_ids": [220] * 6, "logprobs": logprobs}
        return {name: [*row[name][:cut], *tail] for name, tail in tails.items()} if cut > 0 else None

    return changed(log_of(BIG), values)


LOOP = [-0.3, -0.02, -0.004, -0.001, -0.0008, -0.0007]


@pytest.mark.parametrize(
    ("reason", "logprobs", "is_padding"),
    [
        ("stop", [0.0] * 6, True), ("stop", LOOP, True), ("length", [0.0] * 6, True),
        ("length", LOOP, False), ("length", [-0.3, -0.02, 0.0, 0.0, 0.0, 0.0], False),
    ],
)  # fmt: skip
def test_padding_has_no_log_probabilities_or_says_stop(
    reason: str, logprobs: list[float], is_padding: bool, tmp_path: Path
):
    assert bool(found(tmp_path / "log", with_tails(reason, logprobs), "padding-trained")) == is_padding


@pytest.mark.parametrize(("reason", "is_padding"), [("stop", True), ("length", False)])
def test_padding_without_any_log_probabilities(reason: str, is_padding: bool, tmp_path: Path):
    rows = without(with_tails(reason, LOOP), "logprobs", "train_logprobs")
    assert bool(found(tmp_path / "log", rows, "padding-trained")) == is_padding


def test_one_final_call_without_output_is_no_observation(tmp_path: Path):
    run = Run(steps=20, batch=8, group_size=8, mean_tokens=20, tools=True)

    def final_call(row: Row) -> Row | None:
        return {"tool_turns": row["tool_turns"] + 1} if row["status"] == "completed" else None

    rows = changed(log_of(run), final_call)
    assert any(row.get("tool_turns") == 1 and all(row["response_mask"]) for row in rows)
    assert found(tmp_path / "log", rows, "observation-tokens-trained", run) == []
    assert found(tmp_path / "unmasked", without(rows, "response_mask"), "observation-tokens-trained", run)
