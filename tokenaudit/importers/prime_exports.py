"""What prime-rl's trainer records of the tokens it trained: log-probabilities of both sides, and what the loss masked.

`token_exports/step_<N>/rank_<R>.jsonl` (trainer.enable_token_export) holds a packed sequence a line, without padding
and cut at the trainer's length. It names neither trace nor group, so that its tokens have to identify it. Annotations
of the trainer (`monitors/file/traces/annotations/trainer`) name the trace and the branch. Read in
PrimeIntellect-ai/prime-rl: `TokenExporter` (src/prime_rl/trainer/rl/token_export.py of 559b447, d2f82fa and v0.8.0),
`compute_loss` and `default_loss_fn` (loss.py of 559b447), `AnnotationWriter` (annotations.py of 65a1858 and faaec4c).

A token is in the loss if its weight in a part of it isn't 0: of policy gradients (`rl_weights`, where it is 1 if there
is none) unless the trust region masks it, of cross-entropy (`ce_weights`) or of a reference (`ref_kl_weights`).
The penalty on the ratio that the default loss adds to policy gradients is left on masked tokens; it doesn't count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from tokenaudit.importers.base import FieldFault
from tokenaudit.importers.batch import unversioned_row
from tokenaudit.importers.fields import int_list, integer, number, objects, real_list
from tokenaudit.importers.prime_traces import Array, Sample, token_digest
from tokenaudit.log.writer import Row

EXPORT_KEYS = frozenset({"token_ids", "loss_mask", "inference_logprobs", "trainer_logprobs"})
ANNOTATION_KEYS = frozenset({"trace_id", "branches"})
_COMPARED = 16
"""Sequences of equal tokens whose log-probabilities are compared; a crafted file could have any number."""


class TrainedTokens(NamedTuple):
    """What the trainer had for each token of a sequence, its prompt included.

    Attributes:
        train_logprobs: log-probabilities under the trained weights, float32, NaN where there is none.
        logprobs: those when the tokens were sampled; None if not recorded.
        trained_mask: whether the token was in the loss, int8; None if not known.
    """

    train_logprobs: Array
    logprobs: Array | None
    trained_mask: Array | None

    def columns(self, sample: Sample) -> Row:
        """Log columns of a sample. Of one that the trainer cut, only what it trained is known."""
        end = sample.prompt_len + len(sample.mask)
        row: Row = {}
        if self.trained_mask is not None:
            trained = self.trained_mask[sample.prompt_len : end]
            row["trained_mask"] = np.pad(trained, (0, len(sample.mask) - len(trained)))
        if len(self.train_logprobs) >= end:
            values = self.train_logprobs[sample.prompt_len : end]
            row["train_logprobs"] = np.where(np.isnan(values) & (sample.mask == 0), np.float32(0), values)
            if self.logprobs is not None:
                row["logprobs"] = self.logprobs[sample.prompt_len : end]
        return row


class _Stored(NamedTuple):
    offset: int
    tokens: int
    has_logprobs: bool
    has_mask: bool


class TrainedSequences:
    """What the trainer recorded of any number of sequences, on disk until it is asked for.

    Args:
        file: an open file, which may hold other things too.

    Attributes:
        longest: tokens of the longest sequence.
        unmatched: sequences nobody asked for so far.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.longest = 0
        self.unmatched = 0
        self._stored: dict[bytes, list[_Stored]] = {}
        self._file = file

    def add(self, key: bytes, tokens: TrainedTokens) -> None:
        """Keep what the trainer recorded of a sequence, under what identifies it."""
        offset = self._file.seek(0, 2)
        for array in tokens:
            if array is not None:
                self._file.write(array.tobytes())
        count = len(tokens.train_logprobs)
        has = (tokens.logprobs is not None, tokens.trained_mask is not None)
        self._stored.setdefault(key, []).append(_Stored(offset, count, *has))
        self.longest = max(self.longest, count)
        self.unmatched += 1

    def take(self, keys: Sequence[bytes], logprobs: Array | None) -> TrainedTokens | None:
        """What was recorded under the first of the keys that is known, and hasn't been taken yet.

        Args:
            keys: what may identify the sequence.
            logprobs: those of the end of the sequence when it was sampled, which tell sequences of one key apart.
        """
        for key in keys:
            if stored := self._stored.get(key):
                # only the last ones, so that taking any number of equal sequences takes no time
                place = self._closest(stored[-_COMPARED:], logprobs)
                self.unmatched -= 1
                return self._read(stored.pop(place - min(_COMPARED, len(stored))))
        return None

    def newest(self, key: bytes) -> TrainedTokens | None:
        """What was recorded last under a key."""
        stored = self._stored.pop(key, [])
        self.unmatched -= len(stored)
        return self._read(stored[-1]) if stored else None

    def _closest(self, candidates: Sequence[_Stored], logprobs: Array | None) -> int:
        """The place of the one whose log-probabilities are nearest, the first of several."""
        if len(candidates) == 1 or logprobs is None:
            return 0

        def distance(stored: _Stored) -> float:
            own = self._read(stored).logprobs
            if own is None or len(own) < len(logprobs):
                return np.inf
            return float(np.nan_to_num(np.abs(own[len(own) - len(logprobs) :] - logprobs), nan=np.inf).sum())

        return min(range(len(candidates)), key=lambda place: distance(candidates[place]))

    def _read(self, stored: _Stored) -> TrainedTokens:
        self._file.seek(stored.offset)
        count = stored.tokens
        train = np.frombuffer(self._file.read(4 * count), dtype=np.float32)
        logprobs = np.frombuffer(self._file.read(4 * count), dtype=np.float32) if stored.has_logprobs else None
        mask = np.frombuffer(self._file.read(count), dtype=np.int8) if stored.has_mask else None
        return TrainedTokens(train, logprobs, mask)


