"""What prime-rl trains of a trace: one sample per branch of its graph of messages.

A trace stores every message once, with the tokens it adds and its predecessor; a branch is the path from a root to a
message that is nobody's predecessor. A sampled message that branches share is trained in the first of them and is
context in the others, and a branch that is left with nothing to train is no sample; neither is an attempt to compact
the context that the agent didn't go on from. Read: `Trace.branches` (verifiers/v1/trace.py) and `leaves` (graph.py) of
PrimeIntellect-ai/verifiers a60a606 and of the release 0.4.0, `iter_trainable_branches`
(src/prime_rl/orchestrator/trajectories.py) of PrimeIntellect-ai/prime-rl 559b447, the same in its v0.8.0 (60bc295).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import shown
from tokenaudit.importers.base import FieldFault
from tokenaudit.importers.fields import int_list, mapping, number, objects, real_list

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """A branch, from its first message with tokens to train on; all before that is its prompt.

    Attributes:
        branch: its number among all branches of the trace.
        prompt_len: tokens of the prompt, sampled ones that an earlier branch trains included.
        mask: which tokens of the response are trained, int8.
        logprobs: their log-probabilities when they were sampled, float32, 0 where a token wasn't; None if not recorded.
        calls: the calls that sampled messages of the response.
        digests: of the tokens of the whole branch, and of its first `cut` ones; empty if not asked for.
    """

    branch: int
    prompt_len: int
    mask: Array
    logprobs: Array | None
    calls: list[dict[str, Any]]
    digests: tuple[bytes, ...] = ()


def token_digest(token_ids: Array) -> bytes:
    """What identifies a sequence of tokens."""
    return hashlib.blake2b(token_ids.astype("<i8").tobytes(), digest_size=16).digest()


def samples(trace: dict[str, Any], cut: int | None = None) -> list[Sample]:
    """The training samples of a trace; of one that holds none, its last branch from the first sampled message on.

    Shared messages are never written out again, so a trace makes no more tokens than it holds.

    Args:
        trace: as verifiers writes it.
        cut: the length at which the trainer cuts samples; None if nobody asks for digests.

    Raises:
        FieldFault: the trace makes no sense.
    """
    graph = _Graph(objects(trace.get("nodes"), "nodes"), cut)
    calls: dict[object, list[dict[str, Any]]] = {}
    for call in objects(trace.get("calls"), "calls"):
        node = call.get("node")
        calls.setdefault(node if isinstance(node, int) else None, []).append(call)
    is_seen = np.zeros(len(graph.nodes), dtype=np.bool_)
    found: list[Sample] = []
    for branch, leaf in enumerate(graph.leaves):
        if leaf in graph.given_up:
            continue
        own = graph.path(leaf, is_seen)
        is_seen[own] = True
        first = next((place for place, node in enumerate(own) if graph.is_trained(node)), None)
        if first is not None:
            found.append(graph.sample(branch, own[first:], calls))
    if not found:
        path = graph.path(graph.leaves[-1], np.zeros_like(is_seen)) if graph.leaves else []
        first = next((place for place, node in enumerate(path) if graph.nodes[node].get("sampled")), len(path))
        found.append(graph.sample(max(len(graph.leaves) - 1, 0), path[first:], calls, sum(map(graph.length, path))))
    return found


class _Graph:
    """The messages of a trace, in the order in which they came: each behind its predecessor."""

    def __init__(self, nodes: Sequence[dict[str, Any]], cut: int | None) -> None:
        self.nodes = nodes
        self.parents = [_parent(node, position) for position, node in enumerate(nodes)]
        has_child = {*self.parents}
        self.leaves = [position for position in range(len(nodes)) if position not in has_child]
        self.given_up = _given_up_attempts(nodes)
        self._masks = [_mask(node) for node in nodes]
        self._cut = cut
        self._before: list[int] = []
        self._digests: list[tuple[bytes, ...]] = []
        self._measure()

    def _measure(self) -> None:
        """Tokens before each message and, where asked for, digests of the tokens up to its end."""
        hashes: list[Any] = []
        for position, parent in enumerate(self.parents):
            before = 0 if parent is None else self._before[parent] + self.length(parent)
            self._before.append(before)
            if self._cut is None:
                self._digests.append(())
                continue
            tokens = int_list(self.nodes[position].get("token_ids") or [], "token_ids").astype("<i8")
            cut_digest = () if parent is None else self._digests[parent][1:]
            here = hashlib.blake2b(digest_size=16) if parent is None else hashes[parent].copy()
            if before < self._cut < before + len(tokens):
                at_cut = here.copy()
                at_cut.update(tokens[: self._cut - before].tobytes())
                cut_digest = (at_cut.digest(),)
            elif before == self._cut and len(tokens):
                cut_digest = (here.digest(),)
            here.update(tokens.tobytes())
            hashes.append(here)
            self._digests.append((here.digest(), *cut_digest))

    def length(self, position: int) -> int:
        """Tokens that a message adds."""
        return len(self._masks[position])

    def is_trained(self, position: int) -> bool:
        """Whether a message has tokens to train on."""
        return bool(self._masks[position].any())

    def path(self, leaf: int, is_seen: Array) -> list[int]:
        """The messages from the one behind the last that was seen to the leaf."""
        path: list[int] = []
        position: int | None = leaf
        while position is not None and not is_seen[position]:
            path.append(position)
            position = self.parents[position]
        return path[::-1]

    def sample(
        self, branch: int, response: list[int], calls: dict[object, list[dict[str, Any]]], prompt_len: int = 0
    ) -> Sample:
        """The sample of a branch whose response are these messages; without any, only its prompt has tokens."""
        empty = np.zeros(0, dtype=np.int8)
        own = [call for position in response for call in calls.get(position, ())]
        return Sample(
            branch,
            self._before[response[0]] if response else prompt_len,
            np.concatenate([self._masks[position] for position in response]) if response else empty,
            self._logprobs(response),
            own + (calls.get(None, []) if branch == 0 else []),
            self._digests[response[-1]] if response else (),
        )

    def _logprobs(self, response: list[int]) -> Array | None:
        """The log-probabilities of sampled tokens, at their places among all of the response."""
        parts: list[Array] = []
        for position in response:
            mask = self._masks[position] != 0
            values = real_list(self.nodes[position].get("logprobs") or [], "logprobs")
            if len(values) != mask.sum():
                return None
            part = np.zeros(len(mask), dtype=np.float32)
            part[mask] = values
            parts.append(part)
        return np.concatenate(parts) if parts else None


def _given_up_attempts(nodes: Sequence[dict[str, Any]]) -> set[int]:
    """Ends of attempts to compact the context that no message goes on from."""
    links = [
        (position, link.get("type"), link.get("node"))
        for position, node in enumerate(nodes)
        for link in objects(node.get("semantic_parents"), "semantic_parents")
    ]
    accepted = {node for _, kind, node in links if kind == "compaction" and isinstance(node, int)}
    return {position for position, kind, _ in links if kind == "compaction_attempt"} - accepted


def _parent(node: dict[str, Any], position: int) -> int | None:
    parent = node.get("parent")
    if parent is None:
        return None
    if isinstance(parent, bool) or not isinstance(parent, int) or not 0 <= parent < position:
        raise FieldFault(f"parent {shown(parent)} of node {position} is no earlier node")
    return parent


def _mask(node: dict[str, Any]) -> Array:
    """Which tokens of a message the model sampled; of a sampled one without a mask, all of them."""
    tokens = len(int_list(node.get("token_ids") or [], "token_ids"))
    is_sampled = bool(node.get("sampled"))
    mask = node.get("mask")
    bits = np.full(tokens, is_sampled) if mask is None else int_list(mask, "mask") != 0
    if len(bits) != tokens:
        raise FieldFault(f"{len(bits)} mask entries for {tokens} tokens of a node")
    return (bits & is_sampled).astype(np.int8)


def reward_of(trace: dict[str, Any]) -> float | None:
    """Scores times weights, as verifiers adds them up, of rewards that were scored; None where none was."""
    total: float | None = None
    for name, entry in mapping(trace.get("rewards"), "rewards").items():
        weight = number(entry.get("weight"), f"weight of {name}") if isinstance(entry, dict) else 1.0
        score = number(entry.get("score"), f"score of {name}") if isinstance(entry, dict) else number(entry, name)
        if score is not None:
            total = score * (1.0 if weight is None else weight) + (total or 0.0)
    return total


def duration_of(calls: Sequence[dict[str, Any]]) -> int | None:
    """Time in calls, microseconds; None where a call lacks its times."""
    total = 0.0
    for call in calls:
        times = mapping(call.get("time"), "time")
        start, end = number(times.get("start"), "start"), number(times.get("end"), "end")
        if start is None or not end or end < start:
            return None
        total += end - start
    return int(total * 1_000_000) if calls and total < 1e9 else None
