"""Checks of log-probabilities: those of the engine against those of the trainer, and values that only fill a place."""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.engine import Fault
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.rule import Severity, rule
from tokenaudit.audit.table import LogTable
from tokenaudit.corrections.logprobs import BOTH
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools
from tokenaudit.log.digest import STATUS_CODE

_COMPLETED = STATUS_CODE[Status.COMPLETED]
_PLACE_SHARE, _PLACE_TIMES = 0.05, 10
"""Share of zeros at a place, and how many times that of all other tokens, from which on they aren't chance."""
_LEAST_ZEROS = 5
"""Zeros at a place, from which on its share is looked at."""
_LEAST_STAND_INS = 5


def _add_faults_of_engine(case: Case, findings: Findings, kind: Fault, checked: str) -> None:
    """Add what was found of one kind; `checked` is the field of `EngineVerdict` that says how much was looked at."""
    verdict = case.engine
    if verdict is None:
        return
    findings.add_checked(getattr(verdict, checked), "tokens of tasks that have enough")
    for fault in verdict.faults:
        if fault.kind is kind:
            findings.add_extent(fault.rows, fault.text)


@rule("P001", "logprobs-copied", Severity.ERROR,
      "Both log-probabilities of tokens made under older weights are the same, so one column is a copy of the other.",
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
      "Over fresh tokens, the mean ratio of trainer to engine isn't 1, as it is between equal weights.",
      "Record the log-probability of the sampled token under the whole distribution, at temperature 1; check the sync.",
      *BOTH)  # fmt: skip
def _engine_ratio_off(case: Case, findings: Findings) -> None:
    _add_faults_of_engine(case, findings, Fault.RATIO, "fresh")


_PLACES = {
    "last": "the last token of completed responses",
    "first": "the first token behind masked ones",
    "end": "the last token before masked ones",
}
_PLACE_CAUSES = {
    "last": "an end token that was appended has no log-probability of the engine",
    "first": "the mask seems to begin a token too early",
    "end": "the mask seems to end a token too late",
}


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
    for task in range(len(table.tasks)):
        for place, what in _PLACES.items():
            own = counted & (table["task"] == task) & (done if place == "last" else True)
            found = {name: _zeros_at(table, name, own, place) for name in BOTH}
            texts = [f"{name} in {text}" for name, (_, text) in found.items() if text]
            if texts:
                rows = np.logical_or.reduce([where for where, text in found.values() if text])
                text = f"log-probabilities are exactly 0 at {what} ({', '.join(texts)}): {_PLACE_CAUSES[place]}"
                findings.add_extent(rows, text, cause=place)


def _zeros_at(table: LogTable, name: str, rows: Bools, place: str) -> tuple[Bools, str]:
    """Rows with zeros of a column at a place, and how many places these are; no text where that is as elsewhere."""
    zeros, edges = table[f"{name}_zero_{place}"], ("edges_first", "edges_end")
    if f"{name}_len" not in table:
        return np.zeros(table.rows, dtype=np.bool_), ""
    rows = rows & (table[f"{name}_len"] == table["tokens"])
    trained = np.where(table["mask_len"] >= 0, table["mask_ones"], table["tokens"])[rows]
    inside = int(trained.sum() - len(trained) - sum(table[name][rows].sum() for name in edges))
    at_places = sum(table[f"{name}_zero_{one}"][rows].sum() for one in _PLACES)
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
    pairs, inverse = np.unique(np.stack([table["task"][where], table["ids_last"][where]]), axis=1, return_inverse=True)
    rows = np.flatnonzero(where)
    for number, token_id in enumerate(pairs[1].tolist()):
        own = rows[inverse.reshape(-1) == number]
        if len(np.unique(table["rollout_id"][own])) >= _LEAST_STAND_INS:
            text = f"completed with the one token {token_id} and a log-probability of exactly 0: no engine returned it"
            findings.add_extent(own, f"{text}, it stands in for a response", cause=f"id {token_id}")
