"""`tokenaudit init`: a config for a log that replays as the log's own, one for a trainer; no file is written over."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import numbered, put, sync, take, write_log
from tests.conftest import SAMPLE, Ran
from tests.replay.test_golden import CASES, config_of, digest_of
from tokenaudit.config.commented import commented_toml
from tokenaudit.config.model import Config, Task, parse_config, resolved
from tokenaudit.replay.suggested_config import suggested_config


def written(path: str | Path) -> Config:
    return parse_config(tomllib.loads(Path(path).read_text()), "written")


def test_the_sample_replays_as_under_its_own_config(run_cli: Callable[..., Ran]):
    ran = run_cli("init", SAMPLE)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"tokenaudit.toml: a config of 2 tasks; next:\n  tokenaudit replay {SAMPLE} -c tokenaudit.toml\n"
    assert written("tokenaudit.toml") == config_of("sample")
    own = json.loads(run_cli("replay", SAMPLE, "--isolated", "--groups", "--format", "json").out)
    mine = json.loads(run_cli("replay", SAMPLE, "-c", "tokenaudit.toml", "--groups", "--format", "json").out)
    assert (own.pop("config_source"), mine.pop("config_source")) == ("log metadata", "tokenaudit.toml")
    assert own == mine
    lint = run_cli("lint", "tokenaudit.toml")
    assert lint.out.splitlines()[0].startswith("tail-batch-zero: task code: ")
    assert lint.out.endswith("tokenaudit.toml: 1 warning\n")


def test_a_log_of_puts_alone_says_what_a_replay_waits_for(run_cli: Callable[..., Ran], tmp_path: Path):
    log = write_log(tmp_path / "log.parquet", [put(1, 1), put(2, 2)])
    command = f"tokenaudit replay {log} -c tokenaudit.toml"
    ran = run_cli("init", log)
    about = "tokenaudit.toml: a config of 1 task; next: set timeline.train_batch_size in it, then"
    assert ran.out == f"{about}\n  {command}\n"
    text = Path("tokenaudit.toml").read_text()
    assert "# The log holds only puts, so a replay needs this.\n# train_batch_size = 24\n" in text
    assert run_cli(*command.split()[1:]).code == 2
    Path("tokenaudit.toml").write_text(text.replace("# train_batch_size", "train_batch_size"))
    assert run_cli(*command.split()[1:]).code == 0


@pytest.mark.parametrize("case", CASES)
def test_a_golden_log_keeps_its_config_and_group_sizes(case: str):
    """Their logs have no metadata: with its config in hand, the file is that config again."""
    found = suggested_config(digest_of(case), config_of(case), {})
    read = parse_config(tomllib.loads(commented_toml(found.config, (), found.remarks)), case)
    assert read == config_of(case)


@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("buffer_")])
def test_what_a_golden_log_shows_by_itself_is_true(case: str):
    config, own = suggested_config(digest_of(case), None, {}).config, config_of(case)
    recorded = {task: values for task, values in own.tasks.items() if task in digest_of(case).tasks}
    assert {task: values.group_size for task, values in config.tasks.items()} == {
        task: values.group_size for task, values in recorded.items()
    }
    if config.timeline.sync_weights_interval != 1:
        assert config.timeline.sync_weights_interval == own.timeline.sync_weights_interval
    assert config.timeline.train_batch_size in (own.timeline.train_batch_size, None)


def test_golden_logs_show_most_of_their_syncs_and_batches():
    cases = [name for name in CASES if not name.startswith("buffer_")]
    found = {name: suggested_config(digest_of(name), None, {}) for name in cases}
    syncs = [name for name, one in found.items() if "timeline.sync_weights_interval" in one.remarks]
    assert len(syncs) > 20
    assert any(config_of(name).timeline.sync_weights_interval > 1 for name in syncs)
    assert sum(one.config.timeline.train_batch_size is not None for one in found.values()) > 40


def log_with(path: Path, config: str | None = None) -> Path:
    rows = numbered(
        [
            put(group_id=1, rollout_id=10, task_name="m"),
            put(group_id=2, rollout_id=20, task_name="c d"),
            put(group_id=3, rollout_id=30, task_name="c d"),
            take(task_name="m", batch_size=1),
            take(task_name="c d", batch_size=2),
            sync(train_step=2),
            take(train_step=2, task_name="m", batch_size=1),
            take(train_step=2, task_name="c d", batch_size=2),
            sync(train_step=4, model_step=4),
        ]
    )
    rows.insert(2, put(event_id=rows[1]["event_id"], group_id=2, rollout_id=21, task_name="c d"))
    return write_log(path, rows, metadata=None if config is None else {"tokenaudit.config": config})


def test_a_log_without_a_config_shows_tasks_syncs_and_batches(run_cli: Callable[..., Ran]):
    assert run_cli("init", log_with(Path("log.parquet"))).code == 0
    text = Path("tokenaudit.toml").read_text()
    assert text.startswith("# For log.parquet: it holds no config of its own, so most values are defaults.\n")
    assert "# As the log's sync events say.\nsync_weights_interval = 2\n" in text
    assert "# Groups of this log have 1 to 2 responses.\n# group_size = 8\n" in text
    config = written("tokenaudit.toml")
    assert config.timeline.train_batch_size == 3
    assert config.tasks == {"m": Task(weight=1.0, group_size=1), "c d": Task(weight=2.0)}
    assert run_cli("lint", "tokenaudit.toml", "--exit-code").out == "tokenaudit.toml: 0 warnings\n"


def test_the_metadata_counts_before_what_the_events_show(run_cli: Callable[..., Ran]):
    own = {"timeline": {"sync_weights_interval": 3}, "tasks": {"gone": {"weight": 0.5}, "m": {"group_size": 4}}}
    assert run_cli("init", log_with(Path("log.parquet"), json.dumps(own)), "--for", "verl").code == 0
    config = written("tokenaudit.toml")
    assert config.timeline.sync_weights_interval == 3
    assert config.timeline.train_batch_size is None
    assert config.policy == Config().policy
    assert list(config.tasks) == ["gone", "m", "c d"]
    assert config.tasks["m"].group_size == 4
    assert "# verl: trainer.v1.sampler.max_off_policy_threshold" in Path("tokenaudit.toml").read_text()


def test_a_trainer_for_a_log_without_a_config(run_cli: Callable[..., Ran]):
    assert run_cli("init", log_with(Path("log.parquet")), "--for", "prime-rl", "-o", "p.toml").code == 0
    config = written("p.toml")
    assert (config.policy.max_staleness, config.timeline.sync_weights_interval) == (8, 2)
    assert list(config.tasks) == ["m", "c d"]


def test_a_trainer_alone(run_cli: Callable[..., Ran]):
    ran = run_cli("init", "--for", "xtuner")
    assert (ran.code, ran.out) == (0, "tokenaudit.toml: a config; next:\n  tokenaudit lint tokenaudit.toml\n")
    assert written("tokenaudit.toml").mode == "disaggregated"
    text = Path("tokenaudit.toml").read_text()
    assert "# XTuner: prompt_repeat_k of its SamplerConfig.\n# group_size = 8\n" in text


@pytest.mark.parametrize("there", ["file", "link"])
def test_no_file_is_written_over(there: str, run_cli: Callable[..., Ran], tmp_path: Path):
    path = tmp_path / "tokenaudit.toml"
    path.write_text("mine") if there == "file" else path.symlink_to("nowhere")
    ran = run_cli("init", "--for", "xtuner")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == ("error: the file is there already\n  at: tokenaudit.toml\n  hint: choose another name with -o\n")
    assert path.read_text() == "mine" if there == "file" else not path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to write a config for\n  hint: name a log, or --for xtuner"),
        (["--for", "slim"], "there is no trainer 'slim'\n  hint: did you mean 'slime'?"),
        (["--for", "xtuner", "-o", "a.json"], "extensions: .toml"),
        (["--for", "xtuner", "-o", "no/a.toml"], "-o names a folder that isn't there"),
        (["gone.parquet"], "there is no such file or folder"),
    ],
)
def test_what_can_not_be_written_is_2_and_leaves_nothing(
    arguments: list[str], message: str, run_cli: Callable[..., Ran], tmp_path: Path
):
    ran = run_cli("init", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert list(tmp_path.iterdir()) == []


def test_faulty_groups_are_left_out_and_a_broken_config_is_reported(run_cli: Callable[..., Ran]):
    rows = numbered([put(group_id=1), put(group_id=2, tokens=-1)])
    write_log(Path("faulty.parquet"), rows)
    ran = run_cli("init", "faulty.parquet", "-o", "a.toml")
    assert ran.code == 0
    assert ran.err.startswith("warning: 1 group with 0 new tokens left out because of structural faults\n")
    assert written("a.toml").tasks == {"default": Task(group_size=1)}
    ran = run_cli("init", log_with(Path("log.parquet"), '{"polcy": {}}'), "-o", "b.toml")
    assert ran.code == 2
    assert "unknown section [polcy]" in ran.err
    assert not Path("b.toml").exists()


def test_equal_logs_give_equal_bytes(run_cli: Callable[..., Ran]):
    for name in ("a.toml", "b.toml"):
        run_cli("init", SAMPLE, "-o", name)
    assert Path("a.toml").read_bytes() == Path("b.toml").read_bytes()
    assert resolved(written("a.toml")) == resolved(config_of("sample"))


@pytest.mark.parametrize(("setting", "code"), [("policy.max_staleness=0", 0), ("policy.max_staleness=2", 1)])
def test_lint_exits_with_1_for_warnings_where_asked(setting: str, code: int, run_cli: Callable[..., Ran]):
    Path("a.toml").write_text("")
    assert run_cli("lint", "a.toml", "-s", setting, "--exit-code").code == code
    assert run_cli("lint", "a.toml", "-s", setting).code == 0


def test_a_warning_that_is_meant_is_ignored_by_its_code(run_cli: Callable[..., Ran]):
    Path("a.toml").write_text(
        "[policy]\nmax_staleness = 2\nenable_partial_rollout = true\ntail_batch_trigger_size = 0\n"
    )
    lint = ("lint", "a.toml", "--exit-code", "--ignore", "tail-batch-zero")
    ran = run_cli(*lint)
    assert (ran.code, ran.out) == (0, "a.toml: 0 warnings, 1 ignored\n")
    ran = run_cli(*lint, "-s", "policy.enable_partial_rollout=false")
    assert (ran.code, ran.out.splitlines()[-1]) == (1, "a.toml: 1 warning, 1 ignored")
    assert run_cli(*lint, "-s", "policy.tail_batch_trigger_size=-1").out == "a.toml: 0 warnings\n"
    ran = run_cli("lint", "a.toml", "--ignore", "tail-batch-0", "--ignore", "x")
    assert (ran.code, ran.err.count("there is no such warning")) == (2, 2)
    assert "--ignore tail-batch-0: there is no such warning\n  hint: did you mean 'tail-batch-zero'?" in ran.err
