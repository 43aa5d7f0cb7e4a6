"""The life of a group as a timeline: a summary, a block per step, and its responses in columns under it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tokenaudit.contracts.errors import plural, printable
from tokenaudit.explain.history import EntryKind, GroupHistory, HistoryEntry, Member, MemberOutcome
from tokenaudit.lifecycle.buffer import ReplayPolicy
from tokenaudit.lifecycle.staleness import is_fresh, oldest_fresh_version
from tokenaudit.render.blocks import Block, Gap, Heading, Line, Lines, Listing, Paragraph, Phrase, Tone

_BAR = 40
"""Columns of the bar of the longest response."""
_MOST_RUNS = 8
_NO_STEP = -1
_FRESH, _STALE, _UNTRAINED = "█", "▒", "."
_WITH_MEMBERS = (EntryKind.EXPIRED, EntryKind.MORE_EXPIRED, EntryKind.TAKEN)
_TONES = {
    MemberOutcome.KEPT: Tone.PLAIN,
    MemberOutcome.RESET: Tone.BAD,
    MemberOutcome.STALE_LOST: Tone.BAD,
    MemberOutcome.FRESH_LOST: Tone.BAD,
    MemberOutcome.TRAINED: Tone.GOOD,
    MemberOutcome.MASKED: Tone.WARNING,
}
_ORDERS = {
    ReplayPolicy.STALENESS: "order: the stalest group leaves a pool first, of equally stale ones the one put first",
    ReplayPolicy.FIFO: "order: the group put first leaves a pool first",
}


def history_blocks(history: GroupHistory) -> Iterator[Block]:
    """What became of the group in three lines, the rules it lived by, and what happened to it step by step."""
    yield Heading("tokenaudit explain", f"task {printable(history.task)}, group {history.group_id}")
    yield Lines([_ending_text(history), _tokens_text(history), _limits_text(history)], Tone.STRONG)
    rules = [f"{_ORDERS[history.order]}; put again, a group goes to the end"]
    if history.retryable:
        rules.append("members that a reset keeps go on ageing while their group waits as expired, and can be reset too")
    yield Lines(rules, Tone.FAINT)
    shown: int | None = _NO_STEP
    now: int | None = None
    for entry, last in _merged(history.entries):
        # What has no step of its own belongs to the step of what was before it.
        now = now if entry.train_step is None else entry.train_step
        if now != shown:
            yield Gap()
            yield Paragraph("before the first step" if now is None else f"step {now}", Tone.STRONG)
        yield Listing(list(_entry_lines(entry, last, history.token_stale_threshold)))
        shown, now = now, last if last is not None else now
    if any(entry.kind is EntryKind.TAKEN for entry in history.entries):
        yield Gap()
        legend = f"mask at the take, to scale: {_FRESH} trained  {_STALE} too old  {_UNTRAINED} kept out by the log"
        yield Paragraph(legend, Tone.FAINT)


def _ending_text(history: GroupHistory) -> str:
    puts = sum(entry.kind is EntryKind.PUT for entry in history.entries)
    expired = 0 if history.loss is None else history.loss.expired
    often = "never expired" if not expired else f"expired {plural(expired, 'time')}"
    return f"in the end: {history.ending or 'never held'}, after {plural(puts, 'put')}; {often}"


def _tokens_text(history: GroupHistory) -> str:
    text = f"{plural(history.trained_tokens, 'token')} trained"
    loss = history.loss
    if loss is None or not loss.tokens:
        return f"{text}, none lost to a setting"
    text += f", {loss.tokens:,} lost to settings"
    if loss.bound_by is None:
        return text
    return f"{text}, {loss.by_setting[loss.bound_by]:,} of them by {printable(str(loss.bound_by))}"


def _limits_text(history: GroupHistory) -> str:
    parts = [f"a response is too old from staleness {history.stale_threshold} on"]
    if history.token_stale_threshold is not None:
        parts.append(f"a token from {history.token_stale_threshold} on")
    parts.append("an expired group is generated again" if history.retryable else "an expired group is discarded")
    return f"rule: {', '.join(parts)}"


def _merged(entries: Sequence[HistoryEntry]) -> Iterator[tuple[HistoryEntry, int | None]]:
    """Entries with their last step: steps in which a group waits and nothing changes but its age are one entry."""
    waiting: list[HistoryEntry] = []
    for entry in entries:
        if waiting and not _goes_on(waiting[-1], entry):
            yield _span_of(waiting)
            waiting = []
        if entry.kind is EntryKind.WAITED:
            waiting.append(entry)
        else:
            yield entry, entry.train_step
    if waiting:
        yield _span_of(waiting)


def _goes_on(before: HistoryEntry, entry: HistoryEntry) -> bool:
    return entry.kind is EntryKind.WAITED and [one.runs for one in entry.members] == [
        one.runs for one in before.members
    ]


def _span_of(waiting: Sequence[HistoryEntry]) -> tuple[HistoryEntry, int | None]:
    """One entry of several: its members with the ages of the first and the last step."""
    first, last = waiting[0], waiting[-1]
    members = first.members if first is last else (*first.members, *last.members)
    return replace(first, members=members, detail=_held_text(first)), last.train_step


def _held_text(entry: HistoryEntry) -> str:
    tokens = sum(member.tokens for member in entry.members)
    return f"{plural(len(entry.members), 'response')}, {plural(tokens, 'token')}"


def _entry_lines(entry: HistoryEntry, last: int | None, token_limit: int | None) -> Iterator[Line]:
    """What happened, and the responses under it; `last` is the step until which nothing else did."""
    parts = [] if last == entry.train_step else [f"until step {last}"]
    yield f"  {entry.kind:<15}{' · '.join([*parts, *_entry_parts(entry)])}".rstrip()
    if entry.kind is EntryKind.EXPIRED:
        yield from (f"{'':<17}{line}" for line in _why_lines(entry))
    if entry.kind in _WITH_MEMBERS:
        yield from _member_lines(entry, token_limit)


def _entry_parts(entry: HistoryEntry) -> Iterator[str]:
    if entry.detail:
        yield entry.detail
    if entry.members and entry.kind is not EntryKind.WAITED:
        yield _held_text(entry)
    if entry.kind not in _WITH_MEMBERS:
        versions = [version for member in entry.members for version, _, _ in member.runs]
        ages = [member.age for member in entry.members if member.age is not None]
        if versions:
            yield f"versions {_span(versions)}"
        if ages:
            yield f"staleness {_span(ages)}"
    if entry.expires_at is not None and entry.expires_at <= (entry.train_step or 0):
        yield f"too old since step {entry.expires_at}"
    elif entry.expires_at is not None:
        yield f"expires at step {entry.expires_at} unless it leaves before"
    if entry.restarted_tokens:
        yield f"{plural(entry.restarted_tokens, 'held token')} not continued"


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _why_lines(entry: HistoryEntry) -> Iterator[str]:
    lost = {
        outcome: sum(member.tokens for member in entry.members if member.outcome is outcome)
        for outcome in (MemberOutcome.RESET, MemberOutcome.STALE_LOST, MemberOutcome.FRESH_LOST, MemberOutcome.KEPT)
    }
    yield ", ".join(f"{plural(tokens, 'token')} {outcome}" for outcome, tokens in lost.items() if tokens)
    if entry.fixed_at is not None and entry.fixed_at != entry.train_step:
        yield f"bound to expire now since its put at step {entry.fixed_at}"
    if entry.last_chance is not None:
        yield f"the take of step {entry.last_chance} was its last chance"


def _member_lines(entry: HistoryEntry, token_limit: int | None) -> Iterator[Line]:
    """The responses in columns, with the versions of their tokens; at a take also with a bar of their mask."""
    heads = ("rollout", "status", "tokens", "versions", "age", "fate")
    rows = [_member_cells(member) for member in entry.members]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    is_taken, longest = entry.kind is EntryKind.TAKEN, max((member.tokens for member in entry.members), default=0)
    yield Phrase(
        f"    {_columns(heads, widths)}  {'mask'.ljust(_BAR) + '  ' if is_taken else ''}by version", Tone.FAINT
    )
    for member, (*cells, fate) in zip(entry.members, rows, strict=True):
        bar = _bar(member, entry.train_step or 0, token_limit, longest).ljust(_BAR) + "  " if is_taken else ""
        runs = " ".join(f"v{version}x{tokens}" for version, tokens, _ in member.runs[:_MOST_RUNS])
        more = " …" if len(member.runs) > _MOST_RUNS else ""
        tone = Tone.PLAIN if member.outcome is None else _TONES[member.outcome]
        before = f"    {_columns(cells, widths)}  "
        yield (before, Phrase(fate.ljust(widths[-1]), tone), f"  {bar}{runs}{more}".rstrip())


def _member_cells(member: Member) -> tuple[str, ...]:
    name = f"{member.rollout_id}" + (f".{member.segment}" if member.segment else "")
    versions = _span([version for version, _, _ in member.runs]) if member.runs else ""
    age = "" if member.age is None else str(member.age)
    return (name, member.status, f"{member.tokens:,}", versions, age, member.outcome or "")


_RIGHT = (0, 2, 4)
"""Columns of numbers."""


def _columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    pairs = enumerate(zip(cells, widths, strict=False))
    return "  ".join(cell.rjust(width) if place in _RIGHT else cell.ljust(width) for place, (cell, width) in pairs)


def _bar(member: Member, train_step: int, token_limit: int | None, longest: int) -> str:
    """The mask at the take, as long as the response beside the longest one: trained, too old, kept out by the log."""
    oldest = oldest_fresh_version(train_step, token_limit)
    bar, done = "", 0
    for version, tokens, trainable in member.runs:
        for count, char in (
            (trainable, _FRESH if is_fresh(version, oldest) else _STALE),
            (tokens - trainable, _UNTRAINED),
        ):
            done += count
            # Ends are rounded, not lengths, so that parts add up to the whole.
            bar += char * (max(round(_BAR * done / longest), 1 if count and not bar else 0) - len(bar))
    return bar
