"""A deliberately slow replay, written from the contract alone, to check the fast one against.

Nothing is clever here: a response holds one version and one mask entry per token, every refresh
looks at every record, every order is a `sorted()` over the whole pool, and every staleness is
computed again when it is needed. It imports nothing of the package and does not check for faults.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

Row = dict[str, Any]
Key = tuple[int, int]  # rollout_id, segment

COUNTS = (
    "put_groups", "produced_samples", "produced_tokens",
    "failed_samples", "failed_tokens", "filtered_samples", "filtered_tokens",
    "expired_groups", "expired_at_put", "expired_at_refresh", "expired_by_sequence", "expired_by_token",
    "reset_tokens", "discarded_groups", "discarded_stale_tokens", "discarded_fresh_tokens",
    "taken_groups", "taken_tokens", "trained_tokens", "masked_stale_tokens", "masked_semantic_tokens",
    "shortfall_groups", "leftover_completed", "leftover_aborted", "leftover_expired", "raw_rewards_count",
    "restarted_tokens", "avoided_tokens", "regenerated_tokens", "carried_in_tokens", "counterfactual_tokens",
)  # fmt: skip
LARGEST_REWARD = 1e300  # beyond it, and infinite or not a number: unscored
POOLS = ("completed", "aborted", "expired")
DROPPED = ("reset_tokens", "discarded_stale_tokens", "discarded_fresh_tokens", "masked_stale_tokens")
LEDGER_IN = ("produced_tokens", "carried_in_tokens")
ENDED = ("trained_tokens", "masked_semantic_tokens", "failed_tokens", "filtered_tokens", "restarted_tokens")


@dataclass(frozen=True)
class Policy:
    """What one task does with old tokens."""

    stale_threshold: int
    token_stale_threshold: int | None  # None: no token rule
    retryable: bool
    partial_rollout: bool
    weight: float


@dataclass(eq=False)
class Response:
    rollout_id: int
    segment: int
    status: str
    versions: list[int]  # one per token
    mask: list[int]  # one per token: the semantic mask
    agentic: bool
    reward: float | None
    prior: int = 0  # of its put: leading tokens that earlier puts produced, as the log has it

    @property
    def key(self) -> Key:
        return self.rollout_id, self.segment

    @property
    def tokens(self) -> int:
        return len(self.versions)


@dataclass(frozen=True)
class Known:
    """What the whole log says about one row of a put, whichever puts a replay makes use of."""

    segment: int
    is_first_put: bool  # of its rollout
    previous: tuple[list[int] | None, list[int]]  # the response's put before: token ids and versions


@dataclass(eq=False)
class Record:
    """A group in the buffer."""

    task: str
    group_id: int
    members: list[Response]
    status: str
    staleness: int = 0
    timestamp: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.task, self.group_id

    @property
    def tokens(self) -> int:
        return sum(member.tokens for member in self.members)


@dataclass
class Tally:
    """What happened to one task (or all) in one row."""

    counts: Counter[str] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)
    seq_staleness: list[int] = field(default_factory=list)  # one per response taken
    token_staleness: list[int] = field(default_factory=list)  # one per token trained
    taken: list[int] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)


def staleness(version: int, train_step: int) -> int:
    return train_step - version - 1


def seq_staleness(member: Response, train_step: int) -> int:
    return staleness(min(member.versions), train_step) if member.versions else 0


def token_rule_applies(member: Response, record: Record, policy: Policy) -> bool:
    agentic_group = any(mate.agentic for mate in record.members)
    return policy.token_stale_threshold is not None and not agentic_group and any(member.mask)


def effective_mask(member: Response, record: Record, policy: Policy, train_step: int) -> list[int]:
    threshold = policy.token_stale_threshold
    if threshold is None or not token_rule_applies(member, record, policy):
        return member.mask
    fresh = [staleness(version, train_step) < threshold for version in member.versions]
    return [int(semantic and ok) for semantic, ok in zip(member.mask, fresh, strict=True)]


def group_status(members: list[Response]) -> str:
    statuses = {member.status for member in members}
    for status in ("failed", "aborted", "expired", "filtered"):
        if status in statuses:
            return status
    return "completed"  # all completed; or only `init` and `completed`


def response_length(row: Row) -> int:
    for name in ("response_ids", "response_model_steps"):
        if row.get("response_len") is None and row.get(name) is not None:
            return len(row[name])
    return row.get("response_len") or 0


class SlowReplay:
    """The buffer, what replay remembers of the log, and the row being filled."""

    def __init__(self, rows: list[Row], config: Row) -> None:
        self.events = [[dict(row) for row in event] for _, event in groupby(rows, key=lambda row: row["event_id"])]
        self.settings: Row = config.get("timeline", {})
        self.interval: int = self.settings.get("sync_weights_interval", 1)
        self.disaggregated = config.get("mode", "colocated") == "disaggregated"
        self.fifo = config.get("buffer", {}).get("replay_policy", "staleness") == "fifo"
        # Config order, then first appearance: a dict keeps both and forgets repetitions.
        in_log = (task_of(row) for row in rows if event_name(row) in ("put", "sample", "take"))
        self.tasks = list(dict.fromkeys([*config.get("tasks", {}), *in_log]))
        self.policies = {task: self.policy(config, task) for task in self.tasks}

        self.pool: list[Record] = []
        self.puts_stored = 0  # the source of timestamps
        self.in_flight: dict[tuple[str, int], Record] = {}  # sampled, not put again yet
        self.taken: set[tuple[str, int]] = set()
        self.learn_puts()

        self.tallies = {task: Tally() for task in self.tasks}
        self.row_masks: dict[str, str] = {}
        self.rows: list[tuple[Row, dict[str, Tally]]] = []

    def policy(self, config: Row, task: str) -> Policy:
        keys = {**config.get("policy", {}), **config.get("tasks", {}).get(task, {})}
        token = keys.get("max_token_staleness", "off")
        return Policy(
            stale_threshold=(keys.get("max_staleness", 0) + 1) * self.interval,
            token_stale_threshold=None if token == "off" else (token + 1) * self.interval,
            retryable=keys.get("tail_batch_trigger_size", -1) >= 0,
            partial_rollout=keys.get("enable_partial_rollout", False),
            weight=keys.get("weight", 1.0),
        )

    # ---- the lifecycle (section 4)

    def order(self, task: str, status: str) -> list[Record]:
        records = [record for record in self.pool if (record.task, record.status) == (task, status)]
        return sorted(records, key=lambda r: r.timestamp if self.fifo else (-r.staleness, r.timestamp))

    def expiry_reason(self, member: Response, record: Record, train_step: int) -> str | None:
        policy = self.policies[record.task]
        if seq_staleness(member, train_step) >= policy.stale_threshold:
            return "sequence"
        if token_rule_applies(member, record, policy):
            return None if any(effective_mask(member, record, policy, train_step)) else "token"
        return None

    def apply(self, record: Record, train_step: int, where: str) -> bool:
        """Lets the record age to `train_step`; False when the whole group is to be discarded."""
        tally, counts = self.tallies[record.task], self.tallies[record.task].counts
        record.staleness = max(seq_staleness(member, train_step) for member in record.members)
        had_expired_member = any(member.status == "expired" for member in record.members)
        reasons = []
        for member in record.members:
            reason = None if member.status == "expired" else self.expiry_reason(member, record, train_step)
            if reason is not None:
                member.status = "expired"
                reasons.append(reason)
        if not had_expired_member and not reasons:
            return True
        # At a refresh an expired member means that the group waits as expired already: not counted again.
        if where == "put" or not had_expired_member:
            counts["expired_groups"] += 1
            counts[f"expired_at_{where}"] += 1
            tally.expired.append(record.group_id)
        if not had_expired_member:
            counts["expired_by_sequence" if "sequence" in reasons else "expired_by_token"] += 1
        retryable = self.policies[record.task].retryable
        for member in record.members:
            expired = member.status == "expired"
            if not retryable:
                counts["discarded_stale_tokens" if expired else "discarded_fresh_tokens"] += member.tokens
            elif expired:
                counts["reset_tokens"] += member.tokens
                member.versions, member.mask, member.reward = [], [], None
        counts["discarded_groups"] += not retryable
        record.status = "expired"
        return retryable

    def refresh(self, train_step: int) -> None:
        for record in sorted(self.pool, key=lambda record: record.timestamp):
            if not self.apply(record, train_step, "refresh"):
                self.pool.remove(record)

    def take(self, task: str, size: int, train_step: int) -> None:
        tally, policy, counts = self.tallies[task], self.policies[task], self.tallies[task].counts
        batch = self.order(task, "completed")[:size]
        counts["shortfall_groups"] += size - len(batch)
        for record in batch:
            self.pool.remove(record)
            self.taken.add(record.key)
            tally.taken.append(record.group_id)
            counts["taken_groups"] += 1
            counts["taken_tokens"] += record.tokens
            for member in record.members:
                trained = effective_mask(member, record, policy, train_step)
                tally.seq_staleness.append(seq_staleness(member, train_step))
                for version, semantic, effective in zip(member.versions, member.mask, trained, strict=True):
                    if effective:
                        counts["trained_tokens"] += 1
                        tally.token_staleness.append(staleness(version, train_step))
                    else:
                        counts["masked_stale_tokens" if semantic else "masked_semantic_tokens"] += 1
                name = f"{task}/{member.rollout_id}" + (f"#{member.segment}" if member.segment else "")
                self.row_masks[name] = "".join(map(str, trained))

    # ---- one put of the log (sections 2, 3 and 5)

    def learn_puts(self) -> None:
        """First and previous puts, over the whole log: also those that a simulated timeline leaves out."""
        seen: set[tuple[str, int]] = set()
        # Of every response its last put: token ids (if the log has them) and versions before resync.
        last: dict[tuple[str, int, int], tuple[list[int] | None, list[int]]] = {}
        for event in self.events:
            if event_name(event[0]) != "put":
                continue
            task = task_of(event[0])
            rollouts = [row["rollout_id"] for row in event]
            for position, row in enumerate(event):
                rollout_id = row["rollout_id"]
                segment = rollouts[:position].count(rollout_id)
                ids = None if row.get("response_ids") is None else list(row["response_ids"])
                versions = self.stamped_versions(row, event[0]["train_step"])
                before = last.get((task, rollout_id, segment), (None, []))
                row["known"] = Known(segment, (task, rollout_id) not in seen, before)
                last[task, rollout_id, segment] = (ids, versions)
            seen |= {(task, rollout_id) for rollout_id in rollouts}

    def resynced(self, version: int) -> int:
        return version // self.interval * self.interval if self.settings.get("resync") else version

    def stamped_versions(self, row: Row, train_step: int) -> list[int]:
        """The version of every token, before resync."""
        versions = list(row.get("response_model_steps") or [])
        stamp = row.get("model_step")
        if stamp is None and self.settings.get("stamp_missing"):
            stamp = max(train_step - 1, 0) // self.interval * self.interval  # weights begin at version 0
        missing = response_length(row) - len(versions)
        assert missing == 0 or stamp is not None, f"tokens without a version: {row}"
        return versions + [stamp] * missing

    def read_member(self, row: Row, held: dict[Key, int], train_step: int) -> Response:
        known: Known = row["known"]
        versions = self.stamped_versions(row, train_step)
        mask = [int(bool(entry)) for entry in row.get("response_mask") or [1] * len(versions)]
        member = Response(
            rollout_id=row["rollout_id"], segment=known.segment, status=row["status"], versions=versions,
            mask=mask, agentic=bool(row.get("agentic")), reward=row.get("reward"),
        )  # fmt: skip
        ids = None if row.get("response_ids") is None else list(row["response_ids"])
        old_ids, old_versions = known.previous
        old, new = (old_versions, versions) if ids is None or old_ids is None else (old_ids, ids)
        recorded = len(row.get("response_model_steps") or [])
        if row.get("prior_len") is not None:
            member.prior = row["prior_len"]
        elif recorded < member.tokens:
            member.prior = recorded
        elif new[: len(old)] == old:  # without a previous put `old` is empty, and so is the prior
            member.prior = min(len(old), held.get(member.key, 0))
        return member

    def put(self, rows: list[Row]) -> None:
        task, group_id, train_step = task_of(rows[0]), rows[0]["group_id"], rows[0]["train_step"]
        assert {(task_of(row), row["group_id"]) for row in rows} == {(task, group_id)}, "a put is one group"
        counts = self.tallies[task].counts
        in_pool = next((record for record in self.pool if record.key == (task, group_id)), None)
        holder = in_pool or self.in_flight.get((task, group_id))
        held = {member.key: member.tokens for member in holder.members} if holder else {}
        members = [self.read_member(row, held, train_step) for row in rows]

        if (task, group_id) in self.taken or (in_pool and in_pool.status == "completed"):
            avoided = sum(member.tokens - member.prior for member in members)
            counts["avoided_tokens"] += avoided
            counts["counterfactual_tokens"] += avoided
            return

        self.pool = [record for record in self.pool if record is not in_pool]
        self.in_flight.pop((task, group_id), None)
        # Square what the put says was there before (prior) with what this replay holds.
        partial_rollout = self.policies[task].partial_rollout
        model_steps = [row["model_step"] for row in rows if row.get("model_step") is not None]
        put_versions = [version for member in members for version in member.versions]
        put_model_step = max(model_steps or put_versions, default=0)
        for row, member in zip(rows, members, strict=True):
            have = held.pop(member.key, 0)
            carried, restarted, regenerated = 0, 0, 0
            if row["known"].is_first_put:
                # A simulated timeline goes by step: where steps fall in the log, a later put came before.
                carried, restarted = member.prior, have
            elif have >= member.prior:
                restarted = have - member.prior
            else:
                restarted, regenerated = have, member.prior
                member.versions = [put_model_step] * member.tokens
            counts["carried_in_tokens"] += carried
            counts["restarted_tokens"] += restarted
            counts["regenerated_tokens"] += regenerated
            counts["produced_tokens"] += member.tokens - member.prior + regenerated
            # Without partial rollout a restart is what this config does itself; where the engine failed, the log did.
            by_config = not partial_rollout or (member.status == "failed" and not regenerated)
            counts["counterfactual_tokens"] += regenerated + (0 if by_config else restarted)
            member.versions = [self.resynced(version) for version in member.versions]
        missing_members = sum(held.values())
        counts["restarted_tokens"] += missing_members
        counts["counterfactual_tokens"] += missing_members if partial_rollout else 0
        self.store(Record(task, group_id, members, group_status(members)), train_step)

    def store(self, record: Record, train_step: int) -> None:
        """`put` of section 4, once the tokens are stamped."""
        tally = self.tallies[record.task]
        tally.counts["put_groups"] += 1
        tally.counts["produced_samples"] += len(record.members)
        if record.status == "filtered" or all(member.status == "completed" for member in record.members):
            scored = [m.reward for m in record.members if m.reward is not None and abs(m.reward) <= LARGEST_REWARD]
            tally.rewards += scored
            tally.counts["raw_rewards_count"] += len(scored)
        if record.status in ("failed", "filtered"):
            tally.counts[f"{record.status}_samples"] += len(record.members)
            tally.counts[f"{record.status}_tokens"] += record.tokens
        elif self.apply(record, train_step, "put"):
            self.puts_stored += 1
            record.timestamp = self.puts_stored
            self.pool.append(record)

    # ---- the two timelines (section 5)

    def count_leftovers(self) -> None:
        for task, tally in self.tallies.items():
            for status in POOLS:
                tally.counts[f"leftover_{status}"] = len(self.order(task, status))

    def close_row(self, train_step: int, model_step: int | None) -> None:
        extras = {"train_step": train_step, "model_step": model_step, "effective_masks": self.row_masks}
        self.rows.append((extras, self.tallies))
        self.tallies = {task: Tally() for task in self.tasks}
        self.row_masks = {}

    def run_recorded(self) -> None:
        steps = [row.get("train_step") for event in self.events for row in event if event_name(row) != "sample"]
        first_step = next((step for step in steps if step is not None), None)
        model_step: int | None = 0 if first_step == 1 else None
        waiting = list(self.events)
        while waiting:
            event = waiting.pop(0)
            name, first = event_name(event[0]), event[0]
            assert name == "put" or len(event) == 1, "only a put has several rows"
            if name == "put":
                self.put(event)
            elif name == "refresh":
                self.refresh(first["train_step"])
            elif name == "sync":
                version = first.get("model_step")
                model_step = None if version is None else self.resynced(version)
            elif name == "sample":
                group = (task_of(first), first["group_id"])
                for record in list(self.pool):
                    if record.key == group and record.status in ("aborted", "expired"):
                        self.pool.remove(record)
                        self.in_flight[group] = record
            elif name == "take":
                train_step = first["train_step"]
                self.take(task_of(first), first.get("batch_size") or 0, train_step)
                following = (event_name(waiting[0][0]), waiting[0][0].get("train_step")) if waiting else None
                if following == ("take", train_step):
                    continue  # another task of the same batch
                self.count_leftovers()
                if self.disaggregated and following == ("refresh", train_step + 1):
                    self.refresh(train_step + 1)
                    waiting.pop(0)
                self.close_row(train_step, model_step)

    def task_sizes(self) -> dict[str, int]:
        batch, total = self.settings["train_batch_size"], sum(p.weight for p in self.policies.values())
        exact = {task: batch * policy.weight / total for task, policy in self.policies.items()}
        sizes = {task: math.floor(share) for task, share in exact.items()}
        # `sorted` is stable, so of equal remainders the task named first comes first.
        by_remainder = sorted(exact, key=lambda task: exact[task] - sizes[task], reverse=True)
        for task in by_remainder[: batch - sum(sizes.values())]:
            sizes[task] += 1
        return sizes

    def run_simulated(self) -> None:
        sizes = self.task_sizes() if self.tasks else {}
        puts = [event for event in self.events if event_name(event[0]) == "put"]
        takes = [event for event in self.events if event_name(event[0]) == "take"]
        longest = max((event[0]["train_step"] for event in takes or puts), default=0)
        for train_step in range(1, self.settings.get("steps", longest) + 1):
            self.refresh(train_step)
            for event in puts:
                if event[0]["train_step"] == train_step:
                    self.put(event)
            for task, size in sizes.items():
                self.take(task, size, train_step)
            self.count_leftovers()
            self.close_row(train_step, None)

    # ---- rows and ledger (section 6)

    def result(self) -> Row:
        # What follows the last row is the tail.
        periods = [*(tallies for _, tallies in self.rows), self.tallies]
        task_totals = {task: summed_over_time([period[task] for period in periods]) for task in self.tasks}
        all_totals = summed_over_time([merged(period.values()) for period in periods])
        tasks_ledger = {task: self.ledger(task_totals[task], {task}) for task in self.tasks}
        return {
            "steps": [{**extras, **row_of(tallies)} for extras, tallies in self.rows],
            "tail": row_of(self.tallies),
            "totals": row_of(task_totals, all_totals),
            "ledger": {"total": self.ledger(all_totals, set(self.tasks)), "tasks": tasks_ledger},
        }

    def ledger(self, tally: Tally, tasks: set[str]) -> dict[str, int]:
        account = {name: tally.counts[name] for name in (*LEDGER_IN, *DROPPED, *ENDED)}
        account["held_tokens"] = sum(record.tokens for record in self.pool if record.task in tasks)
        sampled = self.in_flight.values()
        account["in_flight_tokens"] = sum(record.tokens for record in sampled if record.task in tasks)
        came_in = sum(account[name] for name in LEDGER_IN)
        assert came_in == sum(account.values()) - came_in, f"ledger of {sorted(tasks)}: {account}"
        return account


def event_name(row: Row) -> str:
    return row.get("event") or "put"


def task_of(row: Row) -> str:
    return row.get("task_name") or "default"


def merged(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for tally in tallies:
        whole.counts.update(tally.counts)  # Counter.update adds
        for name in ("rewards", "seq_staleness", "token_staleness", "taken", "expired"):
            getattr(whole, name).extend(getattr(tally, name))
    return whole


def summed_over_time(periods: list[Tally]) -> Tally:
    """Rows and tail of a run in one; the last period is the tail, the one before it the last row."""
    whole = merged(periods)
    whole.rewards = [math.fsum(period.rewards) for period in periods]
    for name in (f"leftover_{status}" for status in POOLS):
        whole.counts[name] = periods[-2].counts[name] if len(periods) > 1 else 0
    return whole


def nearest_rank(values: list[int], percent: int) -> int | None:
    rank = -(-percent * len(values) // 100)  # rounded up, in integers
    return sorted(values)[rank - 1] if values else None


def metrics_of(tally: Tally) -> Row:
    return {
        **{name: tally.counts[name] for name in COUNTS},
        "dropped_tokens": sum(tally.counts[name] for name in DROPPED),
        "seq_staleness_max": max(tally.seq_staleness, default=None),
        "seq_staleness_sum": sum(tally.seq_staleness),
        "token_staleness_p50": nearest_rank(tally.token_staleness, 50),
        "token_staleness_p95": nearest_rank(tally.token_staleness, 95),
        "token_staleness_max": max(tally.token_staleness, default=None),
        "raw_rewards_sum": math.fsum(tally.rewards),
    }


def row_of(tallies: dict[str, Tally], whole: Tally | None = None) -> Row:
    return {
        **metrics_of(merged(tallies.values()) if whole is None else whole),
        "taken_group_ids": {task: list(tally.taken) for task, tally in tallies.items()},
        "expired_group_ids": {task: list(tally.expired) for task, tally in tallies.items()},
        "tasks": {task: metrics_of(tally) for task, tally in tallies.items()},
    }


def slow_replay(rows: list[Row], config: Row, timeline: str | None = None) -> Row:
    """Replays a log (one dict per Parquet row) under a config (as parsed from TOML)."""
    if timeline is None:
        timeline = "recorded" if any(event_name(row) != "put" for row in rows) else "simulated"
    replay = SlowReplay(rows, config)
    replay.run_recorded() if timeline == "recorded" else replay.run_simulated()
    return replay.result()
