import json
from pathlib import Path

import pytest

from tokenaudit.config.loading import FoundBy, check_overridden_tasks, load_settings
from tokenaudit.config.model import Config, ReplayPolicy, dotted_items, parse_config, resolved
from tokenaudit.config.toml import last_overrides
from tokenaudit.contracts.errors import ConfigError, Problem

METADATA = "log metadata tokenaudit.config"
REPLACES = "-c FILE replaces the log's own config"


@pytest.fixture
def work(tmp_path):
    """A working folder two levels below a root, so that files can lie above it."""
    folder = tmp_path / "repo" / "runs"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def load(work):
    def load(*overrides, config=None, **options):
        path = None if config is None else Path(config)
        return load_settings(config_path=path, overrides=overrides, working_dir=work, **options)

    return load


@pytest.fixture
def faults(load):
    def faults(*overrides, **options):
        with pytest.raises(ConfigError) as caught:
            load(*overrides, **options)
        return list(caught.value.problems)

    return faults


def staleness(settings):
    return settings.config.policy.max_staleness, settings.origins["policy.max_staleness"]


# Which source counts


def test_without_any_source_the_defaults_hold(load):
    settings = load()
    assert (settings.config, settings.source, settings.file, settings.found_by) == (
        Config(),
        "defaults",
        None,
        None,
    )
    assert settings.origins == dict.fromkeys(dotted_items(Config()), "default")


def test_a_given_file(work, load):
    (work / "async.toml").write_text("[policy]\nmax_staleness = 3\n")
    settings = load(config="async.toml")
    assert staleness(settings) == (3, "async.toml")
    assert settings.origins["mode"] == "default"
    assert settings.source == "async.toml"
    assert (settings.file, settings.found_by) == (work / "async.toml", FoundBy.GIVEN)


@pytest.mark.parametrize(
    ("present", "used", "max_staleness", "found_by"),
    [
        (["log", "runs", "runs pyproject", "repo pyproject"], "log", 1, FoundBy.BESIDE_LOG),
        (["runs", "runs pyproject", "repo pyproject"], "runs", 2, FoundBy.WORKING_FOLDER),
        (["runs pyproject", "repo pyproject"], "runs pyproject", 3, FoundBy.PYPROJECT),
        (["repo pyproject"], "repo pyproject", 4, FoundBy.PYPROJECT),
        (["other pyproject", "repo pyproject"], "repo pyproject", 4, FoundBy.PYPROJECT),
        (["repo"], None, 0, None),
    ],
)
def test_files_are_found_in_order(tmp_path, work, load, present, used, max_staleness, found_by):
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    files = {
        "log": (log_dir / "tokenaudit.toml", "policy.max_staleness = 1"),
        "runs": (work / "tokenaudit.toml", "policy.max_staleness = 2"),
        "runs pyproject": (work / "pyproject.toml", "[tool.tokenaudit.policy]\nmax_staleness = 3"),
        "other pyproject": (work / "pyproject.toml", "[tool.ruff]\nline-length = 110"),
        "repo pyproject": (work.parent / "pyproject.toml", "[tool.tokenaudit.policy]\nmax_staleness = 4"),
        "repo": (work.parent / "tokenaudit.toml", "policy.max_staleness = 5"),
    }
    for path, text in map(files.get, present):
        path.write_text(text)
    settings = load(log_dir=log_dir)
    assert settings.config.policy.max_staleness == max_staleness
    assert (settings.file, settings.found_by) == (files[used][0] if used else None, found_by)


def test_the_log_folder_may_be_the_working_folder(work, load):
    (work / "tokenaudit.toml").write_text("policy.max_staleness = 1")
    assert load(log_dir=Path()).found_by is FoundBy.BESIDE_LOG


def test_isolated_ignores_found_files_only(work, load):
    (work / "tokenaudit.toml").write_text("policy.max_staleness = 1")
    (work / "pyproject.toml").write_text("[tool.tokenaudit.policy]\nmax_staleness = 2")
    metadata = {"policy": {"max_staleness": 3}}
    assert staleness(load(isolated=True)) == (0, "default")
    assert staleness(load(isolated=True, log_config=metadata)) == (3, "log metadata")
    assert staleness(load(isolated=True, config="tokenaudit.toml")) == (1, "tokenaudit.toml")
    assert staleness(load("policy.max_staleness=4", isolated=True)) == (4, "-s")


