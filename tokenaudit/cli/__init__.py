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
from tokenaudit.cli.simulate import simulate
from tokenaudit.contracts.errors import Problem, TokenauditError
from tokenaudit.contracts.schema import SCHEMA_VERSION

COULD_NOT_JUDGE = 2
"""Exit code for everything that kept the question from being answered."""

app = typer.Typer(
    name="tokenaudit",
    help="Replay recorded rollout logs and see which tokens a staleness policy keeps, masks and drops.",
    epilog="Example: tokenaudit replay sample_data/rollouts.parquet. `tokenaudit help` lists topics to read.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command(epilog="Example: tokenaudit replay sample_data/rollouts.parquet -s tasks.code.max_token_staleness=2")(
    replay
)
app.command(epilog="Example: tokenaudit audit runs/night/ -c async.toml -o findings.json --format github")(audit)
app.command(epilog="Example: tokenaudit explain rollouts.parquet -c async.toml")(explain)
app.command(epilog="Example: tokenaudit simulate sample_data/rollouts.parquet -s tasks.code.max_token_staleness=2")(
    simulate
)
app.command(epilog="Example: tokenaudit workload rollouts.parquet -o workload.parquet")(workload)
app.command(epilog="Example: tokenaudit inspect rollouts.parquet --format json")(inspect)
app.command(epilog="Example: tokenaudit mask rollouts.parquet -c async.toml -o masks.parquet --device cuda")(mask)
app.command(epilog="Example: tokenaudit compact runs/night/ -o night.parquet")(compact)
app.command(epilog="Example: tokenaudit init rollouts.parquet -o async.toml")(init)
app.command(epilog="Example: tokenaudit lint async.toml --exit-code")(lint)
app.command(epilog="Example: tokenaudit diff old.toml new.toml --log rollouts.parquet --top 3")(diff)
app.command(epilog="Example: tokenaudit gate rollouts.parquet -c async.toml --rule 'dropped_token_rate <= 20%'")(gate)
app.command(epilog="Example: tokenaudit record --from-jsonl - -o rollouts/ < events.jsonl")(record)
app.command("import", epilog="Example: tokenaudit import rollout_dump/ -o rollouts.parquet")(import_)
app.command("help", epilog="Example: tokenaudit help import slime")(help_)


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
