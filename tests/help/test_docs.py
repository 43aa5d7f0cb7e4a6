"""The README and the help topics can't rot: generated parts are current, commands run, every command has an example."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran
from tests.help.documents import DOCUMENTS, MARKED, PARTS, README, ROOT, TOPIC_FOLDER, with_generated_parts
from tokenaudit.help.topics import topics

TEXTS = {path: path.read_text() for path in DOCUMENTS}
TEST_COMMAND = "pip install '.[test]' && pytest"
NAMES = (
    "replay",
    "simulate",
    "workload",
    "inspect",
    "mask",
    "corrections",
    "compact",
    "init",
    "lint",
    "diff",
    "gate",
    "record",
    "import",
    "audit",
    "explain",
    "schema",
    "help",
)
MAIN_COMMAND = "pip install . && tokenaudit replay sample_data/rollouts.parquet"


def blocks(path: Path, language: str) -> list[str]:
    """The blocks of a document in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXTS[path], flags=re.DOTALL | re.MULTILINE)


def commands(path: Path) -> list[str]:
    """The commands of a document that can be run as they stand."""
    lines = [line for block in blocks(path, "bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("tokenaudit ")]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT if path == README else TOPIC_FOLDER).with_suffix(""))


documents = pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)


@documents
def test_generated_parts_are_current(path: Path):
    assert with_generated_parts(TEXTS[path]) == TEXTS[path], "run python -m tests.help.documents"


def test_every_generated_part_stands_in_a_document():
    assert {match[1] for text in TEXTS.values() for match in MARKED.findall(text)} == set(PARTS)
    marks = sum(text.count("<!--") for text in TEXTS.values())
    assert marks == 2 * sum(len(MARKED.findall(text)) for text in TEXTS.values())


@documents
def test_commands_and_snippets_run(path: Path, tmp_path: Path, run_cli: Callable[..., Ran]):
    """Python first, then commands in order, in a folder like a fresh clone."""
    shutil.copytree(ROOT / "sample_data", tmp_path / "sample_data")
    snippets = blocks(path, "python")
    if snippets:
        code = "".join(f"exec({snippet!r}, {{}})\n" for snippet in snippets)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=environment)
    for command in commands(path):
        ran = run_cli(*shlex.split(command, comments=True)[1:])
        assert (ran.code, ran.err.count("Traceback")) == (0, 0), f"{command}\n{ran.err}"
        assert ran.out, command


def test_there_are_commands_and_snippets_to_run():
    assert len(commands(README)) >= 8
    assert sum(len(commands(path)) for path in DOCUMENTS) > 40
    assert sum(len(blocks(path, "python")) for path in DOCUMENTS) >= 5


def test_the_readme_is_short():
    assert TEXTS[README].count("\n") <= 250


def test_the_two_commands_stand_in_the_readme_and_ci_runs_the_second():
    found = "".join(blocks(README, "bash")).splitlines()
    assert found[0] == MAIN_COMMAND
    assert found[1] == TEST_COMMAND
    script = ROOT / ".ci" / "run"
    assert TEST_COMMAND in script.read_text().splitlines()
    assert script.stat().st_mode & stat.S_IXUSR


def test_configs_and_rules_are_valid():
    from tokenaudit.config.model import Config, parse_config
    from tokenaudit.gate.grammar import parse_rule

    found = [(path.name, text) for path in DOCUMENTS for text in blocks(path, "toml")]
    configs = [parse_config(tomllib.loads(text), name) for name, text in found]
    assert Config() in configs
    rules = [rule for config in configs for rule in config.gate.rules]
    table = TEXTS[TOPIC_FOLDER / "gate.md"].split("| form | example | holds when |")[1].split("\n\n")[0]
    rules += [cell for cell in re.findall(r"`([^`]+)`", table) if " " in cell and not cell.startswith("{")]
    assert len(rules) > 12
    for rule in rules:
        parse_rule(rule, "gate.md")


def test_the_gate_fails_as_shown(tmp_path: Path, run_cli: Callable[..., Ran]):
    path = TOPIC_FOLDER / "gate.md"
    shutil.copytree(ROOT / "sample_data", tmp_path / "sample_data")
    (baseline,) = [command for command in commands(path) if "--write-baseline" in command]
    assert run_cli(*shlex.split(baseline)[1:]).code == 0
    (command,) = re.findall(r"```console\n\$ (tokenaudit .*?)\n```", TEXTS[path], flags=re.DOTALL)
    ran = run_cli(*shlex.split(command.replace("\\\n", " "))[1:])
    assert ran.code == 1
    assert [line for line in ran.err.splitlines() if not line.startswith((" ", "caution: "))] == []
    assert ran.out in TEXTS[path]


@pytest.mark.parametrize("command", NAMES)
def test_every_command_has_help_with_an_example_and_stands_in_the_documents(command: str, run_cli: Callable[..., Ran]):
    ran = run_cli(command, "--help")
    assert ran.code == 0
    assert f"Example: tokenaudit {command} " in ran.out
    for path in (README, TOPIC_FOLDER / "commands.md"):
        row = re.search(rf"^\| `tokenaudit {command}` \| (.+?) \|", TEXTS[path], flags=re.MULTILINE)
        assert row is not None
        assert row[1] in " ".join(ran.out.split())
    run = [line for path in DOCUMENTS for line in commands(path) if line.startswith(f"tokenaudit {command} ")]
    assert run


def test_all_commands_are_checked_above(run_cli: Callable[..., Ran]):
    listed = re.search(r"Commands:\n(.*?)\n\n", run_cli("--help").out, flags=re.DOTALL)
    assert listed is not None
    assert {line.split()[0] for line in listed[1].splitlines() if line.startswith("  ") and line[2] != " "} == set(
        NAMES
    )


def test_every_topic_that_a_document_names_is_there():
    names = {topic.name for topic in topics()}
    found = {
        word for text in TEXTS.values() for word in re.findall(r"tokenaudit help ([a-z-]+)", text) if word != "import"
    }
    assert found <= names


def test_nothing_says_to_install_a_name_that_is_not_ours():
    package = [path.read_text() for path in (ROOT / "tokenaudit").rglob("*.py")]
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text()
    for text in (*TEXTS.values(), *package, hooks):
        assert not re.search(r"pip install ['\"]?(rollout-)?tokenaudit", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["name"], list(project["scripts"])) == ("rollout-tokenaudit", ["tokenaudit"])
