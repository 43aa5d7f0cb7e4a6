"""Hypothesis strategies: logs of runs that do everything right, and ways to damage one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.builders import Row, put, refresh, sample, sync, take
from tokenaudit.config.model import Config, parse_config
from tokenaudit.lifecycle.buffer import ReplayBuffer
from tokenaudit.lifecycle.events import GroupTaken
from tokenaudit.lifecycle.members import Group, MadeMembers
from tokenaudit.lifecycle.types import Response, Status

TASK = "default"


@dataclass
class Run:
    """A run as it goes on: its own buffer decides, so what it records is right by construction."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    config: Config
    group_size: int
    rows: list[Row] = field(default_factory=list)
    versions: dict[int, list[int]] = field(default_factory=dict)
    masks: dict[int, list[int]] = field(default_factory=dict)
    event_id: int = 0
    next_group: int = 0

    def __post_init__(self) -> None:
        self.buffer = ReplayBuffer({TASK: self.config.expiry_policy(TASK)}, self.config.buffer.replay_policy)

    def write(self, *rows: Row) -> None:
        self.event_id += 1
        self.rows += [row | {"event_id": self.event_id} for row in rows]

    def step(self, train_step: int, live: int) -> None:
        self.write(refresh(train_step=train_step))
        self.buffer.refresh_staleness(train_step)
        for status in (Status.EXPIRED, Status.ABORTED):
            if self.draw(st.booleans()):
                self.roll_again(status, train_step, live)
        for _ in range(self.draw(st.integers(0, 3))):
            self.next_group += 1
            self.put(self.next_group, {}, train_step, live)
        size = self.draw(st.integers(0, 2))
        events = [e for e in self.buffer.take_batch(train_step, {TASK: size}) if isinstance(e, GroupTaken)]
        taken = [row for event in events for row in self.take_rows(event, size)]
        self.write(*(taken or [take(train_step=train_step, batch_size=size)]))

    def roll_again(self, status: Status, train_step: int, live: int) -> None:
        for event in self.buffer.sample(TASK, status):
            self.write(sample(group_id=event.group_id, status=status.value))
            self.put(event.group_id, {r.rollout_id: r for r in event.responses}, train_step, live)

    def put(self, group_id: int, before: dict[int, Response], train_step: int, live: int) -> None:
        rows, responses = [], []
        for member in range(self.group_size):
            rollout_id = self.group_size * group_id + member
            kept = before.get(rollout_id)
            prior = kept.tokens if kept is not None else 0
            is_done = kept is not None and kept.status is Status.COMPLETED
            new = 0 if is_done else self.draw(st.integers(1, 4))
            versions = self.versions.get(rollout_id, [])[:prior] + [live] * new
            mask = self.masks.get(rollout_id, [])[:prior] + self.draw(
                st.lists(st.sampled_from((1, 1, 0)), min_size=new, max_size=new)
            )
            mask[-1] = 1 if new else mask[-1]
            self.versions[rollout_id], self.masks[rollout_id] = versions, mask
            status = "completed" if is_done else self.draw(st.sampled_from(("completed", "completed", "aborted")))
            reward = 0.25 * member if status == "completed" else None
            runs = tuple((version, 1, one) for version, one in zip(versions, mask, strict=True))
            responses.append(Response(rollout_id, Status(status), runs, prior_len=prior, reward=reward))
            rows.append(
                put(
                    group_id=group_id, rollout_id=rollout_id, train_step=train_step, status=status,
                    tokens=len(versions), model_step=live, prior_len=prior, response_model_steps=versions,
                    response_mask=mask, reward=reward, seq_staleness=train_step - min(versions) - 1,
                    logprobs=[-0.5] * len(versions), train_logprobs=[-0.75] * len(versions),
                    start_model_step=live,
                )
            )  # fmt: skip
        self.write(*rows)
        self.buffer.put(Group(TASK, group_id, MadeMembers(tuple(responses))), train_step)

    def take_rows(self, event: GroupTaken, size: int) -> list[Row]:
        limit = event.token_stale_threshold
        rows = []
        for response in event.responses:
            pairs = zip(self.versions[response.rollout_id], self.masks[response.rollout_id], strict=True)
            mask = [int(one and (limit is None or event.train_step - version - 1 < limit)) for version, one in pairs]
            rows.append(
                take(train_step=event.train_step, batch_size=size, rollout_id=response.rollout_id, trained_mask=mask)
            )
        return rows


