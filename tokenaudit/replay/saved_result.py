"""The JSON that a result is saved as, and read back from; a saved file may have been damaged or made up."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tokenaudit.contracts.definitions import definitions_of_fingerprint
from tokenaudit.contracts.errors import Problem, ResultError
from tokenaudit.contracts.files import json_text
from tokenaudit.contracts.metrics import CORRECTION_METRICS, Metric, Total, Unit
from tokenaudit.replay.result import (
    EXPIRED_IDS,
    KIND_REPLAY,
    KIND_SIMULATE,
    TAKEN_IDS,
    TASKS,
    TRAIN_STEP,
    Result,
    RowData,
)
from tokenaudit.replay.saved_figures import figure_faults, is_whole

RESULT_SCHEMA_VERSION = 1
"""Version of the saved form."""
RESULT_KINDS = (KIND_REPLAY, KIND_SIMULATE)
"""Kinds of saved files that hold a run."""

MOST_FAULTS = 10
"""Faults of a saved result that are reported."""

_SELECTION = re.compile(r"-?[0-9]{1,19}\.\.-?[0-9]{1,19}")

_SAVE_HINT = "give a log, or a result saved with -o result.json"
_AGAIN_HINT = "make the result again"


def result_to_json(result: Result) -> str:
    """The saved form, one value a line, with a line feed at the end."""
    notices = [asdict(entry) for entry in result.warnings]
    envelope = {
        "kind": result.kind,
        "schema_version": RESULT_SCHEMA_VERSION,
        "tool": result.tool,
        "metric_definitions": result.metric_definitions,
        "inputs": [asdict(entry) for entry in result.inputs],
        "timeline": result.timeline,
        "selection": result.selection,
        "config_source": result.config_source,
        "config": result.config,
        "warnings": notices,
        "warnings_hash": _notices_hash(notices),
        "coverage": asdict(result.coverage),
        "intervals": result.intervals,
        "totals": result.totals,
        "ledger": result.ledger,
        "steps": result.steps,
        "tail": result.tail,
    }
    if result.simulation is not None:
        envelope["simulation"] = asdict(result.simulation)
    if result.cost is not None:
        envelope["cost"] = result.cost.data()
    if result.corrections:
        envelope["corrections"] = {name: asdict(corrected) for name, corrected in result.corrections.items()}
    return json_text(envelope)


def result_from_json(text: str, source: str) -> Result:
    """Read a saved result.

    Args:
        text: the JSON.
        source: name of the file, for messages.

    Raises:
        ResultError: not JSON, not a result, of another schema version, with values of a wrong type, with figures that
            its parts don't come to, or with other notices than were saved; holds the first `MOST_FAULTS` faults.
    """
    try:
        data = json.loads(text, parse_constant=_no_number, object_pairs_hook=_object)
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
    try:
        # Strictly, as a count is no boolean, no text and no float.
        result = TypeAdapter(Result).validate_json(text, strict=True)
    except ValidationError as error:
        faults = (
            (".".join(str(part) for part in fault["loc"]) or "the result", fault["msg"])
            for fault in error.errors(include_url=False)
        )
        raise _damaged(faults, source) from error
    if "metric_definitions" not in data:
        result = replace(result, metric_definitions=definitions_of_fingerprint(data.get("definitions")))
    if data.get("warnings_hash", hashed := _notices_hash(data["warnings"])) != hashed:
        raise _damaged([("warnings", "they aren't those that were saved")], source)
    for faults in (_shape_faults(result), figure_faults(result)):
        damage = _damaged(faults, source)
        if damage.problems:
            raise damage
    return result


def _notices_hash(notices: Sequence[dict[str, Any]]) -> str:
    """A hash of notices as they are saved. Nothing else of a result says which ones there were."""
    text = json.dumps(notices, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _damaged(faults: Iterable[tuple[str, str]], source: str) -> ResultError:
    """The first faults, each with the part of the result that has it."""
    return ResultError(
        Problem(f"damaged result: {place}: {fault}", source, _AGAIN_HINT)
        for place, fault in islice(faults, MOST_FAULTS)
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. A key twice is refused, as readers disagree on which one counts."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        seen = set[str]()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice!r:.60} stands twice in one object")
    return entries


def _no_number(spelling: str) -> float:
    """JSON has no NaN and no infinity, though Python reads them; neither is a figure."""
    raise ValueError(f"{spelling} is no JSON")


def _shape_faults(result: Result) -> Iterator[tuple[str, str]]:
    """Values that can't be figures, with the part that holds them; a metric that a row lacks is no fault."""
    if not result.inputs:
        yield "inputs", "it names no log"
    if (result.kind == KIND_SIMULATE) != (result.simulation is not None):
        # it decides which figures there are, and so which of them are looked at
        yield "simulation", "only a simulation has one, and each does"
    rows = (("totals", result.totals), ("tail", result.tail), *(("steps", row) for row in result.steps))
    for place, row in rows:
        yield from ((place, fault) for fault in _row_faults(row, result.metrics))
        if place == "steps":
            yield from ((place, fault) for fault in _step_faults(row))
    yield from (("ledger", fault) for fault in _ledger_faults(result.ledger))
    for corrected in (one for one in result.corrections.values() if one.not_run is None):
        for row in (corrected.totals, *corrected.totals.get(TASKS, {}).values(), *corrected.steps):
            yield from (("corrections", fault) for fault in _corrected_faults(row))
    if result.selection is not None and not _SELECTION.fullmatch(result.selection):
        yield "selection", f"{result.selection!r:.60} is no range of steps"
    if not all(map(is_whole, asdict(result.coverage).values())):
        yield "coverage", "it holds something else than counts"


