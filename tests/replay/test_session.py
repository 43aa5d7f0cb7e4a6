"""From paths to a result: settings, notices and coverage."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.builders import put, refresh, sample, take, write_log
from tests.conftest import SAMPLE
from tokenaudit import audit_log, inspect_log, replay_log, rows_frame
from tokenaudit.contracts.errors import ConfigError, LogError, NoticeLevel
from tokenaudit.contracts.schema import COLUMN_BY_NAME, META_CONFIG, META_SCHEMA_VERSION, SYNONYMS
from tokenaudit.log.files import open_log
from tokenaudit.replay.notices import counterfactual_notices
from tokenaudit.replay.result import Coverage, Result


def replayed(tmp_path: Path, rows: list[dict], *overrides: str, **options: object) -> Result:
    path = write_log(tmp_path / "log.parquet", rows)
    return replay_log(path, overrides=overrides, isolated=True, **options).result  # type: ignore[arg-type]


def notices(result: Result) -> dict[str, str]:
    return {notice.code: notice.message for notice in result.warnings}


def with_metadata(path: Path, metadata: dict[str, str]) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_puts_of_another_size_than_group_size_are_told(tmp_path: Path):
    rows = [put(1, 1, 10), put(1, 1, 11), put(2, 2, 20), put(3, 3, 30), put(3, 3, 30), put(3, 3, 31), take(4)]
    result = replayed(tmp_path, rows, "tasks.default.group_size=2")
    assert notices(result)["group-size-differs"] == ("task default: 1 of 3 puts don't have 2 responses (group_size)")
    assert "group-size-differs" not in notices(replayed(tmp_path, [*rows[:2], take(4)], "tasks.default.group_size=2"))


def test_stamped_tokens_are_counted(tmp_path: Path):
    rows = [put(1, 1, train_step=4, tokens=5, model_step=None), take(2, 4)]
    with pytest.raises(LogError, match="0 versions for 5 tokens and no model_step"):
        replayed(tmp_path, rows)
    result = replayed(tmp_path, rows, "timeline.stamp_missing=true", "timeline.sync_weights_interval=2")
    assert result.coverage.stamped_tokens == 5
    assert notices(result)["stamped-missing"] == "5 tokens carry no version"
    # put at step 4 under a sync every 2 steps: version 2 was live
    assert result.steps[0]["seq_staleness_max"] == 1


def test_rewards_that_are_no_numbers_are_unscored(tmp_path: Path):
    rewards = [1.5, float("nan"), float("inf"), 1e305, None]
    rows = [put(1, 1, rollout, reward=reward) for rollout, reward in enumerate(rewards)]
    result = replayed(tmp_path, [*rows, take(2)])
    assert (result.totals["raw_rewards_sum"], result.totals["raw_rewards_count"]) == (1.5, 1)
    assert result.coverage.unscored_rewards == 3


def test_puts_outside_the_steps_of_a_simulated_timeline_are_left_out(tmp_path: Path):
    rows = [put(step, step, train_step=step, model_step=0) for step in (0, 1, 2, 3)]
    result = replayed(tmp_path, rows, "timeline.train_batch_size=1", "timeline.steps=2")
    assert result.coverage.left_out_puts == 2
    assert notices(result)["puts-left-out"] == "2 puts outside steps 1 to 2 are left out"
    assert [row["put_groups"] for row in result.steps] == [1, 1]


def test_a_timeline_without_takes_is_told(tmp_path: Path):
    assert notices(replayed(tmp_path, [refresh(1), put(2, 1)]))["no-steps"] == (
        "there is no step to report: the log records no take"
    )


def test_the_config_in_the_metadata_is_the_base_and_its_interval_is_compared(tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1), take(2)])
    recorded = {"timeline": {"sync_weights_interval": 4}, "policy": {"max_staleness": 2}}
    with_metadata(path, {META_CONFIG: json.dumps(recorded), META_SCHEMA_VERSION: "1"})
    assert replay_log(path, isolated=True).result.config["policy"]["max_staleness"] == 2
    changed = replay_log(path, overrides=["timeline.sync_weights_interval=2"], isolated=True).result
    assert "sync-interval-differs" in notices(changed)
    resynced = replay_log(
        path, overrides=["timeline.sync_weights_interval=2", "timeline.resync=true"], isolated=True
    ).result
    assert "sync-interval-differs" not in notices(resynced)


@pytest.mark.parametrize("broken", ["{", "[]", '{"policy": {"max_stalenes": 1}}', '{"policy": {"max_staleness": NaN}}'])
def test_a_broken_config_in_the_metadata_says_what_replaces_it(broken: str, tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1), take(2)])
    with_metadata(path, {META_CONFIG: broken})
    with pytest.raises(ConfigError) as raised:
        replay_log(path, isolated=True)
    assert any("metadata" in f"{problem.what} {problem.where}" for problem in raised.value.problems)
    assert any("-c" in str(problem.hint) for problem in raised.value.problems)
    (tmp_path / "good.toml").write_text('mode = "colocated"\n')
    assert replay_log(path, config_path=tmp_path / "good.toml").result.steps


def test_a_misspelled_optional_column_is_told(tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1, response_mask=[1, 0, 1, 1]), take(2)])
    table = pq.read_table(path)
    pq.write_table(
        table.rename_columns([name.replace("response_mask", "response_masks") for name in table.column_names]), path
    )
    result = replay_log(path, isolated=True).result
    assert notices(result)["log-note"] == "column 'response_masks' is not read; did you mean 'response_mask'?"


def renamed(path: Path, **names: str) -> Path:
    table = pq.read_table(path)
    pq.write_table(table.rename_columns([names.get(name, name) for name in table.column_names]), path)
    return path


OTHER_NAMES = {
    "response_mask": "loss_mask", "reward": "REWARD", "agentic": "is_agentic", "task_name": "data_source",
    "logprobs": "rollout-log-probs",
}  # fmt: skip


def test_columns_by_another_name_are_told_with_the_one_that_is_read(tmp_path: Path):
    row = put(1, 1, response_mask=[1, 0, 1, 1], reward=0.5, agentic=True, task_name="math", logprobs=[-0.5] * 4)
    path = renamed(write_log(tmp_path / "log.parquet", [row, take(2, task_name="math")]), **OTHER_NAMES)
    told = [notice.message for notice in replay_log(path, isolated=True).result.warnings if notice.code == "log-note"]
    expected = [f"column {other!r} is not read; did you mean {name!r}?" for name, other in OTHER_NAMES.items()]
    assert sorted(told) == sorted(expected)
    report = audit_log(path, isolated=True)
    assert sorted(report.log_notes) == sorted(expected)
    assert set(expected) <= set(inspect_log(path).notes)


def test_a_name_that_is_read_has_no_synonym(tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1, response_mask=[1, 0, 1, 1], prompt_len=3), take(2)])
    renamed(path, prompt_len="loss_mask")
    log = open_log([path])
    assert (log.notes, log.unread) == ((), ("loss_mask",))


def test_a_required_column_by_another_name_is_named(tmp_path: Path):
    path = renamed(write_log(tmp_path / "log.parquet", [put(1, 1), take(2)]), train_step="global_step")
    with pytest.raises(LogError) as caught:
        open_log([path])
    assert [problem.hint for problem in caught.value.problems] == [
        "nearest: 'global_step'; rename it if it holds the step the buffer compares versions with"
    ]


def test_synonyms_lead_to_columns_and_are_none(tmp_path: Path):
    assert set(SYNONYMS.values()) <= set(COLUMN_BY_NAME)
    assert not set(SYNONYMS) & set(COLUMN_BY_NAME)
    assert all(name == name.lower() and "-" not in name for name in SYNONYMS)


def test_columns_that_the_schema_does_not_know_change_no_result(tmp_path: Path, run_cli):
    plain = write_log(tmp_path / "log.parquet", [put(1, 1), take(2)])
    before = run_cli("replay", plain, "--format", "json")
    table = pq.read_table(plain)
    for number in range(25):
        table = table.append_column(f"mine\n{number}", table["event_id"])
    pq.write_table(table, plain)
    after = run_cli("replay", plain, "--format", "json")
    assert (after.code, after.out) == (before.code, before.out)
    named = ", ".join(f"mine\\n{number}" for number in range(20))
    note = f"note: columns not read, since the schema doesn't know them: {named} and 5 more"
    assert note in after.err
    assert note not in before.err
    assert note in run_cli("audit", plain, "--format", "table").out.replace("\n", " ").replace("  ", " ")
    assert len(json.loads(run_cli("audit", plain, "--format", "json").out)["log_notes"]) == 1
    assert "log_notes" not in run_cli("audit", SAMPLE, "--format", "json").out
    assert len(json.loads(run_cli("inspect", plain, "--format", "json").out)["notes"]) == 1


def test_files_of_one_log_may_differ_in_metadata_and_that_is_told(tmp_path: Path):
    for index, interval in enumerate((1, 2)):
        path = write_log(tmp_path / f"part-{index}.parquet", [put(2 * index, index), take(2 * index + 1)])
        with_metadata(path, {META_CONFIG: json.dumps({"timeline": {"sync_weights_interval": interval}})})
    result = replay_log(tmp_path, isolated=True).result
    assert result.config["timeline"]["sync_weights_interval"] == 1
    assert "part-1.parquet: tokenaudit.config differs" in notices(result)["log-note"]


def test_a_result_holds_no_path_and_no_clock(tmp_path: Path):
    first, second = tmp_path / "a", tmp_path / "b"
    results = []
    for folder in (first, second):
        folder.mkdir()
        path = write_log(folder / "log.parquet", [put(1, 1), take(2)])
        results.append(replay_log(str(path), isolated=True).result)
    assert results[0] == results[1]
    assert results[0].inputs[0].name == "log.parquet"


def test_progress_covers_reading_and_replaying(tmp_path: Path):
    told: list[tuple[str, int, int]] = []
    path = write_log(tmp_path / "log.parquet", [put(1, 1), put(2, 2), take(3)])
    replay_log(path, isolated=True, on_progress=lambda *step: told.append(step))
    assert ("reading log.parquet", 3, 3) in told
    assert told[-1][0] == "replaying"


def test_rows_frame_of_the_public_api(tmp_path: Path):
    frame = rows_frame(replayed(tmp_path, [put(1, 1), take(2)]), by_task=True)
    assert frame["task"].to_list() == ["default", "default"]


def test_overrides_that_change_nothing_are_told(tmp_path: Path):
    rows = [put(1, 1, task_name="math"), take(2, task_name="math")]
    result = replayed(
        tmp_path,
        rows,
        "tasks.math.max_staleness=2",
        "policy.max_staleness=1",
        "policy.tail_batch_trigger_size=3",
        "timeline.steps=9",
        "tasks.math.weight=3.0",
    )
    told = [notice.message for notice in result.warnings if notice.level is NoticeLevel.CAUTION]
    assert told == [
        "-s timeline.steps changes nothing: batch sizes and steps come from the recorded timeline",
        "-s tasks.math.weight changes nothing: batch sizes and steps come from the recorded timeline",
    ]
    assert result.config_source == "defaults, 5 values by -s"


def test_an_override_that_changes_nothing_for_some_tasks_names_each_of_them(tmp_path: Path):
    """`b` sets its own by -s too, so whoever wrote that knows; `d` is in no log."""
    names = ["a", "b", "c e", "f"]
    rows = [*(put(number, number, task_name=name) for number, name in enumerate(names)), take(9, task_name="f")]
    config = {"policy": {"max_staleness": 5}, "tasks": {name: {"max_staleness": 4} for name in ("a", "b", "c e", "d")}}
    path = write_log(tmp_path / "log.parquet", rows)
    options = {"config": config, "isolated": True}
    overrides = ["tasks.b.max_staleness=1", "policy.max_staleness=2", "policy.max_token_staleness=off"]
    result = replay_log(path, overrides=overrides, **options).result
    (notice,) = (notice for notice in result.warnings if notice.code == "no-effect")
    assert notice.message == "-s policy.max_staleness changes nothing for tasks a, c e, which set their own"
    assert notice.cost == "Use -s tasks.a.max_staleness=2 -s 'tasks.\"c e\".max_staleness=2'"
    again = replay_log(
        path, overrides=["tasks.a.max_staleness=2", 'tasks."c e".max_staleness=2', *overrides], **options
    )
    assert [notice for notice in again.result.warnings if notice.code == "no-effect"] == []


@pytest.mark.parametrize(("overrides", "share"), [(["tasks.code.max_token_staleness=2"], "9.6 %"), ([], "")])
def test_a_replay_that_rests_on_counterfactual_rules_leaves_it_to_a_simulation(overrides: list[str], share: str):
    result = replay_log(SAMPLE, isolated=True, overrides=overrides).result
    told = [notice.message for notice in result.warnings if notice.level is NoticeLevel.CAUTION]
    message = f"{share} of tokens rest on counterfactual rules, more than 5 %: a simulation decides this config"
    assert told == ([message] if share else [])


@pytest.mark.parametrize(("tokens", "of", "is_for_simulation"), [(0, 0, False), (5, 100, False), (51, 1000, True)])
def test_more_than_five_in_a_hundred_tokens_are_for_a_simulation(tokens: int, of: int, is_for_simulation: bool):
    coverage = Coverage(counterfactual_tokens=tokens, counterfactual_of_tokens=of)
    assert coverage.is_for_simulation == is_for_simulation
    assert len(counterfactual_notices(coverage)) == is_for_simulation


def test_tasks_that_do_not_meet_are_told(tmp_path: Path):
    rows = [put(1, 1, task_name="math"), take(2, task_name="code")]
    (tmp_path / "chat.toml").write_text("[tasks.chat]\nmax_staleness = 1\n")
    found = notices(replayed(tmp_path, rows, "tasks.chat.max_staleness=2", config_path=tmp_path / "chat.toml"))
    assert found["task-not-in-log"] == "task chat is in the config, but the log has no such task"
    assert found["task-without-put"] == "task code is sampled or taken, but never put"


def test_versions_from_the_future_are_told(tmp_path: Path):
    rows = [put(1, 1, train_step=1, model_step=1, tokens=5), put(2, 2, train_step=2, model_step=1, tokens=7), take(3)]
    found = notices(replayed(tmp_path, rows))
    assert found["versions-from-future"] == ("5 tokens have a version that the trainer had not made when they were put")
    assert "versions-from-future" not in notices(replayed(tmp_path, rows[1:]))


def test_a_group_split_over_events_is_told(tmp_path: Path):
    rows = [put(1, 1, 10), put(2, 1, 11), put(3, 2, 20), take(4)]
    assert notices(replayed(tmp_path, rows))["group-split"] == "1 puts follow a put of the same group at the same step"
    assert "group-split" not in notices(replayed(tmp_path, rows[1:]))


def test_continuations_that_nothing_tells_are_told(tmp_path: Path):
    again = {"status": "completed", "prior_len": None, "tokens": 9}
    rows = [put(1, 1, status="aborted", tokens=4), sample(2, 1), put(3, 1, **again), take(4)]
    assert notices(replayed(tmp_path, rows))["prior-len-unknown"].startswith("1 responses are put again")
    rows[2] = put(3, 1, **again, response_model_steps=[0, 0, 0, 0])
    assert "prior-len-unknown" not in notices(replayed(tmp_path, rows))


def test_puts_before_step_1_say_that_steps_begin_at_1(tmp_path: Path):
    rows = [put(step + 1, step, train_step=step, model_step=0) for step in (0, 1)]
    result = replayed(tmp_path, rows, "timeline.train_batch_size=1")
    notice = next(notice for notice in result.warnings if notice.code == "puts-left-out")
    assert notice.cost == "1 of them are before step 1, the first."
