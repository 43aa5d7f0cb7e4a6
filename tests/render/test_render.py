"""Renderers on results that are empty, long, odd, or old."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.builders import make_digest, put, refresh, take, write_log
from tests.conftest import SAMPLE
from tokenaudit.config.model import parse_config
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import plural
from tokenaudit.render.blocks import (
    Command,
    Heading,
    Lines,
    Listing,
    Pairs,
    Paragraph,
    Phrase,
    Table,
    TableColumn,
    TableRow,
    Tone,
    share_text,
    value_text,
)
from tokenaudit.render.console import GREEN, ORANGE, RED, Terminal, console_text, sparkline
from tokenaudit.render.frames import csv_text, parquet_bytes, rows_frame
from tokenaudit.render.markdown import markdown_text
from tokenaudit.render.result import result_blocks
from tokenaudit.render.result_tables import SHOWN_ROWS
from tokenaudit.replay.ledger import count
from tokenaudit.replay.open_loop import replay, run_tasks
from tokenaudit.replay.result import Result, select_steps
from tokenaudit.replay.saved_result import result_from_json, result_to_json
from tokenaudit.replay.session import replay_log

LONG = 1_100


def result_of(tmp_path: Path, rows: list[dict], *overrides: str) -> Result:
    path = write_log(tmp_path / "log.parquet", rows)
    return replay_log(path, overrides=overrides, isolated=True).result


@pytest.fixture
def no_steps(tmp_path: Path) -> Result:
    """A log with a timeline but without a take: everything is in the tail."""
    return result_of(tmp_path, [refresh(1), put(2, 1, tokens=3)])


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """More steps than a terminal shows, each with one group put and taken; rich takes milliseconds a row."""
    rows: list[dict] = []
    for step in range(1, LONG + 1):
        rows += [
            put(2 * step, step, train_step=step, model_step=step - 1, tokens=3),
            take(2 * step + 1, train_step=step, batch_size=1),
        ]
    return result_of(tmp_path_factory.mktemp("long"), rows)


def everything(result: Result, by_task: bool) -> dict[str, str | bytes]:
    frame = rows_frame(result, by_task=by_task)
    return {
        "json": result_to_json(result),
        "csv": csv_text(frame),
        "parquet": parquet_bytes(frame),
        "markdown": markdown_text(result_blocks(result, by_task=by_task)),
        "pipe": console_text(result_blocks(result, by_task=by_task)),
        "terminal": console_text(result_blocks(result, by_task=by_task), Terminal(width=80, color=True)),
    }


@pytest.mark.parametrize("by_task", [False, True])
def test_a_run_without_steps_renders_everywhere(no_steps: Result, by_task: bool):
    shown = everything(no_steps, by_task)
    assert [warning.code for warning in no_steps.warnings] == ["no-steps"]
    assert "0 steps · 0 groups expired · – of produced tokens dropped" in str(shown["pipe"])
    assert "held_tokens" in str(shown["pipe"])
    assert str(shown["csv"]).splitlines()[1].startswith("tail,,")
    assert json.loads(str(shown["json"]))["tail"]["produced_tokens"] == 3


@pytest.mark.parametrize("by_task", [False, True])
def test_a_long_run_is_whole_everywhere_but_on_a_terminal(long_run: Result, by_task: bool):
    shown = everything(long_run, by_task)
    assert len(json.loads(str(shown["json"]))["steps"]) == LONG
    assert len(str(shown["csv"]).splitlines()) == 1 + LONG + 1
    assert len(pl.read_parquet(io.BytesIO(bytes(shown["parquet"])))) == LONG + 1  # type: ignore[arg-type]
    assert str(shown["markdown"]).count("\n| ") > LONG
    assert str(shown["pipe"]).count("\n") > LONG
    assert str(shown["terminal"]).count("\n") < SHOWN_ROWS + 30
    assert f"{LONG - SHOWN_ROWS:,} rows not shown" in str(shown["terminal"])


def test_a_saved_result_reads_back_equal(long_run: Result, no_steps: Result):
    for result in (long_run, no_steps):
        text = result_to_json(result)
        assert result_from_json(text, "saved.json") == result
        assert result_to_json(result_from_json(text, "saved.json")) == text


def test_names_that_mean_something_to_markdown_and_rich_stay_text(tmp_path: Path):
    name = "[bold]a|b*c_d`<e>\\"
    result = result_of(tmp_path, [put(1, 1, task_name=name, tokens=3), take(2, task_name=name)])
    assert name in console_text(result_blocks(result, by_task=True))
    lines = markdown_text(result_blocks(result, by_task=True)).splitlines()
    table_line = next(line for line in lines if line.startswith("| 1 "))
    assert r"\[bold\]a\|b\*c\_d\`\<e\>\\" in table_line
    heading = markdown_text(result_blocks(replace(result, config_source=name))).splitlines()[0]
    assert heading.endswith("\\[bold\\]a\\|b\\*c\\_d\\`\\<e\\>\\\\")


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 0, "–"),
        (0, 5, "0.0 %"),
        (5, 5, "100.0 %"),
        (1, 1001, "<0.1 %"),
        (1, 1000, "0.1 %"),
        (10**15 - 1, 10**15, ">99.9 %"),
        (2, 3, "66.7 %"),
        (7, 5, "140.0 %"),
    ],
)
def test_shares_never_round_something_to_nothing_or_all(part: int, whole: int, shown: str):
    assert share_text(part, whole) == shown


@pytest.mark.parametrize(
    ("values", "width", "bars"),
    [
        ([], 5, ""),
        ([0, 0], 5, "▁▁"),
        ([0, 4, 8], 5, "▁▅█"),
        ([1, 9, 1, 1], 2, "█▁"),
        ([3.0], 0, ""),
    ],
)
def test_sparklines(values: list[float], width: int, bars: str):
    assert sparkline(values, width) == bars


def test_numbers_as_people_read_them():
    assert value_text(m.PRODUCED_TOKENS, 1234567) == "1,234,567"
    assert value_text(m.RAW_REWARDS_SUM, 1234.5) == "1,234.500"
    assert value_text(m.SEQ_STALENESS_MAX, None) == "–"
    assert (plural(1, "group"), plural(0, "group")) == ("1 group", "0 groups")


def test_markdown_tables_escape_cells_and_hold_no_blank_lines():
    table = markdown_text(
        [Table([TableColumn("a|b", "left"), TableColumn("n")], [TableRow(("x\ny", "1")), TableRow(("", "2"))])]
    )
    assert table.splitlines()[0].startswith("| a\\|b")
    assert "x\\\\ny" in table
    assert len(table.splitlines()) == 4


HARMFUL = "<img src=x onerror=alert(1)> [ok](javascript:alert(1)) `a` *b* x_y & ~c~ #1 a|b"


@pytest.mark.parametrize("by_task", [False, True])
def test_markdown_shows_names_of_tasks_as_they_are(by_task: bool, tmp_path: Path):
    result = result_of(tmp_path, [put(1, 1, task_name=HARMFUL), take(2, task_name=HARMFUL)])
    shown = markdown_text(result_blocks(result, by_task=by_task))
    escaped = "".join(f"\\{char}" if char in "\\`*_[]<>|#&~" else char for char in HARMFUL)
    assert shown.count(escaped) == 1 + by_task * 3
    assert "<img" not in shown.replace("\\<", "")


@pytest.mark.parametrize(
    ("name", "shown"),
    [("=1+1", "'=1+1"), ("+1", "'+1"), ("-1", "'-1"), ("@SUM(A1)", "'@SUM(A1)"), ("\t=1", "'\\t=1"), ("\r=1", "'\\r=1"),
     ("a=1", "a=1"), ("a\x1b[31m", "a\\x1b[31m"), ("math", "math"), ("mäth", "mäth")],
)  # fmt: skip
def test_csv_runs_nothing_and_colours_nothing(name: str, shown: str, tmp_path: Path, run_cli):
    path = write_log(tmp_path / "log.parquet", [put(1, 1, task_name=name), take(2, task_name=name), put(3, 1)])
    for command in (
        ("replay", path, "--by-task"),
        ("audit", path),
        ("diff", "--set-b", "policy.max_staleness=1", "--log", path),
    ):
        ran = run_cli(*command, "--format", "csv", "-q")
        assert "\x1b" not in ran.out
        assert "\r" not in ran.out
        tasks = {row.get("task") or "" for row in csv.DictReader(ran.out.splitlines())}
        assert shown in tasks
        assert not any(task.startswith(("=", "+", "-", "@")) for task in tasks)


def test_the_verdict_tells_groups_put_as_expired(tmp_path: Path):
    rows = [put(1, 1, status="expired", tokens=3), put(2, 2, tokens=2), take(3), put(4, 3, status="expired", tokens=3)]
    result = result_of(tmp_path, rows)
    last = console_text(result_blocks(result)).splitlines()[-1]
    assert last == (
        "1 step · 1 group expired (0 by token, 0 by sequence, 1 put as expired) · 60.0 % of produced tokens dropped · "
        "with the tail 2 and 75.0 %"
    )


def test_a_result_with_another_selection_has_no_tail_in_csv(long_run: Result):
    some = replace(long_run, steps=long_run.steps[:3], selection="1..3")
    assert rows_frame(some)["row"].to_list() == ["step"] * 3


def test_rows_of_a_frame_have_the_registry_s_types():
    digest = make_digest([put(1, 1, tokens=3, reward=0.5), take(2)])
    config = parse_config({}, "test")
    assert count(replay(digest, config), run_tasks(digest, config)).rows[0].accounts["default"].rewards.tolist() == [
        0.5
    ]


TEXTS = st.lists(st.text(st.sampled_from("abcxyz,._-äß語"), min_size=1, max_size=14), min_size=1, max_size=40)


@given(words=TEXTS, width=st.integers(20, 120), indent=st.integers(0, 12), named=st.booleans(), color=st.booleans())
def test_text_breaks_between_words_at_every_width(
    words: list[str], width: int, indent: int, named: bool, color: bool
) -> None:
    text = " ".join(words)
    blocks = [
        Heading("report", text),
        Paragraph(text, Tone.BAD),
        Lines([text, (Phrase(f"{words[0]:<8}  " if named else "", Tone.FAILED), text)], Tone.FAINT, indent=indent),
        Listing([" " * indent + text]),
        Pairs([("name", text)]),
    ]
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", console_text(blocks, Terminal(width, color=color)))
    assert drawn.split() == re.sub(r"\x1b\[[0-9;]*m", "", console_text(blocks, Terminal(color=color))).split()
    for line in drawn.splitlines():
        # a word that is wider than the terminal stays whole, behind what it is set in by
        assert cell_len(line) <= width or len(line.split()) == 1 or line.startswith("name  ")


def test_further_lines_stand_below_what_is_said_of_a_name() -> None:
    drawn = console_text([Pairs([("timeline", "recorded (put 1,905, sample 1,077)")])], Terminal(30))
    assert drawn == "timeline  recorded (put 1,905,\n          sample 1,077)\n"
    assert console_text([Lines(["  hint: read the help topic"])], Terminal(20)) == "  hint: read the\n    help topic\n"


def test_tables_break_text_and_keep_numbers_whole() -> None:
    rows = [TableRow(("never completed by the time the run ended", "1,234,567"))]
    table = Table([TableColumn("what became of it", "left"), TableColumn("tokens")], rows)
    drawn = console_text([table], Terminal(40))
    assert max(map(len, drawn.splitlines())) <= 40
    assert "1,234,567" in drawn
    assert "never completed by the time the run ended" in console_text([table], Terminal(15))


def luminance(color: int) -> float:
    """Relative luminance of one of the 216 colours of the cube; WCAG 2.2, "relative luminance"."""
    levels = (0, 95, 135, 175, 215, 255)
    red, green, blue = (levels[(color - 16) // base % 6] / 255 for base in (36, 6, 1))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("color", [GREEN, ORANGE, RED])
def test_colors_can_be_read_on_white_and_on_black(color: int) -> None:
    assert 1.05 / (luminance(color) + 0.05) >= 3.5
    assert (luminance(color) + 0.05) / 0.05 >= 3.5


def test_red_cells_have_a_legend_where_there_are_colors(tmp_path: Path) -> None:
    result = result_of(tmp_path, [put(1, 1, model_step=0), refresh(5, train_step=9), take(6, train_step=9)])
    assert result.totals["expired_groups"] == 1
    assert "red: the most expired_groups" in console_text(result_blocks(result), Terminal(100, color=True))
    assert "red:" not in console_text(result_blocks(result), Terminal(100))


def test_charts_of_selected_steps_say_of_which():
    result = replay_log(SAMPLE, isolated=True).result
    charts = {
        selection: [
            line for line in console_text(result_blocks(one), Terminal(width=80)).splitlines() if "up to" in line
        ]
        for selection, one in (("", result), ("26..28", select_steps(result, 26, 28)))
    }
    assert [line.endswith("(step 27)") for line in charts[""]] == [True, False]
    assert [line.rpartition(" up to ")[2] for line in charts["26..28"]] == [
        "23 (step 27 of 26..28)",
        "29.3 % (step 28 of 26..28)",
    ]


def test_a_command_is_never_broken():
    command = "tokenaudit simulate a/log.parquet -c 'my config.toml' -s tasks.code.max_token_staleness=2"
    text = f"What bound most is one setting. Run `{command}`, or see tokenaudit explain code/102 for a group."
    for width in (40, 60, 80, 100):
        shown = console_text([Command(command), Paragraph(text)], Terminal(width=width))
        assert shown.splitlines()[0] == f"  {command}"
        assert f"`{command}`," in shown
        assert "tokenaudit explain" in shown
        wide = [line for line in shown.splitlines()[1:] if len(line) > width]
        assert wide == ([f"  `{command}`,"] if width < len(command) + 5 else [])
    assert markdown_text([Command(command)]) == f"    {command}\n"


def test_lines_in_columns_are_broken_between_columns():
    rows = [f"    {'816':>5}  completed  {bar:<20}  {runs}" for bar, runs in (("##", "v1x2"), ("#" * 20, "v1x20 v2x1"))]
    cut = console_text([Listing(rows)], Terminal(width=40)).splitlines()
    assert cut == [
        "      816  completed",
        "           ##                    v1x2",
        "      816  completed",
        f"           {'#' * 20}",
        "           v1x20 v2x1",
    ]
    assert console_text([Listing(rows)], Terminal(width=60)).splitlines() == rows
    long = "put        a column that is longer than the room beside it is broken between words"
    assert console_text([Listing([long])], Terminal(width=40)).splitlines() == [
        "put        a column that is longer than",
        "           the room beside it is broken",
        "           between words",
    ]
