"""What the shell completes: the right names, fast, and nothing where something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import put, write_log
from tests.conftest import ROOT, SAMPLE
from tokenaudit.audit.checks import RULES
from tokenaudit.cli.completion import rule_codes
from tokenaudit.config.model import Task
from tokenaudit.contracts.metrics import METRICS, RATES
from tokenaudit.help.topics import TOPICS, format_names
from tokenaudit.importers.detect import IMPORTERS

CODE = (
    "import sys; sys.argv[0] = 'tokenaudit'\n"
    "from tokenaudit.cli import main\n"
    "try:\n    main()\n"
    "finally:\n"
    "    heavy = [name for name in ('numpy', 'pyarrow', 'polars', 'torch') if name in sys.modules]\n"
    "    print('heavy', *heavy, file=sys.stderr)\n"
)


def completed(line: str, folder: Path, heavy: bool = False) -> list[str]:
    """The names that bash offers for the last word of a line."""
    words = f"tokenaudit {line}"
    asked = {"_TOKENAUDIT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    environment = os.environ | asked | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", CODE], env=environment, cwd=folder, capture_output=True, text=True)
    assert ran.stderr.splitlines()[-1:] == ["heavy numpy pyarrow" if heavy else "heavy"], ran.stderr
    assert ran.stderr.count("\n") == 1
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("replay x -s timeline.sy", ["timeline.sync_weights_interval=", "timeline.sync_time_us="]),
        ("gate x --set mo", ["mode="]),
        ("diff --set-b ta", ["tasks."]),
        ("diff --metrics dropped_tokens,dropped", ["dropped_tokens,dropped_token_rate"]),
        ("gate x --metrics trained_tokens,masked_t", ["trained_tokens,masked_token_rate"]),
        ("mask x --device cu", ["cuda", "cuda:0"]),
        ("import x --from xtuner-", ["xtuner-buffer", "xtuner-trajectories"]),
        ("init --for t", ["tinker", "trl"]),
        ("audit x --ignore L00", sorted(rule.code for rule in RULES if rule.code.startswith("L00"))),
        ("help c", [name for name in TOPICS if name.startswith("c")]),
        ("help import sl", ["slime"]),
        ("explain group-inc", ["group-incomplete"]),
        ("replay x -s nothing", []),
    ],
)  # fmt: skip
def test_names_are_offered_without_loading_anything_heavy(line: str, names: list[str], tmp_path: Path):
    assert completed(line, tmp_path) == names


def test_tasks_come_from_the_config_the_metadata_and_the_rows(tmp_path: Path):
    (tmp_path / "tokenaudit.toml").write_text("[tasks.chat]\nweight = 1.0\n")
    assert completed("replay -s tasks.", tmp_path) == [f"tasks.chat.{key}=" for key in Task.model_fields]
    assert completed(f"replay {SAMPLE} -s tasks.c", tmp_path, heavy=True) == [
        f"tasks.{task}.{key}=" for task in ("chat", "code") for key in Task.model_fields
    ]
    write_log(tmp_path / "log.parquet", [put(task_name="math"), put(1, 1, task_name="bad\x1bname")])
    assert completed("replay log.parquet -s tasks.m", tmp_path, heavy=True)[0] == "tasks.math.max_staleness="


@pytest.mark.parametrize("broken", ["log.parquet", "tokenaudit.toml", "gone.parquet"])
def test_what_is_broken_completes_nothing(broken: str, tmp_path: Path):
    if broken != "gone.parquet":
        (tmp_path / broken).write_text("[[[")
    heavy = broken.endswith(".parquet")
    assert completed(f"replay {broken if heavy else ''} -s tasks.", tmp_path, heavy=heavy) == []


def test_the_lists_are_complete():
    assert sorted(format_names()) == sorted([*IMPORTERS, "miles"])
    assert rule_codes(None, "") == [name for rule in RULES for name in (rule.code, rule.name)]
    assert {"dropped_tokens", "dropped_token_rate"} <= {*METRICS, *RATES}
