import json
import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tokenaudit.config.model import (
    Config,
    Mode,
    Policy,
    ReplayPolicy,
    Task,
    TaskPolicy,
    dotted_items,
    parse_config,
    require_timeline,
    resolved,
    task_order,
    task_sizes,
)
from tokenaudit.config.toml import dotted, quoted, shown
from tokenaudit.config.warnings import ConfigWarning, config_warnings
from tokenaudit.contracts.errors import ConfigError, Problem
from tokenaudit.lifecycle.staleness import ExpiryPolicy

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

FULL = """
mode = "disaggregated"
[timeline]
sync_weights_interval = 2
train_batch_size = 24
steps = 30
train_time_us = 12000000
sync_time_us = 2000000
poll_interval_us = 1000000
resync = true
stamp_missing = true
[buffer]
replay_policy = "fifo"
[policy]
max_staleness = 3
max_token_staleness = 2
tail_batch_trigger_size = 6
over_sample_threshold = 1
enable_partial_rollout = true
[tasks.math]
weight = 2.0
group_size = 8
[tasks."a.b"]
max_token_staleness = "off"
tail_batch_trigger_size = -1
[gate]
rules = ["expired_groups <= +5%"]
[cost]
rollout_gpus = 64
train_gpus = 32
usd_per_gpu_hour = 2
"""


def toml(text):
    return parse_config(tomllib.loads(text), "async.toml")


def problems(text):
    with pytest.raises(ConfigError) as caught:
        toml(text)
    return list(caught.value.problems)


# What a config holds


def test_defaults_are_upstreams():
    assert resolved(Config()) == {
        "mode": "colocated",
        "timeline": {
            "sync_weights_interval": 1,
            "train_batch_size": None,
            "steps": None,
            "train_time_us": None,
            "sync_time_us": None,
            "poll_interval_us": None,
            "resync": False,
            "stamp_missing": False,
        },
        "buffer": {"replay_policy": "staleness"},
        "policy": {
            "max_staleness": 0,
            "max_token_staleness": "off",
            "tail_batch_trigger_size": -1,
            "over_sample_threshold": 0.0,
            "enable_partial_rollout": False,
        },
        "tasks": {},
        "gate": {"rules": []},
    }
    assert parse_config({}, "nothing") == Config()


def test_every_key_is_read():
    config = toml(FULL)
    assert config.mode is Mode.DISAGGREGATED
    assert config.buffer.replay_policy is ReplayPolicy.FIFO
    assert resolved(config) == {
        "mode": "disaggregated",
        "timeline": {
            "sync_weights_interval": 2,
            "train_batch_size": 24,
            "steps": 30,
            "train_time_us": 12000000,
            "sync_time_us": 2000000,
            "poll_interval_us": 1000000,
            "resync": True,
            "stamp_missing": True,
        },
        "buffer": {"replay_policy": "fifo"},
        "policy": {
            "max_staleness": 3,
            "max_token_staleness": 2,
            "tail_batch_trigger_size": 6,
            "over_sample_threshold": 1.0,
            "enable_partial_rollout": True,
        },
        "tasks": {
            "math": {"weight": 2.0, "group_size": 8},
            "a.b": {
                "max_token_staleness": "off",
                "tail_batch_trigger_size": -1,
                "weight": 1.0,
                "group_size": None,
            },
        },
        "gate": {"rules": ["expired_groups <= +5%"]},
        "cost": {"rollout_gpus": 64, "train_gpus": 32, "usd_per_gpu_hour": 2.0},
    }


def test_a_config_never_changes():
    with pytest.raises(ValidationError):
        Config().policy.max_staleness = 3


@pytest.mark.parametrize("name", ["timeline", "buffer", "policy", "tasks", "gate", "cost", "mode"])
def test_every_key_has_a_one_line_description(name):
    field = Config.model_fields[name]
    section = {"tasks": Task}.get(name, field.annotation)
    fields = {name: field, **getattr(section, "model_fields", {})}
    for key, info in fields.items():
        assert info.description, key
        assert "\n" not in info.description, key


@pytest.mark.parametrize(
    ("policy", "task", "expected"),
    [
        ({}, None, None),
        ({"max_token_staleness": "off"}, None, None),
        ({"max_token_staleness": None}, None, None),
        ({"max_token_staleness": 0}, None, 0),
        ({"max_token_staleness": 2}, {}, 2),
        ({"max_token_staleness": 2}, {"max_token_staleness": None}, 2),
        ({"max_token_staleness": 2}, {"max_token_staleness": "off"}, None),
        ({"max_token_staleness": 2}, {"max_token_staleness": 0}, 0),
        ({}, {"max_token_staleness": 1}, 1),
        ({}, {"max_token_staleness": "off"}, None),
    ],
)
def test_off_and_unset_differ_in_a_task(policy, task, expected):
    config = parse_config({"policy": policy, "tasks": {} if task is None else {"math": task}}, "x")
    assert config.task_policy("math").max_token_staleness == expected
    assert parse_config(json.loads(json.dumps(resolved(config))), "x") == config


