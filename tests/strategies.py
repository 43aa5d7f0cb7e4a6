"""Hypothesis strategies: wild but structurally valid logs, configs for them, and ways to spell them as Parquet."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.builders import TEXTS, Row

STATUSES = ("completed", "aborted", "expired", "failed", "filtered", "init")
MEMBER_STATUSES = st.sampled_from(("completed",) * 8 + ("aborted",) * 6 + STATUSES)
# Exact in binary, so that sums do not depend on their order.
REWARDS = st.sampled_from((None, 0.0, 1.0, -0.5, 0.125, 7.75, 1e301, math.inf, -math.inf, math.nan))
MASK_ENTRIES = st.sampled_from((1, 1, 1, 0, 0, 2, -1))
VERSIONS = st.integers(0, 8)
TASKS = (None, "math", "code")
"""Task names as rows have them; None is the default task."""


@cache
def below(count: int) -> st.SearchStrategy[int]:
    """A number from 0; remembered, since making and validating a strategy takes longer than a draw."""
    return st.integers(0, count - 1)


@dataclass
class Rollout:
    """The response as it was last put."""

    ids: list[int] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)


@dataclass
class LogWriter:
    """What a random log has said so far."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    stamp_missing: bool
    with_ids: bool
    with_prior: bool
    steady: bool
    step: int = 1
    version: int = 0
    event_id: int = 0
    fresh_id: int = 100
    rollouts: dict[tuple[str | None, int, int], Rollout] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def one_of(self, *options: Any) -> Any:
        return options[self.draw(below(len(options)))]

    def write(self, kind: str, **values: Any) -> None:
        # A null event is a put, a null task the default one, and a null is as good as a key left out.
        event = kind if kind != "put" or self.steady else self.one_of("put", "put", None)
        self.rows.append({"event": event, "event_id": self.event_id, **values})

    def next_step(self) -> None:
        if self.steady:
            self.step += self.one_of(0, 0, 1)
        else:
            self.step = max(0, self.step + self.one_of(0, 0, 0, 0, 1, 1, 1, 2, 3, -1, -2))

    def any_step(self) -> int:
        """Mostly the step that the run is in."""
        return self.step if self.steady else self.one_of(*[self.step] * 6, self.step + 1, 0, 9)

    def event(self, kind: str) -> None:
        self.event_id += self.one_of(1, 1, 1, 5)
        self.next_step()
        if kind == "put":
            self.put()
        elif kind == "sample":
            noise = self.one_of(None, 1, 7)
            self.write(
                "sample",
                train_step=noise,
                task_name=self.one_of(None, None, "math", "math", "code"),
                group_id=self.one_of(0, 0, 0, 1, 1, 2, 3),
                status=self.one_of("aborted", "expired", "completed"),
            )
        elif kind == "refresh":
            self.write("refresh", train_step=self.any_step(), task_name=self.one_of(None, None, "nobody"))
        elif kind == "sync":
            self.version = self.one_of(self.step, self.version, self.version + 1)
            version = self.one_of(self.version, self.version, self.version, None)
            self.write("sync", train_step=self.any_step(), model_step=version)
        else:
            self.take()

    def take(self) -> None:
        """A batch: one event per task; some tasks twice, some sizes 0, some directly followed by a refresh."""
        step = self.any_step()
        for task in self.draw(st.lists(st.sampled_from(TASKS), min_size=1, max_size=3)):
            self.write("take", train_step=step, task_name=task, batch_size=self.one_of(0, 1, 1, 2, 3), group_id=None)
            self.event_id += 1
        if self.draw(st.booleans()):
            self.write("refresh", train_step=self.one_of(step + 1, step + 1, step + 1, step, step + 2))

    def put(self) -> None:
        # Few groups, so that most are put again.
        task, group_id = self.one_of(None, None, "math", "math", "code"), self.one_of(0, 0, 0, 1, 1, 2, 3)
        rollouts = [10 * group_id + member for member in self.one_of((0,), (0, 1), (0, 1), (0, 1, 2), (1,))]
        if not self.steady:
            rollouts += self.one_of([], [], [], [rollouts[0]], rollouts, [rollouts[-1], rollouts[-1]])
        step = self.any_step()
        model_step = self.one_of(self.version, self.version, max(0, step - 1), self.draw(VERSIONS))
        status = None if self.draw(st.booleans()) else self.one_of("completed", *["aborted"] * 4, *STATUSES)
        seen: dict[int, int] = {}
        for rollout_id in rollouts:
            segment = seen.get(rollout_id, 0)
            seen[rollout_id] = segment + 1
            before = self.rollouts.get((task, rollout_id, segment))
            now = self.response(before, model_step, is_new=before is None)
            self.rollouts[task, rollout_id, segment] = now
            self.write(
                "put",
                train_step=step,
                task_name=self.one_of(None, "default") if task is None else task,
                group_id=group_id,
                rollout_id=rollout_id,
                status=status or self.draw(MEMBER_STATUSES),
                **self.spelled(now, before, model_step),
                agentic=self.one_of(None, False, False, False, False, True),
                reward=self.draw(REWARDS),
                batch_size=self.one_of(None, None, 5),
            )

    def response(self, before: Rollout | None, model_step: int, is_new: bool) -> Rollout:
        """Tokens of a response: more of what was put before, the same again, something else, or nothing."""
        again = ("more", "more", "more", "same", "anew", "shorter", "other ids", "reordered ids")
        how = "anew" if is_new else self.one_of(*again)
        old = Rollout() if before is None else before
        if how == "same":
            return Rollout(list(old.ids), list(old.versions))
        if how == "shorter":
            return Rollout(old.ids[:-1], old.versions[:-1])
        if how == "reordered ids":
            return Rollout(old.ids[::-1], list(old.versions))
        if how == "other ids":
            return Rollout([self.new_id() for _ in old.ids], list(old.versions))
        count = self.one_of(0, 1, 2, 3, 5)
        made = Rollout([], []) if how == "anew" else Rollout(list(old.ids), list(old.versions))
        if how == "anew" and not self.steady and self.one_of(False, False, True):
            # Tokens of several versions at once, future ones among them.
            made.versions = self.draw(st.lists(VERSIONS, max_size=3))
        made.versions += [model_step] * count
        made.ids += [self.new_id() for _ in made.versions[len(made.ids) :]]
        return made

    def new_id(self) -> int:
        self.fresh_id += 1
        return self.fresh_id

    def spelled(self, now: Rollout, before: Rollout | None, model_step: int) -> Row:
        """The columns that tell length, versions, ids, mask and prior_len."""
        tokens = len(now.versions)
        versions: list[int] | None = list(now.versions)
        stamp: int | None = None
        # What was put before tells where a prior_len is missing, if no version is.
        told = ("complete", "complete and model_step") * (1 if self.with_prior else 3)
        how = self.one_of(*told, "stamped", "stamped", "prefix")
        if self.stamp_missing:
            how = self.one_of(how, "no versions", "no versions", "prefix without model_step")
        if how == "complete and model_step":
            stamp = model_step
        elif how == "stamped":
            stamp = now.versions[-1] if now.versions else model_step
            while versions and versions[-1] == stamp:
                versions.pop()
            versions = versions or self.one_of(None, [])
        elif how == "prefix":
            # The rest is told by model_step, whatever the response had.
            stamp, versions = model_step, versions[: self.one_of(0, 1, 2, 3)]
        elif how == "no versions":
            versions = None
        elif how == "prefix without model_step":
            versions = versions[: self.one_of(0, 1, 2)]
        has_ids = self.with_ids and self.one_of(True, True, True, False)
        # A length left out must follow from the ids, or from complete versions.
        may_omit = has_ids or (versions is not None and len(versions) == tokens)
        mask = None
        if self.one_of(False, False, True):
            zeros = self.one_of(False, False, True)
            mask = [0 if zeros else self.draw(MASK_ENTRIES) for _ in range(tokens)]
        prior_len = None
        if self.with_prior and self.one_of(True, True, True, True, False):
            usual = 0 if before is None else min(tokens, len(before.versions))
            prior_len = min(tokens, self.one_of(usual, usual, usual, 0, 1, tokens))
        return {
            "model_step": stamp,
            "response_len": None if may_omit and self.one_of(False, False, True) else tokens,
            "response_ids": now.ids if has_ids else None,
            "response_model_steps": versions,
            "response_mask": mask,
            "prior_len": prior_len,
        }


