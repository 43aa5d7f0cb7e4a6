"""Checks of what responses hold: members that are alike, prompts that are mixed, tokens that are lost between puts."""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.checks.lifecycle import sampled_between
from tokenaudit.audit.checks.stuck_versions import filled_in
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.audit.table import LogTable
from tokenaudit.contracts.errors import plural
from tokenaudit.lifecycle.staleness import staleness
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import STATUS_CODE, sorted_rows
from tokenaudit.log.row_checks import ABSENT

ALIKE_TOKENS = 16
"""Tokens from which on members that hold the same are no chance."""
ALIKE_LOGPROB = -14.0
"""Log-probability of a response below which a second one like it is no chance: less than one in a million."""
ALIKE_UNSURE = 64
"""Tokens from which on members with the same ids are reported where no log-probabilities tell how likely that is."""
TURNS_ALONE = 0.8
"""Share of later turns with a prompt as long as no other in their group; prompts that were mixed up come in pairs."""
RESTARTED_SHARE = 0.3
"""Share of what was produced that began again, from which on it is reported."""
RESTARTED_TOKENS = 1_000
"""Tokens produced below which a share says nothing."""

_ABORTED, _COMPLETED = STATUS_CODE[Status.ABORTED], STATUS_CODE[Status.COMPLETED]
_EXPIRED = STATUS_CODE[Status.EXPIRED]


@rule("E005", "members-alike", Severity.ERROR,
      "Members of a group hold the same ids with the same log-probabilities: one seed, or the copy of a mate. "
      "A warning where only the ids are the same.",
      "Give every member a seed of its own, and write each answer to its own request.",
      "response_ids|logprobs")  # fmt: skip
def _members_alike(case: Case, findings: Findings) -> None:
    """Without ids, by log-probabilities alone, unless these are all the same."""
    table = case.table
    has_ids = table["ids_whole"].astype(np.bool_) & (table["ids_len"] == table["tokens"])
    likely = np.full(table.rows, np.nan)
    if "logprobs_sum" in table:
        likely = np.where(table["logprobs_len"] == table["tokens"], table["logprobs_sum"], np.nan)
        told_by_logprobs = (table["ids_len"] < 0) & ~table["logprobs_alike"].astype(np.bool_)
        has_ids |= told_by_logprobs & ~np.isnan(likely)
    rows = np.flatnonzero(table.known & has_ids & (table["tokens"] >= ALIKE_TOKENS))
    findings.add_checked(len(rows), "responses of 16 tokens or more")
    copies = _alike(table, rows[~np.isnan(likely[rows])], "ids_print", "logprobs_print", "logprobs_sum")
    for _, own in table.puts_by_task(copies):
        if likely[own].min() <= ALIKE_LOGPROB:
            what = "ids and log-probabilities" if (table["ids_len"][own] >= 0).any() else "log-probabilities"
            findings.add_extent(own, f"the same {what} as another member, {_first_pair(table, own)}")
    others = np.setdiff1d(_alike(table, rows[table["ids_len"][rows] >= 0], "ids_print"), copies)
    unsure = np.isnan(likely[others]) & (table["tokens"][others] >= ALIKE_UNSURE)
    others = _alike(table, others[unsure | (likely[others] <= ALIKE_LOGPROB)], "ids_print")
    for _, own in table.puts_by_task(others):
        text = f"the same ids as another member, {_first_pair(table, own)}"
        findings.add_extent(own, text, Severity.WARNING, cause="ids")


def _alike(table: LogTable, rows: Int64s, *prints: str) -> Int64s:
    """Those of the rows that another rollout of their group shares length and fingerprints with."""
    keys = [table[name][rows] for name in ("tokens", *prints, "group_id", "task")]
    order, begins = sorted_rows(table["rollout_id"][rows], *keys)
    if len(order) == 0:
        return rows
    same = np.ones(len(order) - 1, dtype=np.bool_)
    for key in keys:
        same &= key[order[1:]] == key[order[:-1]]
    cluster = np.cumsum(np.append(True, ~same)) - 1
    return np.sort(rows[order[np.bincount(cluster, begins)[cluster] > 1]])


