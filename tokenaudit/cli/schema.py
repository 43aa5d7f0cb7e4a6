"""`tokenaudit schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokenaudit.cli import streams
from tokenaudit.cli.options import QuietOption, VerboseOption
from tokenaudit.contracts.errors import Problem, UsageError, printable
from tokenaudit.contracts.files import json_text


def schema(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help="What the JSON is, such as replay or gate. Without: a list.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the schema to this .json file instead.")
    ] = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run `tokenaudit schema`."""
    del quiet, verbose
    from tokenaudit.cli.output import check_outputs
    from tokenaudit.contracts.files import write_files
    from tokenaudit.render.json_schemas import json_kinds, json_schema

    if kind is None:
        if output is not None:
            raise UsageError(Problem("-o is for one schema", None, "name a kind: tokenaudit schema replay -o FILE"))
        kinds = json_kinds()
        width = max(map(len, kinds))
        lines = [f"{name:{width}}  version {one.version}  tokenaudit {one.written_by}" for name, one in kinds.items()]
        streams.write_result("".join(f"{line}\n" for line in lines))
        return
    outputs = [] if output is None else [output]
    check_outputs(outputs, [], ("json",))
    text = json_text(json_schema(kind))
    write_files([(path, text.encode()) for path in outputs])
    if output is None:
        streams.write_json(text)
    else:
        streams.write_result(printable(f"{output}: the JSON Schema of {kind}") + "\n")