def test_a_task_inherits_what_it_does_not_set():
    config = toml(FULL)
    inherited = {"max_staleness": 3, "over_sample_threshold": 1.0, "enable_partial_rollout": True}
    assert config.task_policy("math") == TaskPolicy(
        **inherited, max_token_staleness=2, tail_batch_trigger_size=6, weight=2.0, group_size=8
    )
    assert config.task_policy("a.b") == TaskPolicy(
        **inherited, max_token_staleness=None, tail_batch_trigger_size=-1, weight=1.0, group_size=None
    )
    assert config.task_policy("never named") == TaskPolicy(
        **inherited, max_token_staleness=2, tail_batch_trigger_size=6, weight=1.0, group_size=None
    )


def test_a_task_can_override_with_values_that_are_false():
    config = toml(
        "[policy]\nmax_staleness = 3\nover_sample_threshold = 1.0\nenable_partial_rollout = true\n"
        "[tasks.math]\nmax_staleness = 0\nover_sample_threshold = 0.0\nenable_partial_rollout = false\n"
        "weight = 0\n"
    )
    assert config.task_policy("math") == TaskPolicy(0, None, -1, 0.0, False, weight=0.0)


@pytest.mark.parametrize(("trigger", "retryable"), [(-1, False), (0, True), (6, True)])
def test_retryable(trigger, retryable):
    assert toml(f"[policy]\ntail_batch_trigger_size = {trigger}").expiry_policy("any").retryable is retryable


@pytest.mark.parametrize(
    ("task", "sequence", "token", "trigger"), [("math", 8, 6, 6), ("a.b", 8, None, -1), ("other", 8, 6, 6)]
)
def test_thresholds_count_train_steps(task, sequence, token, trigger):
    config = toml(FULL)
    assert config.stale_threshold(task) == sequence
    assert config.token_stale_threshold(task) == token
    assert config.expiry_policy(task) == ExpiryPolicy(sequence, token, trigger)


# What is refused

RANGES = [
    ("timeline", "sync_weights_interval", 1, INT32_MAX, "a whole number from 1 to 2147483647"),
    ("timeline", "train_batch_size", 1, INT32_MAX, "a whole number from 1 to 2147483647"),
    ("timeline", "steps", 1, INT32_MAX, "a whole number from 1 to 2147483647"),
    ("timeline", "train_time_us", 0, INT64_MAX, f"a whole number of microseconds from 0 to {INT64_MAX}"),
    ("timeline", "sync_time_us", 0, INT64_MAX, f"a whole number of microseconds from 0 to {INT64_MAX}"),
    ("timeline", "poll_interval_us", 1, INT64_MAX, f"a whole number of microseconds from 1 to {INT64_MAX}"),
    ("policy", "max_staleness", 0, INT32_MAX, "a whole number from 0 to 2147483647"),
    ("policy", "max_token_staleness", 0, INT32_MAX, 'a whole number from 0 to 2147483647, or "off"'),
    ("policy", "tail_batch_trigger_size", -1, INT32_MAX, "a whole number from -1 to 2147483647"),
    ("tasks.math", "max_staleness", 0, INT32_MAX, "a whole number from 0 to 2147483647"),
    ("tasks.math", "max_token_staleness", 0, INT32_MAX, 'a whole number from 0 to 2147483647, or "off"'),
    ("tasks.math", "tail_batch_trigger_size", -1, INT32_MAX, "a whole number from -1 to 2147483647"),
    ("tasks.math", "group_size", 1, INT32_MAX, "a whole number from 1 to 2147483647"),
]


@pytest.mark.parametrize(("section", "key", "low", "high", "allowed"), RANGES)
def test_whole_numbers_have_ranges(section, key, low, high, allowed):
    for value in (low, high):
        assert dotted_items(toml(f"[{section}]\n{key} = {value}"))[f"{section}.{key}"] == value
    for value in (low - 1, high + 1):
        (problem,) = problems(f"[{section}]\n{key} = {value}")
        assert problem.what == f"{key} is {value}; it must be {allowed}"
        assert problem.where == f"async.toml: {section}.{key}"


