"""Checks of semantic masks: their form, and what they train."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tokenaudit.audit.case import Case, add_faults
from tokenaudit.audit.checks.ends import says_length, says_stop
from tokenaudit.audit.contents import PAD_RUN
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.contracts.errors import plural
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import STATUS_CODE
from tokenaudit.log.structural_checks import MASK_LENGTH, NULL_IN_MASK

PAD_ROWS = 5
"""Rows that say stop and end in a run of one id, from which on it is padding, at least."""
PAD_SHARE = 0.01
"""Share of the rows that say stop that those are, at least."""

_COMPLETED = STATUS_CODE[Status.COMPLETED]
_LOST_SHARE = 0.5
"""Share of the fresh trainable tokens that a trainer may leave out on purpose."""


@rule("M001", "mask-length-mismatch", Severity.ERROR,
      "The mask isn't as long as the response.",
      "Extend the mask with every token that is added; leave it null when all tokens are trained.",
      "response_mask")  # fmt: skip
def _mask_length_mismatch(case: Case, findings: Findings) -> None:
    table = case.table
    lengths, tokens = table["mask_len"], table["tokens"]
    checked = table.known & (lengths >= 0)

    def message(row: int) -> str:
        text = f"{plural(int(lengths[row]), 'mask value')} for {plural(int(tokens[row]), 'token')}"
        if lengths[row] < tokens[row]:
            text += f"; the last {tokens[row] - lengths[row]} have no verdict"
        return text

    findings.add_rows(table.subject, MASK_LENGTH.where(table), message)
    findings.add_checked(int(checked.sum()))


@rule("M002", "mask-not-binary", Severity.ERROR,
      "A mask holds something else than 0 and 1.",
      "Record 0 or 1, or bools; weights belong elsewhere.",
      "response_mask")  # fmt: skip
def _mask_not_binary(case: Case, findings: Findings) -> None:
    table = case.table
    add_faults(case, findings, NULL_IN_MASK)
    odd = table.is_put & table["mask_odd"]
    findings.add_rows(table.subject, odd, lambda _: "response_mask holds something else than 0 and 1")
    findings.add_checked(int((table.is_put & (table["mask_len"] >= 0)).sum()))


def fully_masked(case: Case) -> Bools:
    """Put rows with tokens whose semantic mask is all zero."""
    table = case.table
    return table.known & (table["tokens"] > 0) & (table["mask_len"] == table["tokens"]) & (table["mask_ones"] == 0)


def masked_for_length(case: Case) -> Bools:
    """Completed put rows that are fully masked because they were cut at their length: where all of them say so."""
    done = (case.table["status"] == _COMPLETED) & fully_masked(case)
    return done & bool(says_length(case.table)[done].all())


@rule("M004", "fully-masked-row", Severity.WARNING,
      "No token of a completed response is trainable, yet it fills a place. "
      "One line of information where all such responses were cut at their length: that is meant.",
      "Find what set the whole mask to 0; drop the response if that is meant.",
      "response_mask|response_version_runs")  # fmt: skip
def _fully_masked_row(case: Case, findings: Findings) -> None:
    table = case.table
    done = table["status"] == _COMPLETED
    findings.add_checked(int((table.known & done).sum()))
    for_length = masked_for_length(case)
    if for_length.any():
        findings.add_extent(for_length, "responses cut at their length are fully masked, no others", Severity.INFO)
        return

    def message(row: int) -> str:
        reason = table.reasons[int(table["finish_reason"][row])]
        ended = f", finish_reason {reason}" if reason else ""
        return f"none of {plural(int(table['tokens'][row]), 'token')} is trainable{ended}"

    findings.add_rows(table.subject, done & fully_masked(case), message)


@rule("M005", "padding-trained", Severity.ERROR,
      "A response ends in a run of one token id that wasn't sampled, and the run is trained.",
      "Cut padding off before recording, or mask it.",
      "response_ids")  # fmt: skip
def _padding_trained(case: Case, findings: Findings) -> None:
    """Not sampled: log-probability 0 or none; a model that loops has others, up to the limit of the length.

    What says stop can't have looped to the end: one id at the end of many such rows is padding whatever else is there.
    """
    table = case.table
    run, trained, pad = table["tail_run"], table["tail_trained"], table["tail_id"]
    ends_in_run = table.is_put & (run >= PAD_RUN) & (trained >= PAD_RUN) & (run < table["tokens"])
    stops = says_stop(table)
    usual = np.zeros(table.rows, dtype=np.bool_)
    for _, rows in table.puts_by_task(np.flatnonzero(ends_in_run)):
        of_task = stops & table.is_put & (table["task"] == table["task"][rows[0]])
        index = np.unique(pad[rows], return_inverse=True)[1]
        usual[rows] = (np.bincount(index, stops[rows]) >= max(PAD_ROWS, PAD_SHARE * np.count_nonzero(of_task)))[index]
    # The first of several end tokens is sampled, the others fill up.
    not_sampled = (table["tail_sampled"] <= 1) & (run - table["tail_sampled"] >= PAD_RUN)
    looped = says_length(table) & (table["logprobs_len"] != table["tokens"])
    where = ends_in_run & (usual | (not_sampled & ~looped))
    findings.add_rows(
        table.subject, where,
        lambda row: f"the response ends in {run[row]} times the id {pad[row]}, {trained[row]} of them trainable",
    )  # fmt: skip
    findings.add_checked(int((table.is_put & (table["ids_len"] >= 0)).sum()))


@rule("M006", "observation-tokens-trained", Severity.WARNING,
      "A response with tool calls has no mask or one of all ones, so tool output is trained.",
      "Mask what the environment wrote.",
      "tool_turns")  # fmt: skip
def _observation_tokens_trained(case: Case, findings: Findings) -> None:
    """One call may be the last thing of an episode, without output: where others mask theirs, one is no evidence.

    Where a rollout has several rows, the output is in the prompt of the next one.
    """
    table = case.table
    tokens, turns = table["tokens"], table["tool_turns"]
    checked = table.known & (turns > 0) & (tokens > 0) & ~table.is_split
    unmasked = checked & ((table["mask_len"] < 0) | (table["mask_ones"] == tokens))
    for _, rows in table.puts_by_task(np.flatnonzero(checked)):
        several = rows[turns[rows] > 1]
        evidence = several if len(several) else rows
        if 2 * np.count_nonzero(unmasked[evidence]) < len(evidence):
            unmasked[rows[turns[rows] == 1]] = False
    findings.add_rows(
        table.subject, unmasked,
        lambda row: f"{plural(int(turns[row]), 'tool turn')} and all {tokens[row]} tokens trainable",
    )  # fmt: skip
    findings.add_checked(int(checked.sum()))


@rule("M007", "trained-mask-length", Severity.ERROR,
      "The mask the trainer used isn't as long as the response.",
      "Record it per response token, before padding.",
      "trained_mask")  # fmt: skip
def _trained_mask_length(case: Case, findings: Findings) -> None:
    table = case.table
    lengths, tokens = table["trained_mask_len"], table["tokens"]
    checked = table.known & (lengths >= 0)
    findings.add_rows(
        table.subject, checked & (lengths != tokens),
        lambda row: f"{plural(int(lengths[row]), 'mask value')} for {plural(int(tokens[row]), 'token')}",
    )  # fmt: skip
    findings.add_checked(int(checked.sum()))
    texts = {
        misfit.row: f"{plural(misfit.mask_values, 'mask value')} for {plural(misfit.tokens, 'token')} at the take"
        for misfit in case.trained.misfits
    }
    findings.add_texts(table.subject, texts, cause="take")


@rule("M008", "trained-mask-mismatch", Severity.ERROR,
      "The trainer's mask keeps tokens out of the loss; a warning where it only leaves fresh ones out, up to half.",
      "Train on semantic mask AND fresh, computed at the step of the take; record other masks elsewhere.",
      "trained_mask", Fact.TAKES)  # fmt: skip
def _trained_mask_mismatch(case: Case, findings: Findings) -> None:
    findings.add_checked(case.trained.responses, "masks at the take")
    extra, lost, step = Counter[int](), Counter[int](), dict[int, int]()
    for response in case.trained.wrong:
        step[response.row] = response.train_step
        extra[response.row] += sum(run.extra for run in response.wrong)
        lost[response.row] += sum(run.trainable - run.trained for run in response.wrong if not run.is_stale)

    def message(row: int) -> str:
        return f"{plural(extra[row], 'token')} trained that the semantic mask leaves out at step {step[row]}"

    findings.add_rows(case.table.subject, _rows_with(extra), message, cause="more")
    for task, rows in case.table.puts_by_task(_rows_with(lost)):
        tokens, fresh = sum(lost[row] for row in rows.tolist()), case.trained.fresh[task]
        share = tokens / fresh
        text = f"{tokens:,} of {fresh:,} fresh trainable tokens ({100 * share:.2g} %) not trained"
        level = Severity.WARNING if share <= _LOST_SHARE else None
        findings.add_extent(rows, f"{text}: a mask of ratios, or one of another step", level, cause="less")


def _rows_with(tokens: Counter[int]) -> Int64s:
    return np.array(sorted(row for row, count in tokens.items() if count), dtype=np.int64)


@rule("L001", "stale-token-trained", Severity.ERROR,
      "The trainer's mask keeps tokens that the token rule masks.",
      "Compute the mask at the step of the take.",
      "trained_mask", Fact.TAKES, Fact.TOKEN_RULE)  # fmt: skip
def _stale_token_trained(case: Case, findings: Findings) -> None:
    findings.add_checked(case.trained.responses, "masks at the take")
    texts: dict[int, str] = {}
    for response in case.trained.wrong:
        stale = [run for run in response.wrong if run.is_stale and run.trained]
        if stale:
            ages = [run.age for run in stale]
            age = f"{min(ages)} to {max(ages)}" if min(ages) < max(ages) else f"{ages[0]}"
            tokens = plural(sum(run.trained for run in stale), "token")
            where = f"at step {response.train_step}, token limit {response.limit}"
            texts[response.row] = f"{tokens} of staleness {age} trained {where}"
    findings.add_texts(case.table.subject, texts)
