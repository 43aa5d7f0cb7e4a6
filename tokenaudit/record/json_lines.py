"""JSON lines in bounded memory, one object a line, faults with their line numbers; and events recorded from them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from tokenaudit.contracts.errors import Problem, RecordError, nearest_hint, shown
from tokenaudit.contracts.schema import EventKind

if TYPE_CHECKING:
    # importers read lines without a recorder
    from tokenaudit.record.recorder import Recorder

MAX_LINE_BYTES = 256 * 1024 * 1024
"""Longest line read; a response of a million tokens with all its text stays far below."""

SHOWN_PROBLEMS = 20
"""Faults that are reported one by one; the others are counted."""

_COMMON = ("event", "time_us")
_KEYS: dict[EventKind, tuple[str, ...]] = {
    EventKind.PUT: ("train_step", "model_step", "task_name", "group_id", "responses"),
    EventKind.SAMPLE: ("task_name", "group_id", "status"),
    EventKind.REFRESH: ("train_step",),
    EventKind.TAKE: ("train_step", "task_name", "batch_size", "rollout_ids", "responses"),
    EventKind.SYNC: ("train_step", "model_step"),
}
_OPTIONAL = frozenset({"model_step", "task_name", "time_us", "rollout_ids"})

_ONE_OBJECT = "give one JSON object a line"


class JsonLine(NamedTuple):
    """One line: its number from 1, its object, empty where there is a problem, and its length in bytes."""

    number: int
    data: dict[str, Any]
    problem: Problem | None
    bytes: int


def json_lines(stream: IO[bytes], source: str, *, keys_once: bool = False) -> Iterator[JsonLine]:
    """The objects of a stream of JSON lines, named `source` in messages; empty lines are passed over.

    Args:
        stream: the lines.
        source: name of the stream.
        keys_once: a key that is twice in one object, of which JSON readers keep the last, is a problem of its line.

    Raises:
        OSError: the stream can't be read.
    """
    number = 0
    while True:
        line = stream.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        number += 1
        size = len(line)
        where = f"{source}, line {number}"
        if size > MAX_LINE_BYTES:
            size += _skip_line(stream)
            yield JsonLine(number, {}, Problem(f"a line of {size} bytes", where, _ONE_OBJECT), size)
        elif line.strip():
            data, problem = _parsed(line, where, _object_of_keys_once if keys_once else None)
            yield JsonLine(number, data, problem, size)


def _skip_line(stream: IO[bytes]) -> int:
    skipped = 0
    while piece := stream.readline(1 << 20):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


class _KeyTwiceError(ValueError):
    """A key is twice in one object."""


def _object_of_keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _KeyTwiceError(f"the key {shown(key)} is twice in one object")
    return made


def _parsed(
    line: bytes, where: str, object_of: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None
) -> tuple[dict[str, Any], Problem | None]:
    try:
        data = json.loads(line, object_pairs_hook=object_of)
    except _KeyTwiceError as error:
        return {}, Problem(str(error), where, "give every key once")
    except RecursionError:
        return {}, Problem("JSON nested too deep", where, _ONE_OBJECT)
    except ValueError as error:
        return {}, Problem(f"not JSON: {error}"[:200], where, _ONE_OBJECT)
    if not isinstance(data, dict):
        return {}, Problem(f"{type(data).__name__} in place of an object", where, _ONE_OBJECT)
    return data, None


class Recorded(NamedTuple):
    """Events recorded from a stream, and what was wrong with other lines: the first ones, then how many there were."""

    events: int
    problems: tuple[Problem, ...]


def record_lines(
    stream: IO[bytes], source: str, recorder: Recorder, on_progress: Callable[[int], None] | None = None
) -> Recorded:
    """Record one event a line. A line that can't be recorded is passed over, so that the stream goes on.

    Args:
        stream: the lines: `{"event": "put", "train_step": 1, "model_step": 0, "group_id": 7, "responses":
            [{"rollout_id": 14, "response_len": 120}]}`, and `sample`, `refresh`, `take` and `sync` with their columns.
        source: name of the stream, for messages.
        recorder: where events go; it stays open.
        on_progress: called with the bytes read so far.

    Raises:
        RecordError: the recorder can't write; OSError: the stream can't be read.
    """
    events = failed = size = 0
    problems: list[Problem] = []
    for line in json_lines(stream, source, keys_once=True):
        size += line.bytes
        counted = recorder.rejected_events
        found = [line.problem] if line.problem else _record(line, source, recorder)
        if found and recorder.rejected_events == counted:
            recorder.count_rejected()
        failed += bool(found)
        events += not found
        problems.extend(found[: SHOWN_PROBLEMS - len(problems)])
        if on_progress is not None:
            on_progress(size)
    if failed:
        hint = "mend what writes them; all other lines are recorded"
        problems.append(Problem(f"{failed} line{'s' if failed > 1 else ''} could not be recorded", source, hint))
    return Recorded(events, tuple(problems))


def _record(line: JsonLine, source: str, recorder: Recorder) -> list[Problem]:
    where = f"{source}, line {line.number}"
    name = line.data.get("event", EventKind.PUT.value)
    if name not in [*map(str, EventKind)]:
        hint = nearest_hint(name if isinstance(name, str) else "", map(str, EventKind), "events")
        return [Problem(f"unknown event {shown(name)}", where, hint)]
    event = EventKind(name)
    keys = (*_COMMON, *_KEYS[event])
    problems = [
        Problem(f"{shown(key)} is no field of a {event}", where, nearest_hint(key, keys, "names"))
        for key in line.data
        if key not in keys
    ]
    optional = _OPTIONAL | ({"responses"} if event is EventKind.TAKE else set())
    missing = [key for key in _KEYS[event] if key not in optional and line.data.get(key) is None]
    problems += [Problem(f"{key} is missing", where, f"every {event} needs it") for key in missing]
    if event is EventKind.SYNC and line.data.get("model_step") is None:
        problems.append(Problem("model_step is missing", where, "every sync needs it"))
    responses = line.data.get("responses")
    if responses is None:
        responses = []
    if not isinstance(responses, list) or not all(isinstance(response, dict) for response in responses):
        problems.append(Problem("responses is no list of objects", where, "give one object per response"))
    if problems:
        return problems
    values = {key: value for key, value in line.data.items() if key != "event" and value is not None}
    if event is EventKind.PUT:
        values["group"] = values.pop("responses")
    try:
        # a recorder's methods have the names of the events
        getattr(recorder, event.value)(**values)
    except RecordError as error:
        if recorder.is_failed:
            raise
        return [Problem(one.what, f"{where}, {one.where}" if one.where else where, one.hint) for one in error.problems]
    return []