def _corrected_faults(row: RowData) -> Iterator[str]:
    """What is wrong with a row of what a correction does: more that is dropped than there is, or no counts."""
    tokens, dropped, responses, dropped_whole = (row.get(metric.name, -1) for metric in CORRECTION_METRICS)
    if not all(map(is_whole, (tokens, dropped, responses, dropped_whole))) or not isinstance(row.get(TASKS, {}), dict):
        yield "it holds something else than counts"
    elif dropped > tokens or dropped_whole > responses:
        yield "more is dropped than there is"


def _row_faults(row: RowData, metrics: Sequence[Metric]) -> Iterator[str]:
    tasks = row.get(TASKS)
    if not isinstance(tasks, dict):
        yield f"{TASKS} is {tasks!r:.60}"
        return
    for part in (row, *tasks.values()):
        if not isinstance(part, dict):
            yield f"a row is {part!r:.60}"
            continue
        for metric in metrics:
            if metric.name in part and not _is_figure(part[metric.name], metric):
                yield f"{metric.name} is {part[metric.name]!r:.60}"


def _is_figure(value: object, metric: Metric) -> bool:
    """Whether a metric may be that: a whole number, of rewards also a finite float, null of what does not add up."""
    if value is None:
        return metric.total in (Total.MAX, Total.RANK, Total.STATE)
    return is_whole(value) or (metric.unit is Unit.REWARD and type(value) is float and math.isfinite(value))


def _step_faults(row: RowData) -> Iterator[str]:
    """What is wrong with what only the rows of steps have."""
    step = row.get(TRAIN_STEP)
    if not is_whole(step):
        yield f"{TRAIN_STEP} is {step!r:.60}"
    for name in (TAKEN_IDS, EXPIRED_IDS):
        by_task = row.get(name, {})
        if not isinstance(by_task, dict) or not all(
            isinstance(ids, list) and all(map(is_whole, ids)) for ids in by_task.values()
        ):
            yield f"{name} holds something else than lists of group ids"


def _ledger_faults(ledger: dict[str, Any]) -> Iterator[str]:
    tasks = ledger.get(TASKS, {})
    for account in (ledger.get("total", {}), *(tasks.values() if isinstance(tasks, dict) else [tasks])):
        if not isinstance(account, dict) or not all(map(is_whole, account.values())):
            yield "an account holds something else than tokens"