def test_a_given_file_leaves_found_ones_alone(work, load):
    (work / "tokenaudit.toml").write_text("policy.max_staleness = 1")
    (work / "async.toml").write_text("")
    assert staleness(load(config="async.toml", log_config={"policy": {"max_staleness": 3}})) == (0, "default")


def test_a_given_pyproject_is_read_like_a_found_one(work, load, faults):
    (work / "pyproject.toml").write_text("[tool.tokenaudit.policy]\nmax_staleness = 2\n[tool.x]")
    settings = load(config="pyproject.toml")
    assert staleness(settings) == (2, "pyproject.toml")
    assert settings.source == "pyproject.toml [tool.tokenaudit]"
    (work / "pyproject.toml").write_text("[tool.x]")
    assert faults(config="pyproject.toml") == [
        Problem("there is no [tool.tokenaudit] in it", "pyproject.toml", "add it, or name another file")
    ]


@pytest.mark.parametrize("as_text", [False, True])
def test_the_logs_own_config_is_the_base(load, as_text):
    own = resolved(parse_config({"policy": {"max_staleness": 3}, "tasks": {"math": {"weight": 2}}}, "x"))
    settings = load("tasks.math.weight=5", log_config=json.dumps(own) if as_text else own)
    assert staleness(settings) == (3, "log metadata")
    assert settings.origins["tasks.math.weight"] == "-s"
    assert settings.origins["tasks.math.group_size"] == "log metadata"
    assert (settings.source, settings.file) == (METADATA, None)


@pytest.mark.parametrize(
    ("found", "expected", "source"),
    [
        ("", (3, "log metadata"), METADATA),
        ('[gate]\nrules = ["a <= 0"]', (3, "log metadata"), METADATA),
        ("[cost]\ntrain_gpus = 8", (3, "log metadata"), METADATA),
        ('mode = "disaggregated"', (0, "default"), "tokenaudit.toml"),
        ("[timeline]\nsteps = 3", (0, "default"), "tokenaudit.toml"),
        ("[buffer]", (0, "default"), "tokenaudit.toml"),
        ("[policy]", (0, "default"), "tokenaudit.toml"),
        ("[tasks.math]", (0, "default"), "tokenaudit.toml"),
        (
            '[gate]\nrules = ["a <= 0"]\n[policy]\nmax_staleness = 1',
            (1, "tokenaudit.toml"),
            "tokenaudit.toml",
        ),
    ],
)
def test_a_found_file_replaces_the_logs_config_unless_it_only_gates_or_prices(work, load, found, expected, source):
    (work / "tokenaudit.toml").write_text(found)
    settings = load(log_config={"policy": {"max_staleness": 3}, "gate": {"rules": ["b <= 0"]}})
    assert staleness(settings) == expected
    assert settings.source == source
    assert (settings.file, settings.found_by) == (work / "tokenaudit.toml", FoundBy.WORKING_FOLDER)
    if "[gate]" in found:
        assert settings.config.gate.rules == ("a <= 0",)
        assert settings.origins["gate.rules"] == "tokenaudit.toml"
    if "[cost]" in found:
        assert (settings.config.cost.train_gpus, settings.origins["cost.train_gpus"]) == (8, "tokenaudit.toml")


def test_a_given_file_replaces_the_logs_config_even_if_it_only_gates(work, load):
    (work / "gate.toml").write_text('[gate]\nrules = ["a <= 0"]')
    assert staleness(load(config="gate.toml", log_config={"policy": {"max_staleness": 3}})) == (0, "default")


def test_a_replaced_log_config_is_never_parsed(work, load):
    (work / "async.toml").write_text("")
    assert load(config="async.toml", log_config="{broken").config == Config()


