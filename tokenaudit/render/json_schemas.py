"""JSON Schemas of what commands write as JSON, made from the classes and the registry of metrics that it is written by.

Within a version fields are added and none is taken away, so a schema allows fields it doesn't know, and those with a
default may be absent: results saved before are valid, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from tokenaudit.audit.report import AUDIT_SCHEMA_VERSION, KIND_AUDIT
from tokenaudit.compare.compare import DIFF_SCHEMA_VERSION, KIND_DIFF
from tokenaudit.contracts.errors import Problem, UsageError, nearest_hint
from tokenaudit.contracts.metrics import (
    LEDGER_FATES,
    LEDGER_SOURCES,
    ROW_METRICS,
    SIMULATED_METRICS,
    SIMULATED_RATES,
    Metric,
    Total,
    Unit,
)
from tokenaudit.gate.report import GATE_SCHEMA_VERSION, KIND_GATE
from tokenaudit.log.overview import KIND_INSPECT, OVERVIEW_SCHEMA_VERSION, Overview
from tokenaudit.render.corrections_data import CORRECTIONS_SCHEMA_VERSION, KIND_CORRECTIONS, CorrectionsJson
from tokenaudit.render.explain_data import EXPLAIN_SCHEMA_VERSION
from tokenaudit.render.json_documents import AuditJson, CostJson, DiffJson, GateJson
from tokenaudit.render.json_explain import ExplainGroupJson, ExplainLogJson, ExplainNamesJson, ExplainStepJson
from tokenaudit.replay.result import (
    EXPIRED_IDS,
    KIND_REPLAY,
    KIND_SIMULATE,
    RATIOS,
    TAKEN_IDS,
    TASKS,
    TRAIN_STEP,
    Result,
)
from tokenaudit.replay.saved_result import RESULT_SCHEMA_VERSION

_RATIO = ("numerator", "denominator")
DIALECT = "https://json-schema.org/draft/2020-12/schema"

JsonSchema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JsonKind:
    """A kind of JSON.

    Attributes:
        kind: what its `kind` says.
        version: what its `schema_version` says.
        written_by: the command that writes it.
        schema_of: makes the schema of its other fields.
    """

    kind: str
    version: int
    written_by: str
    schema_of: Callable[[], JsonSchema]

    @property
    def name(self) -> str:
        """The kind without the name of the package."""
        return self.kind.removeprefix("tokenaudit.")


def json_kinds() -> dict[str, JsonKind]:
    """Every kind of JSON that a command writes, by its short name."""
    explain = EXPLAIN_SCHEMA_VERSION
    kinds = (
        JsonKind(KIND_REPLAY, RESULT_SCHEMA_VERSION, "replay", lambda: _result(ROW_METRICS)),
        JsonKind(KIND_SIMULATE, RESULT_SCHEMA_VERSION, "simulate", lambda: _result((*ROW_METRICS, *SIMULATED_METRICS))),
        JsonKind(KIND_DIFF, DIFF_SCHEMA_VERSION, "diff", lambda: _of_class(DiffJson)),
        JsonKind(KIND_GATE, GATE_SCHEMA_VERSION, "gate", lambda: _of_class(GateJson)),
        JsonKind(KIND_AUDIT, AUDIT_SCHEMA_VERSION, "audit", lambda: _of_class(AuditJson)),
        JsonKind(KIND_CORRECTIONS, CORRECTIONS_SCHEMA_VERSION, "corrections", lambda: _of_class(CorrectionsJson)),
        JsonKind("tokenaudit.explain.log", explain, "explain LOG", lambda: _of_class(ExplainLogJson)),
        JsonKind("tokenaudit.explain.group", explain, "explain --group", lambda: _of_class(ExplainGroupJson)),
        JsonKind("tokenaudit.explain.step", explain, "explain --step", lambda: _of_class(ExplainStepJson)),
        JsonKind("tokenaudit.explain.names", explain, "explain NAME", lambda: _of_class(ExplainNamesJson)),
        JsonKind(KIND_INSPECT, OVERVIEW_SCHEMA_VERSION, "inspect", lambda: _of_class(Overview)),
    )
    return {kind.name: kind for kind in kinds}


def json_schema(kind: str) -> JsonSchema:
    """The JSON Schema of a kind of JSON that commands write.

    Args:
        kind: its `kind`, such as "tokenaudit.replay", or that without the package: replay, simulate, diff, gate, audit,
            corrections, explain.log, explain.group, explain.step, explain.names or inspect.

    Raises:
        UsageError: there is no such kind.
    """
    kinds = json_kinds()
    found = kinds.get(kind.removeprefix("tokenaudit."))
    if found is None:
        raise UsageError(Problem(f"nothing is written as {kind!r}", None, nearest_hint(kind, kinds, "kinds")))
    schema = found.schema_of()
    stands_for = {"kind": {"const": found.kind}, "schema_version": {"const": found.version}}
    about = f"What `tokenaudit {found.written_by}` writes as JSON, schema version {found.version}."
    return {
        "$schema": DIALECT,
        "$id": f"urn:{found.kind.replace('.', ':')}:{found.version}",
        "title": found.kind,
        **schema,
        "description": f"{about} {schema.get('description', '')}".rstrip(),
        "properties": schema["properties"] | stands_for,
        "required": list(dict.fromkeys((*stands_for, *schema["required"]))),
    }


def _of_class(declared: type) -> JsonSchema:
    """The schema of a dataclass. What its docstrings say of a field stands with the field."""
    schema = TypeAdapter(declared).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        part.pop("title", None)
        described = _attributes(part.get("description", ""))
        if "description" in part:
            part["description"] = part["description"].split("\n\n")[0].replace("\n", " ")
        for name, field in part.get("properties", {}).items():
            field.pop("title", None)
            if name in described:
                field["description"] = described[name]
    return schema


def _attributes(docstring: str) -> dict[str, str]:
    """What the section Attributes of a docstring says, by name."""
    _, _, section = docstring.partition("Attributes:\n")
    entries = re.split(r"^ {4}(?=\w+: )", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, _, text in (entry.partition(": ") for entry in entries)}


def _result(metrics: Iterable[Metric]) -> JsonSchema:
    """The schema of a result whose rows hold some metrics."""
    schema = _of_class(Result)
    # its amounts are no fields, and saved with them
    schema["$defs"]["RunCost"] = _of_class(CostJson)
    simulated = [metric for metric in metrics if metric in SIMULATED_METRICS]
    row = _object({metric.name: _figure(metric) for metric in metrics})
    ids = {name: _by_name({"type": "array", "items": {"type": "integer"}}) for name in (TAKEN_IDS, EXPIRED_IDS)}
    ratio = _object({name: {"type": "integer"} for name in _RATIO}, _RATIO)
    ratios = {RATIOS: _object({rate.name: ratio for rate in SIMULATED_RATES})} if simulated else {}
    account = _object({metric.name: _figure(metric) for metric in (*LEDGER_SOURCES, *LEDGER_FATES)})
    by_task = {TASKS: _by_name({"$ref": "#/$defs/Metrics"})}

    def with_metrics(fields: JsonSchema, required: Iterable[str]) -> JsonSchema:
        return _object(row["properties"] | by_task | fields, (TASKS, *required))

    schema.setdefault("$defs", {}).update(
        Metrics=row | {"description": "The metrics of a row, or of one of its tasks."},
        Account=account | {"description": "Tokens by where they came from and where they ended."},
        Step=with_metrics({TRAIN_STEP: {"type": "integer"}} | ids, (TRAIN_STEP,)),
    )
    schema["properties"] |= {
        "totals": with_metrics(ratios, ()),
        "ledger": _object(
            {"total": {"$ref": "#/$defs/Account"}, TASKS: _by_name({"$ref": "#/$defs/Account"})}, ("total", TASKS)
        ),
        "steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}},
        "tail": with_metrics(ids, ()),
        "warnings_hash": {
            "type": "string",
            "description": "a hash of the warnings: an edited list is refused",
        },
    }
    if simulated:
        schema["properties"]["simulation"] = {"$ref": "#/$defs/Simulation"}
        schema["required"].append("simulation")
    return schema


def _figure(metric: Metric) -> JsonSchema:
    """What a metric may be; see `saved_result`, which decides it where results are read."""
    kind: str | list[str] = "number" if metric.unit is Unit.REWARD else "integer"
    if metric.total in (Total.MAX, Total.RANK, Total.STATE):
        kind = [kind, "null"]
    return {"type": kind, "description": f"{metric.help} ({metric.unit})"}


def _object(properties: JsonSchema, required: Iterable[str] = ()) -> JsonSchema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _by_name(schema: JsonSchema) -> JsonSchema:
    return {"type": "object", "additionalProperties": schema}
