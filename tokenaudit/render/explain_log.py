"""Why tokens of a log were lost: the causes, the groups that lost most, and how much each setting binds."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.config.limits import setting_text
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import plural, printable
from tokenaudit.explain.losses import Cause, Place, bound_most
from tokenaudit.explain.session import LogExplanation
from tokenaudit.explain.trials import Figures, Trial, Trials
from tokenaudit.lifecycle.staleness import ExpiryReason
from tokenaudit.render.blocks import (
    NOTHING,
    Block,
    Command,
    Fit,
    Gap,
    Heading,
    Lines,
    Paragraph,
    Table,
    TableColumn,
    TableRow,
    Tone,
    share_text,
    value_text,
)
from tokenaudit.render.cost import amount_text, cost_lines

_MOST_CAUSES = 20
_MICROSECONDS = 1_000_000
_FATES = {
    m.MASKED_STALE_TOKENS: "masked",
    m.RESET_TOKENS: "reset",
    m.DISCARDED_STALE_TOKENS: "discarded",
    m.DISCARDED_FRESH_TOKENS: "discarded though fresh",
    m.MASKED_SEMANTIC_TOKENS: "masked by the log",
    m.FAILED_TOKENS: "failed",
    m.FILTERED_TOKENS: "filtered by the run",
    m.RESTARTED_TOKENS: "restarted",
}
_RULES = {
    ExpiryReason.SEQUENCE: "response too old",
    ExpiryReason.TOKEN: "no fresh token left",
    ExpiryReason.ARRIVED_EXPIRED: "put as expired",
}
_PLACES = {Place.WAITING: "refresh, expired"}


def log_blocks(explanation: LogExplanation, next_command: str) -> Iterator[Block]:
    """The answer, the causes, the worst groups, how much each setting binds, and what to try next.

    Args:
        explanation: what was found.
        next_command: how to try `explanation.trials.best`; empty where there is none.
    """
    yield Heading("tokenaudit explain", ", ".join(printable(entry.name) for entry in explanation.result.inputs))
    yield Paragraph(_answer(explanation), Tone.STRONG)
    if explanation.result.cost is not None:
        yield Lines(cost_lines(explanation.result.cost))
    yield Gap()
    if explanation.causes:
        yield _cause_table(explanation)
        yield Gap()
    if explanation.groups:
        yield _group_table(explanation)
        yield Gap()
    trials = explanation.trials
    if trials.trials:
        yield Paragraph(_method(trials))
        yield _trial_table(trials)
        yield Gap()
    yield Paragraph(_next_text(trials), Tone.STRONG)
    if next_command:
        yield Command(next_command)


def _answer(explanation: LogExplanation) -> str:
    totals = explanation.result.totals
    produced, dropped = totals[m.PRODUCED_TOKENS.name], totals[m.DROPPED_TOKENS.name]
    if not produced:
        return "The log produced no token, so none was lost."
    text = (
        f"{share_text(dropped, produced)} of the produced tokens ({dropped:,} of {produced:,}) were dropped as stale, "
        f"{share_text(totals[m.TRAINED_TOKENS.name], produced)} were trained."
    )
    bound = bound_most(explanation.causes)
    if bound is not None:
        setting, share = bound
        of_lost = share_text(share.numerator, share.denominator)
        text += f" What bound most is {printable(str(setting))}: {of_lost} of what settings lost."
    return text


def _cause_table(explanation: LogExplanation) -> Table:
    produced, causes = explanation.result.totals[m.PRODUCED_TOKENS.name], explanation.causes
    columns = [
        TableColumn("task", "left", free_text=True),
        TableColumn("lost as", "left", is_label=True),
        TableColumn("where", "left"),
        TableColumn("setting", "left", free_text=True),
        TableColumn("tokens"),
        TableColumn("of produced"),
        TableColumn("groups"),
    ]
    rows = [
        TableRow(
            (
                printable(cause.key.task),
                cause_text(cause),
                _PLACES.get(cause.key.place, str(cause.key.place)),
                NOTHING if cause.setting is None else printable(str(cause.setting)),
                f"{cause.loss.tokens:,}",
                share_text(cause.loss.tokens, produced),
                f"{cause.loss.groups:,}",
            )
        )
        for cause in causes[:_MOST_CAUSES]
    ]
    for name, some in ((plural(len(causes[_MOST_CAUSES:]), "more cause"), causes[_MOST_CAUSES:]), ("all", causes)):
        if some:
            tokens = sum(cause.loss.tokens for cause in some)
            cells = ("", name, "", "", f"{tokens:,}", share_text(tokens, produced), "")
            rows.append(TableRow(cells, is_total=some is causes))
    fit = Fit(("lost as", "tokens", "task", "setting", "of produced", "where", "groups"))
    return Table(columns, rows, "Why tokens were not trained, and the setting that bound", fit=fit)


def cause_text(cause: Cause) -> str:
    """What became of the tokens, and by which rule."""
    fate, reason = _FATES[cause.key.metric], cause.key.reason
    if cause.key.metric is m.MASKED_STALE_TOKENS:
        return f"{fate}: token too old"
    return fate if reason is None else f"{fate}: {_RULES[reason]}"


def _group_table(explanation: LogExplanation) -> Table:
    columns = [
        TableColumn("group", "left", is_label=True, free_text=True),
        TableColumn("setting", "left", free_text=True),
        TableColumn("in the end", "left"),
        TableColumn("expired"),
        TableColumn("tokens lost"),
        TableColumn("responses"),
        TableColumn("longest"),
    ]
    rows = [
        TableRow(
            (
                f"{printable(task)}/{group_id}",
                NOTHING if loss.bound_by is None else printable(loss.bound_by.key),
                "not trained" if loss.taken_at is None else f"taken at step {loss.taken_at}",
                f"{loss.expired}×",
                f"{loss.tokens:,}",
                f"{loss.samples:,}" if loss.samples else NOTHING,
                f"{loss.longest:,}" if loss.longest else NOTHING,
            )
        )
        for (task, group_id), loss in explanation.groups
    ]
    caption = f"Groups that lost most, of {plural(explanation.losing_groups, 'group')} that lost any, and what bound"
    fit = Fit(("group", "expired", "tokens lost", "longest", "setting", "in the end", "responses"))
    return Table(columns, rows, caption, fit=fit)


def _method(trials: Trials) -> str:
    made = f"{len(trials.trials)} of {plural(trials.possible, 'change')} tried, each alone"
    share = share_text(trials.base.dropped, trials.base.produced)
    if trials.is_simulated:
        return f"How much each setting binds: {made}, in a simulation that drops {share} as configured."
    return (
        f"How much each setting binds: {made}, in a replay that drops {share} as configured. A replay follows puts "
        f"that a change might have spared (counterfactual); no simulation: {printable(trials.not_simulated)}."
    )


def _trial_table(trials: Trials) -> Table:
    columns = [
        TableColumn("change", "left", is_label=True, free_text=True),
        TableColumn("from"),
        TableColumn(m.DROPPED_TOKENS.name),
        TableColumn("of produced"),
        TableColumn(m.RESTARTED_TOKENS.name),
        TableColumn(m.TRAINED_TOKENS.name),
        TableColumn(m.TOKEN_STALENESS_P95.name),
        TableColumn("simulated time" if trials.is_simulated else "counterfactual"),
    ]
    if trials.gpu_hours_saved(trials.base) is not None:
        columns.append(TableColumn("GPU-hours saved"))
    rows = [TableRow(("as configured", "", *_figure_cells(trials.base), "")[: len(columns)])]
    rows += [_trial_row(trial, trials, len(columns)) for trial in trials.trials]
    priority = ("change", "of produced", m.DROPPED_TOKENS.name, "from", m.TRAINED_TOKENS.name)
    return Table(columns, rows, fit=Fit((*priority, *(one.name for one in columns if one.name not in priority))))


def _trial_row(trial: Trial, trials: Trials, cells: int) -> TableRow:
    label, before = printable(trial.override), setting_text(trial.setting.value)
    if trial.figures is None:
        return TableRow((f"{label} ({printable(trial.problem)})", before, *[NOTHING] * (cells - 2)), Tone.FAINT)
    saved = trials.gpu_hours_saved(trial.figures)
    return TableRow((label, before, *_figure_cells(trial.figures), *([] if saved is None else [amount_text(saved)])))


def _figure_cells(figures: Figures) -> tuple[str, ...]:
    last = share_text(figures.counterfactual, figures.counterfactual_of)
    if figures.wall_time_us is not None:
        last = f"{figures.wall_time_us / _MICROSECONDS:,.0f} s"
    return (
        f"{figures.dropped:,}",
        share_text(figures.dropped, figures.produced),
        f"{figures.restarted:,}",
        f"{figures.trained:,}",
        value_text(m.TOKEN_STALENESS_P95, figures.staleness_p95),
        last,
    )


def _next_text(trials: Trials) -> str:
    best = trials.best
    if best is None or best.figures is None:
        if not trials.trials:
            return "No setting bound, so there is none to loosen."
        return "No change of one setting drops a smaller share. --group TASK/ID shows how a group ages."
    before, after = (share_text(one.dropped, one.produced) for one in (trials.base, best.figures))
    gains = [] if before == after else [f"drop {after} instead of {before}"]
    if best.setting.name == "enable_partial_rollout" or not gains:
        gains.append(f"restart {best.figures.restarted:,} tokens instead of {trials.base.restarted:,}")
    return f"next, to {' and '.join(gains)}:"
