"""Findings that another rule's finding about the same rows explains: they become a sentence of that one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tokenaudit.audit.findings import Finding, Findings
from tokenaudit.log.columns import Int64s

EXPLAINED_BY = {
    "V005": ("V031", 1.0),
    "V008": ("V031", 1.0),
    "V012": ("V031", 1.0),
    "M003": ("P006", 1.0),
    # other rows have no masked tokens
    "P005": ("P006", 0.5),
    # a few that end at the limit do end there
    "E003": ("E002", 0.9),
    # the copy of an aborted mate says so
    "E001": ("E005", 1.0),
    # members that were complete before are put again with what goes on
    "T003": ("L034", 0.5),
}
"""By code of a rule, the one whose cause makes the same rows wrong for it, and the share of them that it must have.

Versions filled in, masks shifted by one, responses cut at a limit, copied mates, and responses that go on untold.
"""


def explain(found: Mapping[str, Findings]) -> None:
    """Move what other findings explain into them; what has too many rows beside those of one as bad stays its own.

    So do findings of a rule that has more than are kept.

    Args:
        found: what each rule that ran found, by its code.
    """
    for code, (by, share) in EXPLAINED_BY.items():
        if code not in found or by not in found or found[code].identities:
            continue
        own, others = found[code], found[by]
        explained: defaultdict[int | None, list[Finding]] = defaultdict(list)
        for place, finding in enumerate(own.kept):
            explained[_explaining(finding, own.rows.get(place), others, share)].append(finding)
        own.kept[:] = explained.pop(None, [])
        own.counts = Counter(finding.severity for finding in own.kept)
        for at, findings in explained.items():
            assert at is not None
            first = findings[0]
            who = "" if first.extent else f"{replace(first.subject, task=None)}: "
            count = f" {len(findings)} times, the first" if len(findings) > 1 else ""
            text = f"{others.kept[at].message}; also {code} {first.name}{count}, {who}{first.message}"
            others.kept[at] = replace(others.kept[at], message=text)


def _explaining(finding: Finding, rows: Int64s | None, others: Findings, share: float) -> int | None:
    """Place of the finding among the others that is as bad and has that share of its rows; None where there is none."""
    if rows is None:
        return None
    for at, other_rows in others.rows.items():
        is_as_bad = others.kept[at].severity.rank <= finding.severity.rank
        if is_as_bad and np.isin(rows, other_rows, assume_unique=True).mean() >= share:
            return at
    return None
