"""What commands write as JSON is valid by its schema, which declares every field; what is damaged isn't."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import tokenaudit
from tests.builders import numbered, put, refresh, take, write_log
from tests.conftest import ROOT, SAMPLE
from tokenaudit.contracts.errors import UsageError
from tokenaudit.render.json_schemas import json_kinds, json_schema
from tokenaudit.replay.saved_result import result_to_json

Run = Callable[..., Any]
GOLDEN = ROOT / "tests" / "golden"
CONFIG, WORSE = SAMPLE.parent / "config.toml", SAMPLE.parent / "worse.toml"
BEFORE = (
    ROOT / "tests" / "replay" / "saved_before.json",
    ROOT / "tests" / "replay" / "saved_simulation_before.json.gz",
    ROOT / "tests" / "gate" / "sample_baseline_before.json.gz",
)
HOSTILE_NAMES = '=cmd|" /c calc"!A1', "<script>\x1b[31m", "a/b\n##[error]", "ünï 𝛼"


def closed(schema: Any) -> Any:
    """The schema, without fields that it doesn't know."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(one) for name, one in schema.items()}
    return {"additionalProperties": False} | inner if "properties" in inner else inner


@cache
def validator(kind: str, *, is_closed: bool = False) -> Draft202012Validator:
    schema = json_schema(kind)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(closed(schema) if is_closed else schema)


def golden(name: str) -> tuple[object, ...]:
    return GOLDEN / name / "log.parquet", "-c", GOLDEN / name / "config.toml"


def hostile_log(folder: Path) -> Path:
    rows: list[Any] = []
    for step in (1, 2):
        rows.append(refresh(train_step=step))
        for number, name in enumerate(HOSTILE_NAMES):
            rows.append(put(group_id=10 * step + number, train_step=step, task_name=name, reward=0.25))
            rows.append(take(train_step=step, task_name=name))
    return write_log(folder / HOSTILE_LOG, numbered(rows))


def workload(name: str, *options: object) -> tuple[object, ...]:
    return "simulate", GOLDEN / name / "workload.parquet", "-c", GOLDEN / name / "config.toml", *options


SAMPLE_RUN = (SAMPLE, "-c", CONFIG)
HOSTILE_LOG = "hostile <log>.parquet"
COST = ("-s", "cost.rollout_gpus=8", "-s", "cost.train_gpus=4", "-s", "cost.usd_per_gpu_hour=2.5")
RULES = ("dropped_tokens <= +2% or +500", "warn: shortfall_groups{step>=3} <= 0", "expired_groups{task=math} <= 3",
         "token_staleness_p95{step} == 0", "wall_time_us <= 5")  # fmt: skip