@pytest.mark.parametrize(
    ("log_config", "what", "where", "hint"),
    [
        (
            "{broken",
            "the config in the log's metadata is not JSON:"
            " Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
            METADATA,
            REPLACES,
        ),
        ("[" * 100_000, "the config in the log's metadata is not JSON: ", METADATA, REPLACES),
        ("9" * 5000, "the config in the log's metadata is not JSON: ", METADATA, REPLACES),
        ("[1]", "the config in the log's metadata is [1]; it must be a JSON object", METADATA, REPLACES),
        (
            '{"tasks": {"\\ud800": {}}}',
            "the config in the log's metadata holds text that is not Unicode",
            METADATA,
            REPLACES,
        ),
        (
            '{"policy": {"max_stalness": 3}}',
            'unknown key "max_stalness"',
            f"{METADATA}: policy.max_stalness",
            f"did you mean 'max_staleness'?; {REPLACES}",
        ),
        (
            '{"timeline": {"steps": 0}}',
            "steps is 0; it must be a whole number from 1 to 2147483647",
            f"{METADATA}: timeline.steps",
            REPLACES,
        ),
        (
            '{"tasks": {"math": {"weight": NaN}}}',
            "weight is nan; it must be a finite number, 0 or more",
            f"{METADATA}: tasks.math.weight",
            REPLACES,
        ),
    ],
)
def test_a_wrong_log_config_is_told_as_such(faults, log_config, what, where, hint):
    (problem,) = faults(log_config=log_config)
    assert problem.what.startswith(what)
    assert (problem.where, problem.hint) == (where, hint)


# Overrides


@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        ("timeline.sync_weights_interval=4", "timeline.sync_weights_interval", 4),
        (" policy . max_staleness = 2 ", "policy.max_staleness", 2),
        ('"policy".max_staleness=2', "policy.max_staleness", 2),
        ("policy.max_staleness=1_000", "policy.max_staleness", 1000),
        ("policy.max_token_staleness=2", "policy.max_token_staleness", 2),
        ("policy.max_token_staleness=off", "policy.max_token_staleness", "off"),
        ('policy.max_token_staleness="off"', "policy.max_token_staleness", "off"),
        ("tasks.math.max_token_staleness=off", "tasks.math.max_token_staleness", "off"),
        ("policy.tail_batch_trigger_size=-1", "policy.tail_batch_trigger_size", -1),
        ("policy.over_sample_threshold=0.5", "policy.over_sample_threshold", 0.5),
        ("policy.enable_partial_rollout=true", "policy.enable_partial_rollout", True),
        ("buffer.replay_policy=fifo", "buffer.replay_policy", "fifo"),
        ("mode='disaggregated'", "mode", "disaggregated"),
        ('tasks."a.b".weight=2', 'tasks."a.b".weight', 2.0),
        ("tasks.'a=b'.weight=2", 'tasks."a=b".weight', 2.0),
        ('tasks."a\\"=b".weight=2', 'tasks."a\\"=b".weight', 2.0),
        ('gate.rules=["a <= 0", "b == 1"]', "gate.rules", ["a <= 0", "b == 1"]),
        ("policy={max_staleness = 2}", "policy.max_staleness", 2),
    ],
)
def test_an_override_is_a_dotted_key_and_a_value(load, override, key, expected):
    settings = load(override)
    assert dotted_items(settings.config)[key] == expected
    assert settings.origins[key] == "-s"


def test_the_last_override_wins(load):
    assert staleness(load("policy.max_staleness=1", "policy.max_staleness=2")) == (2, "-s")


@pytest.mark.parametrize(
    ("given", "last"),
    [
        (["a.b=1", "a.b=2"], ["a.b=2"]),
        (["a.b=1", "c=1", "a . b = 2"], ["c=1", "a . b = 2"]),
        (["a.'b.c'=1", 'a."b.c"=2', "a.b.c=3"], ['a."b.c"=2', "a.b.c=3"]),
        (["a.b=1", "a={b = 2}", "a.b=3", "a.b=4"], ["a.b=1", "a={b = 2}", "a.b=4"]),
        (["a='x=1'", "a=off"], ["a=off"]),
        ([], []),
    ],
)
def test_of_overrides_of_one_key_the_last_one_counts(given, last):
    assert last_overrides(given) == last


