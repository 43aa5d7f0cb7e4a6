"""Data flows one way: a module imports only what stands above it in this list."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tokenaudit"

LAYERS = (
    "tokenaudit",
    "tokenaudit.errors",
    "tokenaudit.files",
    "tokenaudit.schema",
    "tokenaudit.timeline",
    "tokenaudit.prompt_order",
    "tokenaudit.metrics",
    "tokenaudit.lifecycle.staleness",
    "tokenaudit.lifecycle.types",
    "tokenaudit.lifecycle.members",
    "tokenaudit.lifecycle.events",
    "tokenaudit.lifecycle.policies",
    "tokenaudit.lifecycle.pool",
    "tokenaudit.lifecycle.buffer",
    "tokenaudit.lifecycle",
    "tokenaudit.config_model",
    "tokenaudit.config_faults",
    "tokenaudit.config",
    "tokenaudit.config_warnings",
    "tokenaudit.toml_files",
    "tokenaudit.settings",
    "tokenaudit.columns",
    "tokenaudit.footer",
    "tokenaudit.log_paths",
    "tokenaudit.log",
    "tokenaudit.ahead",
    "tokenaudit.batches",
    "tokenaudit.faults",
    "tokenaudit.runs",
    "tokenaudit.token_ids",
    "tokenaudit.digest",
    "tokenaudit.given_runs",
    "tokenaudit.batch_columns",
    "tokenaudit.semantic_masks",
    "tokenaudit.mask_runs",
    "tokenaudit.event_rows",
    "tokenaudit.rows",
    "tokenaudit.quarantine",
    "tokenaudit.reading",
    "tokenaudit.log_writer",
    "tokenaudit.record_rows",
    "tokenaudit.parts",
    "tokenaudit.record",
    "tokenaudit.lines",
    "tokenaudit.record_lines",
    "tokenaudit.recording",
    "tokenaudit.stored",
    "tokenaudit.pickled",
    "tokenaudit.stored_arrays",
    "tokenaudit.pickle_stream",
    "tokenaudit.pickle_memo",
    "tokenaudit.pickle_calls",
    "tokenaudit.pickle_machine",
    "tokenaudit.torch_zip",
    "tokenaudit.importers.base",
    "tokenaudit.importers.fields",
    "tokenaudit.importers.batch",
    "tokenaudit.importers.dumps",
    "tokenaudit.importers.compressed",
    "tokenaudit.importers.files",
    "tokenaudit.importers.tables",
    "tokenaudit.importers.areal",
    "tokenaudit.importers.prime_rl",
    "tokenaudit.importers.tinker",
    "tokenaudit.importers.texts",
    "tokenaudit.importers.xtuner",
    "tokenaudit.importers.slime",
    "tokenaudit.importers.verl_queue",
    "tokenaudit.importers.nemo_rl",
    "tokenaudit.importers.generic",
    "tokenaudit.importers",
    "tokenaudit.import_log",
    "tokenaudit.compact",
    "tokenaudit.cache",
    "tokenaudit.precision",
    "tokenaudit.run_events",
    "tokenaudit.recorded_groups",
    "tokenaudit.recorded",
    "tokenaudit.replay",
    "tokenaudit.workload",
    "tokenaudit.workload_from_log",
    "tokenaudit.simulate",
    "tokenaudit.simulate.entries",
    "tokenaudit.simulate.meter",
    "tokenaudit.simulate.polling",
    "tokenaudit.simulate.prompts",
    "tokenaudit.simulate.flight",
    "tokenaudit.simulate.engine",
    "tokenaudit.simulate.state",
    "tokenaudit.simulate.scheduling",
    "tokenaudit.simulate.world",
    "tokenaudit.simulate.colocated",
    "tokenaudit.simulate.producer",
    "tokenaudit.simulate.settings",
    "tokenaudit.simulate.trainer",
    "tokenaudit.simulate.disaggregated",
    "tokenaudit.simulate.run",
    "tokenaudit.event_log",
    "tokenaudit.ledger",
    "tokenaudit.result",
    "tokenaudit.saved_result",
    "tokenaudit.notices",
    "tokenaudit.session",
    "tokenaudit.simulation_notices",
    "tokenaudit.simulating",
    "tokenaudit.masks",
    "tokenaudit.masks.batch",
    "tokenaudit.masks.numpy_backend",
    "tokenaudit.masks.torch_backend",
    "tokenaudit.masks.devices",
    "tokenaudit.masks.plan",
    "tokenaudit.masks.writing",
    "tokenaudit.masks.session",
    "tokenaudit.overview",
    "tokenaudit.audit",
    "tokenaudit.audit.rules",
    "tokenaudit.audit.row_rules",
    "tokenaudit.audit.run_rules",
    "tokenaudit.audit.catalogue",
    "tokenaudit.audit.findings",
    "tokenaudit.audit.evidence",
    "tokenaudit.audit.files",
    "tokenaudit.audit.scan_runs",
    "tokenaudit.audit.scan",
    "tokenaudit.audit.table",
    "tokenaudit.audit.puts",
    "tokenaudit.audit.life",
    "tokenaudit.audit.takes",
    "tokenaudit.audit.trained",
    "tokenaudit.audit.offpolicy",
    "tokenaudit.audit.case",
    "tokenaudit.audit.structure",
    "tokenaudit.audit.versions",
    "tokenaudit.audit.masks",
    "tokenaudit.audit.groups",
    "tokenaudit.audit.lifecycle",
    "tokenaudit.audit.losses",
    "tokenaudit.audit.totals",
    "tokenaudit.audit.report",
    "tokenaudit.audit.run",
    "tokenaudit.holding",
    "tokenaudit.explain",
    "tokenaudit.explain_step",
    "tokenaudit.figures",
    "tokenaudit.rules",
    "tokenaudit.thresholds",
    "tokenaudit.tape",
    "tokenaudit.fates",
    "tokenaudit.divergence",
    "tokenaudit.compare",
    "tokenaudit.comparable",
    "tokenaudit.verdicts",
    "tokenaudit.gate",
    "tokenaudit.rule_sources",
    "tokenaudit.render",
    "tokenaudit.render.text",
    "tokenaudit.render.console",
    "tokenaudit.render.summary",
    "tokenaudit.render.table",
    "tokenaudit.render.markdown",
    "tokenaudit.render.frames",
    "tokenaudit.render.overview",
    "tokenaudit.render.annotations",
    "tokenaudit.render.junit_suites",
    "tokenaudit.render.sarif_log",
    "tokenaudit.render.audit_text",
    "tokenaudit.render.audit_table",
    "tokenaudit.render.audit_csv",
    "tokenaudit.render.audit_markdown",
    "tokenaudit.render.audit_junit",
    "tokenaudit.render.audit_sarif",
    "tokenaudit.render.audit_github",
    "tokenaudit.render.explain",
    "tokenaudit.render.exact",
    "tokenaudit.render.gate_text",
    "tokenaudit.render.gate_table",
    "tokenaudit.render.gate_data",
    "tokenaudit.render.gate_markdown",
    "tokenaudit.render.diff_text",
    "tokenaudit.render.diff_table",
    "tokenaudit.render.diff_markdown",
    "tokenaudit.render.diff_data",
    "tokenaudit.render.junit",
    "tokenaudit.render.sarif",
    "tokenaudit.render.github",
    "tokenaudit.render.imports",
    "tokenaudit.cli.streams",
    "tokenaudit.cli.options",
    "tokenaudit.cli.output",
    "tokenaudit.cli.inputs",
    "tokenaudit.cli.replay",
    "tokenaudit.cli.simulate",
    "tokenaudit.cli.workload",
    "tokenaudit.cli.inspect",
    "tokenaudit.cli.compact",
    "tokenaudit.cli.lint",
    "tokenaudit.cli.audit",
    "tokenaudit.cli.explain",
    "tokenaudit.cli.run_options",
    "tokenaudit.cli.diff_sides",
    "tokenaudit.cli.diff",
    "tokenaudit.cli.job_summary",
    "tokenaudit.cli.gate",
    "tokenaudit.cli.record",
    "tokenaudit.cli.import_",
    "tokenaudit.cli.mask",
    "tokenaudit.cli",
    "tokenaudit.__main__",
)

EXTERNAL = {
    "tokenaudit.lifecycle": set(),
    "tokenaudit.ledger": set(),
    "tokenaudit.metrics": set(),
    "tokenaudit.schema": set(),
    "tokenaudit.prompt_order": set(),
    "tokenaudit.errors": set(),
    "tokenaudit.replay": {"numpy"},
    "tokenaudit.recorded": {"numpy"},
    "tokenaudit.digest": {"numpy"},
    "tokenaudit.columns": {"numpy", "pyarrow"},
    "tokenaudit.log": {"pyarrow"},
    "tokenaudit.footer": set(),
    "tokenaudit.precision": {"numpy"},
    "tokenaudit.log_writer": {"numpy", "pyarrow"},
    "tokenaudit.record_rows": {"numpy"},
    "tokenaudit.parts": {"pyarrow"},
    "tokenaudit.record": set(),
    "tokenaudit.lines": set(),
    "tokenaudit.record_lines": set(),
    "tokenaudit.recording": set(),
    "tokenaudit.importers": {"numpy", "pyarrow"},
    "tokenaudit.import_log": {"pyarrow"},
    "tokenaudit.stored": set(),
    "tokenaudit.pickled": {"numpy"},
    "tokenaudit.stored_arrays": {"numpy"},
    "tokenaudit.pickle_stream": set(),
    "tokenaudit.pickle_memo": set(),
    "tokenaudit.pickle_calls": {"numpy"},
    "tokenaudit.pickle_machine": set(),
    "tokenaudit.torch_zip": set(),
    "tokenaudit.ahead": set(),
    "tokenaudit.config": {"pydantic"},
    "tokenaudit.config_model": {"pydantic"},
    "tokenaudit.config_faults": {"pydantic"},
    "tokenaudit.config_warnings": set(),
    "tokenaudit.result": {"pydantic"},
    "tokenaudit.render.frames": {"polars"},
    "tokenaudit.audit.rules": set(),
    "tokenaudit.audit.row_rules": set(),
    "tokenaudit.audit.run_rules": set(),
    "tokenaudit.audit.findings": set(),
    "tokenaudit.audit.report": set(),
    "tokenaudit.audit.offpolicy": {"numpy", "torch"},
    "tokenaudit.audit": {"numpy", "pyarrow", "torch"},
    "tokenaudit.holding": set(),
    "tokenaudit.explain": set(),
    "tokenaudit.explain_step": set(),
    "tokenaudit.figures": set(),
    "tokenaudit.rules": set(),
    "tokenaudit.thresholds": set(),
    "tokenaudit.gate": set(),
    "tokenaudit.render.console": {"rich"},
    "tokenaudit.render.table": {"rich"},
    "tokenaudit.render.audit_table": {"rich"},
    "tokenaudit.cli": {"typer", "rich"},
}
"""The third-party packages that a module, or every module below it, may import."""


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(path: Path) -> Iterator[str]:
    """Full names of everything a file imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


