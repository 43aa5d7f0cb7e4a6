"""The public Python functions: what a notebook calls, what it sees, and what it reads when an argument is wrong."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import polars as pl
import pytest

import tokenaudit
from tests.test_rooms import PACKAGE, ROOMS
from tokenaudit.config.toml import override_texts
from tokenaudit.contracts.errors import ConfigError, Problem, ResultError, RuleError, TokenauditError, UsageError
from tokenaudit.log.cache import DigestCache
from tokenaudit.replay.request import TAKEN_BY, RunOptions, RunRequest, TimelineKind
from tokenaudit.replay.result import Result
from tokenaudit.replay.saved_result import result_to_json
from tokenaudit.replay.session import LoadedLog, Run

SAMPLE = PACKAGE.parent / "sample_data" / "rollouts.parquet"
PROBABILITIES = SAMPLE.with_name("probabilities.parquet")
CONFIG, WORSE = SAMPLE.with_name("config.toml"), SAMPLE.with_name("worse.toml")
RESPONSE = {"rollout_id": 0, "status": "completed", "response_len": 5}
LONGEST_REPR = 400


@pytest.fixture(scope="module")
def log() -> LoadedLog:
    return tokenaudit.load_log(SAMPLE, isolated=True)


@pytest.fixture(scope="module")
def result(log: LoadedLog) -> Result:
    return log.replay()


def test_importing_the_package_loads_nothing():
    code = "import sys, tokenaudit; print(sorted(name for name in sys.modules if name.startswith('tokenaudit.')))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert ran.stdout == "[]\n"


def test_every_public_name_is_there_and_none_is_a_room():
    assert {name for name in tokenaudit.__all__ if not name.startswith("_")} == set(tokenaudit._HOMES)
    assert not set(tokenaudit.__all__) & {*ROOMS, "help", "log", "config"}
    assert dir(tokenaudit) == sorted(tokenaudit.__all__)
    for name in tokenaudit.__all__:
        assert getattr(tokenaudit, name), name
    with pytest.raises(AttributeError, match="replay_lag"):
        _ = tokenaudit.replay_lag  # type: ignore[attr-defined]


def test_public_functions_say_what_they_take_and_raise():
    for name in set(tokenaudit.__all__) - {"__version__", "ConfigError", "RecordError", "Recorder", "TokenauditError"}:
        text = getattr(tokenaudit, name).__doc__
        assert "Raises:" in text or "errors as for" in text or name == "rows_frame", name


def test_keywords_are_the_fields_of_a_request():
    assert set(get_type_hints(RunOptions, localns={"DigestCache": DigestCache})) == {
        *(field.name for field in fields(RunRequest) if field.name != "paths"),
        "config_path",
    }


def test_a_log_is_read_once_and_replayed_under_many_configs(log: LoadedLog, result: Result, monkeypatch: Any):
    monkeypatch.setattr("tokenaudit.replay.session.read_digest", None)
    again = log.replay(config=WORSE, overrides=["policy.max_staleness=1"], with_groups=True, timeline="simulated")
    expected = RunRequest(
        paths=(SAMPLE,), config=WORSE, overrides=("policy.max_staleness=1",), isolated=True, with_groups=True,
        timeline=TimelineKind.SIMULATED,
    )  # fmt: skip
    monkeypatch.undo()
    assert again == tokenaudit.replay_log(expected).result
    assert result == log.replay() == tokenaudit.replay_log(SAMPLE, isolated=True).result


def test_a_config_may_be_plain_data(log: LoadedLog):
    data = {"timeline": {"train_batch_size": 24}, "tasks": {"code": {"max_staleness": 2}}}
    replayed = log.replay(config=data)
    assert replayed.config["tasks"]["code"]["max_staleness"] == 2
    assert replayed.config["policy"]["max_staleness"] == 0, "the log's own config doesn't count"
    assert replayed.config_source == "config"
    with pytest.raises(ConfigError) as caught:
        log.replay(config={"policy": {"max_stalenes": 1}, "mode": "x"}, overrides={"policy.max_staleness": -1})
    assert [problem.where for problem in caught.value.problems] == [
        "config: mode",
        "config: policy.max_stalenes",
        "-s policy.max_staleness=-1",
    ]


def test_overrides_may_be_nested_or_dotted(log: LoadedLog):
    nested = {"policy.max_staleness": 2, "tasks": {"code": {"max_token_staleness": "off", "weight": 0.5}}}
    texts = ["policy.max_staleness=2", 'tasks.code.max_token_staleness="off"', "tasks.code.weight=0.5"]
    assert override_texts(nested) == texts
    assert log.replay(overrides=nested) == log.replay(overrides=texts)
    assert log.replay(overrides=texts[0]) == log.replay(overrides=texts[:1])


def test_values_of_overrides_are_spelled_as_toml_does():
    values = {
        "timeline.resync": True,
        "buffer": {"replay_policy": "fifo"},
        "tasks": {'a "b".c\u200b': {"group_size": np.int64(8), "over_sample_threshold": np.float64(0.5)}},
        "gate.rules": ["expired_groups <= 0", "trained_tokens >= 1"],
    }
    assert override_texts(values) == [
        "timeline.resync=true",
        'buffer.replay_policy="fifo"',
        r'tasks."a \"b\".c\U0000200b".group_size=8',
        r'tasks."a \"b\".c\U0000200b".over_sample_threshold=0.5',
        'gate.rules=["expired_groups <= 0", "trained_tokens >= 1"]',
    ]
    with pytest.raises(ConfigError) as caught:
        override_texts({"policy.max_staleness": None, "tasks": {"code": {"weight": object()}}})
    assert [problem.where for problem in caught.value.problems] == ["-s policy.max_staleness", "-s tasks.code.weight"]


def test_a_frame_of_steps_holds_metrics_and_rates(result: Result):
    frame = tokenaudit.steps_frame(result)
    rows = tokenaudit.rows_frame(result)
    assert frame.columns[: len(rows.columns) - 1] == rows.columns[1:]
    assert frame["train_step"].to_list() == [row["train_step"] for row in result.steps]
    rates = frame.columns[len(rows.columns) - 1 :]
    assert {"dropped_token_rate", "expired_group_rate", "trained_token_rate"} <= set(rates)
    assert "trainer_utilization" not in rates, "a replay has no clock"
    expected = frame["dropped_tokens"] / frame["produced_tokens"]
    assert frame["dropped_token_rate"].to_list() == pytest.approx(expected.to_list())


def test_a_frame_by_task_adds_up_to_that_of_steps(result: Result):
    by_task = tokenaudit.steps_frame(result, by_task=True)
    summed = by_task.group_by("train_step", maintain_order=True).agg(pl.col("trained_tokens").sum())
    assert summed["trained_tokens"].to_list() == tokenaudit.steps_frame(result)["trained_tokens"].to_list()
    code = by_task.filter(pl.col("task") == "code")
    assert (code["expired_group_rate"] == code["expired_groups"] / code["put_groups"]).all()


def test_a_rate_without_a_denominator_is_null(log: LoadedLog):
    taken = {"timeline.train_batch_size": 24, "tasks.code.weight": 0.0}
    frame = tokenaudit.steps_frame(log.replay(overrides=taken, timeline="simulated"), by_task=True)
    code = frame.filter(pl.col("task") == "code")
    assert code["tokens_per_trained_token"].null_count() == len(code)
    assert code["tokens_per_trained_token"].dtype == pl.Float64


def test_results_are_compared_and_judged(result: Result, log: LoadedLog, tmp_path: Path):
    worse = log.replay(config=WORSE)
    saved = tmp_path / "worse.json"
    saved.write_text(result_to_json(worse))
    comparison = tokenaudit.diff_results(result, saved, metrics=["dropped_tokens"], top=2)
    assert [change.figure.name for change in comparison.totals] == ["dropped_tokens"]
    assert comparison.totals[0].b == worse.totals["dropped_tokens"]
    assert len(comparison.largest) == 2
    assert not tokenaudit.diff_results(result, log.replay()).differs
    assert tokenaudit.gate_result(saved, ["expired_groups <= 1000000"]).exit_code() == 0
    assert tokenaudit.gate_result(worse, "dropped_tokens <= +0", baseline=result).exit_code() == 1
    assert tokenaudit.gate_result(result, baseline=result).exit_code() == 0


def test_groups_that_changed_fate_are_listed_where_ids_are_kept(log: LoadedLog):
    sides = [log.replay(config=path, with_groups=True) for path in (CONFIG, WORSE)]
    groups = tokenaudit.diff_results(*sides).groups
    assert groups is not None
    assert any(change.ids for change in groups.changes)


def test_the_groups_of_a_comparison_need_ids(result: Result):
    comparison = tokenaudit.diff_results(result, result)
    assert (comparison.groups, bool(comparison.groups_missing)) == (None, True)


def test_a_log_is_inspected_audited_and_simulated(tmp_path: Path):
    view = tokenaudit.inspect_log(SAMPLE, cache=tmp_path / "digests")
    assert set(view.tasks) == {"math", "code"}
    assert list((tmp_path / "digests").iterdir()), "a cache may be named as a folder"
    report = tokenaudit.audit_log(str(SAMPLE), rules=["G", "V001"], isolated=True)
    assert {run.rule.code[0] for run in report.runs} == {"G", "V"}
    run = tokenaudit.simulate_workload(SAMPLE, overrides={"tasks.code.max_staleness": 1}, steps=2, isolated=True)
    assert [row["train_step"] for row in run.result.steps] == [1, 2]
    assert "trainer_utilization" in tokenaudit.steps_frame(run).columns


def test_what_is_recorded_can_be_loaded(tmp_path: Path):
    with tokenaudit.Recorder(tmp_path / "log", {"timeline": {"train_batch_size": 1}}) as recorder:
        assert repr(recorder)
        recorder.put([RESPONSE], group_id=0, train_step=1, model_step=0)
        recorder.take(train_step=1, batch_size=1)
    assert tokenaudit.load_log(tmp_path / "log").replay().totals["produced_tokens"] == 5


def test_every_result_has_a_short_and_informative_repr(result: Result, log: LoadedLog):
    run = Run(result, log.settings)
    comparison = tokenaudit.diff_results(result, log.replay(config=WORSE))
    simulated = tokenaudit.simulate_workload(SAMPLE, steps=1, isolated=True)
    from tokenaudit.simulate.session import load_workload

    loaded = load_workload(SAMPLE)
    shown: list[tuple[object, tuple[str, ...]]] = [
        (result, ("rollouts.parquet", "30 steps", f"{result.totals['dropped_tokens']:,} dropped")),
        (run, ("Run(", "30 steps")),
        (simulated, ("Run(tokenaudit.simulate", "1 step")),
        (log, ("rollouts.parquet", f"{log.digest.rows:,} rows", "config from log metadata")),
        (log.log, ("rollouts.parquet", f"{log.log.rows:,} rows")),
        (log.digest, ("rollouts.parquet", f"{len(log.digest.events.kind):,} events")),
        (log.settings, ("log metadata",)),
        (loaded, ("LoadedWorkload(", "groups")),
        (loaded.workload, ("Workload(rollouts.parquet", f"{loaded.workload.tokens:,} tokens")),
        (comparison, ("A to B", "dropped_tokens", "settings")),
        (comparison.a, ("Side(A", "30 steps")),
        (tokenaudit.gate_result(result, ["expired_groups <= 0"]), ("1 failed", "expired_groups <= 0", "exit code 1")),
        (tokenaudit.audit_log(SAMPLE, isolated=True), ("rollouts.parquet", "0 error", "exit code 0")),
        (tokenaudit.correct_log(PROBABILITIES, isolated=True), ("16 steps, 13,098 tokens judged", "icepop 0.3 %", "…")),
        (tokenaudit.inspect_log(SAMPLE), ("rollouts.parquet", "rows", "recorded timeline")),
    ]  # fmt: skip
    for value, parts in shown:
        text = repr(value)
        assert len(text) <= LONGEST_REPR, text
        assert "\n" not in text
        for part in parts:
            assert part in text, text


def test_corrections_are_previewed_as_on_the_command_line(tmp_path: Path):
    file = tmp_path / "methods.toml"
    file.write_text('[[method]]\nname = "mine"\ntrainer = "trl"\n')
    report = tokenaudit.correct_log(
        PROBABILITIES,
        ["mine", "k3"],
        methods_file=file,
        dtype="float64",
        device="cpu",
        train_steps=(3, 4),
        tasks="math",
    )
    assert [(one.name, one.setting.split(":")[0], one.dtype) for one in report.methods] == [
        ("mine", "trl", "float64"),
        ("k3", "verl", "float64"),
    ]
    assert [step.train_step for step in report.methods[0].by_step] == [3, 4]
    (one,) = tokenaudit.correct_log(PROBABILITIES, "icepop", train_steps=3).methods
    assert [step.train_step for step in one.by_step] == [3]
    looser = tokenaudit.correct_log(PROBABILITIES, "icepop", overrides=["tasks.math.max_token_staleness=1"])
    assert looser.max_token_staleness == {"math": 1}


WRONG: list[tuple[str, Callable[[LoadedLog, Result], object], type[Exception], list[str]]] = [
    (
        "every wrong option is named at once",
        lambda log, _: log.replay(overide=1, isolated=0, timeline="reorded", overrides=1),  # type: ignore
        UsageError,
        ["there is no option 'overide'", "isolated is 0", "timeline is 'reorded'", "overrides is 1"],
    ),
    ("a switch", lambda log, _: log.replay(with_groups=1), UsageError, ["with_groups is 1"]),  # type: ignore[arg-type]
    ("a path", lambda log, _: log.replay(working_dir=3), UsageError, ["working_dir is 3"]),  # type: ignore[arg-type]
    ("a config", lambda log, _: log.replay(config=3), UsageError, ["config is 3"]),  # type: ignore[arg-type]
    ("a config file", lambda log, _: log.replay(config_path=3), UsageError, ["config_path is 3"]),  # type: ignore[arg-type]
    ("a count", lambda *_: tokenaudit.simulate_workload(SAMPLE, steps=0), UsageError, ["steps is 0"]),
    ("a cache", lambda *_: tokenaudit.load_log(SAMPLE, cache=3), UsageError, ["cache is 3"]),  # type: ignore[arg-type]
    ("a number", lambda _, result: tokenaudit.diff_results(result, result, top=-1), UsageError, ["top is -1"]),
    ("a switch for a number", lambda _, a: tokenaudit.diff_results(a, a, top=True), UsageError, ["top is True"]),
    ("progress", lambda log, _: log.replay(on_progress=3), UsageError, ["on_progress is 3"]),  # type: ignore[arg-type]
    ("no path", lambda *_: tokenaudit.load_log(None), UsageError, ["None is no path"]),  # type: ignore[arg-type]
    ("a list of no paths", lambda *_: tokenaudit.load_log([]), UsageError, ["no log is named"]),
    ("a method", lambda *_: tokenaudit.correct_log(SAMPLE, "verll"), UsageError, ["there is no method"]),
    ("a type", lambda *_: tokenaudit.correct_log(SAMPLE, dtype="half"), UsageError, ["dtype is 'half'"]),  # type: ignore[arg-type]
    (
        "another's option",
        lambda *_: tokenaudit.correct_log(SAMPLE, steps=1),
        UsageError,
        ["correct_log takes no option"],
    ),
    ("a number among paths", lambda *_: tokenaudit.load_log(["a", 3]), UsageError, ["3 is no path"]),  # type: ignore
    (
        "keys of overrides",
        lambda log, _: log.replay(overrides={"policy.max_stalenes": 1, "tasks": {"codes": {"wait": 1}}}),
        ConfigError,
        ['unknown key "max_stalenes"', 'unknown key "wait"'],
    ),
    (
        "a task that isn't there",
        lambda log, _: log.replay(overrides={"tasks.cod.weight": 2}),
        ConfigError,
        ["-s tasks.cod: there is no task 'cod'"],
    ),
    ("no result", lambda _, result: tokenaudit.diff_results(result, 3), UsageError, ["3 is no result"]),  # type: ignore
    (
        "unknown metrics",
        lambda _, result: tokenaudit.diff_results(result, result, metrics=["nope", "dropped_token"]),
        UsageError,
        ["nope", "dropped_token"],
    ),
    ("nothing to judge", lambda _, result: tokenaudit.gate_result(result), RuleError, ["there is nothing to judge"]),
    (
        "rules",
        lambda _, result: tokenaudit.gate_result(result, ["nope < 3", "dropped_token_rate <="]),
        RuleError,
        ["unknown metric 'nope'", "expected a number"],
    ),
    ("no rule", lambda _, result: tokenaudit.gate_result(result, [3]), RuleError, ["3 is no rule"]),  # type: ignore
    ("no audit rule", lambda *_: tokenaudit.audit_log(SAMPLE, rules=["Z9"]), UsageError, ["no audit rule"]),
    ("a frame of nothing", lambda *_: tokenaudit.steps_frame(3), UsageError, ["3 is no result"]),  # type: ignore
    ("no saved result", lambda *_: tokenaudit.load_result(SAMPLE), ResultError, ["can't read the saved result"]),
]


@pytest.mark.parametrize(("call", "error", "parts"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_argument_is_refused_with_every_problem(
    call: Callable[[LoadedLog, Result], object],
    error: type[Exception],
    parts: list[str],
    log: LoadedLog,
    result: Result,
):
    with pytest.raises(error) as caught:
        call(log, result)
    assert isinstance(caught.value, tokenaudit.TokenauditError)
    problems = caught.value.problems
    assert len(problems) == len(parts)
    for problem, part in zip(problems, parts, strict=True):
        assert part in problem.what


def test_results_of_different_logs_are_compared_on_demand(result: Result, tmp_path: Path):
    with tokenaudit.Recorder(tmp_path / "log") as recorder:
        recorder.put([RESPONSE], group_id=0, train_step=1, model_step=0)
        recorder.take(train_step=1, batch_size=1)
    other = tokenaudit.replay_log(tmp_path / "log", isolated=True)
    with pytest.raises(UsageError, match="different logs"):
        tokenaudit.diff_results(result, other)
    with pytest.raises(ResultError, match="another log"):
        tokenaudit.gate_result(other, baseline=result)
    assert tokenaudit.diff_results(result, other, allow_different_log=True).differs
    assert tokenaudit.gate_result(other, baseline=result, allow_different_log=True).verdicts


def test_an_uncaught_error_prints_what_where_and_hint_of_the_first_problems():
    problems = [Problem(f"key {number} is \x1b[31m", f"config: {number}", "leave it out") for number in range(7)]
    error = ConfigError(problems)
    lines = str(error).split("\n")
    assert lines[:4] == [r"key 0 is \x1b[31m", "  at: config: 0", "  hint: leave it out", r"key 1 is \x1b[31m"]
    assert lines[-3:] == ["  at: config: 6", "  hint: leave it out", "and 2 more problems"]
    assert str(ConfigError(problems[:6])).endswith("\nand 1 more problem")
    assert str(UsageError(Problem("a"))) == "a"
    assert error.summary.count("; ") == 6
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.problems) == (ConfigError, error.problems)


UNUSABLE: dict[str, Callable[..., object]] = {
    "replay_log": lambda _, **options: tokenaudit.replay_log(SAMPLE, **options),
    "LoadedLog.replay": lambda log, **options: log.replay(**options),
    "inspect_log": lambda _, **options: tokenaudit.inspect_log(SAMPLE, **options),
    "audit_log": lambda _, **options: tokenaudit.audit_log(SAMPLE, **options),
    "correct_log": lambda _, **options: tokenaudit.correct_log(PROBABILITIES, **options),
    "explain_log": lambda _, **options: tokenaudit.explain_log(SAMPLE, **options),
    "gate_log": lambda _, **options: tokenaudit.gate_log(SAMPLE, **options),
    "gate_log(simulate=True)": lambda _, **options: tokenaudit.gate_log(SAMPLE, **options | {"simulate": True}),
    "simulate_workload": lambda _, **options: tokenaudit.simulate_workload(SAMPLE, **options),
}


@pytest.mark.parametrize("function", TAKEN_BY)
def test_an_option_that_would_change_nothing_is_refused(function: str, log: LoadedLog):
    values = {"steps": 3, "simulate": True, "prompt_order": "group-id", "timeline": "recorded", "cache": "c",
              "quarantine": True, "max_concurrency": 2, "token_time_us": 1, "with_groups": True}  # fmt: skip
    of_its_own = {"simulate"} if function.startswith("gate_log") else set[str]()
    for name in values.keys() - of_its_own - set(TAKEN_BY[function]):
        with pytest.raises(UsageError) as caught:
            UNUSABLE[function](log, **{name: values[name]})
        assert caught.value.problems == (
            Problem(f"{function} takes no option {name!r}", None, f"options: {', '.join(TAKEN_BY[function])}"),
        )
    assert "simulate" not in TAKEN_BY[function], "which function is called says that"


def test_a_keyword_that_a_function_does_not_take_is_a_type_error_everywhere(log: LoadedLog, result: Result):
    calls: list[Callable[..., object]] = [
        *(lambda function=function, **options: UNUSABLE[function](log, **options) for function in UNUSABLE),
        lambda **options: tokenaudit.load_log(SAMPLE, **options),
        lambda **options: tokenaudit.diff_results(result, result, **options),
        lambda **options: tokenaudit.gate_result(result, **options),
        lambda **options: tokenaudit.steps_frame(result, **options),
        lambda **options: tokenaudit.Recorder("nowhere", **options),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="tpo"):
            call(tpo=1)
    with pytest.raises(TokenauditError) as caught:
        tokenaudit.audit_log(SAMPLE, rule=["V"])  # type: ignore[call-arg]
    assert caught.value.problems[0].hint == "did you mean 'rules'?"


def test_signatures_are_short_enough_to_read():
    for name in tokenaudit.__all__:
        value = getattr(tokenaudit, name)
        if callable(value):
            assert len(str(inspect.signature(value))) < 500, name


def test_one_of_a_thing_is_no_plural(tmp_path: Path):
    with tokenaudit.Recorder(tmp_path / "log") as recorder:
        recorder.put([RESPONSE], group_id=0, train_step=1, model_step=0)
        recorder.take(train_step=1, batch_size=1)
    assert ": 1 step, 5 tokens produced, " in repr(tokenaudit.load_log(tmp_path / "log").replay())
    view = repr(tokenaudit.inspect_log(tmp_path / "log"))
    assert ": 2 rows, 1 group, 5 tokens, tasks: 1, " in view