@pytest.mark.parametrize(("section", "key", "low", "high", "allowed"), RANGES)
@pytest.mark.parametrize("value", ["true", '"3"', "3.0", "3.5", "nan", "[3]", "1979-05-27", '"of"'])
def test_whole_numbers_are_strict(section, key, low, high, allowed, value):
    (problem,) = problems(f"[{section}]\n{key} = {value}")
    assert problem.what == f"{key} is {value}; it must be {allowed}"


FACTORS = [
    ("policy", "over_sample_threshold"),
    ("tasks.math", "over_sample_threshold"),
    ("tasks.math", "weight"),
]


@pytest.mark.parametrize(("section", "key"), FACTORS)
@pytest.mark.parametrize(("value", "expected"), [("0", 0.0), ("2", 2.0), ("0.25", 0.25), ("1e308", 1e308)])
def test_factors_take_whole_numbers(section, key, value, expected):
    item = dotted_items(toml(f"[{section}]\n{key} = {value}"))[f"{section}.{key}"]
    assert (item, type(item)) == (expected, float)


@pytest.mark.parametrize(("section", "key"), FACTORS)
@pytest.mark.parametrize("value", ["-0.5", "-1", "inf", "nan", "true", '"1.0"', "[]"])
def test_factors_are_finite_and_not_negative(section, key, value):
    assert [problem.what for problem in problems(f"[{section}]\n{key} = {value}")] == [
        f"{key} is {value}; it must be a finite number, 0 or more"
    ]


@pytest.mark.parametrize(
    ("text", "what", "where", "hint"),
    [
        (
            'mode = "colocate"',
            'mode is "colocate"; it must be "colocated" or "disaggregated"',
            "mode",
            "did you mean 'colocated'?",
        ),
        (
            "cost.rollout_gpus = 0",
            "rollout_gpus is 0; it must be a whole number from 1 to 2147483647",
            "cost.rollout_gpus",
            None,
        ),
        (
            "cost.usd_per_gpu_hour = inf",
            "usd_per_gpu_hour is inf; it must be a number from 0 to 1000000",
            "cost.usd_per_gpu_hour",
            None,
        ),
        (
            "mode = 3",
            'mode is 3; it must be "colocated" or "disaggregated"',
            "mode",
            None,
        ),
        (
            'buffer.replay_policy = "stalenes"',
            'replay_policy is "stalenes"; it must be "staleness" or "fifo"',
            "buffer.replay_policy",
            "did you mean 'staleness'?",
        ),
        (
            'policy.max_staleness = "3"',
            'max_staleness is "3"; it must be a whole number from 0 to 2147483647',
            "policy.max_staleness",
            "write 3, without quotes",
        ),
        (
            "policy.max_staleness = 3.0",
            "max_staleness is 3.0; it must be a whole number from 0 to 2147483647",
            "policy.max_staleness",
            "write 3",
        ),
        (
            "policy.max_staleness = -3.0",
            "max_staleness is -3.0; it must be a whole number from 0 to 2147483647",
            "policy.max_staleness",
            None,
        ),
        (
            'policy.max_staleness = "true"',
            'max_staleness is "true"; it must be a whole number from 0 to 2147483647',
            "policy.max_staleness",
            None,
        ),
        (
            'policy.over_sample_threshold = "0.5"',
            'over_sample_threshold is "0.5"; it must be a finite number, 0 or more',
            "policy.over_sample_threshold",
            "write 0.5, without quotes",
        ),
        (
            'policy.enable_partial_rollout = "True"',
            'enable_partial_rollout is "True"; it must be true or false',
            "policy.enable_partial_rollout",
            "write true, without quotes",
        ),
        (
            "policy.enable_partial_rollout = 0",
            "enable_partial_rollout is 0; it must be true or false",
            "policy.enable_partial_rollout",
            "write false",
        ),
        (
            "timeline.resync = 2",
            "resync is 2; it must be true or false",
            "timeline.resync",
            None,
        ),
        (
            "policy.max_token_staleness = -1",
            'max_token_staleness is -1; it must be a whole number from 0 to 2147483647, or "off"',
            "policy.max_token_staleness",
            'for no token rule write "off" or leave the key out',
        ),
        (
            'tasks.math.max_token_staleness = "none"',
            'max_token_staleness is "none"; it must be a whole number from 0 to 2147483647, or "off"',
            "tasks.math.max_token_staleness",
            'for no token rule write "off" or leave the key out',
        ),
        (
            "policy.tail_batch_trigger_size = -2",
            "tail_batch_trigger_size is -2; it must be a whole number from -1 to 2147483647",
            "policy.tail_batch_trigger_size",
            "-1 discards expired groups, 0 rolls them again at once, N > 0 waits for N of them",
        ),
        (
            'timeline.steps = "off"',
            'steps is "off"; it must be a whole number from 1 to 2147483647',
            "timeline.steps",
            None,
        ),
        (
            "timeline.steps = 0xffffffffffffffffffffffffffffffffffffffffffffffff",
            "steps is a number of more than 38 digits; it must be a whole number from 1 to 2147483647",
            "timeline.steps",
            None,
        ),
        (
            'gate.rules = "expired_groups <= 0"',
            'rules is "expired_groups <= 0"; it must be a list of texts such as ["expired_groups <= 0"]',
            "gate.rules",
            None,
        ),
        (
            'gate.rules = ["a <= 0", 3, [1]]',
            'rules is ["a <= 0", 3, [...]]; it must be a list of texts such as ["expired_groups <= 0"]',
            "gate.rules",
            None,
        ),
        ("policy = 3", "policy is 3; it must be a section, [policy]", "policy", None),
        ("[[timeline]]", "timeline is [a section]; it must be a section, [timeline]", "timeline", None),
        ("tasks = 3", "tasks is 3; it must be sections, [tasks.NAME]", "tasks", None),
        ("tasks.math = 3", "math is 3; it must be a section, [tasks.math]", "tasks.math", None),
        (
            "tasks.weight = 2",
            "weight is 2; it must be a section, [tasks.weight]",
            "tasks.weight",
            "weight belongs to [tasks.NAME]",
        ),
        (
            'tasks."a.b".weight = -1',
            "weight is -1; it must be a finite number, 0 or more",
            'tasks."a.b".weight',
            None,
        ),
        ("mode.x = 1", 'mode is a section; it must be "colocated" or "disaggregated"', "mode", None),
    ],
)
def test_wrong_values_are_told(text, what, where, hint):
    (problem,) = problems(text)
    assert problem == Problem(what, f"async.toml: {where}", hint)


