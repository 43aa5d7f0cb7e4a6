"""What a saved result says must add up and be made of whole numbers; what was saved before still reads."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SAMPLE
from tokenaudit import replay_log, simulate_workload
from tokenaudit.contracts.errors import Notice, ResultError
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
    assert after.pop("warnings_hash").startswith("sha256:")
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


@pytest.mark.parametrize("text", [BEFORE, SIMULATION_BEFORE], ids=["replay", "simulation"])
def test_a_simulation_is_one_by_its_kind_and_by_what_it_says(text: str):
    about = json.loads(SIMULATION_BEFORE)["simulation"]
    data = json.loads(text)
    data["simulation"] = None if data.get("simulation") else about
    said = "simulation: only a simulation has one, and each does"
    assert said in faults(data)
    if data["simulation"] is None:
        # or no figure of it would be held against its steps
        data["totals"]["wall_time_us"] = 0
        assert faults(data) == [said]
        del data["simulation"]
        assert faults(data) == [said]


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


def test_a_version_that_is_not_known_is_null():
    result_from_json(json.dumps(change(lambda data: data["steps"][0], "model_step", None)), "saved.json")


LARGEST = [name for name, metric in METRICS.items() if metric.total in (Total.MAX, Total.RANK)]
LEVELS = [name for name, metric in METRICS.items() if metric.total is Total.LAST]


def of_sample() -> Data:
    return json.loads(result_to_json(replay_log(SAMPLE, config=SAMPLE.parent / "config.toml").result))


def test_no_maximum_and_no_level_can_be_changed_unnoticed():
    data = of_sample()
    rows = (data["totals"], data["tail"], *data["steps"][:3], data["steps"][-1])
    parts = [part for row in rows for part in (row, *row["tasks"].values())]
    changed = 0
    for part in parts:
        for name in (*LARGEST, *LEVELS):
            if name not in part or name in ("token_staleness_p50", "token_staleness_p95"):
                continue
            is_of_step = any(part is row or part in row["tasks"].values() for row in data["steps"])
            before = part[name]
            for value in {None, 0, 99} if name in LARGEST else {before + 1}:
                part[name] = value
                # a smaller maximum of a task at a step hides behind those of other tasks and steps
                if value != before and (value == 99 or not is_of_step or "tasks" in part):
                    assert any(name in fault for fault in faults(data)), (name, value)
                    changed += 1
            part[name] = before
    assert changed > 50
    result_from_json(json.dumps(data), "saved.json")


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("seq_staleness_max", 2, ["the largest of tasks is 3", "the largest of steps and tail is 3"]),
        ("seq_staleness_max", None, ["the largest of tasks is 3", "the largest of steps and tail is 3"]),
        ("token_staleness_max", 9, ["the largest of tasks is 2", "the largest of steps and tail is 2"]),
        ("token_staleness_p95", 9, ["tasks have 1 to 2", "steps and tail have 0 to 2"]),
        ("token_staleness_p95", None, ["tasks have 1 to 2", "steps and tail have 0 to 2"]),
        ("leftover_completed", 9, ["the tasks' are 5 together", "5 at the last step"]),
    ],
)
def test_a_total_that_its_parts_do_not_come_to_is_named(name: str, value: int | None, found: list[str]):
    data = of_sample()
    data["totals"][name] = value
    shown = "null" if value is None else value
    assert faults(data) == [f"totals: {name} is {shown}, and {other}" for other in found]


def test_a_maximum_of_nothing_is_refused():
    data = json.loads(BEFORE)
    assert data["tail"]["seq_staleness_max"] is None
    data["tail"]["seq_staleness_max"] = 0
    assert faults(data)[0] == "tail: seq_staleness_max is 0, and tasks have none"


def test_of_selected_steps_totals_are_those_of_the_whole_run():
    result = replay_log(SAMPLE, config=SAMPLE.parent / "config.toml").result
    result_from_json(result_to_json(select_steps(result, 2, 2)), "saved.json")


def test_notices_that_were_saved_stay_there():
    data = of_sample()
    result_from_json(json.dumps(data), "saved.json")
    fault = "warnings: they aren't those that were saved"
    assert faults(data | {"warnings": [*data["warnings"], {"code": "a", "message": "b", "cost": "c"}]}) == [fault]
    folder_result = replace(replay_log(SAMPLE).result, warnings=(Notice("lost-events", "lost", "cost"),))
    data = json.loads(result_to_json(folder_result))
    assert faults(data | {"warnings": []}) == [fault]
    data["warnings"][0]["code"] = "other"
    assert faults(data) == [fault]
    del data["warnings"]
    assert faults(data) == ["warnings: Field required"]


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
