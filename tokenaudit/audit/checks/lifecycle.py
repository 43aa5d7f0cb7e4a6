"""Checks of the lifecycle: what the run did, against the replay of its own config."""

from __future__ import annotations

from bisect import bisect

import numpy as np

from tokenaudit.audit.case import Case, plural
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.life import NEVER, Continued, Expired
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.audit.takes import has_recorded_takes, recorded_takes
from tokenaudit.config.warnings import config_warnings
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.events import ExpiryReason, Where
from tokenaudit.lifecycle.staleness import (
    count_fresh,
    is_fresh,
    is_too_old,
    newest_too_old,
    oldest_fresh_version,
    staleness,
)
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.batch_columns import ABSENT
from tokenaudit.log.columns import Bools
from tokenaudit.log.digest import KIND_CODE, STATUS_CODE

_EXPIRED, _COMPLETED, _INIT = (STATUS_CODE[s] for s in (Status.EXPIRED, Status.COMPLETED, Status.INIT))
_SAMPLE, _SYNC = KIND_CODE[EventKind.SAMPLE], KIND_CODE[EventKind.SYNC]


@rule("L001", "stale-token-trained", Severity.ERROR,
      "The trainer's mask keeps tokens that the token rule masks.",
      "Compute the mask at the step of the take.",
      "trained_mask", Fact.TAKES, Fact.TOKEN_RULE)  # fmt: skip
def _stale_token_trained(case: Case, findings: Findings) -> None:
    if case.trained is None:
        return
    findings.add_checked(case.trained.responses, "masks at the take")
    for response in case.trained.wrong:
        for run in response.wrong:
            if run.is_stale and run.trained:
                text = f"{plural(run.trained, 'token')} of staleness {run.age} trained at step {response.train_step}"
                findings.add(response.subject, f"{text}, token limit {response.limit}")


@rule("M008", "trained-mask-mismatch", Severity.ERROR,
      "The mask the trainer used differs from the recomputed one on tokens that are fresh or out of the loss.",
      "Train on semantic mask AND fresh, computed at the step of the take.",
      "trained_mask", Fact.TAKES)  # fmt: skip
def _trained_mask_mismatch(case: Case, findings: Findings) -> None:
    if case.trained is None:
        return
    findings.add_checked(case.trained.responses, "masks at the take")
    for response in case.trained.wrong:
        lost = sum(run.trainable - run.trained for run in response.wrong if not run.is_stale)
        extra = sum(run.extra for run in response.wrong)
        parts = [
            f"{plural(lost, 'fresh trainable token')} not trained" if lost else "",
            f"{plural(extra, 'token')} trained that the semantic mask leaves out" if extra else "",
        ]
        if lost or extra:
            text = " and ".join(filter(None, parts))
            findings.add(response.subject, f"{text} at step {response.train_step}")


@rule("L002", "stale-group-taken", Severity.ERROR,
      "A response was taken that the config says is too old.",
      "Refresh staleness right before every take, and count the time spent waiting.",
      Fact.TAKES)  # fmt: skip
def _stale_group_taken(case: Case, findings: Findings) -> None:
    if has_recorded_takes(case.table):
        _stale_recorded_takes(case, findings)
        return
    life = case.replayed
    findings.add_checked(len(life.taken), "taken groups")
    limits = {task: life.config.stale_threshold(task) for task in life.digest.tasks}
    for taken in life.taken:
        step, limit = taken.event.train_step, limits[taken.event.task_name]
        oldest, newest_stale = taken.event.responses.measures.oldest, newest_too_old(step, limit)
        if oldest is None or not is_too_old(oldest, newest_stale):
            continue
        for row, member in zip(life.put_rows(taken.put).tolist(), taken.event.responses, strict=True):
            if member.oldest is not None and is_too_old(member.oldest, newest_stale):
                findings.add(case.table.subject(row), _age_text(case, row, member.oldest, step, limit))


def _stale_recorded_takes(case: Case, findings: Findings) -> None:
    config, table = case.known_config, case.table
    for take in recorded_takes(table):
        findings.add_checked(1, "recorded takes")
        for row in take.put_rows:
            versions = [version for version, _ in case.replayed.puts.runs(row) if version >= 0]
            limit = config.stale_threshold(table.tasks[int(table["task"][row])])
            if versions and is_too_old(min(versions), newest_too_old(take.train_step, limit)):
                text = _age_text(case, row, min(versions), take.train_step, limit)
                findings.add(table.subject(row), text)


def _age_text(case: Case, row: int, oldest: int, step: int, limit: int) -> str:
    at_put = staleness(oldest, int(case.table["train_step"][row]))
    age = staleness(oldest, step)
    return f"taken at step {step} with staleness {age}, limit {limit}; {age - at_put} of it came from waiting"