class ExportedSequence(NamedTuple):
    """One line of the token exports."""

    digest: bytes
    loss_mask: Array
    prompt: bytes
    tokens: TrainedTokens
    reward: float | None


def exported(data: dict[str, Any]) -> ExportedSequence:
    """A line of the token exports.

    Raises:
        FieldFault: it makes no sense.
    """
    token_ids = int_list(data.get("token_ids"), "token_ids")
    loss_mask = int_list(data.get("loss_mask"), "loss_mask") != 0
    names = ("inference_logprobs", "trainer_logprobs")
    logprobs, train_logprobs = (real_list(data.get(name), name) for name in names)
    lengths = {len(token_ids), len(loss_mask), len(logprobs), len(train_logprobs)}
    if len(lengths) > 1 or not loss_mask.any():
        raise FieldFault("token_ids, loss_mask and log-probabilities don't fit", "each has one entry a token")
    rewards = real_list(data.get("rewards") or [], "rewards")
    scored = rewards[np.isfinite(rewards)]
    return ExportedSequence(
        token_digest(token_ids),
        loss_mask,
        token_digest(token_ids[: int(loss_mask.argmax())]),
        TrainedTokens(train_logprobs, logprobs, _in_loss(data, loss_mask)),
        float(scored[0]) if len(scored) else None,
    )


def exported_step(data: dict[str, Any]) -> int:
    """The step of a batch; the trainer may need several of its own steps for one."""
    return integer(data, "step" if data.get("export_step") is None else "export_step")


def _in_loss(data: dict[str, Any], loss_mask: Array) -> Array | None:
    """Which tokens were in the loss; None where the trainer doesn't say what its loss masked."""

    def stream(name: str, absent: float) -> Array:
        values = real_list(data.get(name) or [], name)
        if len(values) not in (0, len(loss_mask)):
            raise FieldFault(f"{len(values)} {name} for {len(loss_mask)} tokens")
        values = values if len(values) else np.full(len(loss_mask), np.nan, dtype=np.float32)
        return np.where(np.isnan(values), np.float32(absent), values)

    learns = loss_mask & (stream("rl_weights", 1) != 0)
    others = (stream("ce_weights", 0) != 0) | (stream("ref_kl_weights", 0) != 0)
    is_masked = stream("is_masked", -1)
    # parts of the loss that are listed per token came with another schema, before weights
    if (is_masked[learns] < 0).any() or "losses" in data:
        return None
    return ((learns & (is_masked == 0)) | others).astype(np.int8)


def export_row(sequence: ExportedSequence, rollout_id: int) -> Row:
    """The row of a sequence that is known from the exports only: from its first trained token on, without versions."""
    prompt_len = int(sequence.loss_mask.argmax())
    mask = sequence.loss_mask[prompt_len:].astype(np.int8)
    row = unversioned_row(rollout_id, sequence.reward)
    row |= {"response_len": len(mask), "prompt_len": prompt_len, "response_mask": mask}
    return row | sequence.tokens.columns(Sample(0, prompt_len, mask, None, []))


def sequence_key(digest: bytes, train_step: int | None) -> bytes:
    """What identifies a sequence among those of a step, or of the run where steps aren't known."""
    return digest if train_step is None else digest + train_step.to_bytes(8, "little")


def branch_key(trace_id: object, branch: int) -> bytes:
    """What identifies a branch of a trace."""
    return hashlib.blake2b(f"{trace_id} {branch}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def annotated(data: dict[str, Any]) -> list[tuple[bytes, TrainedTokens]]:
    """What an annotation says of the tokens of branches that were trained; of a token outside its loss, nothing.

    Raises:
        FieldFault: it makes no sense.
    """
    found: list[tuple[bytes, TrainedTokens]] = []
    for branch in objects(data.get("branches"), "branches"):
        index = number(branch.get("index"), "index")
        if index is None or branch.get("trainer_logprobs") is None:
            continue
        train_logprobs = real_list(branch["trainer_logprobs"], "trainer_logprobs")
        mask: Array | None = None
        if branch.get("is_masked") is not None:
            is_masked = real_list(branch["is_masked"], "is_masked")
            if len(is_masked) != len(train_logprobs):
                raise FieldFault(f"{len(is_masked)} is_masked for {len(train_logprobs)} trainer_logprobs")
            mask = (~np.isnan(train_logprobs) & (is_masked != 1)).astype(np.int8)
        found.append((branch_key(data.get("trace_id"), int(index)), TrainedTokens(train_logprobs, None, mask)))
    return found
