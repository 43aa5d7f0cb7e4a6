"""Checks of how responses end: what they say about it against their last token and their length."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.audit.table import LogTable
from tokenaudit.contracts.errors import printable
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import STATUS_CODE

END_ROWS = 20
"""Rows that say stop without which their last ids say nothing."""
END_SHARE = 0.8
"""Share of the rows that say stop that end in one id, so that it is surely the id of the end."""
LIKELY_END_SHARE = 0.25
"""Share from which on an id is likely the end, if hardly any row holds it before: so many others may be cut off."""
OTHER_END_SHARE = 0.02
"""Share from which on another last id is an end too, such as a second end token; cut-off responses end anywhere."""
FURTHER_END_ROWS, MOST_FURTHER_ENDS = 5, 2
"""Rows that end in a rarer end token, and how many of these there may be beside the usual one; more are words."""
INSIDE_SHARE = 0.1
"""Share of the rows with the commonest last id that also hold it before: above it, the id is a word, not an end."""
LIKELY_INSIDE_SHARE = 0.01
"""The same for an id that is only likely the end."""
PILE_ROWS = 10
"""Rows that pile up at one sum of prompt and response, at least."""
PILE_SHARE = 0.02
"""Share of the rows that say stop that pile up there, at least."""
PILE_FACTOR = 5
"""How many times more rows end there than at a sum nearby."""
PILE_NEARBY = 10
"""Sums to each side that are nearby, and others that there are at least where all prompts have one length."""
PILE_MOST_OF_ONE = 0.7
"""Share of a pile that one prompt length, or group, may have."""
CUT_ROWS = 3
"""Rows that were cut off below which nothing is said of them: one may be a second end token, or no limit."""
LIMIT_SHARE = 0.9
"""Share of uninterrupted rows cut at their length that have the same one, where it alone is limited."""

_COMPLETED = STATUS_CODE[Status.COMPLETED]


def reason_codes(table: LogTable, says: Callable[[str], object]) -> Int64s:
    """Codes of the finish reasons of which `says` holds, in small letters."""
    return np.array([n for n, text in enumerate(table.reasons) if text is not None and says(text.lower())], np.int64)


def says_stop(table: LogTable) -> Bools:
    """Rows whose finish reason says that the response ended by itself."""
    codes = reason_codes(table, re.compile(r"stop|\beos\b|\beos_|end_of|end_turn").search)
    return np.isin(table["finish_reason"], codes)


def says_length(table: LogTable) -> Bools:
    """Rows whose finish reason says that the response was cut at its length."""
    return np.isin(table["finish_reason"], reason_codes(table, re.compile("len|max_?tokens|trunc").search))


def newly_completed(table: LogTable) -> Bools:
    """Put rows of completed responses, each at the first put that has it so: members wait for their group."""
    completed = table.known & (table["status"] == _COMPLETED)
    before = np.maximum(table.previous, 0)
    same = completed[before] & (table["tokens"][before] == table["tokens"]) & (table.previous >= 0)
    return completed & ~same


@rule("E001", "completed-but-aborted", Severity.ERROR,
      "A response counts as completed, yet its finish reason says that it was aborted, cancelled or failed.",
      "Give it the status aborted or failed, so that it goes on or is left out; don't reward half an answer.",
      "finish_reason")  # fmt: skip
def _completed_but_aborted(case: Case, findings: Findings) -> None:
    table = case.table
    done = newly_completed(table)
    findings.add_checked(int(done.sum()), "completed responses")
    codes = reason_codes(table, re.compile("abort|cancel|error").search)

    def message(rows: Int64s) -> str:
        names = sorted({printable(table.reasons[code] or "")[:40] for code in np.unique(table["finish_reason"][rows])})
        return f"completed, though finish_reason is {', '.join(names[:3])}"

    findings.add_extent(done & np.isin(table["finish_reason"], codes), message)


@rule("E002", "cut-called-stop", Severity.ERROR,
      "Nearly all responses that say stop end in one token id, and some end in others: they were cut off. A warning "
      "where less than 80 % end in it.",
      "Record why generation ended, as the engine says it; responses that a sync cut off are aborted.",
      "finish_reason", "response_ids")  # fmt: skip
def _cut_called_stop(case: Case, findings: Findings) -> None:
    """Against the id that at least `END_SHARE` of a task's responses end in, if it is no id that they hold before."""
    table = case.table
    stopped = newly_completed(table) & says_stop(table) & table["ids_whole"].astype(np.bool_)
    stopped &= (table["ids_len"] == table["tokens"]) & (table["tokens"] > 0)
    findings.add_checked(int(stopped.sum()), "responses that say stop")
    for _, rows in table.puts_by_task(np.flatnonzero(stopped)):
        last = table["ids_last"][rows]
        ends, counts = np.unique(last, return_counts=True)
        end = int(ends[counts.argmax()])
        share = counts.max() / len(rows)
        if len(rows) < END_ROWS or share < LIKELY_END_SHARE:
            continue
        # In several turns it also ends those before.
        of_one_turn = rows[(last == end) & ((table["mask_len"][rows] < 0) | _all_trained(table)[rows])]
        most_inside = INSIDE_SHARE if share >= END_SHARE else LIKELY_INSIDE_SHARE
        if len(of_one_turn) and table["ids_last_before"][of_one_turn].mean() > most_inside:
            continue
        others = ends[(counts < max(OTHER_END_SHARE * len(rows), 2)) & ~_further_ends(table, rows, ends)]
        cut = rows[np.isin(last, others)]
        if len(cut) >= CUT_ROWS and len(others) > 1:
            text = f"{100 * share:.1f} % of {len(rows):,} responses that say stop end in the id {end}, these in others"
            level = Severity.ERROR if share >= END_SHARE else Severity.WARNING
            findings.add_extent(cut, f"{text}: cut off, but called stop", level)