def test_null_is_refused_where_a_value_is_needed():
    with pytest.raises(ConfigError) as caught:
        parse_config({"timeline": {"sync_weights_interval": None, "steps": None}, "policy": None}, "run.json")
    assert [problem.what for problem in caught.value.problems] == [
        "sync_weights_interval is null; it must be a whole number from 1 to 2147483647",
        "policy is null; it must be a section, [policy]",
    ]


@pytest.mark.parametrize(
    ("text", "what", "where", "hint"),
    [
        (
            "policy.max_stalness = 2",
            'unknown key "max_stalness"',
            "policy.max_stalness",
            "did you mean 'max_staleness'?",
        ),
        (
            "tasks.math.max_stalness = 2",
            'unknown key "max_stalness"',
            "tasks.math.max_stalness",
            "did you mean 'max_staleness'?",
        ),
        (
            "buffer.max_staleness = 2",
            'unknown key "max_staleness"',
            "buffer.max_staleness",
            "max_staleness belongs to [policy]",
        ),
        (
            "max_staleness = 2",
            'unknown key "max_staleness"',
            "max_staleness",
            "max_staleness belongs to [policy]",
        ),
        (
            "tasks.math.sync_weights_interval = 2",
            'unknown key "sync_weights_interval"',
            "tasks.math.sync_weights_interval",
            "sync_weights_interval belongs to [timeline]",
        ),
        ("policy.weight = 2", 'unknown key "weight"', "policy.weight", "weight belongs to [tasks.NAME]"),
        (
            'timeline.mode = "colocated"',
            'unknown key "mode"',
            "timeline.mode",
            "mode belongs to the top of the file, before any section",
        ),
        (
            "[timeline.policy]",
            "unknown section [timeline.policy]",
            "timeline.policy",
            "policy belongs to the top level, as [policy]",
        ),
        (
            "[policy.tasks.math]",
            "unknown section [policy.tasks]",
            "policy.tasks",
            "tasks belongs to the top level, as [tasks.NAME]",
        ),
        (
            "buffer.max_stalness = 2",
            'unknown key "max_stalness"',
            "buffer.max_stalness",
            "did you mean 'max_staleness'? It belongs to [policy]",
        ),
        ("[polcy]", "unknown section [polcy]", "polcy", "did you mean 'policy'?"),
        ("[task.math]", "unknown section [task]", "task", "did you mean 'tasks'?"),
        (
            "[policy.math]",
            "unknown section [policy.math]",
            "policy.math",
            "values of a single task go to [tasks.math]",
        ),
        (
            "[tool.tokenaudit.policy]",
            "unknown section [tool]",
            "tool",
            "the prefix tool.tokenaudit is for pyproject.toml; here write [policy] and so on",
        ),
        ("buffer.zzz = 1", 'unknown key "zzz"', "buffer.zzz", "keys: replay_policy"),
        (
            '"x y".z = 1',
            'unknown section ["x y"]',
            '"x y"',
            "keys: mode, timeline, buffer, policy, tasks, gate, cost",
        ),
    ],
)
def test_unknown_keys_name_the_nearest(text, what, where, hint):
    assert problems(text) == [Problem(what, f"async.toml: {where}", hint)]


