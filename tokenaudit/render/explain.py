"""A step of a run, and what the name of a metric, a setting or an audit rule means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenaudit.audit.rule import AuditRule
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import plural, printable
from tokenaudit.contracts.metrics import RATES, Metric
from tokenaudit.explain.names import NameExplanation, Standing
from tokenaudit.explain.step import StepReport, TakenGroup
from tokenaudit.lifecycle.events import Fate, GroupExpired, MembersExpired, Where
from tokenaudit.render.blocks import NOTHING, Block, Gap, Heading, Lines, Listing, Paragraph, share_text
from tokenaudit.replay.ledger import Account

_REPORT = "tokenaudit explain"
_SHOWN_GROUPS = 20


def step_blocks(report: StepReport) -> Iterator[Block]:
    """What was put, taken and expired at a step, and what waits; the sums are those of the step's row."""
    row = report.row
    version = "unknown" if row.model_step is None else str(row.model_step)
    yield Heading(_REPORT, f"step {row.train_step} · version in the engine {version}")
    yield Listing(list(_step_lines(report)))


def _step_lines(report: StepReport) -> Iterator[str]:
    for task, account in report.row.accounts.items():
        parts = _counts(account, _OF_PUTS)
        if parts:
            yield f"put        task {printable(task)}: {plural(account.count(m.PUT_GROUPS), 'group')}, {parts}"
    for task, asked in report.asked.items():
        groups = [group for group in report.taken if group.task == task]
        tokens = _batch_text(sum(group.tokens for group in groups), groups)
        yield f"taken      task {printable(task)}: {len(groups)} of {plural(asked, 'group')} asked for, {tokens}"
        for group in groups[:_SHOWN_GROUPS]:
            yield f"             group {group.group_id}: staleness {group.age}, {_batch_text(group.tokens, [group])}"
        yield from _more(len(groups))
    text = plural(sum(isinstance(event, GroupExpired) for event in report.expired), "group")
    more = len({(one.task_name, one.group_id) for one in report.expired if isinstance(one, MembersExpired)})
    if more:
        text += f", and more members of {plural(more, 'group')} that waited as expired"
    yield f"expired    {text}: {_counts(report.total, _OF_EXPIRED) or 'no token lost'}"
    for event in report.expired[:_SHOWN_GROUPS]:
        yield f"             task {printable(event.task_name)}, group {event.group_id}: {_expired_text(event)}"
    yield from _more(len(report.expired))
    yield f"waits      {plural(len(report.waiting), 'group')}"
    for waiting in report.waiting[:_SHOWN_GROUPS]:
        when = "never expires" if waiting.expires_at is None else f"expires at step {waiting.expires_at}"
        what = f"task {printable(waiting.task)}, group {waiting.group_id}"
        yield f"             {what}: {waiting.status}, {plural(waiting.tokens, 'token')}, {when}"
    yield from _more(len(report.waiting))
    dropped, parts = report.total.value(m.DROPPED_TOKENS), _counts(report.total, m.DROPPED_PARTS)
    yield f"dropped    {dropped:,} {m.DROPPED_TOKENS.name}" + (f" = {parts}" if parts else "")


_OF_PUTS = (
    m.PRODUCED_TOKENS,
    m.CARRIED_IN_TOKENS,
    m.FAILED_TOKENS,
    m.FILTERED_TOKENS,
    m.RESTARTED_TOKENS,
    m.AVOIDED_TOKENS,
    m.REGENERATED_TOKENS,
)
_OF_EXPIRED = (m.RESET_TOKENS, m.DISCARDED_STALE_TOKENS, m.DISCARDED_FRESH_TOKENS)


def _counts(account: Account, metrics: Sequence[Metric]) -> str:
    """What an account has of some metrics, by name."""
    return ", ".join(f"{account.count(metric):,} {metric.name}" for metric in metrics if account.count(metric))


def _batch_text(tokens: int, groups: Sequence[TakenGroup]) -> str:
    trained, stale = sum(group.trained for group in groups), sum(group.stale for group in groups)
    return f"{plural(tokens, 'token')}, {trained:,} trained, {stale:,} masked as stale"


def _expired_text(event: GroupExpired | MembersExpired) -> str:
    if isinstance(event, MembersExpired):
        why = " and ".join(sorted(set(event.reasons)))
        lost = plural(event.expired.tokens, "token")
        return f"more members at {Where.REFRESH} of step {event.train_step}, by {why}, {Fate.RESET}, {lost} lost"
    lost = plural(event.lost_tokens, "token")
    return f"at {event.where} of step {event.train_step}, by {event.reason}, {event.fate}, {lost} lost"


def _more(count: int) -> Iterator[str]:
    if count > _SHOWN_GROUPS:
        yield f"             … {plural(count - _SHOWN_GROUPS, 'more group')}"


def rule_explanation(rule: AuditRule) -> NameExplanation:
    """What a rule of the audit means, what to do about it, and what it needs."""
    needs = ", ".join(str(need).replace("|", " or ") for need in rule.needs)
    facts = (("what", rule.meaning), ("fix", rule.fix), *((("needs", needs),) if needs else ()))
    return NameExplanation(f"{rule.code} {rule.name}", rule.severity, facts)


def name_blocks(explained: Sequence[NameExplanation]) -> Iterator[Block]:
    """What names stand for, and where they stand in a log."""
    for number, one in enumerate(explained):
        if number:
            yield Gap()
        yield Heading(_REPORT, f"{one.name} ({one.kind})")
        yield Lines([f"{label}: {text}" for label, text in one.facts], indent=2)
        if one.in_log:
            yield Paragraph("in the log:")
            yield Lines([_standing_text(one, standing) for standing in one.in_log], indent=2)


def _standing_text(one: NameExplanation, standing: Standing) -> str:
    value = NOTHING if standing.value is None else standing.value
    text = f"{printable(standing.where)}: {value if isinstance(value, str) else f'{value:,}'}"
    if standing.of is not None and isinstance(standing.value, int):
        if one.name in RATES and not RATES[one.name].is_share:
            share = f"{standing.value / standing.of:.3f}" if standing.of else NOTHING
        else:
            share = share_text(standing.value, standing.of)
        text += f" of {standing.of:,}, {share}"
    if standing.origin:
        text += f", from {printable(standing.origin)}"
    return text + (f"; {standing.lost:,} tokens are lost by it" if standing.lost else "")
