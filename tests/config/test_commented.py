"""A config as commented TOML: the same config again, every key once with its meaning, nothing that a name can break."""

from __future__ import annotations

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.test_config import FULL
from tokenaudit.config.commented import commented_toml
from tokenaudit.config.model import Buffer, Config, Cost, Gate, Policy, Section, Task, Timeline, parse_config, resolved
from tokenaudit.config.trainers import NO_LIMIT, TRAINERS, trainer_named
from tokenaudit.config.warnings import config_warnings
from tokenaudit.contracts.errors import UsageError
from tokenaudit.help.topics import TRAINERS as TRAINER_TOPICS

SECTIONS: dict[str, type[Section]] = {
    "timeline": Timeline,
    "buffer": Buffer,
    "policy": Policy,
    "gate": Gate,
    "cost": Cost,
}


def read(text: str) -> Config:
    return parse_config(tomllib.loads(text), "text")


def uncommented(text: str) -> str:
    """The text with its commented keys and sections in force."""
    return re.sub(r"^# (\[tasks\.NAME\]|\w+ = .*)$", r"\1", text, flags=re.MULTILINE)


def test_the_defaults_name_every_key_once_with_its_meaning():
    text = commented_toml(Config())
    assert read(text) == Config()
    flat = " ".join(text.replace("\n# ", " ").split())
    for name, section in SECTIONS.items():
        table = text.split(f"\n[{name}]\n")[1].split("\n\n")[0]
        for key, field in section.model_fields.items():
            assert len(re.findall(rf"^(?:# )?{key} = ", table, flags=re.MULTILINE)) == 1
            assert " ".join(str(field.description).split()) in flat
    assert text.startswith("# Rollout and training take turns on the same GPUs")
    assert '"staleness" or "fifo".' in flat


def test_keys_without_a_value_show_a_valid_one():
    text = uncommented(commented_toml(Config()))
    config = read(text)
    assert (config.timeline.train_batch_size, config.timeline.steps) == (24, 30)
    assert config.tasks == {"NAME": Task(group_size=8)}
    assert set(tomllib.loads(text)["timeline"]) == set(Timeline.model_fields)
    assert config.cost == Cost(rollout_gpus=64, train_gpus=32, usd_per_gpu_hour=2.5)


def test_a_full_config_is_the_same_config_again():
    config = read(FULL)
    assert read(commented_toml(config, ["One paragraph.", "Another."])) == config
    assert read(uncommented(commented_toml(config))) == config.model_copy(
        update={"tasks": config.tasks | {"a.b": config.tasks["a.b"].model_copy(update={"group_size": 8})}}
    )


def test_only_the_first_task_explains_its_keys():
    config = Config(tasks={"math": Task(weight=2.0), "code": Task(max_staleness=1)})
    text = commented_toml(config, remarks={"tasks.NAME.weight": "As XTuner.", "tasks.code.group_size": "4 to 8."})
    assert text.count("Share of the batch") == text.count("# As XTuner.\n") == text.count("# 4 to 8.\n") == 1
    assert text.index("As XTuner") < text.index("[tasks.code]") < text.index("4 to 8")


@given(st.text(), st.text(), st.text(min_size=1))
def test_no_name_breaks_the_file(task: str, words: str, rule: str):
    config = Config(tasks={task: Task(group_size=2)}, gate=Gate(rules=(rule,)))
    text = commented_toml(config, [words], {"timeline.steps": words, "tasks.NAME.weight": words})
    text.encode()
    assert read(text) == config


@pytest.mark.parametrize("name", TRAINERS)
def test_the_defaults_of_a_trainer_are_a_config_without_warnings(name: str):
    trainer = trainer_named(name)
    config = parse_config(trainer.values, name)
    assert config_warnings(config) == []
    text = commented_toml(config, [trainer.about], trainer.remarks)
    assert read(text) == config
    flat = text.replace("\n# ", " ")
    for key, option in trainer.options.items():
        assert flat.count(f"{trainer.title}: {option}.") == 1, key


def test_limits_of_trainers():
    """From the rule of each: expired when age > L, where a response here is at an age of (max_staleness + 1) * K."""
    limits = {name: parse_config(trainer.values, name).policy.max_staleness for name, trainer in TRAINERS.items()}
    assert limits == {
        "xtuner": 0, "areal": NO_LIMIT, "prime-rl": 8, "slime": NO_LIMIT, "miles": NO_LIMIT, "verl": 7, "nemo-rl": 1,
        "skyrl": NO_LIMIT, "roll": 0, "tinker": 0, "trl": 4,
    }  # fmt: skip


def test_xtuner_by_default_is_the_default_config_side_by_side():
    data = resolved(parse_config(TRAINERS["xtuner"].values, "xtuner"))
    assert data == resolved(Config()) | {
        "mode": "disaggregated",
        "timeline": resolved(Config())["timeline"] | {"poll_interval_us": 1_000_000},
    }


def test_every_trainer_that_is_imported_has_defaults():
    assert set(TRAINER_TOPICS) - {"generic"} <= TRAINERS.keys()
    with pytest.raises(UsageError, match="did you mean 'xtuner'"):
        trainer_named("xtune")
