"""What corrections do to a log, for people: an answer per method, then tables that show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tokenaudit.contracts.errors import plural, printable
from tokenaudit.corrections.result import (
    AdvantageSource,
    CorrectionsReport,
    MethodResult,
)
from tokenaudit.render.blocks import (
    Block,
    Command,
    Gap,
    Heading,
    Lines,
    Pairs,
    Paragraph,
    Tone,
    share_text,
)
from tokenaudit.render.corrections_tables import (
    ages_table,
    between_table,
    dropped_share,
    further_blocks,
    limits_table,
    shares_table,
    totals_table,
    weights_table,
)

_MOST_TASKS = 3
"""Tasks whose limits an answer names."""


def corrections_blocks(
    report: CorrectionsReport, next_command: Callable[[str], str], *, verbose: bool = False
) -> Iterator[Block]:
    """An answer per method, then totals, ages, staleness limits, and further parts of the tokens.

    Args:
        report: the report.
        next_command: the command that writes the masks of a method, by its name.
        verbose: also signs, positions and steps, and what the trainers log.
    """
    yield Heading("tokenaudit corrections", _title(report))
    labels = _labels(report.methods)
    ran = [replace(one, name=labels[one.name]) for one in report.methods if one.not_run is None]
    yield Lines([*(_answer(method, report) for method in ran), *_not_run(report.methods, labels)], Tone.STRONG)
    yield Gap()
    if ran:
        yield totals_table(ran)
        yield Gap()
        if any(method.weights for method in ran):
            yield weights_table([method for method in ran if method.weights])
            yield Gap()
        yield ages_table(ran, report)
        yield Gap()
    if any(method.totals.dropped for method in ran):
        yield limits_table(ran)
        yield Gap()
    if sum(method.totals.dropped > 0 for method in ran) > 1:
        yield between_table(report, labels, [method for method in ran if method.totals.dropped])
        yield Gap()
    if len({task for method in ran for task in method.by_task}) > 1:
        yield shares_table("dropped by task", ran, lambda method: method.by_task)
        yield Gap()
    if verbose:
        yield from further_blocks(ran)
    settings = [(labels[one.name], printable(one.setting)) for one in report.methods]
    if ran and any(label != setting for label, setting in settings):
        yield Paragraph("the settings, as --method takes them", Tone.FAINT)
        yield Pairs(settings)
        yield Gap()
    lines = [f"note: {note}" for note in (*_caveats(report), *report.notes)]
    for note in dict.fromkeys(note for method in ran for note in method.notes):
        names = ", ".join(method.name for method in ran if note in method.notes)
        lines.append(f"note: {names}: {note}")
    if lines:
        yield Lines([printable(line) for line in lines], Tone.FAINT)
        yield Gap()
    yield from _next(report.methods, labels, next_command)


def _labels(methods: Sequence[MethodResult]) -> dict[str, str]:
    """What tables call each method: its name, or the preset alone where that is a text with options."""
    labels: dict[str, str] = {}
    for method in methods:
        short = method.trainer if ":" in method.name else printable(method.name)
        label, number = short, 1
        while label in labels.values() or (label != method.name and any(label == one.name for one in methods)):
            number += 1
            label = f"{short} #{number}"
        labels[method.name] = label
    return labels


def _title(report: CorrectionsReport) -> str:
    of = "taken" if report.is_taken else "completed (the log holds no take)"
    loss = f"{report.in_loss + report.not_judged.tokens:,} of {report.tokens:,} tokens in the loss"
    responses = f"{report.responses:,} responses {of}"
    return printable(f"{report.name} · {plural(report.steps, 'step')} · {responses} · {loss} · {report.device}")


def _answer(method: MethodResult, report: CorrectionsReport) -> str:
    """What a method drops, how much of it the config's limit keeps, and which limit comes nearest."""
    counts, weights = method.totals, method.weights
    if counts.dropped == 0:
        as_is = "" if ":" in method.setting else " with its defaults"
        if weights is None or weights.effective_share is None:
            return f"{method.name} drops nothing and weighs nothing{as_is}"
        if weights.mean == weights.largest == 1:
            return f"{method.name} drops nothing, and all weights are 1{as_is}"
        return f"{method.name} drops nothing; its weights leave an effective {100 * weights.effective_share:.1f} %"
    text = f"{method.name} drops {dropped_share(counts)} of the tokens in the loss"
    text += _younger(method, report)
    nearest = method.nearest_limit
    if nearest is not None:
        text += f"; max_token_staleness {nearest.max_token_staleness} comes nearest"
        text += f" ({share_text(nearest.both, nearest.either)} in common)"
    return printable(text)


def _not_run(methods: Sequence[MethodResult], labels: Mapping[str, str]) -> Iterator[str]:
    """Which methods weren't run, by the reason."""
    for reason in dict.fromkeys(method.not_run for method in methods if method.not_run is not None):
        names = ", ".join(labels[method.name] for method in methods if method.not_run == reason)
        yield printable(f"not run: {names}: {reason}")


def _younger(method: MethodResult, report: CorrectionsReport) -> str:
    """How many dropped tokens the config's own limits would keep, where there are any."""
    limits = {task: limit for task, limit in report.max_token_staleness.items() if limit is not None}
    if not limits:
        return ""
    share = share_text(method.dropped_fresh, method.totals.dropped)
    same = len(set(limits.values())) == 1 and len(limits) == len(report.max_token_staleness)
    of = f"limit of {next(iter(limits.values()))}" if same else f"limits ({_by_task(limits)})"
    return f"; {share} of them are younger than your {of}"


def _by_task(limits: Mapping[str, int]) -> str:
    shown = [f"{task} {limit}" for task, limit in limits.items()]
    return ", ".join(shown[:_MOST_TASKS]) + (", …" if len(shown) > _MOST_TASKS else "")


def _caveats(report: CorrectionsReport) -> Iterator[str]:
    left_out = report.not_judged
    if left_out.tokens:
        reasons = {
            "have no `logprobs`": left_out.no_logprobs,
            "have no `train_logprobs`": left_out.no_train_logprobs,
            "have lists of another length": left_out.other_length,
            "are null": left_out.null,
            "are not finite": left_out.not_finite,
            "are sentinels such as -9999": left_out.sentinel,
        }
        said = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        yield f"{plural(left_out.tokens, 'token')} in the loss not judged: {said}"
    if report.advantage_source in (AdvantageSource.REWARD, AdvantageSource.BOTH):
        which = "some responses have" if report.advantage_source is AdvantageSource.BOTH else "the log has"
        yield f"{which} no `advantage`; its sign is that of the reward less the mean of the group's taken members"
    if report.unknown_advantages:
        unknown = plural(report.unknown_advantages, "response")
        yield f"the advantage of {unknown} isn't known; record `advantage` or `reward`"


def _next(
    methods: Sequence[MethodResult], labels: Mapping[str, str], next_command: Callable[[str], str]
) -> Iterator[Block]:
    """How to write the mask of the method that drops most; else where to read on."""
    most = max(methods, key=lambda method: method.totals.dropped, default=None)
    if most is not None and most.totals.dropped:
        yield Paragraph(f"next, to write the masks of {labels[most.name]}:")
        yield Command(next_command(most.name))
    else:
        of = "how to record what they need" if all(one.not_run is not None for one in methods) else "what can be set"
        yield Paragraph(f"next, {of}:")
        yield Command("tokenaudit help corrections")
