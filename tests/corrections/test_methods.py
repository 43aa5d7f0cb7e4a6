"""What `--method` and files of methods mean, and how wrong ones are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenaudit.contracts.errors import UsageError
from tokenaudit.corrections.methods import WELL_KNOWN, methods_of
from tokenaudit.corrections.trainers import ALIASES, TRAINERS, correction_class
from tokenaudit.corrections.trainers.xtuner import Xtuner

BOTH = "rollout_is_threshold=[2.0, 0.5], rollout_is_mode=both"


def refused(specs: list[str], file: Path | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        methods_of(specs, file)
    return str(caught.value)


def test_a_preset_alone_has_the_trainers_defaults():
    (method,) = methods_of(["xtuner"])
    assert (method.name, method.dtype, method.correction) == ("xtuner", "float32", Xtuner())


@pytest.mark.parametrize("trainer", [*TRAINERS, *ALIASES])
def test_presets_take_dashes_and_underscores_alike(trainer: str):
    (dashed,), (underscored,) = methods_of([trainer]), methods_of([trainer.replace("-", "_")])
    assert dashed.correction == underscored.correction == correction_class(trainer)()


def test_options_follow_a_colon_and_lists_may_hold_commas():
    (method,) = methods_of([f"xtuner: {BOTH}, rollout-is-level = sequence"])
    assert method.correction == Xtuner(
        rollout_is_level="sequence", rollout_is_mode="both", rollout_is_threshold=(2.0, 0.5)
    )


def test_texts_with_commas_need_no_quotes():
    (method,) = methods_of(["verl: rollout_rs=token_k1,seq_mean_k2, rollout_rs_threshold=0.5_2.0,0.1"])
    (quoted,) = methods_of(['verl: rollout_rs="token_k1,seq_mean_k2", rollout_rs_threshold="0.5_2.0,0.1"'])
    assert method.correction == quoted.correction


def test_nested_options_are_dotted_or_tables():
    (dotted,) = methods_of(["areal: rejection_sampling.level=token, rejection_sampling.upper=3.0"])
    (table,) = methods_of(['areal: rejection_sampling={level="token", upper=3.0}'])
    assert dotted.correction == table.correction


def test_a_grouped_number_reads_as_yaml_reads_it_and_says_so():
    (method,) = methods_of(["verl: rollout_is=token, rollout_is_threshold=0.5_5"])
    assert method.correction.model_dump()["rollout_is_threshold"] == 0.55
    assert any("0.5_5 reads as 0.55" in note for note in method.notes)
    (quoted,) = methods_of(['verl: rollout_is=token, rollout_is_threshold="0.5_5"'])
    assert quoted.correction.model_dump()["rollout_is_threshold"] == "0.5_5"


def test_nothing_asked_for_is_one_well_known_setting_of_each_kind():
    found = methods_of([])
    assert [method.name for method in found] == list(WELL_KNOWN)
    assert len({method.correction for method in found if not method.correction.model_dump().get("filters")}) == len(
        found
    )


def test_all_faults_of_all_methods_come_at_once():
    said = refused(["verrl", "xtuner: rollout_is_treshold=2, rollout_is_mode=bot", "xtuner: level"])
    assert 'there is no method "verrl"' in said
    assert "did you mean 'verl'?" in said
    assert "did you mean 'rollout_is_threshold'?" in said
    assert 'rollout_is_mode is "bot"' in said
    assert '"level" is no KEY=VALUE' in said


def test_a_trainers_own_refusal_is_ours():
    assert "(upper, lower)" in refused(["xtuner: rollout_is_threshold=[0.5, 2.0]"])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("verl: rollout_is=token, rollout_is=sequence", '"rollout_is" is there twice'),
        ("areal: rejection_sampling=null, rejection_sampling.level=token", '"rejection_sampling.level" is there twice'),
        ("areal: rejection_sampling.level=token, rejection_sampling=null", '"rejection_sampling" is there twice'),
        ("trl: vllm_importance_sampling_clip_max=nan", "nan is no number"),
        ("trl: vllm_importance_sampling_clip_max='nan'", '"nan" is no number'),
        ("skyrl: geo_mask_high=true", "true is no number"),
        ("roll: filters=[{enabled=true}, {enabled=true, diff_low=nan}]", "nan is no number"),
        ("xtuner: rollout_is_threshold=[2.0, true]", "true is no number"),
        ("verl: rollout_is=token, rollout_is_threshold=nan_2", "nan is no bound"),
        ("xtuner: rollout_is_threshold=2.0", "a list is wanted"),
        ("areal: rejection_sampling=ratio", "a table is wanted"),
    ],
)
def test_what_is_no_setting_is_refused(spec: str, said: str):
    assert said in refused([spec])


def test_long_values_are_cut_in_messages():
    assert len(refused([f"verl: rollout_is=token, rollout_is_threshold={'x' * 100_000}"])) < 1000


def test_tables_may_be_json_and_flags_as_on_the_trainers_command_line():
    (toml,) = methods_of(["roll: filters=[{enabled=true, ratio_low=0.5}]"])
    (as_json,) = methods_of(['roll: filters=[{"enabled": true, "ratio_low": 0.5}]'])
    assert toml.correction == as_json.correction
    (flag,) = methods_of(["openrlhf: is_correction_enable=true, is_correction_threshold=0.25 4"])
    assert flag.correction.model_dump()["is_correction_threshold"] == (0.25, 4.0)


def test_a_name_is_one_printable_line():
    assert [
        method.name for method in methods_of([" trl:\n  vllm_importance_sampling_mode=token_mask ", "trl:", "trl: "])
    ] == [
        "trl: vllm_importance_sampling_mode=token_mask",
        "trl:",
    ]


@pytest.mark.parametrize(
    ("spec", "note"),
    [
        ("verl: rollout_is_threshold=3.0", "rollout_is_threshold does nothing"),
        ("xtuner: rollout_is_threshold=[2, 0.5], rollout_is_mask_threshold=[2, 0.5]", "mask_threshold does nothing"),
        ("slime: use_tis=false", "use_tis: false leaves no weight"),
        ("slime: tis_clip=1, tis_clip_low=2", "tis_clip_low is above tis_clip"),
        ("skyrl: sequence_mask_metric=geometric, geo_mask_low=3", "geo_mask_low is above geo_mask_high"),
        ("skyrl: token_mask_is_threshold_low=2, token_mask_is_threshold_high=1", "nothing is kept"),
        ("openrlhf: is_correction_enable=true, is_correction_threshold=[5, 0.5]", "above the upper one"),
    ],
)
def test_what_the_trainer_silently_does_is_noted(spec: str, note: str):
    (method,) = methods_of([spec])
    assert any(note in one for one in method.notes), method.notes


def test_null_can_be_written_in_toml(tmp_path: Path):
    file = tmp_path / "methods.toml"
    file.write_text("[[method]]\ntrainer = 'roll'\noptions = {is_weight = {enabled = true, upper_bound = 'null'}}\n")
    (method,) = methods_of([], file)
    assert method.correction.model_dump()["is_weight"]["upper_bound"] is None


TOML = """
[[method]]
name = "strict"
trainer = "xtuner"
dtype = "float64"
[method.options]
rollout_is_threshold = [2.0, 0.5]

