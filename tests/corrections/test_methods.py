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
