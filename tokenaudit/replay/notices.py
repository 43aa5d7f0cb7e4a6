"""What a person should know before trusting a replay: about its config, its log, and how the two fit."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence

from tokenaudit.config.limits import deciding_key
from tokenaudit.config.loading import Settings
from tokenaudit.config.model import Config
from tokenaudit.config.toml import OVERRIDE, override_texts
from tokenaudit.config.warnings import config_warnings
from tokenaudit.contracts.errors import Notice, NoticeLevel
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.columns import Bools
from tokenaudit.log.digest import KIND_CODE, PRIOR_ASSUMED, Digest
from tokenaudit.log.files import Log
from tokenaudit.log.plausibility import PUT_PER_ROW, future_tokens, implausible_structures
from tokenaudit.replay.ledger import Ledger
from tokenaudit.replay.request import TimelineKind
from tokenaudit.replay.result import Coverage, Result, intervals_text

_SIMULATED_ONLY = ("timeline.steps", "timeline.train_batch_size")


def notices(
    log: Log, digest: Digest, config: Config, kind: TimelineKind, ledger: Ledger, coverage: Coverage
) -> list[Notice]:
    """All notices of a replay, in a fixed order."""
    warnings = config_warnings(config, recorded_sync_weights_interval(log), digest.tasks)
    return [
        *(warning.notice for warning in warnings),
        *(Notice("source-limit", limit) for limit in log.limits),
        *loss_notices(log),
        *(Notice("log-note", note) for note in log.notes),
        *quarantine_notices(digest),
        *_coverage_notices(coverage),
        *_put_notices(digest),
        *_task_notices(config, digest),
        *_timeline_notices(digest, kind, ledger),
    ]


LOST_EVENTS = "lost-events"
"""Code of the notices that events of the run are missing."""


def loss_notices(log: Log) -> list[Notice]:
    """That the log lacks events of its run, if its recorder says so."""
    return [Notice(LOST_EVENTS, loss, "The log lacks them, and so does every figure.") for loss in log.loss_texts]


def quarantine_notices(digest: Digest) -> list[Notice]:
    """What quarantine left out, if anything."""
    if not digest.quarantined_groups:
        return []
    faults = ", ".join(f"{kind} ({rows})" for kind, rows in digest.faults.items())
    groups = f"{digest.quarantined_groups} group{'s' * (digest.quarantined_groups != 1)}"
    message = f"{groups} with {digest.quarantined_tokens} new tokens left out because of structural faults"
    return [Notice("quarantined", message, f"Faulty rows: {faults}.")]


def settings_notices(settings: Settings, tasks: Sequence[str], kind: TimelineKind) -> list[Notice]:
    """That a config is missing; and values given with `-s` that change nothing, or nothing for the tasks named.

    Args:
        settings: the settings of the run.
        tasks: tasks of the log.
        kind: the timeline that is followed.
    """
    config, origins = settings.config, settings.origins
    found: list[Notice] = []
    if settings.on_defaults:
        message = "no config was found, so every setting that -s doesn't give is a default"
        cost = "Name the run's config with -c FILE, or write one with tokenaudit init; --isolated takes the defaults."
        found.append(Notice("no-config", message, cost))
    for key in (key for key, origin in origins.items() if origin == OVERRIDE):
        section, _, name = key.partition(".")
        if section == "policy":
            deciding = {task: deciding_key(config, task, name) for task in tasks}
            kept = {task: own for task, own in deciding.items() if own != key and origins.get(own) != OVERRIDE}
            if kept:
                message = f"-s {key} changes nothing for task{'s' * (len(kept) > 1)} {', '.join(kept)}, which"
                message += " set their own" if len(kept) > 1 else " sets its own"
                value = getattr(config.policy, name)
                texts = override_texts(dict.fromkeys(kept.values(), "off" if value is None else value))
                options = " ".join(f"-s {shlex.quote(text)}" for text in texts)
                found.append(Notice("no-effect", message, f"Use {options}", NoticeLevel.CAUTION))
        elif kind is TimelineKind.RECORDED and (key in _SIMULATED_ONLY or key.endswith(".weight")):
            message = f"-s {key} changes nothing: batch sizes and steps come from the recorded timeline"
            found.append(Notice("no-effect", message, "--timeline simulated uses it.", NoticeLevel.CAUTION))
    return found


COUNTERFACTUAL = "counterfactual"
"""Code of the notice that a replay can't decide its config."""


def counterfactual_notices(coverage: Coverage) -> list[Notice]:
    """That more of a replay rests on counterfactual rules than it can be trusted with."""
    if not coverage.is_for_simulation:
        return []
    share = 100 * coverage.counterfactual_tokens / coverage.counterfactual_of_tokens
    message = f"{share:.1f} % of tokens rest on counterfactual rules, more than 5 %: a simulation decides this config"
    cost = "tokenaudit simulate LOG with the same options, or --simulate of diff and gate, runs it."
    return [Notice(COUNTERFACTUAL, message, cost, NoticeLevel.CAUTION)]


