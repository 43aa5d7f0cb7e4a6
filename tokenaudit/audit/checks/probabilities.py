"""Checks of log-probabilities: those of the engine against those of the trainer, and values that only fill a place."""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.engine import Fault
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.logprobs import SURE_LOGPROB
from tokenaudit.audit.rule import Severity, rule
from tokenaudit.audit.table import LogTable
from tokenaudit.corrections.logprobs import BOTH
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import STATUS_CODE

_COMPLETED, _ABORTED = STATUS_CODE[Status.COMPLETED], STATUS_CODE[Status.ABORTED]
_PLACE_SHARE, _PLACE_TIMES = 0.05, 10
"""Share of zeros at a place, and how many times that of all other tokens, from which on they aren't chance."""
_ZEROS_TIMES = 1.1
"""Chance in how many zeros a mean ratio comes to."""
_LEAST_ZEROS = 5
"""Zeros at a place, from which on its share is looked at."""
_LEAST_STAND_INS = 5
_SURE_SHARE = 0.1
"""Sure tokens, as values near 0 show them, per zero that both sides have, from which on these are sure too."""


def _add_faults_of_engine(case: Case, findings: Findings, kind: Fault, checked: str) -> None:
    """Add what was found of one kind; `checked` is the field of `EngineVerdict` that says how much was looked at."""
    verdict = case.engine
    if verdict is None:
        return
    findings.add_checked(getattr(verdict, checked), "tokens of tasks that have enough")
    for fault in verdict.faults:
        if fault.kind is kind:
            is_sure = fault.is_sure and fault.zeros > _ZEROS_TIMES * _edge_zeros(case.table, fault.rows)
            findings.add_extent(fault.rows, fault.text, None if is_sure else Severity.WARNING)


def _edge_zeros(table: LogTable, rows: Int64s) -> int:
    """Tokens at edges of the mask for which the engine has exactly 0: P006 reports a mask that takes them in."""
    names = ("logprobs_zero_first", "logprobs_zero_end")
    return sum(int(table[name][rows].sum()) for name in names if name in table)


@rule("P001", "logprobs-copied", Severity.ERROR,
      "Both log-probabilities of tokens made under older weights are the same, so one column is a copy of the other; a "
      "warning where these only grew old after their put.",
      "Record what the trainer computes under the weights of the step, before its first update.",
      *BOTH)  # fmt: skip
def _logprobs_copied(case: Case, findings: Findings) -> None:
    _add_faults_of_engine(case, findings, Fault.COPIED, "aged")


@rule("P002", "logprobs-shifted", Severity.ERROR,
      "The trainer's log-probabilities go with the engine's of the token beside: they are shifted by one.",
      "Logits at a position are those of the token behind it: cut both columns to the same response tokens.",
      *BOTH)  # fmt: skip
def _logprobs_shifted(case: Case, findings: Findings) -> None:
    _add_faults_of_engine(case, findings, Fault.SHIFTED, "tokens")


@rule("P003", "engine-drifts", Severity.ERROR,
      "Over the run, log-probabilities of fresh tokens come to differ at least fourfold between engine and trainer.",
      "Check that every sync sends all weights, and that the engine loads them before it names the new version.",
      *BOTH)  # fmt: skip
def _engine_drifts(case: Case, findings: Findings) -> None:
    _add_faults_of_engine(case, findings, Fault.GROWN, "fresh")


@rule("P004", "engine-rows-off", Severity.ERROR,
      "In a small share of the rows, fresh tokens differ eight times as much between engine and trainer as in others.",
      "Look for one engine of several that was left out of a sync, by what the finding says these rows share.",
      *BOTH)  # fmt: skip
def _engine_rows_off(case: Case, findings: Findings) -> None:
    _add_faults_of_engine(case, findings, Fault.OUTLYING, "fresh")


@rule("P005", "engine-ratio-off", Severity.ERROR,
      "Over fresh tokens, the mean ratio of trainer to engine isn't 1, as it is between equal weights; a warning where "
      "zeros at edges of the mask explain it.",
      "Record the log-probability of the sampled token under the whole distribution, at temperature 1; check the sync.",
      *BOTH)  # fmt: skip
def _engine_ratio_off(case: Case, findings: Findings) -> None:
    _add_faults_of_engine(case, findings, Fault.RATIO, "fresh")


_APPENDED = "an end token that was appended has no log-probability of the engine"
_PLACES = (
    ("last", _COMPLETED, "the last token of completed responses", _APPENDED),
    ("last", _ABORTED, "the last token of aborted responses without masked tokens", _APPENDED),
    ("first", None, "the first token behind masked ones", "the mask seems to begin a token too early"),
    ("end", None, "the last token before masked ones", "the mask seems to end a token too late"),
)
"""Places, the status of the rows whose places are looked at, what they are, and what zeros there come from."""


@rule("P006", "logprob-zero-by-place", Severity.WARNING,
      "Log-probabilities are exactly 0 at the end of responses or at edges of the mask, far more often than elsewhere.",
      "Mask tokens that were appended, and align the mask with what the model wrote.",
      "|".join(BOTH))  # fmt: skip