def _first_pair(table: LogTable, rows: Int64s) -> str:
    """The first two members that are alike, for a message."""
    first = int(rows[0])
    same = np.logical_and.reduce(
        [table[name][rows] == table[name][first] for name in ("tokens", "ids_print", "group_id") if name in table]
    )
    mate = int(rows[same & (table["rollout_id"][rows] != table["rollout_id"][first])][0])
    names = f"the first in group {table['group_id'][first]}: rollouts {table['rollout_id'][first]} and"
    return f"{names} {table['rollout_id'][mate]}, {table['tokens'][first]} tokens"


@rule("E006", "prompts-mixed", Severity.ERROR,
      "Members of one group have prompts of different lengths, so their rewards are compared across prompts.",
      "Group responses by the prompt that they answer; don't pair answers with requests by their order.",
      "prompt_len")  # fmt: skip
def _prompts_mixed(case: Case, findings: Findings) -> None:
    """Later segments of a rollout have the earlier ones in their prompt, so only first ones count.

    Turns of a conversation that are rollouts of their own aren't mixed either: see `_of_conversations`.
    Some engines count as prompt what a response has already when it goes on: that mixes no prompts.
    """
    table = case.table
    rows = np.flatnonzero(table.is_put & (table.segment == 0) & table.present("prompt_len"))
    findings.add_checked(len(rows), "responses with a prompt length")
    if len(rows) == 0:
        return
    prompt, begins = table["prompt_len"][rows], np.flatnonzero(np.diff(table.put_event[rows], prepend=-2))
    own = prompt - np.where(table.present("prior_len"), table["prior_len"], 0)[rows]
    differs = [np.minimum.reduceat(one, begins) != np.maximum.reduceat(one, begins) for one in (prompt, own)]
    is_mixed = np.logical_and(*differs)
    for code in range(len(table.tasks)):
        of_task = np.flatnonzero(table["task"][rows[begins]] == code)
        is_mixed[of_task[_of_conversations(table, rows, begins, is_mixed, of_task)]] = False
    mixed = np.repeat(is_mixed, np.diff(np.append(begins, len(rows))))

    def message(own: Int64s) -> str:
        groups = len(np.unique(table["group_id"][own]))
        of_first = own[table.put_event[own] == table.put_event[own[0]]]
        lengths = ", ".join(map(str, np.unique(table["prompt_len"][of_first]).tolist()[:3]))
        return (
            f"prompts of several lengths in {plural(groups, 'group')}, the first {table['group_id'][own[0]]}: {lengths}"
        )

    findings.add_extent(rows[mixed], message)


def _of_conversations(table: LogTable, rows: Int64s, begins: Int64s, is_mixed: Bools, groups: Int64s) -> Bools:
    """Which groups of a task have prompts of several lengths because their rollouts are turns of a conversation.

    The prompt of a later turn holds an earlier one with its response: so it is longer than that in all such groups, and
    as different as responses are. Where members are agentic, what tools and summaries do to prompts isn't known: there
    most groups have several lengths.

    Args:
        table: the log.
        rows: its responses with a prompt length.
        begins: where the rows of each group's put begin.
        is_mixed: whether these have several prompt lengths.
        groups: numbers of the groups of the task.
    """
    prompt, group = table["prompt_len"][rows], np.repeat(np.arange(len(begins)), np.diff(begins, append=len(rows)))
    end = prompt + np.maximum(table["tokens"][rows], 1)
    shortest, least_end = (np.minimum.reduceat(of, begins)[group] for of in (prompt, end))
    agentic = np.logical_or.reduceat(table["agentic"][rows], begins)
    found = is_mixed & agentic
    found &= 2 * found[groups].sum() > agentic[groups].sum()
    later = np.flatnonzero(np.isin(group, groups[is_mixed[groups] & ~found[groups]]) & (prompt > shortest))
    alone = np.unique(np.stack([group[later], prompt[later]]), axis=1, return_counts=True)[1] == 1
    if (prompt[later] >= least_end[later]).all() and alone.sum() >= TURNS_ALONE * len(later):
        return is_mixed[groups]
    return found[groups]