COMMANDS: dict[str, tuple[object, ...]] = {
    "replay": ("replay", *SAMPLE_RUN),
    "replay of a selection": ("replay", SAMPLE, "-c", WORSE, "--steps", "5..7", "--groups", "--by-task"),
    "replay of a buffer": ("replay", *golden("buffer_003"), "--groups"),
    "replay of a colocated run": ("replay", *golden("colocated_007")),
    "replay of a disaggregated run": ("replay", *golden("disagg_011"), "--timeline", "simulated"),
    "replay of hostile names": ("replay", HOSTILE_LOG, "--groups"),
    "simulate": workload("disagg_000", "--groups"),
    "simulate a log": ("simulate", *SAMPLE_RUN, "--steps", "3"),
    "simulate a selection": workload("disagg_003", "--show-steps", "2..3"),
    "simulate colocated": workload("colocated_000"),
    "simulate until stuck": workload("disagg_000", "-s", "timeline.train_batch_size=1000"),
    "diff": ("diff", CONFIG, WORSE, "--log", SAMPLE, "--groups"),
    "diff of some metrics": ("diff", "base.json", "worse.json", "--metrics", "dropped_token_rate,seq_staleness_max"),
    "replay with a cost": ("replay", *golden("disagg_011"), *COST),
    "simulate with a cost": workload("disagg_000", *COST),
    "diff with a cost": ("diff", CONFIG, WORSE, "--log", SAMPLE, *COST),
    "explain with a cost": ("explain", *golden("disagg_000"), *COST),
    "diff of equals": ("diff", "base.json", "base.json"),
    "gate": ("gate", "worse.json", "--baseline", "base.json"),
    "gate by rules": (
        "gate",
        "worse.json",
        "--baseline",
        "base.json",
        *(part for one in RULES for part in ("--rule", one)),
    ),
    "gate that passes": ("gate", "base.json", "--baseline", "base.json"),
    "gate of hostile names": ("gate", HOSTILE_LOG, "--rule", 'expired_groups{task="ünï 𝛼"} <= 0'),
    "audit": ("audit", *SAMPLE_RUN),
    "audit beside curves": ("audit", *SAMPLE_RUN, "--curves", SAMPLE.parent / "tracker.jsonl"),
    "audit without a config": ("audit", HOSTILE_LOG),
    "audit against a baseline": ("audit", *golden("buffer_003"), "--baseline", "audited.json"),
    "corrections": ("corrections", SAMPLE.parent / "probabilities.parquet"),
    "corrections of one method": ("corrections", SAMPLE.parent / "probabilities.parquet", "-m", "trl", "--step", "3"),
    "corrections that can't run": ("corrections", *SAMPLE_RUN, "-m", "trl"),
    "gate of corrections": (
        "gate",
        SAMPLE.parent / "probabilities.parquet",
        "--rule",
        "correction_dropped_token_rate{method=icepop} <= 1%",
    ),
    "explain a log": ("explain", *golden("disagg_000")),
    "explain a buffer": ("explain", *golden("buffer_003")),
    "explain a group": ("explain", *SAMPLE_RUN, "--group", "code/102"),
    "explain a step": ("explain", SAMPLE, "-c", WORSE, "--step", "9"),
    "explain a step of hostile names": ("explain", HOSTILE_LOG, "--step", "1"),
    "explain names": ("explain", "dropped_tokens", "dropped_token_rate", "max_staleness", "V001"),
    "explain names in a log": (
        "explain",
        *golden("buffer_003"),
        "dropped_tokens",
        "trained_token_rate",
        "max_staleness",
    ),
    "inspect": ("inspect", SAMPLE),
    "inspect hostile names": ("inspect", HOSTILE_LOG),
}
ONE_OF_EACH = {
    "replay": "replay of a buffer",
    "simulate": "simulate",
    "diff": "diff of some metrics",
    "gate": "gate by rules",
    "audit": "audit against a baseline",
    "corrections": "corrections of one method",
    "explain.log": "explain a log",
    "explain.group": "explain a group",
    "explain.step": "explain a step",
    "explain.names": "explain names in a log",
    "inspect": "inspect",
}
"""A command for every kind, whose JSON isn't long."""


@cache
def saved(config: Path) -> str:
    return result_to_json(tokenaudit.replay_log(SAMPLE, config_path=config, isolated=True).result)


@pytest.fixture
def written(tmp_path: Path, run_cli: Run) -> Run:
    """Runs a command of `COMMANDS` where the files that it names are, and gives its JSON."""
    hostile_log(tmp_path)
    (tmp_path / "base.json").write_text(saved(CONFIG))
    (tmp_path / "worse.json").write_text(saved(WORSE))

    def run(name: str) -> Any:
        if "audited.json" in COMMANDS[name]:
            run_cli("audit", *golden("buffer_003"), "-o", "audited.json", "-q")
        ran = run_cli(*COMMANDS[name], "--format", "json")
        assert ran.out, ran.err
        return json.loads(ran.out)

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_what_commands_write_is_valid_and_every_field_is_declared(name: str, written: Run):
    data = written(name)
    strict = validator(data["kind"], is_closed=True)
    assert [f"{error.json_path}: {error.message:.200}" for error in strict.iter_errors(data)] == []
    others = [kind for kind in json_kinds() if f"tokenaudit.{kind}" != data["kind"]]
    assert [kind for kind in others if validator(kind).is_valid(data)] == []


def test_every_kind_is_written():
    assert [*ONE_OF_EACH] == [*json_kinds()]