def _logprob_zero_by_place(case: Case, findings: Findings) -> None:
    table = case.table
    done = table.known & (table["status"] == _COMPLETED) & (table["tokens"] > 1)
    findings.add_checked(int(done.sum()))
    # those of one token are P007's
    counted = table.known & (table["tokens"] > 1)
    for fault in case.engine.faults if case.engine else ():
        if fault.kind is Fault.SHIFTED:
            counted[fault.rows] = False
    # what is aborted within tool output has zeros at its end where the mask is shifted
    masked = (table["mask_len"] >= 0) & (table["mask_ones"] < table["tokens"])
    for task in range(len(table.tasks)):
        for place, status, what, reason in _PLACES:
            own = counted & (table["task"] == task) & (status is None or table["status"] == status)
            own &= ~masked if status == _ABORTED else True
            found = {name: _zeros_at(table, name, own, place) for name in BOTH}
            texts = [f"{name} in {text}" for name, (_, text) in found.items() if text]
            if texts:
                rows = np.logical_or.reduce([where for where, text in found.values() if text])
                text = f"log-probabilities are exactly 0 at {what} ({', '.join(texts)}): {reason}"
                findings.add_extent(rows, text, cause=place if status in (None, _COMPLETED) else f"{place}, aborted")


def _zeros_at(table: LogTable, name: str, rows: Bools, place: str) -> tuple[Bools, str]:
    """Rows with zeros of a column at a place, and how many places these are; no text where that is as elsewhere.

    Where a model is sure of what stands at a place, rounding makes some of its values exactly 0 and leaves others near
    it: zeros of both sides don't count then.
    """
    edges = ("edges_first", "edges_end")
    if f"{name}_len" not in table:
        return np.zeros(table.rows, dtype=np.bool_), ""
    rows = rows & (table[f"{name}_len"] == table["tokens"])
    zeros, both = table[f"{name}_zero_{place}"], table[f"{name}_both_{place}"]
    sure = sum(int(table[f"{one}_sure_{place}"][rows].sum()) for one in BOTH if f"{one}_len" in table)
    if sure >= _SURE_SHARE * both[rows].sum():
        zeros = zeros - both
    trained = np.where(table["mask_len"] >= 0, table["mask_ones"], table["tokens"])[rows]
    inside = int(trained.sum() - len(trained) - sum(table[name][rows].sum() for name in edges))
    at_places = sum(table[f"{name}_zero_{one}"][rows].sum() for one in ("last", "first", "end"))
    usual = max(int(table[f"{name}_zero"][rows].sum() - at_places), 0) / max(inside, 1)
    count, of = int(zeros[rows].sum()), int(rows.sum() if place == "last" else table[f"edges_{place}"][rows].sum())
    if count < max(_LEAST_ZEROS, _PLACE_SHARE * of, _PLACE_TIMES * usual * of):
        return rows, ""
    return rows & (zeros > 0), f"{count:,} of {of:,} places, and {100 * usual:.2g} % of the tokens elsewhere"


@rule("P007", "stand-in-rows", Severity.ERROR,
      "Completed responses of one token have the same id and a log-probability of exactly 0: they stand in for others.",
      "Leave failed responses out, or put them as failed; a stand-in takes part in the baseline of its group.",
      "logprobs", "response_ids")  # fmt: skip
def _stand_in_rows(case: Case, findings: Findings) -> None:
    table = case.table
    single = table.known & (table["status"] == _COMPLETED) & (table["tokens"] == 1)
    single &= (table["ids_len"] == 1) & table["ids_whole"]
    findings.add_checked(int(single.sum()), "completed responses of one token")
    where = single & (table["logprobs_only_zero"] > 0)
    nearly = single & (table["logprobs_sum"] > SURE_LOGPROB) & (table["logprobs_sum"] < 0)
    for task, rows in table.puts_by_task(np.flatnonzero(where)):
        of_task = table["task"] == table.tasks.index(task)
        found: list[int] = []
        for token_id in np.unique(table["ids_last"][rows]).tolist():
            own = rows[table["ids_last"][rows] == token_id]
            same = nearly & of_task & (table["ids_last"] == token_id)
            # where some are nearly 0, it is an answer that the model is sure of
            is_sure = np.count_nonzero(same) >= _SURE_SHARE * len(own)
            if not is_sure and len(np.unique(table["rollout_id"][own])) >= _LEAST_STAND_INS:
                found.append(token_id)
        if found:
            ids = (
                f"{found[0]}"
                if len(found) == 1
                else f"of {len(found)} ids ({', '.join(map(str, found[:3]))}{', …' if len(found) > 3 else ''})"
            )
            text = f"completed with the one token {ids} and a log-probability of exactly 0: no engine returned it"
            findings.add_extent(rows[np.isin(table["ids_last"][rows], found)], f"{text}, it stands in for a response")
