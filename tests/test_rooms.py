"""Data flows one way: a room imports only from rooms above it, and heavy packages stay where they belong."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "tokenaudit"
HEAVY = ("torch", "polars", "pyarrow", "numpy")

ROOMS = {
    "contracts": set(),
    "lifecycle": set(),
    "config": {"pydantic"},
    "log": {"numpy", "pyarrow"},
    "replay": {"numpy", "pydantic"},
    "simulate": {"numpy", "pyarrow"},
    "masks": {"numpy", "pyarrow", "torch"},
    "corrections": {"numpy", "pyarrow", "pydantic", "torch"},
    "compare": {"numpy", "polars"},
    "gate": set(),
    "explain": set(),
    "audit": {"numpy", "pyarrow"},
    "record": {"numpy", "pyarrow"},
    "importers": {"numpy", "pyarrow"},
    "render": {"polars", "pydantic", "rich"},
    "help": set(),
    "cli": {"click", "rich", "typer"},
}
"""The rooms in import order, and the packages from elsewhere that each may use."""


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[str]:
    """Full names of everything a file imports, wherever it does so."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_package_holds_rooms_and_nothing_else():
    there = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert there == {"__init__.py", "__main__.py", "py.typed", *ROOMS}


def test_a_room_imports_only_from_rooms_above_it():
    order = list(ROOMS)
    wrong = []
    for path in MODULES:
        above = order[: order.index(room_of(path)) + 1]
        own = [name.split(".")[1] for name in imports(path) if name.startswith("tokenaudit.")]
        wrong += [f"{path.relative_to(PACKAGE)}: {name}" for name in own if name not in {*above, "__version__"}]
    assert wrong == []


def test_packages_from_elsewhere_stay_where_they_belong():
    wrong = []
    for path in MODULES:
        used = {name.split(".")[0] for name in imports(path)} - {"tokenaudit", "__future__"} - sys.stdlib_module_names
        wrong += [f"{path.relative_to(PACKAGE)}: {name}" for name in used - ROOMS[room_of(path)]]
    assert wrong == []


def test_a_room_says_what_comes_in_and_what_goes_out():
    for room in ROOMS:
        docstring = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text()))
        assert docstring, room
        assert len(docstring) > 80, room


def test_a_metric_is_named_only_in_the_registry():
    from tokenaudit.contracts.metrics import METRICS

    # the second one says what names meant in results saved before
    registry = [PACKAGE / "contracts" / name for name in ("metrics.py", "definitions.py")]
    named = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.value}"
        for path in MODULES
        if path not in registry
        for node in nodes(path)
        # model_step is a column of the log too, and the schema has to name it
        if isinstance(node, ast.Constant) and node.value in METRICS.keys() - {"model_step"}
    ]
    assert named == []


def loaded_by(commands: list[list[str]], names: tuple[str, ...], before: str = "") -> list[list[str]]:
    """Which of `names` each command has loaded once it ends; a process of their own runs them in turn."""
    code = (
        f"import json, sys\n{before}\n"
        "from tokenaudit.cli import main\n"
        f"for arguments in {commands!r}:\n"
        "    sys.argv = ['tokenaudit', *arguments]\n"
        "    try:\n        main()\n"
        "    except SystemExit as exited:\n        assert exited.code == 0\n"
        f"    print('\\0loaded', json.dumps([name for name in {names!r} if sys.modules.get(name)]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    return [json.loads(line.split(" ", 1)[1]) for line in ran.stdout.splitlines() if line.startswith("\0loaded ")]


HELP = [
    ["--help"],
    ["--version"],
    ["help"],
    ["help", "metrics"],
    *(
        [name, "--help"]
        for name in ("replay", "inspect", "lint", "corrections", "record", "import", "audit", "explain", "help")
    ),
]


def test_help_imports_nothing_heavy():
    loaded = loaded_by(HELP, (*HEAVY, "tokenaudit.config.model"))
    assert dict(zip(map(" ".join, HELP), loaded, strict=True)) == {" ".join(command): [] for command in HELP}


def test_replay_works_without_torch_and_loads_no_polars_for_a_table():
    command = ["replay", "sample_data/rollouts.parquet"]
    assert loaded_by([command], ("torch", "polars"), before="sys.modules['torch'] = None") == [[]]
