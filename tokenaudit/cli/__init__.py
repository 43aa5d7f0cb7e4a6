"""The command line: arguments, streams and exit codes.

Exit codes: 0 judged and fine; 1 judged and something is wrong; 2 could not judge. Commands import what they need
when they run, so that `--help` loads neither pyarrow nor polars nor torch.
"""

from __future__ import annotations

import platform
import signal
import sys
from typing import Annotated

import typer

from tokenaudit import __version__
from tokenaudit.cli import streams
from tokenaudit.cli.audit import audit
from tokenaudit.cli.convert import compact, workload
from tokenaudit.cli.corrections import corrections
from tokenaudit.cli.describe import inspect, lint
from tokenaudit.cli.diff import diff
from tokenaudit.cli.explain import explain
from tokenaudit.cli.gate import gate
from tokenaudit.cli.help import help_
from tokenaudit.cli.import_ import import_
from tokenaudit.cli.init import init
from tokenaudit.cli.mask import mask
from tokenaudit.cli.record import record
from tokenaudit.cli.replay import replay
from tokenaudit.cli.schema import schema
from tokenaudit.cli.simulate import simulate
from tokenaudit.contracts.errors import Problem, TokenauditError
from tokenaudit.contracts.schema import SCHEMA_VERSION

COULD_NOT_JUDGE = 2
"""Exit code for everything that kept the question from being answered."""

app = typer.Typer(
    name="tokenaudit",
    help="Replay recorded rollout logs and see which tokens a staleness policy keeps, masks and drops.",
    epilog="\b\nExample: tokenaudit replay sample_data/rollouts.parquet\n\n`tokenaudit help` lists topics to read.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command(
    help=(
        "Replay a recorded log under a config: expired groups, dropped tokens and trained tokens, step by "
        "step.\n\n"
        "LOG may also be a result saved with -o result.json, to show it again."
    ),
    epilog="\b\nExample: tokenaudit replay sample_data/rollouts.parquet -s tasks.code.max_token_staleness=2",
)(replay)
app.command(
    help=(
        "Find what is wrong with recorded versions, masks, groups and steps, and hold the run against its own "
        "config.\n\n"
        "Exit code 0: no finding of level error; 1: there are some; 2: nothing was audited. `tokenaudit "
        "explain CODE` explains a rule."
    ),
    epilog="\b\nExample: tokenaudit audit runs/night/ -c async.toml -o findings.json --format github",
)(audit)
app.command(
    help=(
        "Say why a log lost its tokens and which setting bound; or explain a group, a step, a metric, a "
        "setting or a rule.\n\n"
        "Without --group or --step a log is replayed, and one setting after the other is loosened: in a "
        "simulation where the log has times and the config those of the closed loop, else in a replay."
    ),
    epilog="\b\nExample: tokenaudit explain rollouts.parquet -c async.toml",
)(explain)
app.command(
    help=(
        "Simulate a run that was never recorded: what the producer generates, what expires, what is trained, "
        "and when.\n\n"
        "Exit code 0, 1 for a run that can't go on (what came until then is shown), or 2 if it can't begin."
    ),
    epilog="\b\nExample: tokenaudit simulate sample_data/rollouts.parquet -s tasks.code.max_token_staleness=2",
)(simulate)
app.command(
    help="Derive a workload from a log: one row per response with its length, token time, mask and marks.",
    epilog="\b\nExample: tokenaudit workload rollouts.parquet -o workload.parquet",
)(workload)
app.command(
    help=("Say what a log holds: events, groups, tasks, steps, versions, lengths, columns, and structural faults."),
    epilog="\b\nExample: tokenaudit inspect rollouts.parquet --format json",
)(inspect)
app.command(
    help=(
        "Preview off-policy corrections on recorded tokens: what those of 13 trainers would drop and weigh, by age.\n\n"
        "Needs logprobs and train_logprobs in the log. Exit code 2: no method could be run."
    ),
    epilog="\b\nExample: tokenaudit corrections rollouts.parquet -m 'verl: rollout_is=token, rollout_is_threshold=2.0'",
)(corrections)
app.command(
    help=(
        "Write the token masks of every response that replay takes.\n\n"
        "One row per response, in the order of the log: train_step, task_name, group_id, rollout_id, segment, "
        "effective_mask (1 = trained), its counts trained_tokens, masked_stale_tokens and "
        "masked_semantic_tokens, and taken."
    ),
    epilog="\b\nExample: tokenaudit mask rollouts.parquet -c async.toml -o masks.parquet --device cuda",
)(mask)
app.command(
    help=(
        "Write a log that stores version runs instead of tokens: small, and read in no time.\n\n"
        "Replay, diff, gate, simulate and mask give the same numbers. What is recorded token by token is "
        "gone: audits can't look at token ids, log-probabilities, or columns the log schema doesn't know."
    ),
    epilog="\b\nExample: tokenaudit compact runs/night/ -o night.parquet",
)(compact)
app.command(
    help="Write a commented config for a log or for a trainer. A file that is there already is left as it is.",
    epilog="\b\nExample: tokenaudit init rollouts.parquet -o async.toml",
)(init)
app.command(
    help=(
        "Say what a config costs that isn't obvious from it.\n\n"
        "Exit code 0, 1 for a warning with --exit-code, or 2 for a config that can't be used."
    ),
    epilog="\b\nExample: tokenaudit lint async.toml --exit-code",
)(lint)
app.command(
    help=("Compare two configs on one log, or two saved results: settings, totals, steps and the fates of groups."),
    epilog="\b\nExample: tokenaudit diff old.toml new.toml --log rollouts.parquet --top 3",
)(diff)
app.command(
    help=(
        "Fail when a run breaks its rules. Exit code 0: all hold; 1: one doesn't; 2: could not judge.\n\n"
        "LOG may also be a result saved with -o result.json. Rules come from [gate] in the config, --rules "
        "and --rule, all together. Without any, no outcome (dropped, trained, masked and expired share, "
        "tokens per trained token, shortfall) may be worse than in the baseline."
    ),
    epilog="\b\nExample: tokenaudit gate rollouts.parquet -c async.toml --rule 'dropped_token_rate <= 20%'",
)(gate)
app.command(
    help=(
        "Record events that arrive as JSON lines: sealed part files in a folder, readable at any time.\n\n"
        "A line that can't be recorded is reported at the end, and the exit code is 2; all other lines are "
        "recorded."
    ),
    epilog="\b\nExample: tokenaudit record --from-jsonl - -o rollouts/ < events.jsonl",
)(record)
app.command(
    "import",
    help=(
        "Turn what another trainer wrote into a rollout log.\n\n"
        "Nothing is written unless all of it could be read. What the source leaves out is kept in the log, "
        "and reported again whenever it is replayed."
    ),
    epilog="\b\nExample: tokenaudit import rollout_dump/ -o rollouts.parquet",
)(import_)
app.command(
    help=(
        "Print the JSON Schema of what a command writes as JSON, or list the kinds there are.\n\n"
        "A schema covers every release that writes its version: fields are added within one, and none goes."
    ),
    epilog="\b\nExample: tokenaudit schema gate -o gate.schema.json",
)(schema)
app.command(
    "help",
    help=(
        "List the help topics, or show one.\n\n"
        "On a terminal the text is laid out, and longer ones go through the pager that PAGER names; in a pipe "
        "it is Markdown."
    ),
    epilog="\b\nExample: tokenaudit help import slime",
)(help_)