def span_notice(result: Result, responses: int) -> Notice:
    """That versions are known as spans, and which totals depend on it.

    Args:
        result: a result with its intervals.
        responses: responses whose versions are spans.
    """
    message = f"versions of {responses} responses are known as spans: rows and totals read them as old as they may be"
    if not result.intervals:
        return Notice("version-spans", message, "No total differs when they are read as new as they may be.")
    return Notice("version-spans", message, f"Between both readings: {intervals_text(result.intervals)}.")


def recorded_sync_weights_interval(log: Log) -> int | None:
    """The K that the log was recorded with, if its metadata says."""
    try:
        value = json.loads(log.config_json or "null")["timeline"]["sync_weights_interval"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_put(digest: Digest) -> Bools:
    return digest.events.kind == KIND_CODE[EventKind.PUT]


def structure_notices(digest: Digest) -> list[Notice]:
    """What can't be meant in the log as a whole, so that no figure of it can be trusted."""
    found = implausible_structures(digest)
    return [Notice(structure.code, structure.message, structure.fix, NoticeLevel.ERROR) for structure in found]


def _coverage_notices(coverage: Coverage) -> Iterator[Notice]:
    if coverage.stamped_tokens:
        message = f"{coverage.stamped_tokens} tokens carry no version"
        cost = "They got the version that a sync every sync_weights_interval steps would have made live."
        yield Notice("stamped-missing", message, cost)
    if coverage.unscored_rewards:
        message = f"{coverage.unscored_rewards} rewards are not finite numbers and count as unscored"
        yield Notice("unscored-rewards", message)


def _put_notices(digest: Digest) -> Iterator[Notice]:
    """Signs that puts were recorded in a way that makes figures wrong."""
    events, responses = digest.events, digest.responses
    is_put = _is_put(digest)
    assumed = int(((responses.prior_len == PRIOR_ASSUMED) & (responses.previous >= 0)).sum())
    if assumed:
        message = f"{assumed} responses are put again, and nothing says whether they go on from their earlier tokens"
        cost = "They count as begun anew. Record prior_len, or the versions of the tokens that were there before."
        yield Notice("prior-len-unknown", message, cost)
    future, known = future_tokens(digest)
    if future:
        message = f"{future} tokens have a version that the trainer had not made when they were put"
        cost = "A version counts the train steps in the weights, so tokens put at train_step t have at most t - 1."
        if 2 * future <= known:
            yield Notice("versions-from-future", message, cost)
        else:
            cost += " Steps count from 1."
            yield Notice("versions-from-future", f"{message}, {known} have any", cost, NoticeLevel.ERROR)
    structures = structure_notices(digest)
    yield from structures
    split = is_put[1:] & is_put[:-1] & (events.task[1:] == events.task[:-1])
    split &= (events.group_id[1:] == events.group_id[:-1]) & (events.train_step[1:] == events.train_step[:-1])
    if split.any() and PUT_PER_ROW not in [notice.code for notice in structures]:
        message = f"{int(split.sum())} puts follow a put of the same group at the same step"
        cost = "The rows of one group's put are one event: give them the same event_id."
        yield Notice("group-split", message, cost)


def _task_notices(config: Config, digest: Digest) -> Iterator[Notice]:
    for task in config.tasks:
        if task not in digest.tasks:
            message = f"task {task} is in the config, but the log has no such task"
            yield Notice("task-not-in-log", message, f"The log's tasks: {', '.join(digest.tasks) or 'none'}.")
    is_put = _is_put(digest)
    rollouts = digest.group_sizes
    for code, task in enumerate(digest.tasks):
        of_task = is_put & (digest.events.task == code)
        if not of_task.any():
            yield Notice("task-without-put", f"task {task} is sampled or taken, but never put")
        size = config.task_policy(task).group_size
        other = 0 if size is None else int((of_task & (rollouts != size)).sum())
        if other:
            puts = int(of_task.sum())
            message = f"task {task}: {other} of {puts} puts don't have {size} responses (group_size)"
            if other < puts:
                yield Notice("group-size-differs", message)
            else:
                cost = "The rows of one group's put share its event_id and group_id; or set the group_size of the run."
                yield Notice("group-size-differs", message, cost, NoticeLevel.ERROR)


def _timeline_notices(digest: Digest, kind: TimelineKind, ledger: Ledger) -> Iterator[Notice]:
    if ledger.left_out_puts:
        before = int((digest.events.train_step[_is_put(digest)] < 1).sum())
        message = f"{ledger.left_out_puts} puts outside steps 1 to {len(ledger.rows)} are left out"
        cost = f"{before} of them are before step 1, the first." if before else "timeline.steps sets the last step."
        yield Notice("puts-left-out", message, cost)
    if not ledger.rows:
        what = "the log records no take" if kind is TimelineKind.RECORDED else "no put lies in a step"
        yield Notice("no-steps", f"there is no step to report: {what}", "Everything is in the tail.")
