"""What the trainer of slime or miles saw of a batch: `train_data/<rollout_id>.pt`, or `<rollout_id>_<rank>.pt`.

slime gathers the ranks into one file, in which every sample names its place in the batch of `rollout_data`. miles, and
slime before 681b3adc, write a file per rank, with samples by `sample_indices`; several ranks hold the same ones.

Read: `_build_dump_payload` (slime/observability/train_data_utils.py) and `build_dp_schedule`
(slime/utils/dp_schedule.py) of THUDM/slime 624b824a; `save_debug_train_data_for_rank` (miles/utils/train_dump_utils.py)
and `_build_train_row` (miles/dashboard/dump_reader.py) of radixark/miles 31f1ca96.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.importers.base import Context, FieldFault
from tokenaudit.importers.dumps import (
    ARRAYS,
    Dump,
    fields_of,
    flat,
    integer_of,
    items_of,
    length_of,
    opened,
    plain,
    reals,
    record_of,
)
from tokenaudit.importers.files import number_in
from tokenaudit.log.writer import Row

_GATHERED = frozenset({"format_version", "rollout_id", "response_lengths"})
_OF_A_RANK = frozenset({"rank", "rollout_id", "rollout_data"})
_COLUMNS = {
    "sample_indices": "sample_index",
    "response_lengths": "response_lengths",
    "total_lengths": "total_lengths",
    "loss_masks": "loss_masks",
    "log_probs": "log_probs",
}
"""Columns of a rank, and what a sample of the gathered file calls the same."""

_UNPAIRED = "some files of train_data belong to no file of rollout_data, and are left out"
_MISFIT = "some samples of train_data differ from those of rollout_data in length, and are left out"
_AMBIGUOUS = (
    "some samples share their index with others of their batch, so what the trainer saw of them can't be told apart, "
    "and is left out"
)
_SLICES = "log-probabilities that context-parallel ranks hold in slices are left out"
_LOSS = "trained_mask is what the trainer was given: tokens that the loss itself rejects count as trained"
_TRIMMED = "samples that the trainer left out of its steps have a trained_mask of zeros"


def is_train_data(keys: frozenset[str]) -> bool:
    """Whether a file with these first texts is what a trainer saw of a batch, which is no batch of its own."""
    return keys >= _GATHERED or keys >= _OF_A_RANK


class _Seen(NamedTuple):
    """One sample as the trainer saw it: index, lengths, and its mask and log-probabilities, most still in the file."""

    sample_index: int | None
    response_lengths: int
    total_lengths: int
    loss_masks: Any
    log_probs: Any


class TrainBatch:
    """What the trainer saw of the samples of one batch.

    Args:
        context: where it is noted what can't be joined.
        indices: `index` of each sample of the batch.
    """

    def __init__(self, context: Context, indices: Sequence[object]) -> None:
        self._context = context
        self._indices = indices
        self._sizes = Counter(indices)
        self._by_place: dict[int, _Seen] = {}
        self._by_index: dict[int, _Seen] = {}

    def add_gathered(self, fields: dict[str, Any]) -> None:
        """Add the samples of all ranks. Raises a `FieldFault` if they make no sense.

        Their places count if all of them name samples of the batch: a conversion of one's own may have moved them.
        """
        samples = [record_of(value, "a sample", self._context) for value in items_of(fields.get("samples"), "samples")]
        placed = [(_seen(sample), plain(sample.get("rollout_position"))) for sample in samples]
        places: dict[int, _Seen] = {}
        for seen, place in placed:
            if seen.sample_index is not None:
                self._sizes[seen.sample_index] += seen.sample_index in self._by_index
                self._by_index[seen.sample_index] = seen
            is_place = isinstance(place, int) and 0 <= place < len(self._indices)
            if is_place and seen.sample_index in (None, self._indices[place]):
                places[place] = seen
        if len(places) == len(samples):
            self._by_place = places

    def add_rank(self, fields: dict[str, Any]) -> bool:
        """Add the samples of one rank; returns whether it holds anything new. Raises like `add_gathered`."""
        data = record_of(fields.get("rollout_data"), "rollout_data", self._context)
        present = {theirs: name for theirs, name in _COLUMNS.items() if data.get(theirs) is not None}
        columns = {name: items_of(data[theirs], theirs) for theirs, name in present.items()}
        count = len(columns.get("response_lengths", ()))
        if any(len(column) != count for column in columns.values()):
            raise FieldFault("columns of rollout_data differ in number")
        is_new = False
        for seen in [_seen({name: column[row] for name, column in columns.items()}) for row in range(count)]:
            if seen.sample_index is None:
                continue
            known = self._by_index.get(seen.sample_index)
            # only the last stage of a pipeline has log-probabilities, only one rank of a context those of all tokens
            if known is None or (_tokens(known) != known.response_lengths and _tokens(seen) > _tokens(known)):
                self._by_index[seen.sample_index] = seen
                is_new = True
        return is_new

    def columns(self, place: int, tokens: int, total: int) -> Row:
        """`trained_mask` and `train_logprobs` of a sample, as far as it is sure that they are its own.

        Args:
            place: its place in the batch.
            tokens: of its response.
            total: tokens of prompt and response.
        """
        if self._by_place:
            seen = self._by_place.get(place)
            if seen is None:
                self._context.limit(_TRIMMED)
                return {"trained_mask": np.zeros(tokens, dtype=np.int8)}
        else:
            index = self._indices[place]
            seen = self._by_index.get(index) if isinstance(index, int) else None
            if seen is None:
                return {}
            if self._sizes[index] > 1:
                self._context.limit(_AMBIGUOUS)
                return {}
        if (seen.response_lengths, seen.total_lengths) != (tokens, total):
            self._context.limit(_MISFIT)
            return {}
        return self._mask(seen, tokens) | self._logprobs(seen, tokens)

    def _mask(self, seen: _Seen, tokens: int) -> Row:
        mask = flat(seen.loss_masks, "loss_masks")
        if len(mask) != tokens:
            self._context.limit(_MISFIT)
            return {}
        self._context.limit(_LOSS)
        return {"trained_mask": (mask != 0).astype(np.int8)}

    def _logprobs(self, seen: _Seen, tokens: int) -> Row:
        if seen.log_probs is None:
            return {}
        if _tokens(seen) != tokens:
            self._context.limit(_SLICES)
            return {}
        return {"train_logprobs": reals(seen.log_probs, "log_probs")}


def _seen(sample: dict[str, Any]) -> _Seen:
    index = plain(sample.get("sample_index"))
    if index is not None and not isinstance(index, int):
        raise FieldFault("sample_index is no whole number")
    response, total = (length_of(sample, name) for name in ("response_lengths", "total_lengths"))
    return _Seen(index, response, total, sample.get("loss_masks"), sample.get("log_probs"))


def _tokens(seen: _Seen) -> int:
    """How many log-probabilities are there."""
    return seen.log_probs.size if isinstance(seen.log_probs, ARRAYS) else 0


class TrainFiles:
    """Files of what a trainer saw, found by the batch they belong to.

    Args:
        paths: the files, named `<rollout_id>` or `<rollout_id>_<rank>`, in a folder beside that of the batches.
        context: where it is noted what can't be joined.
    """

    def __init__(self, paths: Sequence[Path], context: Context) -> None:
        self._context = context
        self._paths: defaultdict[tuple[Path, int | None], list[Path]] = defaultdict(list)
        self._paired: set[tuple[Path, int | None]] = set()
        for path in paths:
            self._paths[path.parent.parent, number_in(path.stem, r"(\d+)")].append(path)

    @contextmanager
    def of(self, batch: Path, rollout_id: int, samples: Sequence[Any]) -> Iterator[TrainBatch | None]:
        """What the trainer saw of a batch, for as long as the block lasts; None if there is no file of it.

        One that makes no sense is left out, one that can't be read is noted.
        """
        key = (batch.parent.parent, rollout_id)
        paths = self._paths.get(key, [])
        self._paired.add(key)
        with ExitStack() as kept:
            if not paths:
                yield None
                return
            train = TrainBatch(self._context, [_index(sample) for sample in samples])
            for path in paths:
                with self._context.reading():
                    self._add(train, path, rollout_id, kept)
            yield train

    def _add(self, train: TrainBatch, path: Path, rollout_id: int, kept: ExitStack) -> None:
        with ExitStack() as stack:
            dump: Dump = stack.enter_context(opened(path, self._context))
            with dump.all_or_nothing():
                fields = fields_of(dump.value, "the dump")
                if integer_of(fields, "rollout_id") != rollout_id:
                    self._context.limit(_UNPAIRED)
                elif "samples" in fields:
                    train.add_gathered(fields)
                    kept.push(stack.pop_all())
                elif train.add_rank(fields):
                    kept.push(stack.pop_all())

    def end(self) -> None:
        """All batches were seen: note files that belong to none."""
        if not self._paired.issuperset(self._paths):
            self._context.limit(_UNPAIRED)


def _index(sample: Any) -> object:
    """The index of a sample; None if it has none that makes sense, which the reader of the batch faults."""
    try:
        return plain(fields_of(sample, "a sample").get("index"))
    except FieldFault:
        return None