def test_an_override_beats_the_file_key_by_key(work, load):
    (work / "async.toml").write_text(
        "[policy]\nmax_staleness = 3\n[tasks.math]\nweight = 2\n[tasks.code]\n[buffer]\nreplay_policy = 'fifo'\n"
    )
    settings = load("tasks.math.max_staleness=1", "tasks.chat.weight=0", config="async.toml")
    assert list(settings.config.tasks) == ["math", "code", "chat"]
    assert settings.config.task_policy("math").max_staleness == 1
    assert settings.config.buffer.replay_policy is ReplayPolicy.FIFO
    assert {key: origin for key, origin in settings.origins.items() if origin != "default"} == {
        "buffer.replay_policy": "async.toml",
        "policy.max_staleness": "async.toml",
        "tasks.math.max_staleness": "-s",
        "tasks.math.weight": "async.toml",
        "tasks.chat.weight": "-s",
    }


@pytest.mark.parametrize(
    ("override", "what", "hint"),
    [
        ("policy.max_stalness=2", 'unknown key "max_stalness"', "did you mean 'max_staleness'?"),
        ("max_staleness=2", 'unknown key "max_staleness"', "max_staleness belongs to [policy]"),
        ("polcy.max_staleness=2", "unknown section [polcy]", "did you mean 'policy'?"),
        (
            "policy.max_staleness=-1",
            "max_staleness is -1; it must be a whole number from 0 to 2147483647",
            None,
        ),
        (
            "buffer.replay_policy=fif",
            'replay_policy is "fif"; it must be "staleness" or "fifo"',
            "did you mean 'fifo'?",
        ),
        (
            "policy.enable_partial_rollout=True",
            'enable_partial_rollout is "True"; it must be true or false',
            "write true, without quotes",
        ),
        ("policy=3", "policy is 3; it must be a section, [policy]", None),
        ("policy.max_staleness", 'there is no "="', "write -s KEY=VALUE"),
        ('tasks."a=b', 'there is no "="', "write -s KEY=VALUE"),
        ("=3", 'there is no key before the "="', "write -s policy.max_staleness=2"),
        ("a b=3", '"a b" is not a dotted key', "write -s policy.max_staleness=2"),
        ("policy.=3", '"policy." is not a dotted key', "write -s policy.max_staleness=2"),
        ("[policy]\nx=3", '"[policy]\\nx" is not a dotted key', "write -s policy.max_staleness=2"),
        (
            "mode=",
            'there is no value after the "="',
            'values are TOML: 2, 0.5, true, "text", ["a", "b"]',
        ),
        (
            "policy.max_staleness=03",
            '"03" is not a TOML value',
            'values are TOML: 2, 0.5, true, "text", ["a", "b"]',
        ),
        (
            "policy.max_staleness=1\nmode='colocated'",
            "\"1\\nmode='colocated'\" is not a TOML value",
            'values are TOML: 2, 0.5, true, "text", ["a", "b"]',
        ),
        (
            "gate.rules=expired_groups <= 0",
            '"expired_groups <= 0" is not a TOML value',
            'values are TOML: 2, 0.5, true, "text", ["a", "b"]',
        ),
    ],
)
def test_wrong_overrides_are_told(faults, override, what, hint):
    assert faults(override) == [Problem(what, f"-s {override}", hint)]


def test_an_override_with_undecodable_bytes(faults):
    assert faults("tasks.\udcff.weight=1") == [Problem("the option is not UTF-8 text", "-s tasks.\\udcff.weight=1")]


def test_an_override_can_be_nested_too_deeply(faults):
    (problem,) = faults("gate.rules=" + "[" * 100_000)
    assert problem.what == '"' + "[" * 60 + '..." is not a TOML value'


# Files that can't be used


def test_all_faults_of_file_and_overrides_come_together(work, faults):
    (work / "async.toml").write_text('mode = "x"\n[policy]\nmax_staleness = "3"\n')
    found = faults("policy.max_staleness=3", "zzz", "policy.max_stalness=1", "mode=y", config="async.toml")
    assert [problem.where for problem in found] == [
        "-s zzz",
        "async.toml: mode",
        "async.toml: policy.max_staleness",
        "-s policy.max_stalness=1",
        "-s mode=y",
    ]


def test_a_broken_file_and_a_wrong_override_come_together(work, faults):
    (work / "async.toml").write_text("mode = ")
    assert [problem.where for problem in faults("mode=y", config="async.toml")] == [
        "async.toml, line 1, column 8",
        "-s mode=y",
    ]


