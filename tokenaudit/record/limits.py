"""What a source leaves out, in the words of importers and hooks."""

from __future__ import annotations

from enum import StrEnum

from tokenaudit.contracts.schema import Precision


class Lack(StrEnum):
    """What a source leaves out, and what can't be derived from it; kept in the metadata of the log."""

    TIMELINE = (
        "the source records no refreshes and takes: replay simulates them, so shortfalls and leftovers are those of "
        "the simulation"
    )
    DROPPED = (
        "the source holds trained batches only: groups that were dropped, filtered or left over are missing, so "
        "expired groups, dropped tokens and produced tokens of the run can't be known"
    )
    CANCELLED = "generation cancelled in flight leaves no record: its tokens are missing from produced tokens"
    SNAPSHOT = "the source is what one buffer held at one moment: what came and went before is missing"
    VERSIONS = "responses without versions: their staleness can't be known, only assumed with timeline.stamp_missing"
    SPANS = "responses whose versions are known as spans only: token counts behind them are intervals"
    STARTS = "responses of which only the version at the start is known: token counts behind it are intervals"
    LENGTHS = "the source holds texts, not tokens: lengths are 0 and no token count can be known"
    MASK = "the source records no mask: every token counts as trainable"
    TRAINED_MASK = (
        "masks are those of the training: tokens masked for their age can't be distinguished from tokens that are "
        "never trained"
    )
    GROUPS = "the source names no groups: consecutive responses to one prompt are taken for a group"
    NOT_DUMPED = "samples that end in a token that isn't trained, such as a tool's reply, are never dumped"
    LOGGED_STEPS = "the source writes a batch every logging_steps only: those of the steps between are missing"
    PROMPTS = "the source names no groups: responses of one step to equal prompts are taken for a group"
    EQUAL_PROMPTS = (
        "some prompts have several times as many responses in a step as others: groups with equal prompts can't be "
        "told apart, and count as one"
    )
    WAITING = (
        "groups are put when they are trained or dropped: leftovers can't be known, nor in which step a group was ready"
    )
    PARTS = "members of a group that were trained or dropped in several steps, or ways, are groups of their own"
    REJECTED = "groups that failed, or were rejected by what generated them, have no tokens: produced tokens lack them"
    RESUME = "versions are stamped when a call ends, so a call that a weight push overtook looks newer than it is"


LACK_OF = {Precision.SPAN: Lack.SPANS, Precision.START: Lack.STARTS, Precision.NONE: Lack.VERSIONS}
"""What versions of a precision leave out, if anything."""