@rule("E007", "prefix-changed", Severity.ERROR,
      "The tokens that a response kept from the put before aren't the ones it had there.",
      "Go on from the ids themselves, not from their text, and give every response its own tokens back.",
      "response_ids", Fact.READABLE)  # fmt: skip
def _prefix_changed(case: Case, findings: Findings) -> None:
    table = case.table
    compared, changed = _changed_prefixes(case)
    findings.add_checked(int(compared.sum()), "puts of a response seen before")

    def message(own: Int64s) -> str:
        first = int(own[0])
        name = f"the first, rollout {table['rollout_id'][first]}, its first {table['tokens'][table.previous[first]]}"
        return f"the ids kept from the put before aren't those that it had, {name}"

    findings.add_extent(changed, message)


def _changed_prefixes(case: Case) -> tuple[Bools, Bools]:
    """Put rows whose kept ids can be compared with the put before, and where they differ.

    By fingerprints of the first `prior_len` ids, or by the ids where the put before had another number; without
    `prior_len`, where versions older than the put's say that all was kept.
    """
    table = case.table
    before = np.maximum(table.previous, 0)
    whole = table["ids_whole"].astype(np.bool_) & (table["ids_len"] == table["tokens"]) & (table["ids_len"] >= 0)
    both = (table.previous >= 0) & whole & whole[before]
    has_prior = table.present("prior_len")
    compared = both & has_prior & (table["prior_len"] > 0) & (table["prior_len"] == table["tokens"][before])
    changed = compared & (table["ids_prior_print"] != table["ids_print"][before])
    told = (case.shared_ids >= 0) & (table["prior_len"] > 0) & (table["status"][before] != _COMPLETED)
    compared |= told
    changed |= told & (case.shared_ids < np.minimum(table["prior_len"], table["tokens"][before]))
    older = both & ~has_prior & (table["newest"][before] < table["model_step"])
    rows = np.flatnonzero(older & (table["tokens"] >= table["tokens"][before]))
    rows = rows[case.readable.begins_with(rows, before[rows])]
    compared[rows] = True
    changed[rows[~case.readable.same_ids()[rows]]] = True
    return compared, changed


@rule("E008", "prefix-lost", Severity.WARNING,
      "A response that was aborted again, or goes on from a part, lost tokens that it had at an earlier put, though "
      "partial rollout is on.",
      "Keep what a response has when an abort answers with nothing or with the last round only.",
      "prior_len|response_ids|response_model_steps", Fact.READABLE)  # fmt: skip
def _prefix_lost(case: Case, findings: Findings) -> None:
    table = case.table
    again, lost = _lost_tokens(case)
    findings.add_checked(int(again.sum()), "aborted responses put again")
    goes_on = np.array([_goes_on(case, code, again, lost) for code in range(len(table.tasks))] or [False])
    # what is completed with nothing of the put before began again, which is no loss by itself
    is_part = (table["status"] == _ABORTED) | (case.readable.kept() > 0)
    # Versions that are filled in don't show what is kept; V031 reports that.
    where = again & (lost > 0) & is_part & goes_on[table["task"]] & ~filled_in(case)

    def message(rows: Int64s) -> str:
        what = "aborted again" if (table["status"][rows] == _ABORTED).all() else "put again"
        return f"{what} without {plural(int(lost[rows].sum()), 'token')} that the put before had"

    findings.add_extent(where, message)


@rule("E009", "restarted-tokens", Severity.WARNING,
      "Much of what was produced was thrown away because aborted responses began again.",
      "Set enable_partial_rollout, so that they go on from their tokens; or abort less often.",
      "prior_len|response_ids|response_model_steps", Fact.READABLE)  # fmt: skip
