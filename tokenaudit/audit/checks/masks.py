"""Checks of semantic masks: their form, and what they train."""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.case import Case, Check, add_checked, add_rows, plural
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.rule import Rule
from tokenaudit.audit.scan import PAD_RUN
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools
from tokenaudit.log.digest import STATUS_CODE

_COMPLETED = STATUS_CODE[Status.COMPLETED]


def _length(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    lengths, tokens = table["mask_len"], table["tokens"]
    told = table.known & (lengths >= 0)

    def message(row: int) -> str:
        text = f"{plural(int(lengths[row]), 'mask value')} for {plural(int(tokens[row]), 'token')}"
        if lengths[row] < tokens[row]:
            text += f"; the last {tokens[row] - lengths[row]} have no verdict"
        return text

    add_rows(case, rule, findings, told & (lengths != tokens), message)
    add_checked(rule, findings, int(told.sum()))


def _not_binary(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    add_rows(case, rule, findings, table.is_put & table["mask_null"], lambda _: "response_mask holds a null")
    odd = table.is_put & table["mask_odd"]
    add_rows(case, rule, findings, odd, lambda _: "response_mask holds something else than 0 and 1")
    add_checked(rule, findings, int((table.is_put & (table["mask_len"] >= 0)).sum()))


def _retracted(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    rows = np.flatnonzero((table.previous >= 0) & table.known & (table["prior_len"] > 0))
    before = table.previous[rows]
    kept = table["prior_len"][rows] == table["tokens"][before]
    rows, before = rows[kept], before[kept]
    add_checked(rule, findings, len(rows), "puts of a response seen before")
    trainable_now = np.where(table["mask_len"][rows] < 0, table["prior_len"][rows], table["prior_ones"][rows])
    trainable_then = np.where(table["mask_len"][before] < 0, table["tokens"][before], table["mask_ones"][before])
    fell = trainable_now < trainable_then
    rows, before, now = rows[fell], before[fell], trainable_now[fell]
    fresh = case.readable.fresh_trainable(before, table["train_step"][rows])
    lost = np.zeros(table.rows, dtype=np.int64)
    lost[rows] = np.maximum(fresh - now, 0)
    put = table.put_number[np.maximum(table.previous, 0)]
    add_rows(
        case, rule, findings, lost > 0,
        lambda row: f"{plural(int(lost[row]), 'fresh token')} trainable at put {put[row]} and masked now",
    )  # fmt: skip


def fully_masked(case: Case) -> Bools:
    """Put rows with tokens whose semantic mask is all zero."""
    table = case.table
    return table.known & (table["tokens"] > 0) & (table["mask_len"] == table["tokens"]) & (table["mask_ones"] == 0)


def _fully_masked(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    done = table["status"] == _COMPLETED

    def message(row: int) -> str:
        reason = table.reasons[int(table["finish_reason"][row])]
        ended = f", finish_reason {reason}" if reason else ""
        return f"none of {plural(int(table['tokens'][row]), 'token')} is trainable{ended}"

    add_rows(case, rule, findings, done & fully_masked(case), message)
    add_checked(rule, findings, int((table.known & done).sum()))


def _padding(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    run, trained, pad = table["tail_run"], table["tail_trained"], table["tail_id"]
    where = table.is_put & (run >= PAD_RUN) & (trained >= PAD_RUN) & (run < table["tokens"])
    add_rows(
        case, rule, findings, where,
        lambda row: f"the response ends in {run[row]} times the id {pad[row]}, {trained[row]} of them trainable",
    )  # fmt: skip
    add_checked(rule, findings, int((table.is_put & (table["ids_len"] >= 0)).sum()))


def _observation(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    tokens, turns = table["tokens"], table["tool_turns"]
    told = table.known & (turns > 0) & (tokens > 0)
    unmasked = (table["mask_len"] < 0) | (table["mask_ones"] == tokens)
    add_rows(
        case, rule, findings, told & unmasked,
        lambda row: f"{plural(int(turns[row]), 'tool turn')} and all {tokens[row]} tokens trainable",
    )  # fmt: skip
    add_checked(rule, findings, int(told.sum()))


def _trained_length(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    lengths, tokens = table["trained_mask_len"], table["tokens"]
    told = table.known & (lengths >= 0)
    add_rows(
        case, rule, findings, told & (lengths != tokens),
        lambda row: f"{plural(int(lengths[row]), 'mask value')} for {plural(int(tokens[row]), 'token')}",
    )  # fmt: skip
    add_checked(rule, findings, int(told.sum()))
    for subject, entries, expected in case.trained.misfits if case.trained else ():
        findings.add(rule, subject, f"{plural(entries, 'mask value')} for {plural(expected, 'token')} at the take")


CHECKS: dict[str, Check] = {
    "mask-length-mismatch": _length,
    "mask-not-binary": _not_binary,
    "mask-retracted": _retracted,
    "fully-masked-row": _fully_masked,
    "padding-trained": _padding,
    "observation-tokens-trained": _observation,
    "trained-mask-length": _trained_length,
}
