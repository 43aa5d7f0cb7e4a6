"""What a saved result says must add up and be made of whole numbers; what was saved before still reads."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SAMPLE
from tokenaudit import replay_log, simulate_workload
from tokenaudit.contracts.errors import ResultError
from tokenaudit.contracts.metrics import METRICS, Total
from tokenaudit.replay.result import select_steps
from tokenaudit.replay.saved_result import MOST_FAULTS, result_from_json, result_to_json

FOLDER = Path(__file__).parent
BEFORE = (FOLDER / "saved_before.json").read_text()
"""A result of two steps, saved before totals were checked, with a fingerprint of all definitions."""
SIMULATION_BEFORE = gzip.decompress((FOLDER / "saved_simulation_before.json.gz").read_bytes()).decode()
"""A simulation of one step, saved with that fingerprint too."""

Data = dict[str, Any]


def faults(data: Data | str) -> list[str]:
    text = data if isinstance(data, str) else json.dumps(data)
    with pytest.raises(ResultError) as raised:
        result_from_json(text, "saved.json")
    assert {problem.where for problem in raised.value.problems} == {"saved.json"}
    return [problem.what.removeprefix("damaged result: ") for problem in raised.value.problems]


def additive(data: Data) -> Iterator[tuple[Data, str]]:
    """Every figure of a saved result that is a sum of others or is added to others, levels of a whole run aside."""
    for row in (data["totals"], data["tail"], *data["steps"]):
        for part in (row, *row["tasks"].values()):
            yield from (
                (part, name) for name in part if name in METRICS and METRICS[name].total in (Total.SUM, Total.STEP_SUM)
            )
    for account in (data["ledger"]["total"], *data["ledger"]["tasks"].values()):
        yield from ((account, name) for name in account)


@pytest.mark.parametrize("text", [BEFORE, SIMULATION_BEFORE], ids=["replay", "simulation"])
def test_what_was_saved_before_reads_and_is_saved_alike_with_its_definitions(text: str):
    before, after = json.loads(text), json.loads(result_to_json(result_from_json(text, "saved.json")))
    assert before.pop("definitions") == "7308df32890f0f87"
    definitions = after.pop("metric_definitions")
    assert {warning.pop("level") for warning in after["warnings"]} <= {"warning"}
    assert after == before
    names = {name for row in (before["totals"], *before["steps"], before["ledger"]["total"]) for name in row}
    assert names & set(METRICS) == names & set(definitions)
    assert definitions["dropped_tokens"] == "tokens sum"


@pytest.mark.parametrize("fingerprint", ["", "0" * 16, None, 1, []])
def test_of_a_fingerprint_that_is_not_known_there_are_no_definitions(fingerprint: object):
    saved = json.dumps(json.loads(BEFORE) | {"definitions": fingerprint})
    assert result_from_json(saved, "saved.json").metric_definitions == {}


@pytest.mark.parametrize("selection", ["", "1", "1..", "a..b", "1..2..3", f"1..{'9' * 5000}"])
def test_a_selection_is_a_range_of_steps(selection: str):
    (fault,) = faults(json.loads(BEFORE) | {"selection": selection})
    assert fault == f"selection: {selection!r:.60} is no range of steps"


@pytest.mark.parametrize("amount", [-1, 1])
def test_no_figure_that_adds_up_can_be_changed_unnoticed(amount: int):
    data = json.loads(BEFORE)
    places = list(additive(data))
    assert len(places) > 200
    for part, name in places:
        part[name] += amount
        assert any(name in fault or "tokens" in fault for fault in faults(data)), name
        part[name] -= amount
    result_from_json(json.dumps(data), "saved.json")


def test_of_a_simulation_the_times_of_steps_add_up_too(tmp_path: Path):
    result = simulate_workload(SAMPLE, config=SAMPLE.parent / "config.toml", overrides=["timeline.steps=2"]).result
    data = json.loads(result_to_json(result))
    data["totals"]["wall_time_us"] -= 1
    (fault,) = faults(data)
    assert fault.startswith("totals: wall_time_us is ")


def test_the_total_that_was_set_to_0_is_named_with_what_it_should_be():
    data = json.loads(result_to_json(replay_log(SAMPLE, config=SAMPLE.parent / "config.toml").result))
    data["totals"]["expired_groups"] = 0
    assert faults(data) == [
        "totals: expired_groups is 0, and steps and tail add up to 266",
        "totals: expired_groups is 0, and the tasks' are 266 together",
    ]
    data["totals"]["expired_groups"] = 266
    data["totals"]["raw_rewards_sum"] += 1e-9
    result_from_json(json.dumps(data), "saved.json")
    data["totals"]["raw_rewards_sum"] += 1e-4
    assert len(faults(data)) == 2


def change(place: Callable[[Data], Data], name: str, value: object) -> Data:
    data = json.loads(BEFORE)
    place(data)[name] = value
    return data


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None])
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (lambda data: data["totals"], "put_groups"),
        (lambda data: data["tail"], "put_groups"),
        (lambda data: data["steps"][0], "put_groups"),
        (lambda data: data["steps"][0], "train_step"),
        (lambda data: data["steps"][0]["tasks"]["default"], "put_groups"),
        (lambda data: data["ledger"]["total"], "held_tokens"),
        (lambda data: data["coverage"], "stamped_tokens"),
        (lambda data: data["inputs"][0], "rows"),
    ],
)
def test_counts_are_whole_numbers(place: Callable[[Data], Data], name: str, value: object):
    assert len(faults(change(place, name, value))) == 1


@pytest.mark.parametrize("value", [True, 1.0])
@pytest.mark.parametrize("name", ["model_step", "seq_staleness_max", "token_staleness_p95"])
def test_versions_and_staleness_are_whole_numbers_or_null(name: str, value: object):
    assert faults(change(lambda data: data["steps"][0], name, value)) == [f"steps: {name} is {value}"]
    result_from_json(json.dumps(change(lambda data: data["steps"][0], name, None)), "saved.json")


def test_a_result_of_no_log_is_refused():
    assert faults(change(lambda data: data, "inputs", [])) == ["inputs: it names no log"]


def test_group_ids_are_whole_numbers():
    data = change(lambda data: data["steps"][0]["taken_group_ids"], "default", [True])
    assert faults(data) == ["steps: taken_group_ids holds something else than lists of group ids"]


@pytest.mark.parametrize("old", ['"totals": {', '"expired_groups": ', '"train_step": 1'])
def test_a_key_twice_in_one_object_is_refused(old: str):
    name = old.split('"')[1]
    twice = BEFORE.replace(old, f'"{name}": 0, {old}', 1)
    assert faults(twice) == [f"not valid JSON: the key '{name}' stands twice in one object"]


def test_an_account_without_a_metric_of_these_definitions_is_a_fault():
    data = json.loads(BEFORE)
    for account in (data["ledger"]["total"], data["ledger"]["tasks"]["default"]):
        del account["in_flight_tokens"]
    assert faults(data)[0] == "ledger: the account lacks in_flight_tokens"
    result_from_json(json.dumps(data | {"definitions": "of another release"}), "saved.json")
    data["metric_definitions"] = {"in_flight_tokens": "tokens end"}
    assert faults(data)[0] == "ledger: the account lacks in_flight_tokens"
    data["metric_definitions"] = {"held_tokens": "tokens end"}
    result_from_json(json.dumps(data), "saved.json")


def test_of_selected_steps_the_totals_are_those_of_the_whole_run():
    selected = select_steps(result_from_json(BEFORE, "saved.json"), 1, 1)
    assert result_from_json(result_to_json(selected), "selected.json") == selected


def test_all_faults_are_reported_up_to_a_number():
    data = json.loads(BEFORE)
    data["steps"].pop()
    assert len(faults(data)) == MOST_FAULTS