@st.composite
def logs(draw: Any, *, max_events: int = 40, stamp_missing: bool = False) -> list[Row]:
    """Rows of a log: puts only, a steady run, or events in any order.

    Args:
        draw: given by hypothesis.
        max_events: most events.
        stamp_missing: some tokens have no version.
    """
    shape = draw(st.sampled_from(("puts only", "steady", "wild", "wild")))
    writer = LogWriter(
        draw,
        stamp_missing=stamp_missing,
        with_ids=draw(st.booleans()),
        with_prior=draw(st.sampled_from((True, True, False))),
        steady=shape == "steady" or (shape == "puts only" and draw(st.booleans())),
        step=draw(st.sampled_from((1, 1, 1, 2, 0))),
    )
    kinds = ("put",) if shape == "puts only" else ("put",) * 6 + ("refresh", "take", "take", "sample", "sync")
    # Lists of lists, since a list alone is mostly short.
    some = st.lists(st.sampled_from(kinds), min_size=1, max_size=max(1, max_events // 5))
    for kind in chain.from_iterable(draw(st.lists(some, min_size=1, max_size=5))):
        writer.event(kind)
    return writer.rows


POLICY_KEYS: dict[str, st.SearchStrategy[Any]] = {
    "max_staleness": st.integers(0, 3),
    "max_token_staleness": st.sampled_from((0, 0, 1, 2, "off")),
    "tail_batch_trigger_size": st.sampled_from((-1, 0, 1, 4)),
    "enable_partial_rollout": st.booleans(),
}


@st.composite
def configs(draw: Any, *, tasks: tuple[str, ...] = ("math", "code", "default", "unused")) -> Row:
    """A config as parsed TOML."""
    timeline = {
        "sync_weights_interval": draw(st.integers(1, 4)),
        "train_batch_size": draw(st.integers(1, 6)),
        "resync": draw(st.booleans()),
    }
    if draw(st.booleans()):
        timeline["steps"] = draw(st.integers(1, 9))
    policy = st.fixed_dictionaries({}, optional=POLICY_KEYS)
    own: dict[str, Row] = {}
    for name in draw(st.lists(st.sampled_from(tasks), unique=True, max_size=3)):
        own[name] = draw(policy)
        # A batch needs one task with a weight above 0.
        own[name]["weight"] = draw(st.sampled_from((1.0, 2.0, 0.5, 3.0) if len(own) == 1 else (1.0, 0.3, 0.0)))
    return {
        "mode": draw(st.sampled_from(("colocated", "disaggregated"))),
        "timeline": timeline,
        "buffer": {"replay_policy": draw(st.sampled_from(("staleness", "fifo")))},
        "policy": draw(policy),
        "tasks": own,
    }


INTEGER_TYPES = (
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
)  # fmt: skip


def spellings() -> st.SearchStrategy[dict[str, Any]]:
    """Options of `builders.write_log` that leave a log's meaning as it is."""
    return st.fixed_dictionaries(
        {},
        optional={
            "versions": st.sampled_from(("complete", "stamped", "runs", "split runs")),
            "integers": st.lists(st.sampled_from(INTEGER_TYPES), min_size=1, max_size=3),
            "list_type": st.sampled_from(("list", "large_list")),
            "text": st.sampled_from(tuple(TEXTS)),
            "mask": st.sampled_from(("int8", "bool", "integers")),
            "omit_null_columns": st.booleans(),
            "null_type": st.booleans(),
            "row_group_size": st.integers(1, 7),
            "files": st.integers(1, 3),
            "file_seed": st.integers(0, 9),
            "column_seed": st.integers(0, 9),
            "extra_column": st.booleans(),
            "compression": st.sampled_from(("none", "snappy", "zstd")),
            "use_dictionary": st.booleans(),
            "data_page_size": st.sampled_from((64, 1000)),
        },
    )