def test_all_faults_are_told_at_once():
    assert [
        problem.where
        for problem in problems(
            'mode = "x"\nzzz = 1\n[timeline]\nsteps = 0\nresync = 1\n'
            "[tasks.math]\nweight = -1\n[tasks.code]\nwait = 1\n"
        )
    ] == [
        "async.toml: mode",
        "async.toml: timeline.steps",
        "async.toml: timeline.resync",
        "async.toml: tasks.math.weight",
        "async.toml: tasks.code.wait",
        "async.toml: zzz",
    ]


def test_many_faults_end_in_a_count():
    found = problems("\n".join(f"zzz{number} = 1" for number in range(25)))
    assert len(found) == 21
    assert found[-1] == Problem("5 more faults", "async.toml")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "true"),
        (3, "3"),
        (0.5, "0.5"),
        (math.inf, "inf"),
        ("a\nb\x1b\x85", '"a\\nb\\u001b\\U00000085"'),
        ("数学", '"数学"'),
        ("x" * 70, '"' + "x" * 60 + '..."'),
        ([1, 2, 3, 4, 5], "[1, 2, 3, 4, ...]"),
        ({}, "a section"),
        (None, "null"),
    ],
)
def test_values_are_shown_in_one_line(value, expected):
    assert shown(value) == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_dotted_keys_are_toml(path):
    data = tomllib.loads(f"{dotted(path)} = {quoted(path[0])}")
    for part in path:
        data = data[part]
    assert data == path[0]


# Round trip

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FACTOR = st.floats(0, allow_nan=False, allow_infinity=False)
NATURAL = st.integers(0, INT32_MAX)
OPTIONAL_POSITIVE = st.none() | st.integers(1, INT32_MAX)
POLICY = {
    "max_staleness": NATURAL,
    "max_token_staleness": st.none() | st.just("off") | NATURAL,
    "tail_batch_trigger_size": st.integers(-1, INT32_MAX),
    "over_sample_threshold": FACTOR,
    "enable_partial_rollout": st.booleans(),
}
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["colocated", "disaggregated"]),
        "timeline": st.fixed_dictionaries(
            {},
            optional={
                "sync_weights_interval": st.integers(1, INT32_MAX),
                "train_batch_size": OPTIONAL_POSITIVE,
                "steps": OPTIONAL_POSITIVE,
                "train_time_us": st.none() | st.integers(0, INT64_MAX),
                "sync_time_us": st.none() | st.integers(0, INT64_MAX),
                "poll_interval_us": st.none() | st.integers(1, INT64_MAX),
                "resync": st.booleans(),
                "stamp_missing": st.booleans(),
            },
        ),
        "buffer": st.fixed_dictionaries({}, optional={"replay_policy": st.sampled_from(["staleness", "fifo"])}),
        "policy": st.fixed_dictionaries({}, optional=POLICY),
        "tasks": st.dictionaries(
            NAMES,
            st.fixed_dictionaries(
                {},
                optional={key: st.none() | value for key, value in POLICY.items()}
                | {"weight": FACTOR, "group_size": OPTIONAL_POSITIVE},
            ),
            max_size=3,
        ),
        "gate": st.fixed_dictionaries({}, optional={"rules": st.lists(NAMES, max_size=2)}),
        "cost": st.fixed_dictionaries(
            {},
            optional={
                "rollout_gpus": OPTIONAL_POSITIVE,
                "train_gpus": OPTIONAL_POSITIVE,
                "usd_per_gpu_hour": st.none() | st.floats(0, 1e6),
            },
        ),
    },
)


@given(CONFIGS)
def test_a_resolved_config_reads_back_the_same(data):
    config = parse_config(data, "x")
    text = json.dumps(resolved(config))
    again = parse_config(json.loads(text), "x")
    assert again == config
    assert json.dumps(resolved(again)) == text
    for name in (*config.tasks, "not named"):
        assert again.task_policy(name) == config.task_policy(name)


def test_a_cost_without_any_value_is_left_out():
    assert resolved(parse_config({"cost": {"train_gpus": None}}, "x")) == resolved(Config())
    assert resolved(parse_config({"cost": {"train_gpus": 1}}, "x"))["cost"] == {
        "rollout_gpus": None,
        "train_gpus": 1,
        "usd_per_gpu_hour": None,
    }


def test_resolved_starts_afresh_each_time():
    config = toml(FULL)
    resolved(config)["tasks"]["math"]["weight"] = 9
    assert resolved(config)["tasks"]["math"]["weight"] == 2.0


