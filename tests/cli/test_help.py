"""`tokenaudit help`: what is listed, what a pipe gets, what a terminal shows, and what is no topic."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Ran
from tokenaudit.help.topics import TOPICS, TRAINERS, find_topic, topics, trainer_topics

FOLDER = ROOT / "tokenaudit" / "help"


def test_the_list_has_every_topic_with_one_line(run_cli: Callable[..., Ran]):
    ran = run_cli("help")
    assert (ran.code, ran.err) == (0, "")
    for topic in topics():
        assert f"  {topic.name} " in ran.out
        assert ran.out.count(topic.line) == 1
    assert "xtuner, areal, prime-rl, slime, verl" in ran.out


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.md")), ids=lambda path: path.stem)
def test_a_pipe_gets_the_bytes_of_the_file(path: Path, run_cli: Callable[..., Ran]):
    ran = run_cli("help", *path.relative_to(FOLDER).with_suffix("").parts)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.encode() == path.read_bytes()


def test_every_file_is_a_topic_with_a_line_of_its_own():
    stems = {path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.md")}
    assert stems == {*map(Path, TOPICS), *(Path("import") / name for name in TRAINERS)}
    for topic in (*topics(), *trainer_topics()):
        assert topic.text.startswith(f"# {topic.name}: {topic.line}\n")
        assert 10 < len(topic.line) < 90, topic.line


def test_every_import_format_and_every_command_has_a_topic(run_cli: Callable[..., Ran]):
    formats = [line.split(":")[0] for line in run_cli("import", "--list").out.splitlines() if line[0] != " "]
    assert len(formats) > 10
    for name in (*formats, "miles"):
        topic = find_topic(["import", name])
        assert topic.name.startswith("import ")
        assert f"`{name}`" in topic.text or topic.name == f"import {name}" or f"--from {name}" in topic.text
    for name in ("replay", "inspect", "lint", "mask", "compact", "workload", "diff", "gate", "record", "audit"):
        assert f"tokenaudit {name} " in find_topic([name]).text


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["metric"], "did you mean 'metrics'?"),
        (["AUDIT"], "did you mean 'audit'?"),
        (["import", "SLIM"], "did you mean 'slime'?"),
        (["V001"], "`tokenaudit explain V001` shows an audit rule."),
        (["v001"], "`tokenaudit explain V001` shows an audit rule."),
        (["import", "slim"], "did you mean 'slime'?"),
        (["gate", "slime"], "topics: commands, columns"),
        (["import", "slime", "more"], "topics: commands, columns"),
        (["../secret"], "topics: commands, columns"),
        ([""], "topics: commands, columns"),
    ],
)
def test_what_is_no_topic_is_2_and_names_the_nearest(words: list[str], hint: str, run_cli: Callable[..., Ran]):
    ran = run_cli("help", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: there is no help topic {' '.join(words)!r}\n  hint: {hint}")
    assert ran.err.endswith(("? `tokenaudit help` lists all\n", ". `tokenaudit help` lists all\n"))


def test_a_terminal_shows_text_laid_out_and_coloured(run_on_terminal: Callable[..., Ran]):
    code, out, _ = run_on_terminal("help", "import", "trl", lines=80)
    assert code == 0
    assert "# import trl" not in out
    assert "\x1b[" in out
    plain = run_on_terminal("help", "import", "trl", lines=80, NO_COLOR="1").out
    assert "\x1b[" not in plain
    assert "tokenaudit import output_dir/completions" in plain


PAGER = f"{sys.executable} -c \"import sys; print('paged', len(sys.stdin.read().splitlines()) > 20)\""


def test_longer_text_goes_through_the_pager():
    """In a process of its own, whose standard output the pager inherits."""
    owner, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 100, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("LESS", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenaudit", "help", "metrics"],
        cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, env=kept | {"TERM": "xterm", "PAGER": PAGER},
    )  # fmt: skip
    os.close(terminal)
    output = b""
    try:
        while chunk := os.read(owner, 65536):
            output += chunk
    except OSError:
        pass  # how Linux says that nobody holds the terminal any more
    os.close(owner)
    assert (process.wait(), output) == (0, b"paged True\r\n")


def test_what_fits_needs_no_pager(run_on_terminal: Callable[..., Ran]):
    ran = run_on_terminal("help", "import", "trl", lines=80, PAGER=PAGER)
    assert ran.code == 0
    assert "tokenaudit import output_dir/completions" in ran.out


@pytest.mark.parametrize("pager", ["", "cat", "no-such-pager-anywhere"])
def test_longer_text_is_shown_where_there_is_no_pager(pager: str, run_on_terminal: Callable[..., Ran]):
    code, out, _ = run_on_terminal("help", "metrics", PAGER=pager, NO_COLOR="1")
    assert code == 0
    assert "expired_groups" in out


def test_without_a_keyboard_there_is_no_pager(run_on_terminal: Callable[..., Ran]):
    code, out, _ = run_on_terminal("help", "metrics", PAGER="echo paged; cat", has_keyboard=False, NO_COLOR="1")
    assert code == 0
    assert "expired_groups" in out


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("topic", ["metrics", "rules", "columns", "python"])
def test_names_in_tables_are_whole_on_a_narrow_terminal(topic: str, columns: int, run_on_terminal: Callable[..., Ran]):
    code, out, _ = run_on_terminal("help", topic, PAGER="cat", NO_COLOR="1", columns=columns)
    assert code == 0
    rows = [line for line in find_topic([topic]).text.splitlines() if line.startswith("| ")]
    names = {cell.strip(" `*") for row in rows for cell in row.split("|")[1:3] if cell.strip().startswith("`")}
    names = {name for name in names if " " not in name}
    assert len(names) > 5
    assert out.count("\u2026") == find_topic([topic]).text.count("\u2026"), "what an ellipsis cuts can't be copied"
    assert names <= set(out.split())
    code_lines = {line.strip() for line in find_topic([topic]).text.splitlines()}
    assert [line for line in out.splitlines() if len(line) > columns and line.strip() not in code_lines] == []


@pytest.mark.parametrize("topic", ["gate", "ci", "commands"])
def test_commands_are_whole_on_a_narrow_terminal(topic: str, run_on_terminal: Callable[..., Ran]):
    """In code, whose lines stay as long as they are; and in text, as far as a line has room for them."""
    code, out, _ = run_on_terminal("help", topic, PAGER="cat", NO_COLOR="1", columns=60)
    assert code == 0
    text = find_topic([topic]).text
    fences = re.findall(r"^```\w+\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line.rstrip() for fence in fences for line in fence.splitlines()]
    assert len(lines) > 10
    shown = {line.strip() for line in out.splitlines()}
    assert [line for line in lines if line.strip() not in shown] == []
    prose = re.sub(r"^```.*?^```|^\|.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    commands = {" ".join(found.split()) for found in re.findall(r"`(tokenaudit [^`]*)`", prose)}
    assert [command for command in commands if len(command) < 50 and command not in out] == []


def test_the_list_of_topics_fits_a_narrow_terminal(run_on_terminal: Callable[..., Ran]):
    out = run_on_terminal("help", columns=60, lines=100).out
    assert max(map(len, out.splitlines())) <= 60


def test_the_example_of_a_command_is_one_line(run_cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "60")
    example = "Example: tokenaudit gate rollouts.parquet -c async.toml --rule 'dropped_token_rate <= 20%'\n"
    assert example in run_cli("gate", "--help").out


def test_help_keeps_its_text_where_docstrings_are_left_out(run_cli: Callable[..., Ran]):
    commands = ["--help", "audit --help", "help metrics"]
    code = (
        "import contextlib, sys\nfrom tokenaudit.cli import main\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['tokenaudit', *command.split()]\n"
        "    with contextlib.suppress(SystemExit):\n        main()\n"
        "    print('\\0', end='')\n"
    )
    ran = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, check=True)
    bare = ran.stdout.decode().split("\0")[:-1]
    for text, command in zip(bare, commands, strict=True):
        assert text == run_cli(*command.split()).out
        assert len(text) > 500
