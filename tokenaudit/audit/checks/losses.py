"""Checks of what a config costs: groups and tokens lost, starved prompts, batches that never fill."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import groupby
from statistics import median

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.replayed_run import Key, ReplayedRun
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.config.model import task_sizes
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import EventKind
from tokenaudit.explain.losses import bound_most
from tokenaudit.lifecycle.events import Fate
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Int64s
from tokenaudit.log.digest import KIND_CODE, STATUS_CODE

STARVED_AFTER = 3
"""Times a group may expire before it counts as starved."""
BIAS_FACTOR = 2
"""How much longer expired groups must be than taken ones to be reported."""
BIAS_GROUPS = 10
"""Groups of each kind that a comparison of lengths needs."""
DISCARD_SHARE = 0.10
"""Share of produced tokens dropped as stale that is reported."""
DISCARD_TOKENS = 1_000
"""Produced tokens below which a share says nothing."""
DEAD_RUN = 10
"""Groups in a row that contribute nothing."""

_PUT, _SAMPLE = KIND_CODE[EventKind.PUT], KIND_CODE[EventKind.SAMPLE]
_COMPLETED = STATUS_CODE[Status.COMPLETED]


@rule("L008", "fresh-tokens-lost", Severity.WARNING,
      "In the replay, fresh members are discarded because another member of their group expires.",
      "Set tail_batch_trigger_size to 0 or more: then they are kept.",
      Fact.REPLAY, Fact.NO_RETRY)  # fmt: skip
def _fresh_tokens_lost(case: Case, findings: Findings) -> None:
    groups, tokens = Counter[str](), Counter[str]()
    for expired in case.replayed.expired:
        fresh = expired.event.fresh.tokens
        if expired.event.fate is Fate.DISCARDED and fresh:
            groups[expired.event.task_name] += 1
            tokens[expired.event.task_name] += fresh
    findings.add_checked(len(case.replayed.expired), "expired groups")
    for task, count in tokens.items():
        of_groups = f"{plural(groups[task], 'group')} of which a member expired"
        text = f"{plural(count, 'token')} of fresh members lost with {of_groups}"
        findings.cost_tokens += count
        findings.add(Subject(task), text)


@rule("L009", "silent-discard", Severity.WARNING,
      "The config throws expired groups away without another try.",
      "tail_batch_trigger_size 0 or more rolls them again.",
      Fact.REPLAY, Fact.NO_RETRY)  # fmt: skip
def _silent_discard(case: Case, findings: Findings) -> None:
    findings.add_checked(len(case.replayed.expired), "expired groups")
    for task, account in case.replayed.ledger.totals.items():
        groups = account.count(m.DISCARDED_GROUPS)
        if groups:
            tokens = account.count(m.DISCARDED_STALE_TOKENS) + account.count(m.DISCARDED_FRESH_TOKENS)
            text = f"{plural(groups, 'expired group')} with {plural(tokens, 'token')} discarded"
            findings.cost_tokens += tokens
            findings.add(Subject(task), f"{text} (tail_batch_trigger_size -1)")


@rule("L011", "starved-group", Severity.WARNING,
      "In the replay, a group expires three times or more and is never trained.",
      "Loosen the setting that the finding names (see `tokenaudit explain LOG`), or shorten the response.",
      Fact.REPLAY, Fact.RETRY)  # fmt: skip
def _starved_group(case: Case, findings: Findings) -> None:
    replayed = case.replayed
    taken = {(entry.event.task_name, entry.event.group_id) for entry in replayed.taken}
    steps: dict[Key, list[int]] = defaultdict(list)
    tokens = Counter[Key]()
    last_put: dict[Key, int] = {}
    for expired in replayed.expired:
        key = expired.event.task_name, expired.event.group_id
        last_put[key] = expired.put
        steps[key].append(expired.event.train_step)
        tokens[key] += expired.tokens
    findings.add_checked(len(steps), "groups that expired")
    texts: dict[int, str] = {}
    for (task, group_id), when in steps.items():
        if len(when) >= STARVED_AFTER and (task, group_id) not in taken:
            listed = ", ".join(map(str, when[:6])) + (", …" if len(when) > 6 else "")
            text = f"expired {len(when)} times (steps {listed}), never trained"
            findings.cost_tokens += tokens[task, group_id]
            bound = replayed.losses.groups[task, group_id].bound_by
            row = int(replayed.put_rows(last_put[task, group_id])[0])
            texts[row] = text if bound is None else f"{text}; most was lost by {bound}"
    findings.add_texts(lambda row: replace(case.table.group_subject(row), put=None), texts)


@rule("L012", "length-bias", Severity.WARNING,
      "In the replay, expired groups are much longer than taken ones: the limit punishes length.",
      "Loosen the setting that the finding names: `tokenaudit explain LOG` says which change helps.",
      Fact.TAKES)  # fmt: skip
def _length_bias(case: Case, findings: Findings) -> None:
    replayed = case.replayed
    taken, expired = defaultdict(list), defaultdict(list)
    for entry in replayed.taken:
        measures = entry.event.responses.measures
        taken[entry.event.task_name].append(measures.tokens // max(1, measures.samples))
    for entry in replayed.expired:
        if entry.tokens:
            members = len(entry.event.expired) + len(entry.event.fresh)
            expired[entry.event.task_name].append(entry.tokens // members)
    findings.add_checked(len(replayed.expired), "expired groups")
    for task, lengths in expired.items():
        if len(lengths) < BIAS_GROUPS or len(taken[task]) < BIAS_GROUPS:
            continue
        of_taken, of_expired = median(taken[task]), median(lengths)
        if of_expired >= BIAS_FACTOR * of_taken > 0:
            text = f"median tokens per response: taken {of_taken:,.0f} ({len(taken[task])} groups), expired"
            text += f" {of_expired:,.0f} ({len(lengths)} groups)"
            findings.add(Subject(task), text + _bound_text(replayed, task))


@rule("L013", "discard-rate", Severity.WARNING,
      "In the replay, more than a tenth of the generated tokens is dropped as stale.",
      "Loosen the setting that the finding names: `tokenaudit explain LOG` says which change helps.",
      Fact.REPLAY)  # fmt: skip
def _discard_rate(case: Case, findings: Findings) -> None:
    for task, account in case.replayed.ledger.totals.items():
        produced, dropped = account.count(m.PRODUCED_TOKENS), sum(account.count(part) for part in m.DROPPED_PARTS)
        findings.add_checked(produced, "produced tokens")
        if produced < DISCARD_TOKENS or dropped <= DISCARD_SHARE * produced:
            continue
        fresh = account.count(m.DISCARDED_FRESH_TOKENS)
        text = f"{100 * dropped / produced:.1f} % of produced tokens ({dropped:,} of {produced:,})"
        text += " were dropped as stale"
        if fresh:
            text += f", {100 * fresh / dropped:.0f} % of which belonged to members that were fresh"
        findings.cost_tokens += dropped
        findings.add(Subject(task), text + _bound_text(case.replayed, task))


def _bound_text(replayed: ReplayedRun, task: str) -> str:
    """The setting that most of what a task lost to staleness was lost by."""
    causes = (one for one in replayed.losses.causes() if one.key.task == task and one.key.metric in m.DROPPED_PARTS)
    bound = bound_most(causes)
    return "" if bound is None else f"; {100 * float(bound[1]):.0f} % of what was dropped is by {bound[0]}"


@rule("L014", "batch-never-filled", Severity.ERROR,
      "The run ends before its last step with a batch it couldn't fill.",
      "Look at the members that never came back; time them out.",
      Fact.TIMELINE, Fact.STEPS)  # fmt: skip
def _batch_never_filled(case: Case, findings: Findings) -> None:
    replayed, config = case.replayed, case.known_config
    findings.add_checked(len(replayed.steps), "steps")
    wanted = config.timeline.steps
    if not replayed.steps or wanted is None:
        return
    last = replayed.steps[-1].train_step
    if last >= wanted:
        return
    held = _ready_after(replayed, last)
    for task, size in task_sizes(config, list(replayed.ledger.tasks)).items():
        ready = held[task]
        if size <= ready:
            continue
        waiting = _waiting(replayed, task)
        text = f"the run stops after step {last} of {wanted} with {ready} of {size} completed groups"
        if waiting:
            listed = ", ".join(map(str, waiting[:3])) + (", …" if len(waiting) > 3 else "")
            text += f"; {plural(len(waiting), 'group')} without a final put: {listed}"
        findings.add(Subject(task, train_step=last + 1), text)


def _ready_after(replayed: ReplayedRun, step: int) -> Counter[str]:
    """Groups held as completed in the end, by task: those left after the take of the last step and those put since."""
    left = replayed.steps[-1].leftovers
    ready = Counter({task: held.get(Status.COMPLETED, 0) for task, held in left.items()})
    events = replayed.digest.events
    last_take = max((events.kind == KIND_CODE[EventKind.TAKE]).nonzero()[0].tolist(), default=-1)
    lost = set(replayed.rejected)
    for expired in replayed.expired:
        lost.add(expired.put)
        if expired.event.train_step > step and expired.put <= last_take and _is_completed(replayed, expired.put):
            ready[expired.event.task_name] -= 1
    for event in range(last_take + 1, len(events.kind)):
        if events.kind[event] == _PUT and event not in lost and _is_completed(replayed, event):
            ready[replayed.digest.tasks[int(events.task[event])]] += 1
    return ready


def _is_completed(replayed: ReplayedRun, put: int) -> bool:
    """Whether all members of a put, given by its log event, are completed."""
    first, last = replayed.digest.events.first_response[put : put + 2].tolist()
    return bool((replayed.digest.responses.status[first:last] == _COMPLETED).all())


def _waiting(replayed: ReplayedRun, task: str) -> list[int]:
    """Groups of a task whose last event is an unfinished put or a sample."""
    events = replayed.digest.events
    code = replayed.digest.tasks.index(task) if task in replayed.digest.tasks else -1
    of_task = (events.task == code) & ((events.kind == _PUT) | (events.kind == _SAMPLE))
    last = {int(events.group_id[event]): event for event in of_task.nonzero()[0].tolist()}
    return sorted(
        group_id
        for group_id, event in last.items()
        if event not in replayed.rejected and not (events.kind[event] == _PUT and _is_completed(replayed, event))
    )


@rule("L024", "batch-shortfall", Severity.WARNING,
      "The replay can't fill batches that the run asked for.",
      "Look for puts that were not recorded, and check that the config is the run's own.",
      Fact.TIMELINE)  # fmt: skip
def _batch_shortfall(case: Case, findings: Findings) -> None:
    replayed = case.replayed
    short: dict[str, list[tuple[int | None, int]]] = defaultdict(list)
    for row in replayed.ledger.rows:
        for task, account in row.accounts.items():
            groups = account.count(m.SHORTFALL_GROUPS)
            if groups:
                short[task].append((row.train_step, groups))
    findings.add_checked(len(replayed.steps), "steps")
    for task, takes in short.items():
        text = f"{plural(sum(groups for _, groups in takes), 'group')} too few in {plural(len(takes), 'take')}"
        findings.add(Subject(task), f"{text}, first at step {takes[0][0]}")


@rule("L015", "dead-group-run", Severity.WARNING,
      "Many groups in a row contributed nothing.",
      "Look for a failing environment or a filter that rejects everything.",
      Fact.REPLAY)  # fmt: skip
def _dead_group_run(case: Case, findings: Findings) -> None:
    replayed = case.replayed
    discarded = (entry for entry in replayed.expired if entry.event.fate is Fate.DISCARDED)
    useless = set(replayed.rejected) | {entry.put for entry in discarded if entry.waited == 0}
    events = replayed.digest.events
    for code, task in enumerate(replayed.digest.tasks):
        puts = ((events.kind == _PUT) & (events.task == code)).nonzero()[0].tolist()
        findings.add_checked(len(puts), "puts")
        found: list[tuple[Subject, str]] = []
        rows: list[Int64s] = []
        for is_useless, run in groupby(puts, key=useless.__contains__):
            dead = list(run)
            if is_useless and len(dead) >= DEAD_RUN:
                first, last = (int(events.group_id[put]) for put in (dead[0], dead[-1]))
                text = f"{len(dead)} puts in a row contributed nothing (groups {first} to {last})"
                found.append((Subject(task, first), text))
                rows += [replayed.put_rows(put) for put in dead]
        findings.add_listed(found, "run", rows=np.concatenate(rows) if rows else None)
