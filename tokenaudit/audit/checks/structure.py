"""Checks of the files, of rows that replay refuses, and of lists that should be as long as the response."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenaudit.audit.case import Case, add_faults
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.types import Status
from tokenaudit.log import structural_checks as faulty
from tokenaudit.log.columns import ABSENT, Bools
from tokenaudit.log.digest import KIND_CODE, STATUS_CODE
from tokenaudit.log.plausibility import implausible_structures
from tokenaudit.log.row_checks import RowNumbers

_PUT, _SAMPLE = KIND_CODE[EventKind.PUT], KIND_CODE[EventKind.SAMPLE]
_PILE_SHARE = 0.05
_PILE_ROWS = 20


@rule("S001", "nothing-audited", Severity.ERROR,
      "No row could be checked, so there is no verdict.",
      "Name the file or folder that the run wrote, and record at least one put.")  # fmt: skip
def _nothing_audited(case: Case, findings: Findings) -> None:
    findings.add_checked(case.table.rows)
    if not case.table.is_put.any():
        findings.add(Subject(), f"{plural(case.table.rows, 'row')} and no put among them")


@rule("S002", "input-truncated-file", Severity.ERROR,
      "A file of the log can't be read; the others were audited without it.",
      "Copy or write the file again; a file still being written has no footer yet.")  # fmt: skip
@rule("S003", "input-unreadable-column", Severity.WARNING,
      "An optional column of a file can't be decoded and was passed over.",
      "Write the file again, or leave the column out.")  # fmt: skip
@rule("S004", "input-schema-drift", Severity.WARNING,
      "Files of one log differ in columns or types, or a column has a type that can't be used.",
      "Record every file with the same columns and types; integers of any width are unified.")  # fmt: skip
@rule("S005", "input-large-lists", Severity.INFO,
      "A row group holds more list elements than 32-bit offsets can count, which many readers refuse.",
      "Write smaller row groups, or large_list columns.")  # fmt: skip
@rule("S006", "input-row-group-large", Severity.INFO,
      "A row group is so large that other readers need much memory for it.",
      "Write row groups of at most a few million tokens.")  # fmt: skip
@rule("V004", "version-not-integer", Severity.ERROR,
      "The column of versions doesn't hold integers.",
      "Record the number of train steps in the weights, not a label.")  # fmt: skip
def _noted_of_files(case: Case, findings: Findings) -> None:
    """What was noted about the files while they were opened and read."""
    own = [note for note in case.files.notes if note.rule == findings.rule.name]
    for severity in dict.fromkeys(note.severity for note in own):
        of_files = [(Subject(file=note.file), note.message) for note in own if note.severity is severity]
        findings.add_listed(of_files, "file", severity)
    findings.add_checked(case.files.named, "files")


@rule("S007", "unknown-event", Severity.ERROR,
      "The event of a row is none that a log knows.",
      "Events are put, sample, refresh, take and sync.")  # fmt: skip
def _unknown_event(case: Case, findings: Findings) -> None:
    add_faults(case, findings, faulty.UNKNOWN_EVENT)
    findings.add_checked(case.table.rows)


@rule("S008", "unknown-status", Severity.ERROR,
      "The status of a row is none that a response can have.",
      "Statuses are init, completed, aborted, expired, failed and filtered.")  # fmt: skip
def _unknown_status(case: Case, findings: Findings) -> None:
    add_faults(case, findings, faulty.UNKNOWN_STATUS)
    findings.add_checked(int(np.isin(case.table["kind"], (_PUT, _SAMPLE)).sum()))


@rule("S009", "event-order", Severity.ERROR,
      "An event id is smaller than one before it, so the order of events is unclear.",
      "Write rows in the order of events; files are read in name order, so pad part numbers.")  # fmt: skip
def _event_order(case: Case, findings: Findings) -> None:
    ids = case.table["event_id"]
    rows = np.flatnonzero(ids != ABSENT)
    # Where ids begin again, as after a restart, the fall is reported once and not for every row behind it.
    before = np.full(len(ids), ABSENT)
    before[rows[1:]] = ids[rows[:-1]]
    add_faults(case, findings, faulty.EVENT_ID_FALLS, rows=RowNumbers({"event_id": ids, "id_before": before}, {}))
    findings.add_checked(len(ids))


@rule("S010", "event-mixed", Severity.ERROR,
      "Rows of one event differ in kind, step, task or group.",
      "Give every put, sample, refresh, take and sync an event_id of its own.")  # fmt: skip
def _event_mixed(case: Case, findings: Findings) -> None:
    add_faults(case, findings, *faulty.MIXED_EVENT)
    findings.add_checked(int(faulty.same_event(case.table).sum()))


@rule("S011", "value-missing", Severity.ERROR,
      "A value that its event needs is null.",
      "Fill it in when recording.")  # fmt: skip
def _value_missing(case: Case, findings: Findings) -> None:
    add_faults(case, findings, *faulty.VALUES_MISSING)
    findings.add_checked(case.table.rows)


@rule("S012", "value-out-of-range", Severity.ERROR,
      "A step, version, length or size is negative or doesn't fit 32 bits, or an id doesn't fit 63 bits.",
      "Record counts from 0 that fit 32 bits, and ids below 2**63 - 1.")  # fmt: skip
def _value_out_of_range(case: Case, findings: Findings) -> None:
    ranges = (*faulty.SIZES_OUT_OF_RANGE, *faulty.PRIOR_OUT_OF_RANGE)
    add_faults(case, findings, *ranges, *faulty.IDS_TOO_LARGE, faulty.VERSION_TOO_LARGE)
    findings.add_checked(case.table.rows)


@rule("S013", "length-missing", Severity.ERROR,
      "Nothing gives the length of a response.",
      "Give response_len, response_ids or a full response_model_steps.")  # fmt: skip
def _length_missing(case: Case, findings: Findings) -> None:
    add_faults(case, findings, faulty.NO_LENGTH)
    findings.add_checked(int(case.table.is_put.sum()))


@rule("S014", "prior-len-too-long", Severity.ERROR,
      "prior_len is larger than the response; a warning where it is only larger than the response was at the put "
      "before.",
      "prior_len counts the leading tokens of this response that earlier puts produced.")  # fmt: skip
def _prior_len_too_long(case: Case, findings: Findings) -> None:
    table = case.table
    prior, tokens = table["prior_len"], table["tokens"]
    checked = table.known & table.present("prior_len")
    add_faults(case, findings, faulty.PRIOR_TOO_LONG)
    findings.add_checked(int(checked.sum()))
    before = tokens[np.maximum(table.previous, 0)]
    beyond = checked & (prior <= tokens) & (table.previous >= 0) & (prior > before)
    findings.add_rows(
        table.subject, beyond,
        lambda row: f"prior_len is {prior[row]}, but put {table.put_number[table.previous[row]]} had "
        f"{plural(int(before[row]), 'token')}",
        severity=Severity.WARNING,
    )  # fmt: skip


@rule("S015", "logprob-length-mismatch", Severity.ERROR,
      "A list of log-probabilities isn't as long as the response.",
      "Cut and join log-probabilities exactly as the tokens.",
      "logprobs|train_logprobs")  # fmt: skip
def _logprob_length_mismatch(case: Case, findings: Findings) -> None:
    table = case.table
    for name in _checked_logprobs(case, findings, table.known):
        lengths, tokens = table[f"{name}_len"], table["tokens"]

        def message(row: int, name: str = name, lengths: np.ndarray = lengths, tokens: np.ndarray = tokens) -> str:
            return f"{lengths[row]} {name} for {plural(int(tokens[row]), 'token')}"

        findings.add_rows(table.subject, table.known & (lengths >= 0) & (lengths != tokens), message)


def _checked_logprobs(case: Case, findings: Findings, rows: Bools) -> Iterator[str]:
    """Names of the columns of log-probabilities that the log has; those of `rows` that fill them count as checked."""
    for name in ("logprobs", "train_logprobs"):
        if f"{name}_len" in case.table:
            findings.add_checked(int((rows & (case.table[f"{name}_len"] >= 0)).sum()))
            yield name


@rule("S016", "logprob-placeholder", Severity.WARNING,
      "Three or more trainable tokens in a row have a log-probability of exactly 0, which looks like a fill value.",
      "Record what the engine returned; where it returned nothing, mask the tokens.",
      "logprobs|train_logprobs")  # fmt: skip
def _logprob_placeholder(case: Case, findings: Findings) -> None:
    table = case.table
    for name in _checked_logprobs(case, findings, table.is_put):
        zeros = table[f"{name}_zeros"]

        def message(row: int, name: str = name, zeros: np.ndarray = zeros) -> str:
            return f"{zeros[row]} trainable tokens in runs of 3 or more have {name} of exactly 0.0"

        findings.add_rows(table.subject, table.is_put & (zeros > 0), message)


@rule("S017", "logprob-not-finite", Severity.ERROR,
      "A log-probability is null, NaN, infinite or a sentinel; an error where the token is trained, else info.",
      "Mask such tokens, or ask the engine for the value again.",
      "logprobs|train_logprobs")  # fmt: skip
def _logprob_not_finite(case: Case, findings: Findings) -> None:
    table = case.table
    for name in _checked_logprobs(case, findings, table.is_put):
        kinds = {what: table[f"{name}_{what}"] for what in ("null", "nan", "inf", "sentinel")}
        odd = np.sum(list(kinds.values()), axis=0)
        trained = table[f"{name}_odd_trained"]

        def message(row: int, name: str = name, kinds: dict = kinds, trained: np.ndarray = trained) -> str:
            counts = ", ".join(f"{counts[row]} {what}" for what, counts in kinds.items() if counts[row])
            return f"{name} holds {counts}; {trained[row]} of these tokens trainable"

        findings.add_rows(table.subject, table.is_put & (trained > 0), message)
        only_masked = table.is_put & (odd > 0) & (trained == 0)
        findings.add_rows(table.subject, only_masked, message, severity=Severity.INFO)


@rule("S021", "logprob-positive", Severity.ERROR,
      "A log-probability is above 0, so it can't be one.",
      "Record natural log-probabilities, not probabilities, losses or advantages.",
      "logprobs|train_logprobs")  # fmt: skip
def _logprob_positive(case: Case, findings: Findings) -> None:
    table = case.table
    for name in _checked_logprobs(case, findings, table.is_put):
        positive = table[f"{name}_positive"]

        def message(row: int, name: str = name, positive: np.ndarray = positive) -> str:
            return f"{plural(int(positive[row]), 'token')} with {name} above 0"

        findings.add_rows(table.subject, table.is_put & (positive > 0), message)


@rule("S018", "side-length-mismatch", Severity.ERROR,
      "The recorded expert routing doesn't cover prompt and response.",
      "It has prompt_len + response length - 1 entries: cut it like the tokens, and replace it on resume.",
      "experts_len", "prompt_len")  # fmt: skip
def _side_length_mismatch(case: Case, findings: Findings) -> None:
    table = case.table
    experts, expected = table["experts_len"], table["prompt_len"] + table["tokens"] - 1
    checked = table.known & table.present("experts_len") & table.present("prompt_len") & (table["tokens"] > 0)

    def message(row: int) -> str:
        prompt = table["prompt_len"][row]
        text = f"experts_len {experts[row]}, expected {expected[row]} (prompt {prompt} + response - 1)"
        first_round = int(experts[row] - expected[row])
        if 0 < first_round < expected[row]:
            text += f"; {experts[row]} = {first_round} + {expected[row]}: an earlier round may stand in front"
        return text

    findings.add_rows(table.subject, checked & (experts != expected), message)
    findings.add_checked(int(checked.sum()))


@rule("S019", "response-shrank", Severity.ERROR,
      "A response continued from an earlier put lost tokens that it had there.",
      "Look for a length limit of one turn that cuts the joined response.",
      "prior_len")  # fmt: skip
def _response_shrank(case: Case, findings: Findings) -> None:
    table = case.table
    rows = np.flatnonzero(table.previous >= 0)
    before = table.previous[rows]
    tokens, prior = table["tokens"], table["prior_len"]
    shrank = np.zeros(table.rows, dtype=np.bool_)
    # Everything was there before, and less of it: a response rolled again has a prior_len below its length.
    shrank[rows] = (tokens[rows] > 0) & (prior[rows] == tokens[rows]) & (tokens[rows] < tokens[before])
    shrank[rows] &= table["status"][before] != STATUS_CODE[Status.EXPIRED]
    findings.add_rows(
        table.subject, shrank,
        lambda row: f"{tokens[row]} tokens, all from earlier puts, but put {table.put_number[table.previous[row]]} "
        f"had {tokens[table.previous[row]]}",
    )  # fmt: skip
    findings.add_checked(len(rows), "puts of a response seen before")


@rule("S020", "length-pile-up", Severity.WARNING,
      "Many responses have exactly the same greatest length and none says that it was cut off.",
      "Record finish_reason length for responses that were cut off, and check the limit.",
      "finish_reason")  # fmt: skip
def _length_pile_up(case: Case, findings: Findings) -> None:
    table = case.table
    cut = [code for code, reason in enumerate(table.reasons) if reason is not None and "len" in reason.lower()]
    done = table.known & (table["status"] == STATUS_CODE[Status.COMPLETED])
    findings.add_checked(int(done.sum()))
    for code, task in enumerate(table.tasks):
        rows = np.flatnonzero(done & (table["task"] == code))
        if len(rows) == 0:
            continue
        longest = int(table["tokens"][rows].max())
        piled = rows[table["tokens"][rows] == longest]
        if len(piled) < _PILE_ROWS or len(piled) < _PILE_SHARE * len(rows):
            continue
        if not np.isin(table["finish_reason"][piled], cut).any():
            share = f"{100 * len(piled) / len(rows):.0f} % of responses ({len(piled)} of {len(rows)})"
            findings.add(Subject(task), f"{share} have exactly {longest} tokens and none says that it was cut off")


@rule("S022", "structure-implausible", Severity.ERROR,
      "The log as a whole says what can't be meant, such as a put of its own for every row of a group.",
      "Mend what writes the log; the finding says how. A gate doesn't judge such a log.",
      Fact.READABLE)  # fmt: skip
def _structure_implausible(case: Case, findings: Findings) -> None:
    findings.add_checked(int(case.table.is_put.sum()))
    for structure in implausible_structures(case.readable.digest):
        findings.add(Subject(), f"{structure.message}. {structure.fix}")


@rule("S023", "recording-incomplete", Severity.ERROR,
      "Events of the run are not in the log: its recorder dropped or refused them, or parts are gone.",
      "Mend what records the run. Until then groups, batches and steps may only seem incomplete.")  # fmt: skip
def _recording_incomplete(case: Case, findings: Findings) -> None:
    findings.add_checked(case.files.audited, "files")
    for loss in case.files.log.losses if case.files.log else ():
        findings.add(Subject(), loss.text, lost=(loss.kind, loss.size))
