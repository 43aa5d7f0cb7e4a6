"""`tokenaudit corrections`, and corrections in `mask` and `gate`."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from tests.builders import numbered, put, read_rows, refresh, take, write_log
from tests.conftest import ROOT, Ran

Run = Callable[..., Ran]
SAMPLE = ROOT / "sample_data" / "probabilities.parquet"
ICEPOP = "slime: function=icepop, tis_clip=2.0, tis_clip_low=0.5"


def reported(ran: Ran) -> Any:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_without_a_method_it_shows_one_of_each_kind_and_the_next_command(run_cli: Run):
    ran = run_cli("corrections", SAMPLE)
    assert ran.code == 0
    for name in ("tis", "icepop", "geometric-mask", "dppo", "m2po", "opsm"):
        assert f"\n{name} " in ran.out
    assert "of them are younger than your limit of 3" in ran.out
    assert f"tokenaudit mask {SAMPLE} --correction" in ran.out.splitlines()[-1]


def test_json_csv_and_parquet_say_the_same(run_cli: Run, tmp_path: Path):
    names = [tmp_path / f"found.{suffix}" for suffix in ("json", "csv", "parquet", "jsonl", "md")]
    options = [part for name in names for part in ("-o", name)]
    found = reported(run_cli("corrections", SAMPLE, "-m", ICEPOP, "-m", "k3", "--format", "json", *options))
    assert found == json.loads(names[0].read_text())
    csv, parquet = pl.read_csv(names[1], infer_schema_length=None), pl.read_parquet(names[2])
    lines = [json.loads(line) for line in names[3].read_text().splitlines()]
    assert len(csv) == len(parquet) == len(lines)
    for method in found["methods"]:
        own = parquet.filter(pl.col("method") == method["name"])
        for part in ("step", "age", "task", "position", "sign"):
            assert own.filter(pl.col("part") == part)["dropped"].sum() == method["totals"]["dropped"]
        assert method["totals"]["kept"] + method["totals"]["dropped"] == method["totals"]["in_loss"] == found["in_loss"]
        ages = {int(key): dropped for key, dropped in own.filter(pl.col("part") == "age")["key", "dropped"].iter_rows()}
        assert ages == {age["staleness"]: age["dropped"] for age in method["by_age"]}


def test_a_method_of_a_file_and_steps_and_tasks(run_cli: Run, tmp_path: Path):
    file = tmp_path / "methods.toml"
    file.write_text('[[method]]\nname = "mine"\ntrainer = "trl"\ndtype = "float64"\n')
    found = reported(
        run_cli("corrections", SAMPLE, "--methods", file, "--step", "3..4", "--task", "math", "--format", "json")
    )
    (method,) = found["methods"]
    assert (method["name"], method["trainer"], method["dtype"], found["steps"]) == ("mine", "trl", "float64", 2)
    assert [step["train_step"] for step in method["by_step"]] == [3, 4]


def test_settings_are_shown_under_short_names_and_the_next_command_runs(run_cli: Run, tmp_path: Path):
    file = tmp_path / "methods.toml"
    file.write_text('[[method]]\nname = "mine"\ntrainer = "trl"\n')
    given = (
        "--methods",
        file,
        "--step",
        "3..4",
        "-s",
        "policy.max_staleness=9",
        "-m",
        "mine",
        "-m",
        ICEPOP,
        "-m",
        "slime",
    )
    ran = run_cli("corrections", SAMPLE, *given)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert [line.split(" drops ")[0] for line in lines[1:4]] == ["mine", "slime #2", "slime"]
    assert "slime #2  slime: function=icepop, tis_clip=2.0, tis_clip_low=0.5" in lines
    assert "mine      trl" in lines
    out = tmp_path / "masks.parquet"
    masks = run_cli(*shlex.split(lines[-1].replace("masks.parquet", str(out)))[1:])
    assert masks.code == 0, masks.err
    assert pl.read_parquet(out)["train_step"].unique().to_list() == [3, 4]


def test_a_note_that_several_methods_share_stands_once(run_cli: Run):
    notes = [line for line in run_cli("corrections", SAMPLE).out.splitlines() if line.startswith("note: ")]
    assert len(notes) == len(set(notes))
    assert any(line.startswith("note: mis, m2po: computed over the whole batch") for line in notes)
    assert any(line.startswith("note: the log has no `advantage`; its sign is that of the reward") for line in notes)


@pytest.mark.parametrize(("interval", "fresh"), [(1, 1 + 3 + 4 + 4), (2, 2 + 4 + 4 + 4)])
def test_each_task_has_the_limit_of_its_own(run_cli: Run, tmp_path: Path, interval: int, fresh: int):
    lists = {"logprobs": [-5.0] * 4, "train_logprobs": [-1.0] * 4, "response_model_steps": [3, 2, 1, 0]}
    rows = [
        put(group_id=group, rollout_id=group, train_step=4, tokens=4, task_name=task, agentic=agentic, **lists)
        for group, (task, agentic) in enumerate([("a", False), ("b", False), ("c", False), ("a", True)])
    ]
    log = write_log(tmp_path / "log.parquet", numbered(rows))
    limits = ("tasks.a.max_token_staleness=0", "tasks.b.max_token_staleness=2", "tasks.c.max_token_staleness=off")
    settings = [part for text in (*limits, f"timeline.sync_weights_interval={interval}") for part in ("-s", text)]
    ran = run_cli("corrections", log, "-m", "icepop", "--isolated", *settings, "-o", tmp_path / "found.json")
    (method,) = json.loads((tmp_path / "found.json").read_text())["methods"]
    assert (method["totals"]["dropped"], method["dropped_fresh"]) == (16, fresh)
    said = f"{100 * fresh / 16:.1f} % of them are younger than your limits (a 0, b 2)"
    assert said in ran.out.splitlines()[1]


def test_presets_that_do_nothing_say_that_it_is_their_default(run_cli: Run):
    lines = run_cli("corrections", SAMPLE, "-m", "verl", "-m", "nemo-rl").out.splitlines()
    assert lines[1] == "verl drops nothing and weighs nothing with its defaults"
    assert lines[2] == "nemo-rl drops nothing, and all weights are 1 with its defaults"
    assert lines[-1] == "  tokenaudit help corrections"


def test_a_log_without_the_columns_is_not_judged(run_cli: Run):
    ran = run_cli("corrections", ROOT / "sample_data" / "rollouts.parquet", "-m", "trl")
    assert ran.code == 2
    assert "not run: trl: the log has no logprobs and no train_logprobs" in ran.out
    ran = run_cli("mask", ROOT / "sample_data" / "rollouts.parquet", "--correction", "trl", "-o", "masks.parquet")
    assert ran.code == 2
    assert "the log has no logprobs and no train_logprobs" in ran.err
    assert not Path("masks.parquet").exists()


def test_all_misspelt_methods_are_named_at_once(run_cli: Run):
    ran = run_cli("corrections", SAMPLE, "-m", "verrl", "-m", "trl: vllm_importance_sampling_mod=token_mask")
    assert ran.code == 2
    assert "did you mean 'verl'?" in ran.err
    assert "did you mean 'vllm_importance_sampling_mode'?" in ran.err


def test_masks_hold_what_a_correction_keeps(run_cli: Run, tmp_path: Path):
    plain, corrected = tmp_path / "plain.parquet", tmp_path / "corrected.parquet"
    assert run_cli("mask", SAMPLE, "-o", plain).code == 0
    ran = run_cli("mask", SAMPLE, "-o", corrected, "--correction", ICEPOP, "--weights")
    assert ran.code == 0
    found = reported(run_cli("corrections", SAMPLE, "-m", ICEPOP, "--format", "json"))["methods"][0]
    recorded = {(row["rollout_id"], row["train_step"]): row for row in read_rows(SAMPLE) if row["event"] == "put"}
    assert recorded
    before, after = pl.read_parquet(plain).rows(named=True), pl.read_parquet(corrected).rows(named=True)
    dropped = 0
    for one, other in zip(before, after, strict=True):
        assert one["masked_stale_tokens"] == other["masked_stale_tokens"]
        assert one["trained_tokens"] == other["trained_tokens"] + other["masked_correction_tokens"]
        assert sum(other["effective_mask"]) == other["trained_tokens"]
        inside = [0.5 <= weight <= 2.0 for weight in other["weights"]]
        assert other["effective_mask"] == [mask * ok for mask, ok in zip(one["effective_mask"], inside, strict=True)]
        assert all(weight == 0 for weight, ok in zip(other["weights"], inside, strict=True) if not ok)
        dropped += inside.count(False)
    assert dropped == found["totals"]["dropped"] > 0
    assert f"{sum(row['masked_correction_tokens'] for row in after)} dropped by the correction" in ran.out
    assert pq.read_schema(corrected).metadata[b"tokenaudit.correction"] == ICEPOP.encode()
    stale = sum(row["masked_stale_tokens"] for row in before)
    steps = {row["train_step"]: row["loss_tokens"] for row in after}
    assert sum(steps.values()) == found["divisor"] - stale


def rows(values: list[tuple[float, float]]) -> list[dict[str, Any]]:
    return [
        put(
            group_id=0,
            rollout_id=number,
            tokens=2,
            response_model_steps=[0, 0],
            logprobs=[-1.0, old],
            train_logprobs=[-1.0, new],
        )
        for number, (old, new) in enumerate(values)
    ]


def test_masks_of_a_log_without_takes_hold_all_that_was_completed(run_cli: Run, tmp_path: Path):
    log = write_log(tmp_path / "log.parquet", numbered(rows([(-1.0, -1.0), (-3.0, -1.0), (-9999.0, -1.0)])))
    ran = run_cli("mask", log, "-o", tmp_path / "m.parquet", "--correction", ICEPOP, "--weights", "--isolated")
    assert ran.code == 0
    found = pl.read_parquet(tmp_path / "m.parquet")
    assert found["effective_mask"].to_list() == [[1, 1], [1, 0], [1, 1]]
    assert found["weights"].to_list() == [[1.0, 1.0], [1.0, 0.0], [1.0, None]]
    assert found["taken"].to_list() == [False] * 3
    assert "1 token in the loss can't be judged" in ran.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--weights",), "--weights is for --correction"),
        (("--methods", "none.toml"), "--methods is for --correction"),
        (("--correction", "trl", "--include-untaken", "3"), "exclude each other"),
        (("--correction", "trl", "--methods", "none.toml"), "can't read the methods"),
        (("--correction", "nothing"), "there is no method"),
    ],
)
def test_masks_refuse_what_makes_no_sense(run_cli: Run, options: tuple[str, ...], said: str):
    ran = run_cli("mask", SAMPLE, "-o", "masks.parquet", *options)
    assert ran.code == 2
    assert said in ran.err
    assert not Path("masks.parquet").exists()


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("correction_dropped_token_rate{method=icepop} <= 0.3%", 0),
        ("correction_dropped_token_rate{method=icepop} <= 0.2%", 1),
        ('correction_dropped_tokens{method="trl: vllm_importance_sampling_mode=token_mask"} <= 5', 0),
        ("correction_dropped_response_rate{method=geometric-mask,task=math} <= 10%", 1),
        ("correction_dropped_tokens{method=icepop,step} <= 5", 0),
    ],
)
def test_a_gate_judges_a_method(run_cli: Run, rule: str, code: int):
    ran = run_cli("gate", SAMPLE, "--rule", rule)
    assert ran.code == code, ran.out + ran.err


def test_a_gate_with_a_baseline_and_a_file_of_methods(run_cli: Run, tmp_path: Path):
    file = tmp_path / "methods.json"
    file.write_text(json.dumps({"method": [{"name": "mine", "trainer": "prime-rl", "options": {"type": "ipo"}}]}))
    rule = ("--rule", "correction_dropped_token_rate{method=mine} <= +1%", "--methods", file)
    assert run_cli("gate", SAMPLE, *rule, "--write-baseline", tmp_path / "base.json").code == 0
    assert run_cli("gate", SAMPLE, *rule, "--baseline", tmp_path / "base.json").code == 0
    saved = run_cli("gate", tmp_path / "base.json", *rule[:2], "--baseline", tmp_path / "base.json")
    assert saved.code == 0, saved.out
    assert run_cli("gate", SAMPLE, *rule[:2]).code == 2


def test_a_gate_on_a_log_without_probabilities_could_not_judge(run_cli: Run):
    log = ROOT / "sample_data" / "rollouts.parquet"
    ran = run_cli("gate", log, "--rule", "correction_dropped_token_rate{method=trl} <= 5%")
    assert ran.code == 2
    assert "the log has no logprobs" in ran.out


def test_hostile_names_are_escaped(run_cli: Run, tmp_path: Path):
    name = "=cmd()\x1b[31m|<b>"
    events = [
        refresh(),
        *[row | {"task_name": name} for row in rows([(-1.0, -1.0), (-3.0, -1.0)])],
        take(task_name=name),
    ]
    log = write_log(tmp_path / "log.parquet", numbered(events))
    for kind in ("table", "csv", "markdown"):
        ran = run_cli("corrections", log, "--format", kind, "-m", ICEPOP, "--isolated")
        assert ran.code == 0, ran.err
        assert "\x1b" not in ran.out


def test_figures_that_are_no_numbers_are_texts_in_json(run_cli: Run, tmp_path: Path):
    log = write_log(tmp_path / "log.parquet", numbered(rows([(-1.0, -1.0), (-500.0, -1.0)])))
    asked = ("-m", "verl: rollout_is=token, rollout_is_threshold=inf", "--isolated")
    (method,) = reported(run_cli("corrections", log, *asked, "--format", "json"))["methods"]
    assert method["metrics"]["rollout_corr/k3_kl"] == "inf"
    assert method["options"]["rollout_is_threshold"] == "inf"
    ran = run_cli("corrections", log, *asked, "--format", "jsonl")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert {line["key"]: line["value"] for line in lines}["rollout_corr/k3_kl"] == "inf"


def test_masks_that_nothing_can_be_judged_of_are_not_written(run_cli: Run, tmp_path: Path):
    events = [row | {"response_mask": [0, 1]} for row in rows([(-9999.0, -1.0), (-1.0, 1e30), (math.nan, -1.0)])]
    log = write_log(tmp_path / "log.parquet", numbered(events))
    ran = run_cli("mask", log, "-o", "m.parquet", "--correction", ICEPOP, "--isolated")
    assert ran.code == 2
    assert "can judge none of the 3 tokens in the loss" in ran.err
    assert run_cli("corrections", log, "-m", ICEPOP, "--isolated").code == 2
    ran = run_cli("mask", log, "-o", "m.parquet", "--correction", ICEPOP, "--isolated", "--timeline", "recorded")
    assert "has no recorded timeline" in ran.err
    assert list(tmp_path.glob("m.parquet*")) == []


@pytest.mark.parametrize(("bad", "code"), [(0, 0), (1, 0), (2, 2)])
def test_a_gate_does_not_pass_what_mostly_cannot_be_judged(run_cli: Run, tmp_path: Path, bad: int, code: int):
    values = [(-9999.0, -9999.0)] * bad + [(-1.0, -1.0)] * (3 - bad)
    puts = [row | {"event_id": 1, "response_mask": [0, 1]} for row in rows(values)]
    log = write_log(tmp_path / "log.parquet", [refresh(0), *puts, take(2)])
    rules = ("--rule", f'correction_dropped_tokens{{method="{ICEPOP}"}} <= 0', "--isolated")
    ran = run_cli("gate", log, *rules)
    assert ran.code == code, ran.out
    assert (f"{bad} of 3 tokens in the loss can't be judged" in ran.err + ran.out) == (bad > 0)
    baseline = tmp_path / "base.json"
    assert run_cli("gate", log, *rules, "--write-baseline", baseline).code == code
    assert baseline.exists() == (code == 0)


def test_a_gate_refuses_methods_that_no_rule_names(run_cli: Run):
    ran = run_cli("gate", SAMPLE, "--rule", "expired_groups <= 1000", "--methods", "none.toml")
    assert ran.code == 2
    assert "--methods is for rules of methods" in ran.err