[[method]]
trainer = "xtuner"
"""


def test_a_file_lists_methods_by_name(tmp_path: Path):
    toml, as_json = tmp_path / "methods.toml", tmp_path / "methods.json"
    toml.write_text(TOML)
    options = {"rollout_is_threshold": [2.0, 0.5]}
    listed = [{"name": "strict", "trainer": "xtuner", "dtype": "float64", "options": options}, {"trainer": "xtuner"}]
    as_json.write_text(json.dumps({"method": listed}))
    assert [(method.name, method.dtype) for method in methods_of([], toml)] == [
        ("strict", "float64"),
        ("xtuner", "float32"),
    ]
    assert methods_of([], as_json) == methods_of([], toml)
    assert [method.name for method in methods_of(["strict", "verl"], toml)] == ["strict", "verl"]
    assert methods_of(["strict"], toml, "float32")[0].dtype == "float32"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are no methods"),
        ("method = 3", "there are no methods"),
        ("{", "not JSON"),
        ("[[method]]\nname = 'a'", "trainer"),
        ("[[method]]\ntrainer = 'xtuner'\noption = {}", "did you mean 'options'?"),
        ("[[method]]\ntrainer = 'xtuner'\ndtype = 'bf16'", "'float32' or 'float64'"),
        ("[[method]]\ntrainer = 'xtuner'\n[[method]]\ntrainer = 'xtuner'", "is there twice"),
        ("[[method]]\ntrainer = 'xtuner'\noptions = {rollout_is_mode = 1}", "method 1: rollout_is_mode"),
        ("[[method]]\ntrainer = 'xtuner'\nname = \"a\\nb\"", "can't stand in a table"),
        ("[[method]]\ntrainer = 'xtuner'\nname = '" + "x" * 301 + "'", "can't stand in a table"),
        ("[[method]]\ntrainer = 'trl'\nname = '\u202e'", "can't stand in a table"),
        ('{"method": [1, {}]}', "method 1"),
        ('{"method": [1, {}]}', "trainer is missing"),
        ('{"method": [{"trainer": "trl", "trainer": "verl"}]}', '"trainer" is there twice'),
        ('{"method": ' + "[" * 100_000, "not JSON"),
        ('{"method": [' + ",".join(["{}"] * 301) + "]}", "301 methods"),
    ],
)
def test_a_wrong_file_is_refused_with_what_to_do(tmp_path: Path, text: str, said: str):
    file = tmp_path / "methods.toml"
    file.write_text(text)
    assert said in refused([], file)


def test_a_file_that_is_not_there(tmp_path: Path):
    assert "can't read the methods" in refused([], tmp_path / "none.toml")


@pytest.mark.parametrize(
    "spec",
    [
        *WELL_KNOWN.values(),
        "areal: rejection_sampling.level=token, rejection_sampling.upper=3.0",
        "areal: rejection_sampling={}",
        'roll: filters=[{enabled=true, agg_type="sequence"}], is_weight={enabled=true}',
        "xtuner: rollout_is_threshold=[2.0,0.5]",
        "verl: rollout_rs=token_k1,seq_mean_k2, rollout_rs_threshold=0.5_2.0,0.1",
        "trl: vllm_importance_sampling_clip_min=null",
    ],
)
def test_a_setting_is_a_method_again(spec: str):
    (method,) = methods_of([spec])
    (again,) = methods_of([method.setting])
    assert again.correction == method.correction
    assert again.setting == method.setting


def test_a_forgotten_colon_is_named():
    assert "write 'verl: rollout_is=token'" in refused(["verl rollout_is=token"])