def test_dotted_items_are_spelled_for_the_command_line():
    items = dotted_items(toml('[policy]\nmax_staleness = 1\n[tasks."a.b"]\nweight = 2\n[tasks.math]\n'))
    assert list(items.items()) == [
        ("mode", "colocated"),
        ("timeline.sync_weights_interval", 1),
        ("timeline.train_batch_size", None),
        ("timeline.steps", None),
        ("timeline.train_time_us", None),
        ("timeline.sync_time_us", None),
        ("timeline.poll_interval_us", None),
        ("timeline.resync", False),
        ("timeline.stamp_missing", False),
        ("buffer.replay_policy", "staleness"),
        ("policy.max_staleness", 1),
        ("policy.max_token_staleness", "off"),
        ("policy.tail_batch_trigger_size", -1),
        ("policy.over_sample_threshold", 0.0),
        ("policy.enable_partial_rollout", False),
        ('tasks."a.b".weight', 2.0),
        ('tasks."a.b".group_size', None),
        ("tasks.math.weight", 1.0),
        ("tasks.math.group_size", None),
        ("gate.rules", []),
    ]


# Task order and sizes


@pytest.mark.parametrize(
    ("config_tasks", "seen", "expected"),
    [
        ([], [], []),
        ([], ["b", "a", "b"], ["b", "a"]),
        (["math", "code"], ["chat", "code", "chat", "agent"], ["math", "code", "chat", "agent"]),
        (["math", "code"], [], ["math", "code"]),
    ],
)
def test_task_order(config_tasks, seen, expected):
    assert task_order(parse_config({"tasks": {name: {} for name in config_tasks}}, "x"), seen) == expected


def sized(batch_size, weights):
    tasks = {name: {"weight": weight} for name, weight in weights.items() if weight is not None}
    return parse_config({"timeline": {"train_batch_size": batch_size}, "tasks": tasks}, "x")


@pytest.mark.parametrize(
    ("batch_size", "weights", "expected"),
    [
        (24, {"math": 2.0, "code": 1.0}, {"math": 16, "code": 8}),
        (1, {"math": 1, "code": 1}, {"math": 1, "code": 0}),
        (1, {"code": 1, "math": 1}, {"code": 1, "math": 0}),
        (5, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 1}),
        (4, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 1}),
        (7, {"a": 0.5, "b": 0.5, "c": 1.0}, {"a": 2, "b": 2, "c": 3}),
        (3, {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 1, "c": 1}),
        (10, {"a": 0, "b": 1}, {"a": 0, "b": 10}),
        (10, {"a": None, "b": 4}, {"a": 2, "b": 8}),
        (2, {"a": 1, "b": 1e-300}, {"a": 2, "b": 0}),
        (INT32_MAX, {"a": 1, "b": 1}, {"a": 2**30, "b": 2**30 - 1}),
        (10, {}, {}),
    ],
)
def test_batches_go_by_largest_remainder(batch_size, weights, expected):
    sizes = task_sizes(sized(batch_size, weights), list(weights))
    assert list(sizes.items()) == list(expected.items())


@given(
    st.integers(1, INT32_MAX),
    st.dictionaries(NAMES, st.integers(0, 8) | st.floats(0, 1e9), min_size=1).filter(
        lambda weights: sum(weights.values()) > 0
    ),
)
def test_sizes_add_up_to_the_batch(batch_size, weights):
    sizes = task_sizes(sized(batch_size, weights), list(weights))
    assert sum(sizes.values()) == batch_size
    total = sum(map(float, weights.values()))
    for name, size in sizes.items():
        assert abs(size - batch_size * weights[name] / total) < 1


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            sized(None, {"math": 1}),
            Problem(
                "a simulated timeline needs timeline.train_batch_size",
                "timeline.train_batch_size",
                "-s timeline.train_batch_size=24",
            ),
        ),
        (
            sized(8, {"math": 0, "a.b": 0}),
            Problem(
                "every task has weight 0, so a batch has no groups",
                'tasks.math.weight, tasks."a.b".weight',
                "give a task a weight above 0",
            ),
        ),
        (
            sized(8, {"math": 1e308, "a.b": 1e308}),
            Problem(
                "the weights are too large to share out a batch",
                'tasks.math.weight, tasks."a.b".weight',
                "give a task a weight below 1e9",
            ),
        ),
    ],
)
def test_batches_that_cannot_be_shared_out(config, problem):
    with pytest.raises(ConfigError) as caught:
        task_sizes(config, list(config.tasks))
    assert caught.value.problems == (problem,)


