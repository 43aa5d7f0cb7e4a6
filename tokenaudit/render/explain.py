"""Biographies, steps and rules as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenaudit.audit.rule import AuditRule
from tokenaudit.explain.group import Biography, Member, MemberFate, Moment, MomentKind
from tokenaudit.explain.step import StepStory
from tokenaudit.lifecycle.events import Fate
from tokenaudit.lifecycle.staleness import is_fresh, oldest_fresh_version
from tokenaudit.render.text import count_text, printable

_STRIP = 40
_SHOWN_GROUPS = 20
_FRESH, _STALE, _UNTRAINED = "█", "▒", "·"
_TO_ASCII = str.maketrans({_FRESH: "#", _STALE: "s", _UNTRAINED: "."})
_WITH_MEMBERS = (MomentKind.EXPIRED, MomentKind.MORE_EXPIRED, MomentKind.TAKEN)


def render_biography(life: Biography, *, unicode: bool = True) -> str:
    """The life of a group, one moment a paragraph; ends with a line feed."""
    text = "".join(f"{line}\n" for line in _biography_lines(life))
    return text if unicode else text.translate(_TO_ASCII)


def _biography_lines(life: Biography) -> Iterator[str]:
    yield f"task {printable(life.task)}, group {life.group_id}"
    yield f"rule: {_rule_text(life)}"
    yield ""
    for moment in life.moments:
        step = "" if moment.train_step is None else f"step {moment.train_step}"
        yield f"{step:<10}{moment.kind:<15}{_moment_text(moment)}".rstrip()
        if moment.kind in _WITH_MEMBERS:
            limit = life.token_stale_threshold if moment.kind is MomentKind.TAKEN else None
            yield from (f"{'':<10}{line}" for line in _member_lines(moment, limit))
        yield from (f"{'':<25}{line}" for line in _why_lines(moment))
    yield ""
    yield f"in the end: {life.ending}"
    if any(moment.kind is MomentKind.TAKEN for moment in life.moments):
        yield f"mask at the take: {_FRESH} trained  {_STALE} too old  {_UNTRAINED} not trained"


def _rule_text(life: Biography) -> str:
    parts = [f"a response is too old from staleness {life.stale_threshold} on"]
    if life.token_stale_threshold is not None:
        parts.append(f"a token from {life.token_stale_threshold} on")
    parts.append("an expired group is generated again" if life.retryable else "an expired group is discarded")
    return ", ".join(parts)


def _moment_text(moment: Moment) -> str:
    tokens = sum(member.tokens for member in moment.members)
    parts = [moment.detail] if moment.detail else []
    if moment.members:
        parts.append(f"{count_text(len(moment.members), 'response')}, {count_text(tokens, 'token')}")
    versions = [version for member in moment.members for version, _, _ in member.runs]
    if versions:
        parts.append(f"versions {_span(versions)}")
    ages = [member.age for member in moment.members if member.age is not None]
    if ages:
        parts.append(f"staleness {_span(ages)}")
    if moment.expires_at is not None and moment.expires_at <= (moment.train_step or 0):
        parts.append(f"too old since step {moment.expires_at}")
    elif moment.expires_at is not None:
        parts.append(f"expires at step {moment.expires_at} unless it leaves before")
    if moment.restarted_tokens:
        parts.append(f"{count_text(moment.restarted_tokens, 'held token')} not continued")
    return " · ".join(parts)


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _why_lines(moment: Moment) -> Iterator[str]:
    if moment.kind is not MomentKind.EXPIRED:
        return
    lost = {
        fate: sum(member.tokens for member in moment.members if member.fate is fate)
        for fate in (MemberFate.RESET, MemberFate.STALE_LOST, MemberFate.FRESH_LOST, MemberFate.KEPT)
    }
    yield ", ".join(f"{count_text(tokens, 'token')} {fate}" for fate, tokens in lost.items() if tokens)
    if moment.fixed_at is not None and moment.fixed_at != moment.train_step:
        yield f"bound to expire now since its put at step {moment.fixed_at}"
    if moment.last_chance is not None:
        yield f"the take of step {moment.last_chance} was its last chance"


def _member_lines(moment: Moment, token_limit: int | None) -> Iterator[str]:
    for member in moment.members:
        name = f"rollout {member.rollout_id}" + (f".{member.segment}" if member.segment else "")
        age = "" if member.age is None else f"staleness {member.age}"
        fate = member.fate or ""
        line = f"{name:<15}{member.status:<10}{member.tokens:>8,} tokens  {age:<13}{fate}"
        if moment.kind is MomentKind.TAKEN:
            line = f"{line:<65}{_strip(member, moment.train_step or 0, token_limit)}"
        runs = " ".join(f"v{version}x{tokens}" for version, tokens, _ in member.runs[:8])
        yield f"{line}  {runs}{' …' if len(member.runs) > 8 else ''}".rstrip()


def _strip(member: Member, train_step: int, token_limit: int | None) -> str:
    """The mask at the take, each version run in proportion to its tokens: trained, too old, not trained."""
    total = member.tokens
    oldest = oldest_fresh_version(train_step, token_limit)
    parts: list[str] = []
    for version, tokens, trainable in member.runs:
        trained = _FRESH if is_fresh(version, oldest) else _STALE
        for count, char in ((trainable, trained), (tokens - trainable, _UNTRAINED)):
            parts.append(char * max(1 if count else 0, round(_STRIP * count / total)))
    return "".join(parts)


def render_step(story: StepStory) -> str:
    """A step: what was put, taken and expired, and what waits; ends with a line feed."""
    return "".join(f"{line}\n" for line in _step_lines(story))


def _step_lines(story: StepStory) -> Iterator[str]:
    version = "unknown" if story.model_step is None else str(story.model_step)
    yield f"step {story.train_step} · version in the engine {version}"
    for task, count in story.puts.items():
        yield f"put        task {printable(task)}: {count_text(count, 'group')}"
    for task, asked in story.asked.items():
        groups = [group for group in story.taken if group.task == task]
        yield f"taken      task {printable(task)}: {len(groups)} of {count_text(asked, 'group')} asked for"
        for group in groups[:_SHOWN_GROUPS]:
            yield (
                f"             group {group.group_id}: staleness {group.age}, {count_text(group.tokens, 'token')}, "
                f"{group.trained:,} trained, {group.stale:,} masked as stale"
            )
        yield from _more(len(groups))
    yield f"expired    {count_text(len(story.expired), 'group')}"
    for event in story.expired[:_SHOWN_GROUPS]:
        lost = event.expired.tokens + (event.fresh.tokens if event.fate is Fate.DISCARDED else 0)
        what = f"task {printable(event.task_name)}, group {event.group_id}: at {event.where} of step {event.train_step}"
        yield f"             {what}, by {event.reason}, {event.fate}, {count_text(lost, 'token')} lost"
    yield from _more(len(story.expired))
    yield f"waits      {count_text(len(story.waiting), 'group')}"
    for group in story.waiting[:_SHOWN_GROUPS]:
        when = "never expires" if group.expires_at is None else f"expires at step {group.expires_at}"
        what = f"task {printable(group.task)}, group {group.group_id}"
        yield f"             {what}: {group.status}, {count_text(group.tokens, 'token')}, {when}"
    yield from _more(len(story.waiting))


def _more(count: int) -> Iterator[str]:
    if count > _SHOWN_GROUPS:
        yield f"             … {count_text(count - _SHOWN_GROUPS, 'more group')}"


def render_rule(rule: AuditRule) -> str:
    """What a rule means and what to do about it; ends with a line feed."""
    lines = [f"{rule.code} {rule.name} ({rule.severity})", f"  what: {rule.meaning}", f"  fix: {rule.fix}"]
    if rule.needs:
        needs = ", ".join(str(need).replace("|", " or ") for need in rule.needs)
        lines.append(f"  needs: {needs}")
    return "".join(f"{line}\n" for line in lines)