@pytest.mark.parametrize("path", BEFORE, ids=lambda path: path.name)
def test_results_that_were_saved_before_are_valid(path: Path):
    data = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    assert list(validator(data["kind"]).iter_errors(data)) == []
    assert not validator("gate").is_valid(data)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in the data, of lists the first entry only."""
    if path:
        yield path
    parts = data.items() if isinstance(data, dict) else list(enumerate(data))[:1] if isinstance(data, list) else ()
    for name, value in parts:
        yield from places(value, (*path, name))


def put_at(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = deepcopy(data)
    part = changed
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    return changed


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_what_is_damaged_is_not_valid(kind: str, written: Run):
    # of long lists one entry is enough
    data = {name: value[:1] if isinstance(value, list) else value for name, value in written(ONE_OF_EACH[kind]).items()}
    known = validator(kind)
    assert known.is_valid(data)
    required = json_schema(kind)["required"]
    optional = {"tool", "selection", "metric_definitions", "intervals", "log_notes", "warnings_hash"}
    assert set(data) - optional == set(required) - optional
    for field in required:
        assert not known.is_valid({key: value for key, value in data.items() if key != field}), field
    assert not known.is_valid(data | {"schema_version": 99})
    # values of settings and options may be lists
    fixed = [path for path in places(data) if path[0] != "config" and (path[0] != "settings" or len(path) < 3)]
    fixed = [path for path in fixed if "options" not in path[:-1]]
    assert len(fixed) > 10
    for path in fixed:
        assert not known.is_valid(put_at(data, path, [[True]])), path


def test_counts_are_whole_and_null_only_where_a_metric_may_be():
    data = json.loads((ROOT / "tests" / "replay" / "saved_before.json").read_text())
    known = validator("replay")
    for path, value, is_valid in (
        (("steps", 0, "dropped_tokens"), 1.5, False),
        (("steps", 0, "dropped_tokens"), None, False),
        (("steps", 0, "dropped_tokens"), "5", False),
        (("steps", 0, "seq_staleness_max"), None, True),
        (("steps", 0, "model_step"), None, True),
        (("steps", 0, "raw_rewards_sum"), 1.5, True),
        (("steps", 0, "raw_rewards_sum"), None, False),
        (("steps", 0, "train_step"), None, False),
        (("tail", "tasks"), [], False),
        (("ledger", "total", "held_tokens"), 0.5, False),
        (("a_field_of_a_later_release",), 1, True),
    ):
        assert known.is_valid(put_at(data, path, value)) is is_valid, (path, value)


def test_the_command_and_the_function_give_the_same_schema(tmp_path: Path, run_cli: Run):
    for name, one in json_kinds().items():
        printed = json.loads(run_cli("schema", name).out)
        assert printed == tokenaudit.json_schema(name) == tokenaudit.json_schema(one.kind)
        assert printed["properties"]["schema_version"] == {"const": one.version}
        assert run_cli("schema", one.kind, "-o", f"{name}.json").out == f"{name}.json: the JSON Schema of {one.kind}\n"
        assert json.loads((tmp_path / f"{name}.json").read_text()) == printed
    listed = run_cli("schema").out.splitlines()
    assert [line.split()[0] for line in listed] == [*json_kinds()]
    ran = run_cli("schema", "gat")
    assert (ran.code, ran.out, ran.err) == (
        2, "", "error: nothing is written as 'gat'\n  hint: did you mean 'gate'?\n"
    )  # fmt: skip
    assert run_cli("schema", "-o", "all.json").code == 2
    assert run_cli("schema", "gate", "-o", "gate.txt").code == 2
    with pytest.raises(UsageError):
        tokenaudit.json_schema("tokenaudit.nothing")


def test_metrics_and_attributes_are_described_as_the_code_describes_them():
    schema = json_schema("replay")
    row = schema["$defs"]["Metrics"]["properties"]
    assert row["trained_tokens"]["description"] == "tokens of the batch that are in the loss (tokens)"
    assert "wall_time_us" not in row
    assert "wall_time_us" in json_schema("simulate")["$defs"]["Metrics"]["properties"]
    coverage = schema["$defs"]["Coverage"]["properties"]
    assert coverage["left_out_puts"]["description"] == "puts outside the steps of a simulated timeline."
    assert schema["properties"]["intervals"]["description"].startswith("totals by metric that depend on versions")