@rule("L003", "aged-in-queue", Severity.WARNING,
      "Groups became too old after their put, while they waited.",
      "Generate less ahead, or take the stalest first.",
      Fact.REPLAY)  # fmt: skip
def _aged_in_queue(case: Case, findings: Findings) -> None:
    by_task: dict[str, list[Expired]] = {}
    for expired in case.replayed.expired:
        if expired.event.where is Where.REFRESH and expired.event.reason is not ExpiryReason.ARRIVED_EXPIRED:
            by_task.setdefault(expired.event.task_name, []).append(expired)
    findings.add_checked(len(case.replayed.expired), "expired groups")
    for task, groups in by_task.items():
        waits = sorted(expired.waited for expired in groups)
        text = f"{plural(len(groups), 'group')} became too old after the put; median wait"
        findings.add(Subject(task), f"{text} {plural(waits[len(waits) // 2], 'step')}")


@rule("L004", "expired-too-early", Severity.WARNING,
      "The run expired a response or group that the config still allows.",
      "Check the comparison (too old is staleness >= limit) and that the age is counted once per step.",
      Fact.REPLAY)  # fmt: skip
def _expired_too_early(case: Case, findings: Findings) -> None:
    table, config = case.table, case.known_config
    put_as_expired = table.known & (table["status"] == _EXPIRED) & (table["tokens"] > 0)
    findings.add_checked(int(put_as_expired.sum()), "responses put as expired")
    for row in np.flatnonzero(put_as_expired).tolist():
        task, step = table.tasks[int(table["task"][row])], int(table["train_step"][row])
        runs = case.replayed.puts.full_runs(row)
        versions = [version for version, _, _ in runs if version >= 0]
        limit = config.stale_threshold(task)
        oldest = oldest_fresh_version(step, config.token_stale_threshold(task) or limit)
        fresh = [run[2] for run, version in zip(runs, versions, strict=False) if is_fresh(version, oldest)]
        if versions and any(fresh) and not is_too_old(min(versions), newest_too_old(step, limit)):
            age = staleness(min(versions), step)
            text = f"status expired at step {step}, but staleness {age} is below the limit {limit}"
            findings.add(table.subject(row), text)
    for sample in case.replayed.continued:
        is_early = sample.recorded is Status.EXPIRED and sample.replayed in (Status.COMPLETED, Status.ABORTED)
        findings.add_checked(1, "responses put as expired and samples")
        if is_early:
            text = f"sampled from the expired pool, while it is {sample.replayed} under the config"
            findings.add(Subject(sample.task, sample.group_id), text)


@rule("L005", "expired-too-late", Severity.WARNING,
      "The run continued a group that the config says had expired.",
      "Refresh staleness at every step, and count the oldest token.",
      Fact.TIMELINE)  # fmt: skip
def _expired_too_late(case: Case, findings: Findings) -> None:
    for sample in case.replayed.continued:
        findings.add_checked(1, "samples")
        if sample.recorded is Status.ABORTED and sample.replayed is Status.EXPIRED:
            text = "sampled from the aborted pool, though it had expired under the config"
            findings.add(Subject(sample.task, sample.group_id), text)


@rule("L006", "expired-retained", Severity.WARNING,
      "The run kept an expired group though its config discards it.",
      "Drop the group, or set tail_batch_trigger_size to 0 or more.",
      Fact.TIMELINE, Fact.NO_RETRY)  # fmt: skip
def _expired_retained(case: Case, findings: Findings) -> None:
    for sample in case.replayed.continued:
        findings.add_checked(1, "samples")
        if sample.was_discarded and sample.replayed is None:
            text = f"sampled from the {sample.recorded} pool, though the config had discarded it"
            findings.add(Subject(sample.task, sample.group_id), text)


@rule("L007", "recorded-staleness-mismatch", Severity.ERROR,
      "The recorded seq_staleness isn't that of the oldest token.",
      "seq_staleness = train_step - oldest version - 1, and 0 without tokens.",
      "seq_staleness")  # fmt: skip
def _recorded_staleness_mismatch(case: Case, findings: Findings) -> None:
    table = case.table
    recorded = table["seq_staleness"]
    oldest = _oldest(case)
    told = table.known & table.present("seq_staleness") & table.present("train_step")
    has_version = oldest != ABSENT
    expected = np.where(has_version, staleness(np.where(has_version, oldest, 0), table["train_step"]), 0)
    told &= has_version | (table["tokens"] == 0)
    findings.add_rows(
        table.subject, told & (recorded != expected),
        lambda row: f"recorded {recorded[row]}, recomputed {expected[row]}",
    )  # fmt: skip
    findings.add_checked(int(told.sum()))


