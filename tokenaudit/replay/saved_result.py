"""The JSON that a result is saved as, and read back from; a saved file may have been damaged or made up."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tokenaudit.contracts.errors import Problem, ResultError
from tokenaudit.contracts.metrics import Metric
from tokenaudit.replay.result import (
    EXPIRED_IDS,
    KIND_REPLAY,
    KIND_SIMULATE,
    TAKEN_IDS,
    TASKS,
    TRAIN_STEP,
    Coverage,
    Result,
    RowData,
)

RESULT_SCHEMA_VERSION = 1
"""Version of the saved form."""
RESULT_KINDS = (KIND_REPLAY, KIND_SIMULATE)
"""Kinds of saved files that hold a run."""

_SAVE_HINT = "give a log, or a result saved with -o result.json"
_AGAIN_HINT = "make the result again"


def result_to_json(result: Result) -> str:
    """The saved form, one value a line, with a line feed at the end."""
    envelope = {
        "kind": result.kind,
        "schema_version": RESULT_SCHEMA_VERSION,
        "tool": result.tool,
        "definitions": result.definitions,
        "inputs": [asdict(entry) for entry in result.inputs],
        "timeline": result.timeline,
        "selection": result.selection,
        "config_source": result.config_source,
        "config": result.config,
        "warnings": [asdict(entry) for entry in result.warnings],
        "coverage": asdict(result.coverage),
        "intervals": result.intervals,
        "totals": result.totals,
        "ledger": result.ledger,
        "steps": result.steps,
        "tail": result.tail,
    }
    if result.simulation is not None:
        envelope["simulation"] = asdict(result.simulation)
    return json.dumps(envelope, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def result_from_json(text: str, source: str) -> Result:
    """Read a saved result.

    Args:
        text: the JSON.
        source: name of the file, for messages.

    Raises:
        ResultError: not JSON, not a result, of another schema version, or with values of a wrong type.
    """
    try:
        data = json.loads(text, parse_constant=_no_number)
        if "\\ud" in text or "\\uD" in text:
            # JSON can spell half of a surrogate pair, which no output can hold.
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ResultError(Problem("not valid JSON: nested too deeply", source, _SAVE_HINT)) from error
    except UnicodeEncodeError as error:
        raise ResultError(Problem("not valid JSON: it holds text that is not Unicode", source, _SAVE_HINT)) from error
    except ValueError as error:
        raise ResultError(Problem(f"not valid JSON: {error}", source, _SAVE_HINT)) from error
    if not isinstance(data, dict) or not str(data.get("kind", "")).startswith("tokenaudit."):
        raise ResultError(Problem("not a saved result of tokenaudit", source, _SAVE_HINT))
    if data["kind"] not in RESULT_KINDS:
        raise ResultError(Problem(f"a {data['kind']} is no result of a run", source, _SAVE_HINT))
    if data.get("schema_version") != RESULT_SCHEMA_VERSION:
        hint = f"this release reads version {RESULT_SCHEMA_VERSION}; make the result again"
        raise ResultError(Problem(f"result schema version {data.get('schema_version')!r}", source, hint))
    del data["schema_version"]
    data.setdefault("definitions", "")
    try:
        result = TypeAdapter(Result).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the result"
        raise ResultError(Problem(f"damaged result: {place}: {first['msg']}", source, _AGAIN_HINT)) from error
    for name, fault in (
        ("totals", _row_fault(result.totals, result.metrics)),
        ("tail", _row_fault(result.tail, result.metrics)),
        ("ledger", _ledger_fault(result.ledger)),
        ("coverage", _coverage_fault(result.coverage)),
        *(("steps", _row_fault(row, result.metrics) or _step_fault(row)) for row in result.steps),
    ):
        if fault is not None:
            raise ResultError(Problem(f"damaged result: {name}: {fault}", source, _AGAIN_HINT))
    return result


def _is_whole(value: object) -> bool:
    """Whether a value is a whole number of at most 64 bits, as every count and id is."""
    return type(value) is int and -(2**63) <= value < 2**63


def _no_number(spelling: str) -> float:
    """JSON has no NaN and no infinity, though Python reads them; neither is a figure."""
    raise ValueError(f"{spelling} is no JSON")


def _row_fault(row: RowData, metrics: Sequence[Metric]) -> str | None:
    """What is wrong with a row; a metric it lacks is no fault."""
    tasks = row.get(TASKS)
    if not isinstance(tasks, dict):
        return f"{TASKS} is {tasks!r:.60}"
    for part in (row, *tasks.values()):
        if not isinstance(part, dict):
            return f"a row is {part!r:.60}"
        for metric in metrics:
            value = part.get(metric.name)
            is_number = _is_whole(value) or (type(value) is float and math.isfinite(value))
            if value is not None and not is_number:
                return f"{metric.name} is {value!r:.60}"
    return None


def _step_fault(row: RowData) -> str | None:
    """What is wrong with what only the rows of steps have."""
    step = row.get(TRAIN_STEP)
    if not _is_whole(step):
        return f"{TRAIN_STEP} is {step!r:.60}"
    for name in (TAKEN_IDS, EXPIRED_IDS):
        by_task = row.get(name, {})
        if not isinstance(by_task, dict) or not all(
            isinstance(ids, list) and all(map(_is_whole, ids)) for ids in by_task.values()
        ):
            return f"{name} holds something else than lists of group ids"
    return None


def _ledger_fault(ledger: dict[str, Any]) -> str | None:
    """What is wrong with the account of tokens."""
    tasks = ledger.get(TASKS, {})
    for account in (ledger.get("total", {}), *(tasks.values() if isinstance(tasks, dict) else [tasks])):
        if not isinstance(account, dict) or not all(map(_is_whole, account.values())):
            return "an account holds something else than tokens"
    return None


def _coverage_fault(coverage: Coverage) -> str | None:
    """What is wrong with what the result stands on."""
    return None if all(map(_is_whole, asdict(coverage).values())) else "it holds something else than counts"