def _show_version(asked: bool) -> None:
    if asked:
        streams.write_result(
            f"tokenaudit {__version__} (log schema {SCHEMA_VERSION}, Python {platform.python_version()})\n"
        )
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the command line and exit; every failure to judge is 2, an uncaught exception too."""
    terminated: list[int] = []

    def end(number: int, _: object) -> None:
        # As Ctrl-C does, so that files half written are taken away.
        terminated.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        code = _run()
    except KeyboardInterrupt:
        # Typer ends a command in this way; here it was still reading what the commands are.
        code = 128 + signal.SIGINT
    sys.exit(128 + terminated[0] if terminated else code)


def _run() -> int:
    streams.prepare()
    try:
        code = app(standalone_mode=False)
    except TokenauditError as error:
        streams.show_problems(error.problems)
        return COULD_NOT_JUDGE
    except typer.TyperException as error:
        streams.show_usage_error(error)
        return COULD_NOT_JUDGE
    except typer.Abort:
        return COULD_NOT_JUDGE
    except OSError as error:
        where = None if error.filename is None else str(error.filename)
        streams.show_problems([Problem(error.strerror or str(error), where, "check the path and its permissions")])
        return COULD_NOT_JUDGE
    except SystemExit:
        # typer's way to end when somebody closed the pipe that help goes to
        return 0
    except Exception as error:  # noqa: BLE001 - a crash must not look like a verdict, so it may not exit with 1
        streams.show_crash(error)
        return COULD_NOT_JUDGE
    finally:
        streams.end_progress()
    return code if isinstance(code, int) else 0