def _restarted_tokens(case: Case, findings: Findings) -> None:
    """Responses that expired in between are left out: discard-rate counts these."""
    table = case.table
    again, lost = _lost_tokens(case)
    findings.add_checked(int(again.sum()), "aborted responses put again")
    made = np.where(table.known, np.maximum(table["tokens"] - case.readable.kept(), 0), 0)
    for _, rows in table.puts_by_task(np.flatnonzero(again & (lost > 0))):
        produced = int(made[table.known & (table["task"] == table["task"][rows[0]])].sum())
        restarted = int(lost[rows].sum())
        if produced >= RESTARTED_TOKENS and restarted > RESTARTED_SHARE * produced:
            share = f"{100 * restarted / produced:.0f} % of what was produced ({restarted:,} of {produced:,} tokens)"
            findings.add_extent(rows, f"{share} was thrown away when responses began again")


def _lost_tokens(case: Case) -> tuple[Bools, Int64s]:
    """Put rows whose put before was aborted with tokens and hadn't expired since; and how many of those they lack.

    Those of rows of the rollout that no row follows count for its first one.
    """
    table = case.table
    before = np.maximum(table.previous, 0)
    was_aborted = (table["status"][before] == _ABORTED) & (table["tokens"][before] > 0)
    gone = _gone_tokens(table)
    again = table.known & (table.previous >= 0) & (was_aborted | (gone > 0))
    again &= table["status"] != _EXPIRED
    again &= ~_too_old(case, before)
    again &= ~sampled_between(case, again, Status.EXPIRED) & ~_changed_prefixes(case)[1]
    # whatever prior_len says, nothing is lost where the ids are there
    kept = np.maximum(case.readable.kept(), case.shared_ids)
    lost = np.where(was_aborted, np.maximum(table["tokens"][before] - kept, 0), 0) + gone
    return again, np.where(again, lost, 0)


def _gone_tokens(table: LogTable) -> Int64s:
    """By first row of a rollout in its put, the tokens of aborted rows of its put before that no row follows here.

    At most as many as the rollout has less: its rows may have been joined.
    """
    gone = np.zeros(table.rows, dtype=np.int64)
    is_followed = np.zeros(table.rows, dtype=np.bool_)
    is_followed[table.previous[table.previous >= 0]] = True
    lone = table.known & ~is_followed & (table.segment > 0) & (table["tokens"] > 0) & (table["status"] == _ABORTED)
    if not lone.any():
        return gone
    # every row's first row in its put
    order = np.lexsort((table.segment, table["rollout_id"], table.put_event))
    head = np.empty(table.rows, dtype=np.int64)
    head[order] = np.maximum.accumulate(np.where(table.segment[order] == 0, np.arange(table.rows), 0))
    head = order[head]
    tokens = np.where(table.known, table["tokens"], 0)
    whole = np.bincount(head, tokens, minlength=table.rows).astype(np.int64)
    left = np.bincount(head[lone], tokens[lone], minlength=table.rows).astype(np.int64)
    heads = np.flatnonzero(table.is_put & (table.segment == 0) & (table.previous >= 0))
    then = table.previous[heads]
    gone[heads] = np.minimum(left[then], np.maximum(whole[then] - whole[heads], 0))
    return gone


def _too_old(case: Case, before: Int64s) -> Bools:
    """Rows whose put before is too old for the config at their step: it began again because it had expired."""
    table = case.table
    too_old = np.zeros(table.rows, dtype=np.bool_)
    if case.config is None:
        return too_old
    for code, task in enumerate(table.tasks):
        own = table["task"] == code
        oldest, newest = table["oldest"][before], table["newest"][before]
        too_old |= (
            own & (oldest != ABSENT) & (staleness(oldest, table["train_step"]) >= case.config.stale_threshold(task))
        )
        limit = case.config.token_stale_threshold(task)
        if limit is not None:
            too_old |= own & (newest != ABSENT) & (staleness(newest, table["train_step"]) >= limit)
    return too_old


def _goes_on(case: Case, task: int, again: Bools, lost: Int64s) -> bool:
    """Whether aborted responses of a task go on: as the config says; without one, as most of them do."""
    if case.config is not None:
        return case.config.task_policy(case.table.tasks[task]).enable_partial_rollout
    own = again & (case.table["task"] == task)
    return bool(own.any()) and float((lost[own] == 0).mean()) > 0.5
