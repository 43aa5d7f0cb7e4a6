"""A deliberately slow simulator, written from the contract alone, to check the fast one against.

Nothing is clever here: time goes on by one microsecond at a time, every poll is made, every token is counted by
itself, and every look asks for everything anew. Only the replay buffer is the real one; it has tests of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tokenaudit.config.model import Config, task_order, task_sizes
from tokenaudit.lifecycle.buffer import ReplayBuffer
from tokenaudit.lifecycle.events import GroupSampled
from tokenaudit.lifecycle.members import Group, MadeMembers
from tokenaudit.lifecycle.types import Response, Status

Row = dict[str, Any]


class _Member:
    """One response being generated, or completed before."""

    def __init__(self, row: Row, rollout_id: int, held: Response | None, continues: bool) -> None:
        self.row, self.rollout_id, self.held = row, rollout_id, held
        self.was_completed = held is not None and held.status is Status.COMPLETED
        self.tokens: list[int] = []
        if held is not None and (self.was_completed or continues):
            self.tokens = [version for version, count, _ in held.runs for _ in range(count)]
        self.prior = len(self.tokens)
        self.started: int | None = None
        self.ended = self.was_completed

    def end_time(self) -> int:
        assert self.started is not None
        return self.started + (self.row["response_len"] - self.prior) * self.row["token_time_us"]

    def put(self, model_step: int, now: int) -> tuple[Response, int]:
        row = self.row
        if self.was_completed:
            assert self.held is not None
            return self._response(Status.COMPLETED, self.tokens, self.prior, self.held.agentic, self.held.reward), 0
        was_agentic = self.held is not None and self.held.agentic
        wanted = row["response_len"] - self.prior
        spent = 0 if self.started is None else now - self.started
        new = min(wanted, spent // row["token_time_us"])
        is_over = self.started is not None and new == wanted
        if is_over:
            spent = wanted * row["token_time_us"]
        if is_over and row["failed"]:
            return self._response(Status.FAILED, [], 0, was_agentic, None), spent
        tokens = self.tokens + [model_step] * new
        if is_over:
            return self._response(
                Status.COMPLETED, tokens, self.prior, row["agentic"] or was_agentic, row["reward"]
            ), spent
        return self._response(Status.ABORTED, tokens, self.prior, was_agentic, None), spent

    def _response(
        self, status: Status, versions: list[int], prior: int, agentic: bool, reward: float | None
    ) -> Response:
        mask = self.row["response_mask"] or [1] * self.row["response_len"]
        runs: list[tuple[int, int, int]] = []
        for version, bit in zip(versions, mask, strict=False):
            if runs and runs[-1][0] == version:
                runs[-1] = (version, runs[-1][1] + 1, runs[-1][2] + bit)
            else:
                runs.append((version, 1, bit))
        return Response(self.rollout_id, status, tuple(runs), prior_len=prior, agentic=agentic, reward=reward)


class _Flight:
    def __init__(self, task: _Task, group_id: int, members: list[_Member]) -> None:
        self.task, self.group_id, self.members = task, group_id, members

    @property
    def ended(self) -> bool:
        return all(member.ended for member in self.members)


class _Task:
    def __init__(self, name: str, size: int, config: Config, rows: Sequence[Row]) -> None:
        self.name, self.size = name, size
        self.policy = config.task_policy(name)
        self.groups: dict[int, list[Row]] = {}
        for row in rows:
            if row["task_name"] == name:
                self.groups.setdefault(row["group_id"], []).append(row)
        self.group_stride = max(self.groups, default=-1) + 1
        self.rollout_stride = max((r["rollout_id"] for g in self.groups.values() for r in g), default=-1) + 1
        self.prompts_used = 0
        self.taken = 0
        self.running = False
        self.unclaimed: list[_Flight] = []
        self.target = self.scheduled = self.last_look = 0
        self.from_expired = False


class SlowSimulation:
    """Runs to the last row, or until `last_time`; `entries` is what happened, as in `simulated.plain`."""

    def __init__(self, rows: Sequence[Row], config: Config, max_concurrency: int | None, last_time: int) -> None:
        names = task_order(config, list(dict.fromkeys(row["task_name"] for row in rows)))
        sizes = task_sizes(config, names)
        self.config, self.timeline = config, config.timeline
        self.tasks = [_Task(name, sizes[name], config, rows) for name in names]
        self.buffer = ReplayBuffer({name: config.expiry_policy(name) for name in names}, config.buffer.replay_policy)
        self.max_concurrency = max_concurrency
        self.last_time = last_time
        self.flights: list[_Flight] = []
        self.entries: list[tuple[Any, ...]] = []
        self.now = 0
        self.consumer_step = 1
        self.model_step = 0
        self.done = False

    # ---- the engine

    def start_members(self) -> None:
        members = [member for flight in self.flights for member in flight.members]
        running = sum(member.started is not None and not member.ended for member in members)
        for member in members:
            if member.started is None and not member.ended:
                if self.max_concurrency is not None and running >= self.max_concurrency:
                    return
                member.started = self.now
                running += 1

    def next_to_end(self) -> _Flight | None:
        """End one member that is due, the first in order of spawning; its flight if that was the last one."""
        while True:
            self.start_members()
            for flight in self.flights:
                for member in flight.members:
                    if not member.ended and member.started is not None and member.end_time() <= self.now:
                        member.ended = True
                        break
                else:
                    continue
                if flight.ended:
                    self.flights.remove(flight)
                    self.start_members()
                    return flight
                break
            else:
                return None

    def put(self, flight: _Flight) -> None:
        pairs = [member.put(self.model_step, self.now) for member in flight.members]
        responses = [response for response, _ in pairs]
        is_completed = all(response.status is Status.COMPLETED for response in responses)
        if is_completed and any(member.row["filtered"] for member in flight.members):
            for response in responses:
                response.status = Status.FILTERED
        members = tuple(
            (r.rollout_id, r.status.value, r.runs, r.prior_len, r.agentic, r.reward, t)
            for r, (_, t) in zip(responses, pairs, strict=True)
        )
        name = flight.task.name
        self.entries.append((self.now, "put", self.consumer_step, self.model_step, name, flight.group_id, members))
        self.buffer.put(Group(name, flight.group_id, MadeMembers(tuple(responses))), self.consumer_step)

    def abort(self) -> None:
        for task in self.tasks:
            for flight in task.unclaimed:
                self.put(flight)
            task.unclaimed = []
            for flight in [flight for flight in self.flights if flight.task is task]:
                self.flights.remove(flight)
                self.put(flight)

    # ---- scheduling

    def available(self, task: _Task) -> int:
        return task.taken + self.buffer.count(task.name, Status.COMPLETED)

    def start(self, task: _Task, target: int) -> None:
        trigger = task.policy.tail_batch_trigger_size
        expired = self.buffer.count(task.name, Status.EXPIRED)
        task.from_expired = trigger >= 0 and expired > 0 and expired >= trigger
        tail = trigger > 0 and expired >= trigger
        budget = 0 if tail else math.ceil(task.policy.over_sample_threshold * task.size)
        task.target, task.scheduled = target, target + budget
        task.running = True
        self.look(task)

    def look(self, task: _Task) -> None:
        task.last_look = self.now
        available = self.available(task)
        if available >= task.target:
            task.running = False
            return
        pending = sum(flight.task is task for flight in self.flights)
        if available + pending < task.scheduled:
            for _ in range(max(0, task.scheduled - available) - pending):
                self.spawn(task)

    def spawn(self, task: _Task) -> None:
        for status in (Status.EXPIRED, Status.ABORTED):
            if status is Status.EXPIRED and not task.from_expired:
                continue
            for event in self.buffer.sample(task.name, status):
                assert isinstance(event, GroupSampled)
                self.entries.append((self.now, "sample", task.name, event.group_id, status.value))
                number, base = divmod(event.group_id, task.group_stride)
                self.begin(task, base, number, event.responses)
                return
        number, index = divmod(task.prompts_used, len(task.groups))
        task.prompts_used += 1
        self.begin(task, list(task.groups)[index], number, ())

    def begin(self, task: _Task, base: int, number: int, held: tuple[Response, ...]) -> None:
        members = []
        for position, row in enumerate(task.groups[base]):
            before = held[position] if held else None
            continues = before is not None and before.status is Status.ABORTED and task.policy.enable_partial_rollout
            members.append(_Member(row, row["rollout_id"] + number * task.rollout_stride, before, continues))
        self.flights.append(_Flight(task, base + number * task.group_stride, members))
        self.start_members()

    # ---- the trainer's side

    def refresh(self, train_step: int) -> None:
        self.entries.append((self.now, "refresh", train_step))
        self.buffer.refresh_staleness(train_step)

    def take(self, train_step: int) -> None:
        for task in self.tasks:
            if task.size:
                self.entries.append((self.now, "take", train_step, task.name, task.size))
                self.buffer.take_batch(train_step, {task.name: task.size})

    def sync(self, train_step: int, model_step: int) -> None:
        self.model_step = model_step
        self.entries.append((self.now, "sync", train_step, model_step))


class SlowColocated(SlowSimulation):
    def run(self) -> SlowSimulation:
        assert self.timeline.steps
        for train_step in range(1, self.timeline.steps + 1):
            self.consumer_step = train_step
            self.refresh(train_step)
            sized = [task for task in self.tasks if task.size]
            for task in sized:
                self.start(task, task.size)
            while True:
                while (flight := self.next_to_end()) is not None:
                    if flight.task.running:
                        self.put(flight)
                        self.look(flight.task)
                    else:
                        flight.task.unclaimed.append(flight)
                if not any(task.running for task in sized):
                    break
                self.now += 1
                if self.now > self.last_time:
                    return self
            self.abort()
            self.take(train_step)
            if train_step < self.timeline.steps and train_step % self.timeline.sync_weights_interval == 0:
                self.sync(train_step, train_step)
        self.done = True
        return self


class SlowDisaggregated(SlowSimulation):
    def run(self) -> SlowSimulation:
        self.status = "normal"
        self.future_step = 1
        self.stopped_at: int | None = None
        self.step = 1
        self.phase, self.phase_since = "begin", 0
        self.round()
        while not self.done and self.now <= self.last_time:
            while not self.done and self.instant():
                pass
            self.now += 1
        return self

    def instant(self) -> bool:
        """What happens next at this instant; whether anything did."""
        flight = self.next_to_end()
        if flight is not None:
            if flight.task.running:
                self.put(flight)
                self.look(flight.task)
                self.end_round()
            else:
                flight.task.unclaimed.append(flight)
            return True
        if self.producer():
            return True
        return self.trainer()

    def producer(self) -> bool:
        poll = self.timeline.poll_interval_us
        assert poll
        if self.stopped_at is not None:
            if self.now > self.last_wake and (self.now - self.stopped_at) % poll == 0:
                self.last_wake = self.now
                if self.status == "normal":
                    self.round()
                    return True
            return False
        for task in self.tasks:
            if task.running and self.now == task.last_look + poll:
                self.look(task)
                self.end_round()
                return True
        return False

    def end_round(self) -> None:
        if not any(task.running for task in self.tasks):
            self.future_step += 1
            self.round()

    def round(self) -> None:
        self.stopped_at = None
        while True:
            age = self.future_step - self.model_step - 1
            if any(age >= self.config.stale_threshold(task.name) for task in self.tasks):
                self.status, self.stopped_at, self.last_wake = "expired", self.now, self.now
                return
            for task in self.tasks:
                if task.size:
                    for flight in task.unclaimed:
                        self.put(flight)
                    task.unclaimed = []
                    self.start(task, self.future_step * task.size)
            if any(task.running for task in self.tasks):
                return
            self.future_step += 1

    def trainer(self) -> bool:
        timeline = self.timeline
        assert timeline.poll_interval_us is not None
        waited = self.now - self.phase_since
        if self.phase == "begin":
            self.consumer_step = self.step
            self.refresh(self.step)
            self.phase, self.phase_since = "waiting", self.now
            self.attempt()
            return True
        if self.phase == "waiting":
            if waited > 0 and waited % timeline.poll_interval_us == 0 and self.now != self.last_attempt:
                return self.attempt()
            return False
        if self.phase == "training" and waited == timeline.train_time_us:
            if (self.step - 1) % timeline.sync_weights_interval == 0 or self.was_expired:
                self.begin_sync(self.step - 1, self.step - 1)
            else:
                self.phase, self.phase_since = "begin", self.now
            return True
        if self.phase == "syncing" and waited == timeline.sync_time_us:
            self.sync(*self.syncing)
            self.status = "normal"
            self.phase, self.phase_since = "begin", self.now
            return True
        return False

    def attempt(self) -> bool:
        self.last_attempt = self.now
        if self.status == "expired" and self.step - 1 > self.model_step:
            self.begin_sync(self.step, self.step - 1)
            return True
        sized = [task for task in self.tasks if task.size]
        if any(self.buffer.count(task.name, Status.COMPLETED) < task.size for task in sized):
            return False
        self.was_expired = self.status == "expired"
        self.take(self.step)
        for task in sized:
            task.taken += task.size
        self.step += 1
        self.consumer_step = self.step
        self.refresh(self.step)
        self.done = self.step > (self.timeline.steps or 0)
        self.phase, self.phase_since = "training", self.now
        return True

    def begin_sync(self, train_step: int, model_step: int) -> None:
        self.status = "update"
        if self.stopped_at is None:
            self.stopped_at = self.last_wake = self.now
        for task in self.tasks:
            task.running = False
        self.abort()
        self.syncing = (train_step, model_step)
        self.phase, self.phase_since = "syncing", self.now


def slow_entries(
    rows: Sequence[Row], config: Config, max_concurrency: int | None, last_time: int
) -> tuple[list[tuple[Any, ...]], bool]:
    """What happens up to `last_time`, and whether the run came to its end."""
    kind = SlowColocated if config.mode == "colocated" else SlowDisaggregated
    simulation = kind(rows, config, max_concurrency, last_time).run()
    return simulation.entries, simulation.done