@pytest.mark.parametrize(
    ("text", "what", "place", "hint"),
    [
        (
            "[policy]\nmax_staleness = 03\n",
            "not TOML: Expected newline or end of document after a statement",
            ", line 2, column 18",
            None,
        ),
        (
            "[policy]\r\nmax_staleness 3\r\n",
            "not TOML: Expected '=' after a key in a key/value pair",
            ", line 2, column 15",
            None,
        ),
        ("[gate]\nrules = [", "not TOML: Invalid value", ", line 2, column 10", None),
        ("mode = 'colocated'\nmode = 'x'", "not TOML: Cannot overwrite a value", ", line 2, column 11", None),
        (
            '{"mode": "colocated"}',
            "not TOML: Invalid statement",
            ", line 1, column 1",
            "this looks like JSON; a config is TOML",
        ),
        ("a = " + "[" * 100_000, "not TOML: nested too deeply", "", None),
        ("a = " + "9" * 5000, "not TOML: a number has too many digits", "", None),
    ],
)
def test_syntax_errors_name_line_and_column(work, faults, text, what, place, hint):
    (work / "async.toml").write_bytes(text.encode())
    assert faults(config="async.toml") == [Problem(what, f"async.toml{place}", hint)]


def test_a_byte_order_mark_is_no_fault(work, load):
    (work / "async.toml").write_bytes(b"\xef\xbb\xbf[policy]\r\nmax_staleness = 3\r\n")
    assert staleness(load(config="async.toml")) == (3, "async.toml")


def test_not_utf8(work, faults):
    (work / "async.toml").write_bytes(b'mode = "\xff"')
    assert faults(config="async.toml") == [
        Problem("the config file is not UTF-8 text (byte 8)", "async.toml", "a config is TOML, saved as UTF-8")
    ]


def test_a_folder(work, faults):
    (work / "configs").mkdir()
    assert faults(config="configs") == [
        Problem("the config is a folder, not a file", "configs", "name the TOML file in it")
    ]


@pytest.mark.parametrize(
    ("name", "others", "hint"),
    [
        ("asinc.toml", ["async.toml", "sync.md"], "did you mean 'async.toml'?"),
        ("zzz", ["async.toml", "sync.toml", "notes.md"], "TOML files there: async.toml, sync.toml"),
        ("zzz", [], "there are no TOML files there"),
    ],
)
def test_a_missing_file(work, faults, name, others, hint):
    for other in others:
        (work / other).write_text("")
    assert faults(config=name) == [Problem("there is no such config file", name, hint)]


def test_a_missing_folder(work, faults):
    assert faults(config="nowhere/async.toml") == [
        Problem("there is no such config file", "nowhere/async.toml", f"there is no folder {work / 'nowhere'}")
    ]


def test_a_file_in_place_of_a_folder(work, faults):
    (work / "file").write_text("")
    assert faults(config="file/async.toml") == [
        Problem("the config file can't be read: Not a directory", "file/async.toml")
    ]


def refuse(*args, **kwargs):
    """In place of a mode, which would not stop a superuser."""
    raise PermissionError(13, "Permission denied")


def test_a_file_that_may_not_be_read(work, load, faults, monkeypatch):
    (work / "async.toml").write_text("")
    (work / "pyproject.toml").write_text("[tool.tokenaudit]")
    monkeypatch.setattr("tokenaudit.contracts.files.os.open", refuse)
    assert faults(config="async.toml") == [
        Problem("the config file may not be read", "async.toml", "its permissions are in the way")
    ]
    assert load().source == "defaults"


def test_folders_that_may_not_be_searched_hold_no_config(work, load, monkeypatch):
    (work / "tokenaudit.toml").write_text("policy.max_staleness = 1")
    monkeypatch.setattr(Path, "exists", refuse)
    assert load().source == "defaults"


