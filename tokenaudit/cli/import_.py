"""`tokenaudit import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenaudit.cli import completion, streams
from tokenaudit.cli.options import QuietOption, VerboseOption
from tokenaudit.contracts.errors import Problem, UsageError, plural, printable
from tokenaudit.importers.repeats import Keep

if TYPE_CHECKING:
    from tokenaudit.importers.base import Context, Importer, VersionScale

_SHOWN_FILES = 5


def import_(
    source: Annotated[list[Path] | None, typer.Argument(metavar="PATH", help="Files or folders of one dump.")] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FORMAT", help="Format. Default: found from the files.", autocompletion=completion.formats
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The log to write, a .parquet file.")
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="THEIRS=OURS", help="Generic tables: a column's name; repeatable."),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="The task of everything.")] = None,
    version_offset: Annotated[
        int | None,
        typer.Option("--version-offset", metavar="N", help="The source's version number of the initial weights."),
    ] = None,
    sync_interval: Annotated[
        int | None,
        typer.Option(
            "--sync-interval",
            metavar="K",
            min=1,
            help="Train steps per weight push, where versions count pushes. Default: 1.",
        ),
    ] = None,
    keep: Annotated[
        Keep,
        typer.Option(
            "--keep", help="Which to keep of what was written more than once: steps of resumed runs, groups of buffers."
        ),
    ] = Keep.LAST,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse what has records that can't be read; else they are left out.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the formats and exit.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be read and what is missing from it; write nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the log that is there.")] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit import`."""
    del quiet, verbose
    from tokenaudit.importers.base import Context
    from tokenaudit.importers.detect import IMPORTERS, detected, files_of, importer_named
    from tokenaudit.importers.write import first_look, import_log
    from tokenaudit.render.blocks import Gap, Paragraph
    from tokenaudit.render.imports import answers_table, formats_blocks, imports_text, left_out_text, plan_blocks

    if list_:
        streams.write_blocks(*formats_blocks(IMPORTERS.values()))
        return
    if not source:
        raise UsageError(Problem("nothing to import", None, "name the files or folders of a dump, or --list"))
    importer = importer_named(from_) if from_ else detected(source)
    if not from_:
        streams.note(f"note: the files look like {importer.name}: {importer.title}")
    renamed = _renamed(importer, map_ or [])
    files, passed_over = files_of(importer, source, renamed)
    if passed_over:
        streams.note(f"note: {plural(len(passed_over), 'other file')} passed over: {_first_names(passed_over)}")
    context = Context(_scale(importer, version_offset, sync_interval), task, renamed, keep, strict)
    if dry_run:
        look = first_look(importer, files, context)
        size = len(files), sum(path.stat().st_size for path in files)
        plan = plan_blocks(importer, files[:_SHOWN_FILES], size, context, look)
        streams.write_blocks(*plan)
        _show_left_out(context)
        return
    path = _checked_output(output, files, force)
    _show_progress(importer, files, context)
    imports = import_log(importer, files, context, path)
    _show_left_out(context)
    for limit in imports.limits:
        streams.show_warning(limit)
    if context.left_out:
        streams.note(f"note: columns not read: {left_out_text(importer, context)}")
    summary = Paragraph(f"{path}: {imports_text(imports)}")
    streams.write_blocks(summary, Gap(), answers_table(importer, imports))


def _first_names(files: list[Path]) -> str:
    names = [printable(path.name) for path in files[:_SHOWN_FILES]]
    return ", ".join([*names, "…"] if len(files) > _SHOWN_FILES else names)


def _show_left_out(context: Context) -> None:
    """Warn of the first records that can't be read, and where they stand."""
    for problem in context.problems.all():
        what, *details = str(problem).split("\n")
        streams.show_warning(what)
        for detail in details:
            streams.note(detail)


def _scale(importer: Importer, offset: int | None, interval: int | None) -> VersionScale:
    from tokenaudit.importers.base import VersionScale

    if interval is not None and not importer.counts_pushes and not importer.is_generic:
        what = f"--sync-interval: versions of {importer.name} count train steps, not weight pushes"
        raise UsageError(Problem(what, None, "leave it out"))
    return VersionScale(importer.version_offset if offset is None else offset, interval or 1)


def _renamed(importer: Importer, pairs: list[str]) -> dict[str, str]:
    """Their names by ours."""
    from tokenaudit.importers.generic import parsed_map

    if pairs and not importer.is_generic:
        what = f"--map is for generic tables; the names of {importer.name} are known"
        raise UsageError(Problem(what, None, "leave it out, or use --from generic"))
    return parsed_map(pairs)


def _checked_output(output: Path | None, files: list[Path], force: bool) -> Path:
    from tokenaudit.cli.output import check_outputs

    if output is None:
        raise UsageError(Problem("-o is missing", None, "name the log to write, such as -o rollouts.parquet"))
    check_outputs([output], files, ("parquet",))
    if output.exists() and not force:
        raise UsageError(Problem("the file is there already", str(output), "choose another name, or --force"))
    return output


def _show_progress(importer: Importer, files: list[Path], context: Context) -> None:
    on_progress = streams.on_progress()
    if on_progress is None:
        return
    total, done = sum(path.stat().st_size for path in files), 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        on_progress(f"importing {importer.name}", done, total)

    context.advance = advance