def _further_ends(table: LogTable, rows: Int64s, ends: Int64s) -> Bools:
    """Which of the last ids are rare ends: a few that several rows end in, and that none of these holds before."""
    index = np.searchsorted(ends, table["ids_last"][rows])
    before = np.bincount(index, table["ids_last_before"][rows], minlength=len(ends))
    is_end = (np.bincount(index, minlength=len(ends)) >= FURTHER_END_ROWS) & (before == 0)
    return is_end if np.count_nonzero(is_end) <= MOST_FURTHER_ENDS + 1 else np.zeros(len(ends), dtype=np.bool_)


def _all_trained(table: LogTable) -> Bools:
    return table["mask_ones"] == table["tokens"]


@rule("E003", "limit-called-stop", Severity.WARNING,
      "Many responses that say stop have exactly the same sum of prompt and response: a limit of the context cut them.",
      "Record finish_reason length for them, or shorten prompts and max_new_tokens so that both fit the context.",
      "finish_reason", "prompt_len")  # fmt: skip
def _limit_called_stop(case: Case, findings: Findings) -> None:
    """Sums that stand out among those nearby."""
    table = case.table
    stopped = newly_completed(table) & says_stop(table) & (table["prompt_len"] > 0) & (table["tokens"] > 0)
    findings.add_checked(int(stopped.sum()), "responses that say stop")
    for _, rows in table.puts_by_task(np.flatnonzero(stopped)):
        total = table["prompt_len"][rows] + table["tokens"][rows]
        sums, counts = np.unique(total, return_counts=True)
        before = np.append(0, np.cumsum(counts))
        low, high = np.searchsorted(sums, sums - PILE_NEARBY), np.searchsorted(sums, sums + PILE_NEARBY, "right")
        nearby = (before[high] - before[low] - counts) / (2 * PILE_NEARBY)
        piled = counts >= np.maximum(max(PILE_ROWS, PILE_SHARE * len(rows)), PILE_FACTOR * np.maximum(nearby, 1))
        limits = [limit for limit in sums[piled].tolist() if _is_of_many(table, rows, total == limit)]
        if table["prompt_len"][rows].min() == table["prompt_len"][rows].max():
            # answers of a fixed form have one length without any limit
            limits = [limit for limit in limits if limit == sums[-1] and len(sums) > PILE_NEARBY]
        if limits:
            own = rows[np.isin(total, limits)]
            share = f"{100 * len(own) / len(rows):.1f} % of {len(rows):,} responses that say stop"
            named = " or ".join(f"{limit:,}" for limit in limits[:3]) + (" or …" if len(limits) > 3 else "")
            findings.add_extent(own, f"{share} have exactly {named} tokens with their prompt, far more than nearby")


def _is_of_many(table: LogTable, rows: Int64s, piled: Bools) -> bool:
    """Whether a pile of some rows has answers to many prompts: those to one are alike without any limit.

    Prompts are told apart by their lengths, and by groups where all have one.
    """
    prompt = table["prompt_len"][rows]
    which = table["group_id"][rows] if prompt.min() == prompt.max() else prompt
    return bool(np.unique(which[piled], return_counts=True)[1].max() <= PILE_MOST_OF_ONE * np.count_nonzero(piled))


@rule("E004", "over-budget", Severity.WARNING,
      "Responses that went on after an interruption are longer than any uninterrupted one that was cut at its length.",
      "Take what a response already has off max_new_tokens when it goes on.",
      "finish_reason", "prior_len|response_ids|response_model_steps", Fact.READABLE)  # fmt: skip
def _over_budget(case: Case, findings: Findings) -> None:
    """Where cut ones differ in length, also longer with the prompt: that may be what is limited.

    Responses with tool output are left out: whether it counts isn't known.
    """
    table = case.table
    done = newly_completed(table) & (table["tool_turns"] <= 0) & ((table["mask_len"] < 0) | _all_trained(table))
    kept = case.readable.kept()
    cut = done & (kept == 0) & (table.previous < 0) & says_length(table)
    went_on = done & (kept > 0) & (kept < table["tokens"])
    findings.add_checked(int(went_on.sum()), "responses that went on")
    tokens = table["tokens"]
    total = tokens + np.maximum(table["prompt_len"], 0)
    for _, rows in table.puts_by_task(np.flatnonzero(went_on)):
        of_task = np.flatnonzero(cut & (table["task"] == table["task"][rows[0]]))
        if len(of_task) < CUT_ROWS:
            continue
        limit = int(tokens[of_task].max())
        over = rows[tokens[rows] > limit]
        if (tokens[of_task] == limit).mean() < LIMIT_SHARE:
            over = over[total[over] > total[of_task].max()]
        if len(over):
            longest = int(tokens[over].max())
            text = f"up to {longest:,} tokens after an interruption, while {len(of_task):,} responses without one were"
            findings.add_extent(over, f"{text} cut at {limit:,} or less")
