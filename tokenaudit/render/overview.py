"""What a log holds."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.contracts.errors import plural, printable
from tokenaudit.log.overview import Overview, Span
from tokenaudit.render.blocks import Block, Heading, Pairs, share_text


def overview_blocks(view: Overview) -> Iterator[Block]:
    """The overview: every name with its value."""
    yield Heading("tokenaudit inspect")
    yield Pairs(list(_pairs(view)))


def _pairs(view: Overview) -> Iterator[tuple[str, str]]:
    yield "log", f"{view.name} ({plural(view.files, 'file')}, {plural(view.rows, 'row')})"
    yield "content", view.content_hash
    yield "source", view.source or "not said"
    yield "config", "in the metadata" if view.has_config else "none in the metadata"
    yield "timeline", f"{view.timeline} ({_counts({k: n for k, n in view.events.items() if n})})"
    yield "train steps", _span(view.train_steps)
    yield "versions", _span(view.model_steps)
    for name, task in view.tasks.items():
        counts = ", ".join(f"{count:,} {what}" for what, count in task.items())
        yield f"task {printable(name)}", counts
    sizes = ", ".join(f"{count:,} of {size}" for size, count in view.group_sizes.items())
    yield "groups", f"{view.groups:,} (puts by number of rollouts: {sizes})"
    yield (
        "response rows",
        f"{view.responses['all']:,} ({_counts({k: n for k, n in view.responses.items() if k != 'all'})})",
    )
    yield (
        "tokens",
        f"{view.tokens:,} in all rows (a response put again counts again), "
        f"trainable {share_text(view.trainable_tokens, view.tokens)}",
    )
    if view.unversioned_tokens:
        yield (
            "",
            f"{view.unversioned_tokens:,} carry no version: -s timeline.stamp_missing=true gives them one",
        )
    yield "version runs", f"{view.version_runs:,}"
    yield "response length", " · ".join(f"{name} {length:,}" for name, length in view.response_len.items())
    yield "columns", ", ".join(view.columns)
    yield "absent columns", ", ".join(view.absent_columns) or "none"
    for note in view.notes:
        yield "note", note
    if view.faults:
        yield (
            "faulty groups",
            f"{view.faulty_groups:,}, left out of the figures above; "
            + ("replay needs --quarantine" if view.groups else "there is no other to replay"),
        )
        for kind, rows in view.faults.items():
            yield "fault", f"{kind}: {plural(rows, 'row')}"


def _span(span: Span | None) -> str:
    return "none" if span is None else f"{span.first} to {span.last} ({span.distinct} different)"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
