"""The README can't rot: its generated parts are current, its commands run, and every command has an example."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.help.readme import README, with_generated_parts

ROOT = README.parent
TEXT = README.read_text()
BASH = "\n".join(re.findall(r"```bash\n(.*?)```", TEXT, flags=re.DOTALL))
COMMANDS = [line for line in BASH.splitlines() if line.startswith("tokenaudit ")]
TEST_COMMAND = "pip install '.[test]' && pytest"
NAMES = (
    "replay",
    "simulate",
    "workload",
    "inspect",
    "mask",
    "compact",
    "lint",
    "diff",
    "gate",
    "record",
    "import",
    "audit",
    "explain",
)
MAIN_COMMAND = "pip install . && tokenaudit replay sample_data/rollouts.parquet"


def test_generated_parts_are_current():
    assert with_generated_parts(TEXT) == TEXT, "run python tests/readme.py"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a fresh clone in which the README's Python was run; its commands run there in order."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "sample_data", folder / "sample_data")
    snippets = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(snippets) == 5
    for code in snippets:
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_readme_commands_run(command: str, checkout: Path):
    assert len(COMMANDS) > 8
    ran = subprocess.run(
        [sys.executable, "-m", "tokenaudit", *shlex.split(command)[1:]],
        cwd=checkout,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (ran.returncode, ran.stderr.count("Traceback")) == (0, 0), ran.stderr
    assert ran.stdout


def test_the_two_commands_stand_in_the_readme_and_ci_runs_the_second():
    assert MAIN_COMMAND in BASH
    assert TEST_COMMAND in BASH
    script = ROOT / ".ci" / "run"
    assert TEST_COMMAND in script.read_text().splitlines()
    assert script.stat().st_mode & stat.S_IXUSR


def test_readme_configs_and_rules_are_valid():
    from tokenaudit.config.sections import parse_config
    from tokenaudit.gate.grammar import parse_rule

    texts = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)
    configs = [parse_config(tomllib.loads(text), "README.md") for text in texts]
    assert any(config.task_policy("math").max_staleness == 3 for config in configs)
    rules = [rule for config in configs for rule in config.gate.rules]
    table = TEXT.split("| form | example | holds when |")[1].split("\n\n")[0]
    rules += [cell for cell in re.findall(r"`([^`]+)`", table) if " " in cell and not cell.startswith("{")]
    assert len(rules) > 12
    for rule in rules:
        parse_rule(rule, "README.md")


def test_the_readme_gate_fails_as_shown(checkout: Path):
    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tokenaudit", *shlex.split(command.replace("\\\n", " "))[1:]],
            cwd=checkout,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    (baseline,) = [command for command in COMMANDS if "--write-baseline" in command]
    assert run(baseline).returncode == 0
    (command,) = re.findall(r"```console\n\$ (tokenaudit .*?)\n```", TEXT, flags=re.DOTALL)
    ran = run(command)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert ran.stdout in TEXT


@pytest.mark.parametrize("command", NAMES)
def test_every_command_has_help_with_an_example_and_stands_in_the_readme(command: str, run_cli):
    ran = run_cli(command, "--help")
    assert ran.code == 0
    assert f"Example: tokenaudit {command} " in ran.out
    assert f"| `tokenaudit {command}" in TEXT


def test_all_commands_are_checked_above(run_cli):
    listed = re.search(r"Commands:\n(.*?)\n\n", run_cli("--help").out, flags=re.DOTALL)
    assert listed is not None
    assert {line.split()[0] for line in listed[1].splitlines() if line.startswith("  ") and line[2] != " "} == set(
        NAMES
    )
