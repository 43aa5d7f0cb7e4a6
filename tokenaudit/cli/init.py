"""`tokenaudit init`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenaudit.cli import completion, streams
from tokenaudit.cli.options import QuietOption, VerboseOption, run_request
from tokenaudit.contracts.errors import Problem, UsageError, plural, printable
from tokenaudit.contracts.files import CONFIG_FILE

if TYPE_CHECKING:
    from tokenaudit.config.trainers import Trainer
    from tokenaudit.replay.suggested_config import SuggestedConfig


def init(
    log: Annotated[
        list[Path] | None,
        typer.Argument(metavar="LOG", help="A log, for its tasks, its group sizes and its own config."),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TRAINER",
            help="Begin with this trainer's defaults: xtuner, verl, …",
            autocompletion=completion.trainers,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The config to write, in TOML.")
    ] = Path(CONFIG_FILE),
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit init`."""
    del quiet, verbose
    from tokenaudit.cli.output import check_outputs
    from tokenaudit.config.commented import commented_toml
    from tokenaudit.config.model import parse_config
    from tokenaudit.config.trainers import trainer_named
    from tokenaudit.contracts.files import write_files
    from tokenaudit.render.blocks import Command, Paragraph
    from tokenaudit.replay.suggested_config import SuggestedConfig

    if not log and for_ is None:
        raise UsageError(Problem("nothing to write a config for", None, "name a log, or --for xtuner"))
    check_outputs([output], log or [], ("toml",))
    if output.exists() or output.is_symlink():
        raise UsageError(Problem("the file is there already", str(output), "choose another name with -o"))
    trainer = None if for_ is None else trainer_named(for_)
    heading = ["Every key has its value here; one that is commented out is not set. See `tokenaudit help config`."]
    remarks: dict[str, str] = {}
    if trainer is not None:
        heading.insert(0, f"The defaults of {trainer.title}. {trainer.about}")
        remarks |= trainer.remarks
    if log:
        found, about = _of_log(log, trainer)
        heading.insert(0, about)
    else:
        assert trainer is not None
        found = SuggestedConfig(parse_config(trainer.values, for_ or ""), {})
    text = commented_toml(found.config, heading, remarks | found.remarks)
    write_files([(output, text.encode())])
    tasks = f" of {plural(len(found.config.tasks), 'task')}" if found.config.tasks else ""
    named = shlex.quote(str(output))
    following = f"replay {shlex.join(map(str, log))} -c {named}" if log else f"lint {named}"
    lacks = " set timeline.train_batch_size in it, then" if found.lacks_batch else ""
    about = printable(f"{output}: a config{tasks}; next:{lacks}")
    streams.write_blocks(Paragraph(about), Command(f"tokenaudit {following}"))


def _of_log(paths: list[Path], trainer: Trainer | None) -> tuple[SuggestedConfig, str]:
    """The config that a log suggests, and where it comes from."""
    from tokenaudit.log.files import open_log
    from tokenaudit.replay.notices import quarantine_notices
    from tokenaudit.replay.session import check_left, read_for, settings_for
    from tokenaudit.replay.suggested_config import suggested_config

    request = run_request(paths, quarantine=True, isolated=True)
    log = open_log(paths)
    own = settings_for(log, request).config if log.config_json is not None else None
    digest = read_for(log, request)
    check_left(digest)
    streams.show_notices(quarantine_notices(digest))
    found = suggested_config(digest, own, {} if trainer is None else trainer.values)
    origin = (
        "its own config, from its metadata" if own else "it holds no config of its own, so most values are defaults"
    )
    return found, f"For {log.name}: {origin}."