def _oldest(case: Case) -> np.ndarray:
    """The oldest version of every put row, that of its put included where it stamps tokens."""
    table = case.table
    stamps = (table["tokens"] > np.maximum(table["versions_len"], 0)) & table.present("model_step")
    oldest = table["oldest"]
    return np.where(stamps & ((oldest == ABSENT) | (table["model_step"] < oldest)), table["model_step"], oldest)


@rule("L010", "agentic-exempt-stale", Severity.WARNING,
      "Tokens beyond the token limit are trained because the token rule spares groups with an agentic member.",
      "Lower max_staleness for agentic tasks, or leave ready-made inputs out.",
      "agentic", Fact.TAKES, Fact.TOKEN_RULE)  # fmt: skip
def _agentic_exempt_stale(case: Case, findings: Findings) -> None:
    life = case.replayed
    limits = {task: life.config.token_stale_threshold(task) for task in life.digest.tasks}
    for taken in life.taken:
        step, limit = taken.event.train_step, limits[taken.event.task_name]
        if limit is None or not taken.event.responses.measures.is_agentic:
            continue
        findings.add_checked(1, "taken groups with an agentic member")
        stale = count_fresh(taken.event.responses.trainable_by_version(), step, limit, {})
        if stale:
            text = f"{plural(stale, 'token')} beyond the token limit {limit} trained at step {step}, because the token"
            row = int(life.put_rows(taken.put)[0])
            findings.add(case.table.group_subject(row), f"{text} rule spares groups with an agentic member")


@rule("L017", "id-reused", Severity.WARNING,
      "A group was put again after it had been taken, or while it waited as completed.",
      "Add a part to ids that is new for every run, and don't feed prompts again unnoticed.",
      Fact.TAKES)  # fmt: skip
def _id_reused(case: Case, findings: Findings) -> None:
    life = case.replayed
    findings.add_checked(len(life.digest.events.kind), "events")
    for again in life.put_again:
        row = int(life.put_rows(again.log_event)[0])
        if again.held is Status.COMPLETED:
            findings.add(case.table.group_subject(row), "put again while it waits as completed")
        elif again.taken_at != NEVER:
            findings.add(case.table.group_subject(row), f"put again after the take of step {again.taken_at}")


@rule("L022", "sample-mismatch", Severity.WARNING,
      "The run sampled a group that the replay doesn't hold in that pool.",
      "Record every put, sample and take in the order in which the buffer saw them.",
      Fact.TIMELINE)  # fmt: skip
def _sample_mismatch(case: Case, findings: Findings) -> None:
    """Samples that the rules about expiry have no word for; groups put before the log begins are left out."""
    findings.add_checked(len(case.replayed.continued), "samples")
    for sample in case.replayed.continued:
        if sample.replayed is None:
            text = "" if sample.was_discarded or not sample.was_put else "it isn't held"
        else:
            text = "" if sample.recorded is sample.replayed or _of_expiry(sample) else f"it waits as {sample.replayed}"
        if text:
            text = f"sampled from the {sample.recorded} pool, while {text}"
            findings.add(Subject(sample.task, sample.group_id), text)


def _of_expiry(sample: Continued) -> bool:
    """Whether expired-too-early or expired-too-late tells a sample."""
    if sample.recorded is Status.EXPIRED:
        return sample.replayed in (Status.COMPLETED, Status.ABORTED)
    return sample.recorded is Status.ABORTED and sample.replayed is Status.EXPIRED


@rule("L023", "put-without-sample", Severity.WARNING,
      "A group that waits was put again, though no sample event took it out.",
      "Record a sample event for every group that is generated again.",
      Fact.TIMELINE, Fact.SAMPLES)  # fmt: skip
def _put_without_sample(case: Case, findings: Findings) -> None:
    life = case.replayed
    findings.add_checked(len(life.put_again), "puts of groups that wait or were taken")
    for again in life.put_again:
        if again.held in (Status.ABORTED, Status.EXPIRED):
            row = int(life.put_rows(again.log_event)[0])
            findings.add(case.table.group_subject(row), f"put again while it waits as {again.held}")


@rule("L016", "duplicate-consumption", Severity.ERROR,
      "A response was taken twice.",
      "Restore the data position together with the checkpoint.",
      Fact.RECORDED_TAKES)  # fmt: skip