def test_missing_times_are_named_together():
    config = parse_config({"timeline": {"sync_time_us": 5}}, "x")
    keys = ["train_time_us", "sync_time_us", "poll_interval_us"]
    with pytest.raises(ConfigError) as caught:
        require_timeline(config, keys, "a disaggregated simulation")
    assert caught.value.problems == (
        Problem(
            "a disaggregated simulation needs timeline.train_time_us",
            "timeline.train_time_us",
            "-s timeline.train_time_us=12000000",
        ),
        Problem(
            "a disaggregated simulation needs timeline.poll_interval_us",
            "timeline.poll_interval_us",
            "-s timeline.poll_interval_us=1000000",
        ),
    )
    assert require_timeline(config, ["sync_time_us"], "a test") == (5,)


# Warnings

QUIET = {
    "max_staleness": 3,
    "max_token_staleness": 2,
    "tail_batch_trigger_size": 6,
    "enable_partial_rollout": True,
}


def warned(values=None, *, tasks=None, recorded=None, seen=(), resync=False):
    """Warnings of the quiet policy changed by `values`; "interval" among them is sync_weights_interval."""
    policy = QUIET | (values or {})
    timeline = {"sync_weights_interval": policy.pop("interval", 1), "resync": resync}
    data = {"timeline": timeline, "policy": policy, "tasks": tasks or {}}
    return config_warnings(parse_config(data, "x"), recorded, seen)


def test_defaults_and_a_sound_config_are_quiet():
    assert config_warnings(Config()) == []
    assert warned() == []
    assert warned(recorded=1, seen=["math"], tasks={"code": {}}) == []


RESTARTS = ConfigWarning(
    "partial-rollout-restarts",
    "enable_partial_rollout with max_token_staleness 0 and sync_weights_interval 1",
    "an aborted response is entirely stale at the next step and always restarts from no tokens,"
    " so partial rollout saves no GPU time",
    (
        "policy.enable_partial_rollout",
        "policy.max_token_staleness",
        "timeline.sync_weights_interval",
    ),
)


@pytest.mark.parametrize(
    ("just_not", "just", "expected"),
    [
        (
            {"max_token_staleness": 2},
            {"max_token_staleness": 3},
            ConfigWarning(
                "token-rule-without-effect",
                "max_token_staleness 3 is not below max_staleness 3",
                "no token is ever masked before its response expires: masking begins at 4 train steps, the"
                " response is gone at 4 train steps, and all tokens up to 3 train steps old are trained",
                ("policy.max_token_staleness", "policy.max_staleness"),
            ),
        ),
        (
            {"tail_batch_trigger_size": 1},
            {"tail_batch_trigger_size": -1},
            ConfigWarning(
                "token-rule-discards-groups",
                "max_token_staleness 2 with tail_batch_trigger_size -1",
                "a response whose trainable tokens are all 3 train steps old or older takes its whole group"
                " with it, fresh members included, and none of it is generated again",
                ("policy.max_token_staleness", "policy.tail_batch_trigger_size"),
            ),
        ),
        (
            {"max_token_staleness": "off", "tail_batch_trigger_size": -1},
            {
                "max_token_staleness": 0,
                "tail_batch_trigger_size": -1,
                "enable_partial_rollout": True,
                "interval": 2,
            },
            ConfigWarning(
                "token-rule-discards-groups",
                "max_token_staleness 0 with tail_batch_trigger_size -1",
                "a response whose trainable tokens are all 2 train steps old or older takes its whole group"
                " with it, fresh members included, and none of it is generated again",
                ("policy.max_token_staleness", "policy.tail_batch_trigger_size"),
            ),
        ),
        (
            {"tail_batch_trigger_size": 1},
            {"tail_batch_trigger_size": 0},
            ConfigWarning(
                "tail-batch-zero",
                "tail_batch_trigger_size 0 generates expired groups again at once",
                "XTuner changed the meaning of 0 from discard to retry at once: a config from before now"
                " spends GPU time on every expired group again; -1 discards",
                ("policy.tail_batch_trigger_size",),
            ),
        ),
        (
            {"max_token_staleness": 1},
            {"max_token_staleness": 0},
            RESTARTS,
        ),
        (
            {"max_token_staleness": 0, "interval": 2},
            {"max_token_staleness": 0, "interval": 1},
            RESTARTS,
        ),
        (
            {"max_staleness": 0, "max_token_staleness": "off", "enable_partial_rollout": False},
            {
                "max_staleness": 1,
                "max_token_staleness": "off",
                "enable_partial_rollout": False,
                "interval": 2,
            },
            ConfigWarning(
                "staleness-without-partial-rollout",
                "max_staleness 1 without enable_partial_rollout",
                "an aborted response restarts from no tokens, so every abort throws away what was"
                " being generated; only finished responses that wait use the 4 train steps"
                " after which one is too old",
                ("policy.max_staleness", "policy.enable_partial_rollout"),
            ),
        ),
        (
            {"enable_partial_rollout": True},
            {"enable_partial_rollout": False},
            ConfigWarning(
                "staleness-without-partial-rollout",
                "max_staleness 3 without enable_partial_rollout",
                "an aborted response restarts from no tokens, so every abort throws away what was"
                " being generated; only finished responses that wait use the 4 train steps"
                " after which one is too old",
                ("policy.max_staleness", "policy.enable_partial_rollout"),
            ),
        ),
    ],
)
def test_each_warning_has_its_edge(just_not, just, expected):
    assert warned(just_not) == []
    assert warned(just) == [expected]


