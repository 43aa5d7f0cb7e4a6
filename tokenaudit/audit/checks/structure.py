"""Checks of rows that replay refuses, and of lists that should be as long as the response."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenaudit.audit.case import Case, Check, add_checked, add_rows, plural
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.rule import Rule, Severity
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.batch_columns import ABSENT
from tokenaudit.log.columns import LARGEST
from tokenaudit.log.digest import KIND_CODE, NO_VALUE, STATUS_CODE
from tokenaudit.log.event_columns import INT32_MAX, UNKNOWN_CODE

_PUT, _SAMPLE, _REFRESH, _TAKE, _SYNC = (
    KIND_CODE[kind] for kind in (EventKind.PUT, EventKind.SAMPLE, EventKind.REFRESH, EventKind.TAKE, EventKind.SYNC)
)
_PILE_SHARE = 0.05
_PILE_ROWS = 20


def _unknown_event(case: Case, rule: Rule, findings: Findings) -> None:
    where = case.table["kind"] == UNKNOWN_CODE
    add_rows(case, rule, findings, where, lambda row: f"unknown event {case.table.texts.get(('event', row), '…')}")
    add_checked(rule, findings, case.table.rows)


def _unknown_status(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    of_group = np.isin(table["kind"], (_PUT, _SAMPLE))
    where = of_group & (table["status"] == UNKNOWN_CODE)
    add_rows(case, rule, findings, where, lambda row: f"unknown status {table.texts.get(('status', row), '…')}")
    add_checked(rule, findings, int(of_group.sum()))


def _event_order(case: Case, rule: Rule, findings: Findings) -> None:
    ids = case.table["event_id"]
    rows = np.flatnonzero(ids != ABSENT)
    # Where ids begin again, as after a restart, the fall is told once and not for every row behind it.
    falls = rows[1:][ids[rows[1:]] < ids[rows[:-1]]]
    where, before = np.zeros(len(ids), dtype=np.bool_), np.zeros(len(ids), dtype=np.int64)
    where[falls] = True
    before[rows[1:]] = ids[rows[:-1]]
    add_rows(case, rule, findings, where, lambda row: f"event_id {ids[row]} comes after {before[row]}")
    add_checked(rule, findings, len(ids))


def _event_mixed(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    kind, ids = table["kind"], table["event_id"]
    of_group = np.isin(kind, (_PUT, _SAMPLE, UNKNOWN_CODE))
    with_task = of_group | (kind == _TAKE)
    columns = {
        "event": kind,
        "train_step": np.where(kind == _SAMPLE, 0, table["train_step"]),
        "task_name": np.where(with_task, table["task"], -1),
        "group_id": np.where(of_group, table["group_id"], 0),
    }
    same = np.zeros(len(ids), dtype=np.bool_)
    same[1:] = (ids[1:] == ids[:-1]) & (ids[1:] != ABSENT)
    for name, values in columns.items():
        where = same.copy()
        where[1:] &= values[1:] != values[:-1]

        def message(row: int, name: str = name) -> str:
            return f"{name} differs from the row before, in event {ids[row]}"

        add_rows(case, rule, findings, where, message)
    add_checked(rule, findings, int(same.sum()))


def _value_missing(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    kind = table["kind"]
    of_group = np.isin(kind, (_PUT, _SAMPLE))
    needed = {
        "event_id": np.ones(table.rows, dtype=np.bool_),
        "train_step": np.isin(kind, (_PUT, _REFRESH, _TAKE, _SYNC)),
        "group_id": of_group,
        "rollout_id": kind == _PUT,
        "batch_size": kind == _TAKE,
    }
    for name, where in needed.items():
        add_rows(case, rule, findings, where & ~table.present(name), lambda _, name=name: f"{name} is null")
    add_rows(case, rule, findings, of_group & (table["status"] == NO_VALUE), lambda _: "status is null")
    add_checked(rule, findings, table.rows)


def _value_out_of_range(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    kind = table["kind"]
    ranged = {
        "train_step": np.isin(kind, (_PUT, _REFRESH, _TAKE, _SYNC)),
        "model_step": np.isin(kind, (_PUT, _SYNC)),
        "batch_size": kind == _TAKE,
        "response_len": kind == _PUT,
        "prior_len": (kind == _PUT) & (table["tokens"] >= 0),
    }
    for name, where in ranged.items():
        values = table[name]
        wrong = where & table.present(name) & ((values < 0) | (values > INT32_MAX))

        def message(row: int, name: str = name, values: np.ndarray = values) -> str:
            return f"{name} is {values[row]}"

        add_rows(case, rule, findings, wrong, message)
    ids = {"event_id": np.ones(table.rows, dtype=np.bool_), "group_id": np.isin(kind, (_PUT, _SAMPLE))}
    ids["rollout_id"] = kind == _PUT
    for name, where in ids.items():
        add_rows(
            case, rule, findings, where & (table[name] == LARGEST), lambda _, name=name: f"{name} is 2**63 - 1 or more"
        )
    newest = table["newest"]
    too_large = table.is_put & (newest > INT32_MAX)
    add_rows(case, rule, findings, too_large, lambda row: f"response_model_steps holds the version {newest[row]}")
    add_checked(rule, findings, table.rows)


def _length_missing(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    where = table.is_put & ~table.present("response_len") & (table["tokens"] < 0)
    add_rows(case, rule, findings, where, lambda _: "nothing tells the length of the response")
    add_checked(rule, findings, int(table.is_put.sum()))


def _prior_len_too_long(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    prior, tokens = table["prior_len"], table["tokens"]
    told = table.known & table.present("prior_len")
    add_rows(
        case, rule, findings, told & (prior > tokens), lambda row: f"prior_len is {prior[row]} for {tokens[row]} tokens"
    )
    add_checked(rule, findings, int(told.sum()))
    before = tokens[np.maximum(table.previous, 0)]
    beyond = told & (prior <= tokens) & (table.previous >= 0) & (prior > before)
    add_rows(
        case, rule, findings, beyond,
        lambda row: f"prior_len is {prior[row]}, but put {table.put_number[table.previous[row]]} had "
        f"{plural(int(before[row]), 'token')}",
        severity=Severity.WARNING,
    )  # fmt: skip


def _logprob_length(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    for name in ("logprobs", "train_logprobs"):
        if f"{name}_len" not in table:
            continue
        lengths, tokens = table[f"{name}_len"], table["tokens"]
        told = table.known & (lengths >= 0)

        def message(row: int, name: str = name, lengths: np.ndarray = lengths, tokens: np.ndarray = tokens) -> str:
            return f"{lengths[row]} {name} for {plural(int(tokens[row]), 'token')}"

        add_rows(case, rule, findings, told & (lengths != tokens), message)
        add_checked(rule, findings, int(told.sum()))


def _checked_logprobs(case: Case, rule: Rule, findings: Findings) -> Iterator[str]:
    """Names of the columns of log-probabilities that the log has; the puts that fill them count as checked."""
    table = case.table
    for name in ("logprobs", "train_logprobs"):
        if f"{name}_len" in table:
            add_checked(rule, findings, int((table.is_put & (table[f"{name}_len"] >= 0)).sum()))
            yield name


def _logprob_placeholder(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    for name in _checked_logprobs(case, rule, findings):
        zeros = table[f"{name}_zeros"]

        def message(row: int, name: str = name, zeros: np.ndarray = zeros) -> str:
            return f"{zeros[row]} trainable tokens in runs of 3 or more have {name} of exactly 0.0"

        add_rows(case, rule, findings, table.is_put & (zeros > 0), message)


def _logprob_not_finite(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    for name in _checked_logprobs(case, rule, findings):
        kinds = {what: table[f"{name}_{what}"] for what in ("null", "nan", "inf", "sentinel")}
        odd = np.sum(list(kinds.values()), axis=0)
        trained = table[f"{name}_odd_trained"]

        def message(row: int, name: str = name, kinds: dict = kinds, trained: np.ndarray = trained) -> str:
            counts = ", ".join(f"{counts[row]} {what}" for what, counts in kinds.items() if counts[row])
            return f"{name} holds {counts}; {trained[row]} of these tokens trainable"

        add_rows(case, rule, findings, table.is_put & (trained > 0), message)
        only_masked = table.is_put & (odd > 0) & (trained == 0)
        add_rows(case, rule, findings, only_masked, message, severity=Severity.INFO)


def _logprob_positive(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    for name in _checked_logprobs(case, rule, findings):
        positive = table[f"{name}_positive"]

        def message(row: int, name: str = name, positive: np.ndarray = positive) -> str:
            return f"{plural(int(positive[row]), 'token')} with {name} above 0"

        add_rows(case, rule, findings, table.is_put & (positive > 0), message)


def _side_length(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    experts, expected = table["experts_len"], table["prompt_len"] + table["tokens"] - 1
    told = table.known & table.present("experts_len") & table.present("prompt_len") & (table["tokens"] > 0)

    def message(row: int) -> str:
        text = (
            f"experts_len {experts[row]}, expected {expected[row]} (prompt {table['prompt_len'][row]} + response - 1)"
        )
        first_round = int(experts[row] - expected[row])
        if 0 < first_round < expected[row]:
            text += f"; {experts[row]} = {first_round} + {expected[row]}: an earlier round may stand in front"
        return text

    add_rows(case, rule, findings, told & (experts != expected), message)
    add_checked(rule, findings, int(told.sum()))


def _response_shrank(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    rows = np.flatnonzero(table.previous >= 0)
    before = table.previous[rows]
    tokens, prior = table["tokens"], table["prior_len"]
    shrank = np.zeros(table.rows, dtype=np.bool_)
    # Everything was there before, and less of it: a response rolled again has a prior_len below its length.
    shrank[rows] = (tokens[rows] > 0) & (prior[rows] == tokens[rows]) & (tokens[rows] < tokens[before])
    shrank[rows] &= table["status"][before] != STATUS_CODE[Status.EXPIRED]
    add_rows(
        case, rule, findings, shrank,
        lambda row: f"{tokens[row]} tokens, all from earlier puts, but put {table.put_number[table.previous[row]]} "
        f"had {tokens[table.previous[row]]}",
    )  # fmt: skip
    add_checked(rule, findings, len(rows), "puts of a response seen before")


def _length_pile_up(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    cut = [code for code, reason in enumerate(table.reasons) if reason is not None and "len" in reason.lower()]
    done = table.known & (table["status"] == STATUS_CODE[Status.COMPLETED])
    add_checked(rule, findings, int(done.sum()))
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
            findings.add(
                rule, Subject(task), f"{share} have exactly {longest} tokens and none says that it was cut off"
            )


CHECKS: dict[str, Check] = {
    "unknown-event": _unknown_event,
    "unknown-status": _unknown_status,
    "event-order": _event_order,
    "event-mixed": _event_mixed,
    "value-missing": _value_missing,
    "value-out-of-range": _value_out_of_range,
    "length-missing": _length_missing,
    "prior-len-too-long": _prior_len_too_long,
    "logprob-length-mismatch": _logprob_length,
    "logprob-placeholder": _logprob_placeholder,
    "logprob-not-finite": _logprob_not_finite,
    "logprob-positive": _logprob_positive,
    "side-length-mismatch": _side_length,
    "response-shrank": _response_shrank,
    "length-pile-up": _length_pile_up,
}