def _duplicate_consumption(case: Case, findings: Findings) -> None:
    table = case.table
    taken_at: dict[tuple[int, int, int], int] = {}
    for take in recorded_takes(table):
        findings.add_checked(1, "recorded takes")
        # The same id in another group is another response.
        group_id = int(table["group_id"][take.put_rows[0]]) if take.put_rows else ABSENT
        key = (int(table["task"][take.row]), int(table["rollout_id"][take.row]), group_id)
        before = taken_at.get(key, NEVER)
        is_segment = before == take.train_step and len(take.put_rows) > 1
        if before != NEVER and not is_segment:
            text = f"trained at steps {before} and {take.train_step}"
            subject = table.subject(take.put_rows[0]) if take.put_rows else Subject(table.tasks[key[0]], None, key[1])
            findings.add(subject, text)
        taken_at[key] = take.train_step


@rule("L018", "run-restart", Severity.INFO,
      "train_step falls: the run seems to have been restarted.",
      "Write a log per run, or expect what was in flight to be lost.")  # fmt: skip
def _run_restart(case: Case, findings: Findings) -> None:
    table = case.table
    # A sync names the step just trained, after the buffer has moved on.
    rows = np.flatnonzero(~np.isin(table["kind"], (_SAMPLE, _SYNC)) & table.present("train_step"))
    step = table["train_step"][rows]
    findings.add_checked(len(rows))
    fell = np.zeros(table.rows, dtype=np.bool_)
    fell[rows[1:]] = step[1:] < step[:-1]
    before = np.zeros(table.rows, dtype=np.int64)
    before[rows[1:]] = step[:-1]
    now = table["train_step"]
    findings.add_rows(
        lambda row: Subject(train_step=int(now[row])), fell,
        lambda row: f"train_step falls from {before[row]} to {now[row]}",
    )  # fmt: skip


@rule("L019", "status-transition", Severity.ERROR,
      "A completed response went back to init without being generated again.",
      "Keep the status when other fields are reset.")  # fmt: skip
def _status_transition(case: Case, findings: Findings) -> None:
    table = case.table
    status = table["status"]
    rows = np.flatnonzero((table.previous >= 0) & (status == _INIT) & (table["tokens"] == 0))
    back = np.zeros(table.rows, dtype=np.bool_)
    back[rows] = status[table.previous[rows]] == _COMPLETED
    back &= ~_sampled_between(case, back)
    findings.add_rows(table.subject, back, lambda _: "completed at the put before, init and empty now")
    findings.add_checked(int((table.previous >= 0).sum()), "puts of a response seen before")


def _sampled_between(case: Case, rows: Bools) -> Bools:
    """For the put rows in `rows`: whether their group was sampled since the response's put before."""
    table = case.table
    between = np.zeros(table.rows, dtype=np.bool_)
    task, group_id = table["task"], table["group_id"]
    samples: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(table["kind"] == _SAMPLE).tolist():
        samples.setdefault((int(task[row]), int(group_id[row])), []).append(row)
    for row in np.flatnonzero(rows).tolist():
        own = samples.get((int(task[row]), int(group_id[row])), [])
        between[row] = bisect(own, row) > bisect(own, table.previous[row])
    return between


@rule("L020", "staleness-convention", Severity.INFO,
      "How this audit counts staleness, and how many verdicts rest on it.",
      "Check it against your trainer: strict or not, and counted from which version.",
      Fact.REPLAY)  # fmt: skip
def _staleness_convention(case: Case, findings: Findings) -> None:
    life = case.replayed
    limits = {task: life.config.stale_threshold(task) for task in life.digest.tasks}
    at_limit = 0
    for expired in life.expired:
        if expired.event.reason is ExpiryReason.SEQUENCE:
            oldest = min(version for *_, version, _ in expired.event.expired.facts() if version is not None)
            at_limit += staleness(oldest, expired.event.train_step) == limits[expired.event.task_name]
    text = "staleness is step - version - 1, and too old from (max_staleness + 1) x sync_weights_interval on"
    findings.add(Subject(), f"{text}; {plural(at_limit, 'group')} expired exactly at that limit")
    findings.add_checked(len(life.expired), "expired groups")


@rule("L021", "setting-suspect", Severity.WARNING,
      "A setting of the config costs something that isn't obvious from it.",
      "See `tokenaudit lint`.",
      Fact.CONFIG)  # fmt: skip
def _setting_suspect(case: Case, findings: Findings) -> None:
    for warning in config_warnings(case.known_config, case.recorded_interval, case.table.used_tasks):
        findings.add(
            Subject(warning.tasks[0] if len(warning.tasks) == 1 else None), f"{warning.code}: {warning.message}"
        )
    findings.add_checked(len(case.table.used_tasks), "tasks")