def test_every_module_has_its_place_in_the_list():
    assert sorted(LAYERS) == sorted(MODULES)


@pytest.mark.parametrize("module", [name for name in LAYERS if name != "tokenaudit"])
def test_a_module_imports_only_what_stands_above_it(module: str):
    above = LAYERS[: LAYERS.index(module)]
    own = [name for name in imports(MODULES[module]) if name.split(".")[0] == "tokenaudit"]
    assert [name for name in own if name not in above] == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_third_party_packages_stay_where_they_belong(module: str):
    allowed = [packages for prefix, packages in EXTERNAL.items() if f"{module}.".startswith(f"{prefix}.")]
    if not allowed:
        return
    used = {name.split(".")[0] for name in imports(MODULES[module])} - {"tokenaudit"}
    assert used - set(sys.stdlib_module_names) <= set().union(*allowed)


def test_torch_is_imported_only_by_masks():
    users = {name for name, path in MODULES.items() if any(used.split(".")[0] == "torch" for used in imports(path))}
    assert {name for name in users if "masks" not in name and "audit" not in name.removeprefix("tokenaudit")} == set()


def test_a_metric_is_named_only_in_the_registry():
    from tokenaudit.metrics import METRICS

    named = [
        f"{module}:{node.lineno} {node.value}"
        for module, path in MODULES.items()
        if module != "tokenaudit.metrics"
        for node in ast.walk(ast.parse(path.read_text()))
        # model_step is a column of the log too, and the schema has to name it
        if isinstance(node, ast.Constant) and node.value in METRICS.keys() - {"model_step"}
    ]
    assert named == []


HEAVY = ("torch", "polars", "pyarrow", "numpy")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["replay", "--help"],
        ["inspect", "-h"],
        ["lint", "--help"],
        ["record", "--help"],
        ["import", "--help"],
        ["audit", "-h"],
        ["explain", "-h"],
        ["--version"],
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str]):
    code = (
        "import sys\n"
        "from tokenaudit.cli import main\n"
        f"sys.argv = ['tokenaudit', *{arguments!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as exited:\n    assert exited.code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_replay_works_without_torch_and_loads_no_polars_for_a_table():
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from tokenaudit.cli import main\n"
        "sys.argv = ['tokenaudit', 'replay', 'sample_data/rollouts.parquet']\n"
        "try:\n    main()\n"
        "except SystemExit as exited:\n    assert exited.code == 0\n"
        "print('polars' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert ran.stdout.splitlines()[-1] == "False"
