"""Compressed files, and those of old versions of torch, known by their first bytes: they are told, never unpacked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tokenaudit.contracts.errors import Problem

_HEAD = 15
_KINDS = (
    (re.compile(rb"\x1f\x8b\x08"), "gzip", "gunzip"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "zstd", "unzstd"),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "bzip2", "bunzip2"),
    (re.compile(rb"\xfd7zXZ\x00"), "xz", "unxz"),
)
"""How each kind begins, its name, and what unpacks it."""
_OLD_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
"""How torch.save began before it wrote archives."""


def compressed(path: Path) -> Problem | None:
    """Why a file can't be read before it is unpacked or saved anew; None where it can, or can't be read at all."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return None
    for start, name, command in _KINDS:
        if start.match(head):
            return Problem(f"the file is compressed with {name}", str(path), f"unpack it first, such as with {command}")
    if head == _OLD_TORCH:
        hint = "load it with torch and save it again, without _use_new_zipfile_serialization=False"
        return Problem("a file of torch.save in its old format, of before torch 1.6", str(path), hint)
    return None


def first_compressed(paths: Iterable[Path]) -> Problem | None:
    """The first of some files that is compressed or of an old format, as a problem."""
    return next((problem for problem in map(compressed, paths) if problem is not None), None)
