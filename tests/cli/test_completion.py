"""What the shell completes: the right names, fast, and nothing where something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.builders import put, write_log
from tests.conftest import ROOT, SAMPLE
from tokenaudit.audit.checks import RULES
from tokenaudit.cli.completion import methods, rule_codes
from tokenaudit.config.model import Task
from tokenaudit.contracts.metrics import METRICS, RATES
from tokenaudit.corrections.methods import WELL_KNOWN
from tokenaudit.corrections.trainers import ALIASES, TRAINERS
from tokenaudit.help.topics import TOPICS, format_names
from tokenaudit.importers.detect import IMPORTERS

CODE = """
import contextlib, io, json, os, sys
from tokenaudit.cli import main
sys.argv = ["tokenaudit"]
for line in json.loads(os.environ["LINES_TO_COMPLETE"]):
    os.environ |= {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main()
    heavy = [name for name in ("numpy", "pyarrow", "polars", "torch") if name in sys.modules]
    print(json.dumps([out.getvalue().split(), heavy]))
"""


def completed(folder: Path, *lines: str) -> list[tuple[list[str], list[str]]]:
    """For each line, the names that bash offers for its last word, and which heavy modules are loaded by then.

    The lines are completed one after the other by one process.
    """
    asked = json.dumps([f"tokenaudit {line}" for line in lines])
    environment = os.environ | {"_TOKENAUDIT_COMPLETE": "complete_bash", "LINES_TO_COMPLETE": asked}
    environment["PYTHONPATH"] = str(ROOT)
    ran = subprocess.run([sys.executable, "-c", CODE], env=environment, cwd=folder, capture_output=True, text=True)
    assert ran.stderr == ""
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(told) == len(lines)
    return [(names, heavy) for names, heavy in told]


def test_names_are_offered_without_loading_anything_heavy(tmp_path: Path):
    expected = {
        "replay x -s timeline.sy": ["timeline.sync_weights_interval=", "timeline.sync_time_us="],
        "gate x --set mo": ["mode="],
        "diff --set-b ta": ["tasks."],
        "diff --metrics dropped_tokens,dropped": ["dropped_tokens,dropped_token_rate"],
        "gate x --metrics trained_tokens,masked_t": ["trained_tokens,masked_token_rate"],
        "mask x --device cu": ["cuda", "cuda:0"],
        "import x --from xtuner-": ["xtuner-buffer", "xtuner-trajectories"],
        "init --for t": ["tinker", "trl"],
        "audit x --ignore L00": sorted(rule.code for rule in RULES if rule.code.startswith("L00")),
        "corrections x -m pr": ["prime", "prime-rl", "product-mask"],
        "mask x --correction slime-": ["slime-mis"],
        "help c": [name for name in TOPICS if name.startswith("c")],
        "help import sl": ["slime"],
        "explain group-inc": ["group-incomplete"],
        "replay x -s nothing": [],
    }
    told = completed(tmp_path, *expected)
    assert dict(zip(expected, told, strict=True)) == {line: (names, []) for line, names in expected.items()}


HEAVY = ["numpy", "pyarrow"]


def test_tasks_come_from_the_config_the_metadata_and_the_rows(tmp_path: Path):
    (tmp_path / "tokenaudit.toml").write_text("[tasks.chat]\nweight = 1.0\n")
    write_log(tmp_path / "log.parquet", [put(task_name="math"), put(1, 1, task_name="bad\x1bname")])
    lines = ("replay -s tasks.", f"replay {SAMPLE} -s tasks.c", "replay log.parquet -s tasks.m")
    of_config, of_metadata, of_rows = completed(tmp_path, *lines)
    assert of_config == ([f"tasks.chat.{key}=" for key in Task.model_fields], [])
    assert of_metadata == ([f"tasks.{task}.{key}=" for task in ("chat", "code") for key in Task.model_fields], HEAVY)
    assert (of_rows[0][0], of_rows[1]) == ("tasks.math.max_staleness=", HEAVY)


def test_what_is_broken_completes_nothing(tmp_path: Path):
    (tmp_path / "log.parquet").write_text("[[[")
    lines = ("replay log.parquet -s tasks.", "replay gone.parquet -s tasks.")
    assert completed(tmp_path, *lines) == [([], HEAVY), ([], HEAVY)]
    (tmp_path / "tokenaudit.toml").write_text("[[[")
    assert completed(tmp_path, "replay -s tasks.") == [([], [])]


def test_the_lists_are_complete():
    assert sorted(format_names()) == sorted([*IMPORTERS, "miles"])
    assert rule_codes(None, "") == [name for rule in RULES for name in (rule.code, rule.name)]
    assert methods(None, "") == sorted({*TRAINERS, *ALIASES, *WELL_KNOWN})
    assert {"dropped_tokens", "dropped_token_rate"} <= {*METRICS, *RATES}
