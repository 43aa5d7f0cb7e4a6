"""JSON lines from anywhere, in bounded memory: one object a line, faults with their line numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from tokenaudit.contracts.errors import Problem

MAX_LINE_BYTES = 256 * 1024 * 1024
"""Longest line read; a response of a million tokens with all its text stays far below."""

_ONE_OBJECT = "give one JSON object a line"


class JsonLine(NamedTuple):
    """One line: its number from 1, and its object or what is wrong with it.

    Attributes:
        number: the line, counted from 1.
        data: the object; empty where there is a problem.
        problem: why the line can't be read; None if it can.
        bytes: length of the line.
    """

    number: int
    data: dict[str, Any]
    problem: Problem | None
    bytes: int


def json_lines(stream: IO[bytes], source: str) -> Iterator[JsonLine]:
    """The objects of a stream of JSON lines; empty lines are passed over.

    Args:
        stream: the bytes.
        source: name of the stream, for messages.

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
            data, problem = _parsed(line, where)
            yield JsonLine(number, data, problem, size)


def _skip_line(stream: IO[bytes]) -> int:
    skipped = 0
    while piece := stream.readline(1 << 20):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def _parsed(line: bytes, where: str) -> tuple[dict[str, Any], Problem | None]:
    try:
        data = json.loads(line)
    except RecursionError:
        return {}, Problem("JSON nested too deep", where, _ONE_OBJECT)
    except ValueError as error:
        return {}, Problem(f"not JSON: {error}"[:200], where, _ONE_OBJECT)
    if not isinstance(data, dict):
        return {}, Problem(f"{type(data).__name__} in place of an object", where, _ONE_OBJECT)
    return data, None