def test_a_token_rule_off_is_not_told_about_masking():
    assert warned({"max_token_staleness": "off", "max_staleness": 0}) == []


def test_without_retry_partial_rollout_loses_the_group():
    found = warned({"max_token_staleness": 0, "tail_batch_trigger_size": -1})
    assert [warning.code for warning in found] == ["token-rule-discards-groups", "partial-rollout-restarts"]
    assert "at the next step and is always discarded with its group, so" in found[1].cost


@pytest.mark.parametrize(
    ("interval", "recorded", "resync", "cost"),
    [
        (1, None, False, None),
        (4, 4, False, None),
        (4, 1, True, None),
        (
            4,
            1,
            False,
            "tokens look up to 3 train steps fresher than with weights synced every 4 train steps, so too few"
            " expire; timeline.resync = true simulates that",
        ),
        (
            1,
            2,
            False,
            "tokens look up to 1 train step staler than with weights synced every 1 train step, so too many expire",
        ),
    ],
)
def test_another_sync_interval_than_the_logs(interval, recorded, resync, cost):
    expected = ConfigWarning(
        "sync-interval-differs",
        f"sync_weights_interval is {interval}, the log was recorded with {recorded}",
        str(cost),
        ("timeline.sync_weights_interval",),
    )
    found = warned({"interval": interval}, recorded=recorded, resync=resync)
    assert found == ([] if cost is None else [expected])


def test_tasks_with_the_same_values_share_a_warning():
    tasks = {
        "math": {"tail_batch_trigger_size": 0},
        "a.b": {"tail_batch_trigger_size": 0, "max_token_staleness": 4},
        "code": {"max_token_staleness": 5},
        "calm": {},
    }
    assert [(warning.code, warning.message, warning.keys, warning.tasks) for warning in warned(tasks=tasks)] == [
        (
            "token-rule-without-effect",
            'task "a.b": max_token_staleness 4 is not below max_staleness 3',
            ('tasks."a.b".max_token_staleness', "policy.max_staleness"),
            ("a.b",),
        ),
        (
            "token-rule-without-effect",
            "task code: max_token_staleness 5 is not below max_staleness 3",
            ("tasks.code.max_token_staleness", "policy.max_staleness"),
            ("code",),
        ),
        (
            "tail-batch-zero",
            'tasks math, "a.b": tail_batch_trigger_size 0 generates expired groups again at once',
            ("tasks.math.tail_batch_trigger_size", 'tasks."a.b".tail_batch_trigger_size'),
            ("math", "a.b"),
        ),
    ]


@pytest.mark.parametrize(
    ("seen", "tasks", "message", "names"),
    [
        ([], {}, "", ()),
        ([], {"math": {}}, "[policy] and task math: ", ("math",)),
        ([], {"math": {"tail_batch_trigger_size": 6}}, "", ()),
        (["code", "code"], {"math": {}}, "tasks math, code: ", ("math", "code")),
        (["code"], {"math": {"tail_batch_trigger_size": 6}}, "task code: ", ("code",)),
        (["math"], {"math": {"tail_batch_trigger_size": 6}}, None, ()),
    ],
)
def test_tasks_seen_in_the_log_are_judged(seen, tasks, message, names):
    found = warned({"tail_batch_trigger_size": 0}, tasks=tasks, seen=seen)
    text = "tail_batch_trigger_size 0 generates expired groups again at once"
    assert [(warning.message, warning.tasks) for warning in found] == (
        [] if message is None else [(message + text, names)]
    )
    assert all(warning.where == "policy.tail_batch_trigger_size" for warning in found)


def test_policy_and_task_policy_name_the_same_keys():
    assert set(Policy.model_fields) | {"weight", "group_size"} == set(TaskPolicy.__dataclass_fields__)
    assert set(Task.model_fields) == set(TaskPolicy.__dataclass_fields__)