@st.composite
def valid_runs(draw: Any) -> tuple[list[Row], tuple[str, ...]]:
    """Rows of a run that records everything rightly, and its config as overrides."""
    interval = draw(st.integers(1, 2))
    policy = {
        "max_staleness": draw(st.integers(0, 3)),
        "max_token_staleness": draw(st.sampled_from(("off", 0, 1))),
        "tail_batch_trigger_size": draw(st.sampled_from((-1, 0))),
        "enable_partial_rollout": True,
    }
    config = parse_config({"timeline": {"sync_weights_interval": interval}, "policy": policy}, "test")
    run = Run(draw, config, draw(st.integers(1, 3)))
    for train_step in range(1, draw(st.integers(2, 7))):
        run.step(train_step, (train_step - 1) // interval * interval)
        if train_step % interval == 0:
            run.write(sync(train_step=train_step, model_step=train_step))
    overrides = [f"timeline.sync_weights_interval={interval}"]
    overrides += [f"policy.{key}={str(value).lower()}" for key, value in policy.items()]
    return run.rows, tuple(overrides)


def is_put(row: Row) -> bool:
    return row["event"] == "put"


DAMAGES: dict[str, tuple[Callable[[Row], bool], Callable[[Row], Row]]] = {
    "an unknown event": (lambda _: True, lambda row: {"event": "drop"}),
    "an unknown status": (is_put, lambda row: {"status": "done"}),
    "no step": (is_put, lambda row: {"train_step": None}),
    "a negative step": (is_put, lambda row: {"train_step": -1}),
    "no group": (is_put, lambda row: {"group_id": None}),
    "an event from before": (lambda row: row["event_id"] > 1, lambda row: {"event_id": 0}),
    "a token too many": (is_put, lambda row: {"response_len": row["response_len"] - 1}),
    "a version from the future": (
        is_put, lambda row: {"response_model_steps": [*row["response_model_steps"][:-1], row["train_step"]]},
    ),
    "a version that is none": (is_put, lambda row: {"response_model_steps": [-1, *row["response_model_steps"][1:]]}),
    "a null version": (is_put, lambda row: {"response_model_steps": [None, *row["response_model_steps"][1:]]}),
    "versions that end early": (
        is_put, lambda row: {"response_model_steps": row["response_model_steps"][:-1], "model_step": None},
    ),
    "a short mask": (is_put, lambda row: {"response_mask": row["response_mask"][:-1]}),
    "a mask of twos": (is_put, lambda row: {"response_mask": [2] * len(row["response_mask"])}),
    "a null in the mask": (is_put, lambda row: {"response_mask": [None, *row["response_mask"][1:]]}),
    "a long prior_len": (is_put, lambda row: {"prior_len": row["response_len"] + 1}),
    "a wrong staleness": (is_put, lambda row: {"seq_staleness": row["seq_staleness"] + 1}),
    "a short logprob list": (is_put, lambda row: {"logprobs": row["logprobs"][:-1]}),
    "a logprob that is none": (
        lambda row: is_put(row) and row["response_mask"][0] == 1,
        lambda row: {"train_logprobs": [float("nan"), *row["train_logprobs"][1:]]},
    ),
    "a flipped token in the trained mask": (
        lambda row: row.get("trained_mask") is not None,
        lambda row: {"trained_mask": [1 - row["trained_mask"][0], *row["trained_mask"][1:]]},
    ),
    "a take of what was never put": (
        lambda row: row.get("trained_mask") is not None, lambda row: {"rollout_id": -7},
    ),
}  # fmt: skip
"""How to damage a row: which rows it fits, and the values that change."""