@pytest.mark.parametrize(("size", "fits"), [(2**20, True), (2**20 + 1, False)])
def test_a_file_has_at_most_one_mebibyte(work, load, faults, size, fits):
    (work / "async.toml").write_text("#" * size)
    if fits:
        assert load(config="async.toml").config == Config()
    else:
        assert faults(config="async.toml") == [
            Problem("the config file is larger than 1 MiB", "async.toml", "is it a config at all?")
        ]


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        (
            "[tool.tokenaudit]\nmode = ",
            "not TOML: Invalid value",
            "pyproject.toml, line 2, column 8",
        ),
        (
            "tool.tokenaudit = 3",
            "tool.tokenaudit is 3; it must be a section",
            "pyproject.toml",
        ),
        (
            "[tool.tokenaudit.policy]\nmax_stalness = 3",
            'unknown key "max_stalness"',
            "pyproject.toml [tool.tokenaudit]: policy.max_stalness",
        ),
    ],
)
def test_a_found_pyproject_can_be_wrong(work, faults, text, what, where):
    (work / "pyproject.toml").write_text(text)
    (problem,) = faults()
    assert (problem.what, problem.where) == (what, where)


@pytest.mark.parametrize("content", [b"[tool.ruff\n", b"\xff", b"tool = 3", b"#" * (2**20 + 1)])
def test_a_pyproject_of_others_is_passed_over(work, load, content):
    (work / "pyproject.toml").write_bytes(content)
    (work.parent / "pyproject.toml").write_text("[tool.tokenaudit.policy]\nmax_staleness = 4")
    assert staleness(load()) == (4, "pyproject.toml")


def test_a_found_file_is_named_as_a_user_would(tmp_path, work, faults):
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    (log_dir / "tokenaudit.toml").write_text("zzz = 1")
    assert faults(log_dir=log_dir)[0].where == f"{log_dir / 'tokenaudit.toml'}: zzz"
    (work / "night").mkdir()
    (work / "night" / "tokenaudit.toml").write_text("zzz = 1")
    assert faults(log_dir=Path("night"))[0].where == "night/tokenaudit.toml: zzz"


def test_dots_in_texts_are_no_parts_of_a_key(work, load, faults):
    rules = ", ".join('"dropped_token_rate{step>=0} <= 99.5%"' for _ in range(90))
    (work / "many.toml").write_text(f"[gate]\nrules = [{rules}]\n")
    assert len(load(config="many.toml").config.gate.rules) == 90
    (work / "deep.toml").write_text("x = {" + "a." * 90 + "a = 1}\n")
    assert [problem.what for problem in faults(config="deep.toml")] == ["a key of more than 64 parts"]


def test_tasks_that_only_overrides_name(load, work):
    (work / "some.toml").write_text("[tasks.code]\nweight = 1\n[tasks.empty]\n")
    overrides = ("tasks.code.weight=2", "tasks.empty.weight=2", "tasks.mth.weight=1", 'tasks."a.b".weight=1')
    assert load(*overrides).overridden_tasks == ("code", "empty", "mth", "a.b")
    assert load(*overrides, config="some.toml").overridden_tasks == ("mth", "a.b")
    assert load(*overrides, log_config={"tasks": {"mth": {}}}).overridden_tasks == ("code", "empty", "a.b")
    assert load("policy.max_staleness=1", config="some.toml").overridden_tasks == ()


@pytest.mark.parametrize(
    ("tasks", "hint"),
    [
        (("math", "code"), "did you mean 'math'? tasks: math, code"),
        (("code",), "tasks: code"),
        ((), "there are no tasks"),
    ],
)
def test_an_override_for_a_task_that_is_not_there(load, tasks, hint):
    with pytest.raises(ConfigError) as caught:
        check_overridden_tasks(load("tasks.mth.weight=1"), tasks, "log.parquet")
    assert caught.value.problems == (Problem("-s tasks.mth: there is no task 'mth'", "log.parquet", hint),)
    check_overridden_tasks(load("tasks.mth.weight=1"), (*tasks, "mth"), "log.parquet")


@pytest.mark.parametrize("size", [4, 2**20 + 1])
def test_a_log_in_place_of_a_config_is_told_as_such(faults, work, size):
    (work / "log").write_bytes(b"PAR1".ljust(size, b"\xff"))
    problem = Problem("a Parquet file is no config", "log", "a config is TOML; is this the log?")
    assert faults(config="log") == [problem]
