"""The audit's rules, each right above its check, by subject: a module for each family of rules.

A case comes in, findings go out. Checks read no files and know no output format.
"""

from __future__ import annotations

from tokenaudit.audit.checks import (  # noqa: F401 - a rule is registered when the module of its check is loaded
    contents,
    curves,
    ends,
    groups,
    lifecycle,
    losses,
    masks,
    partial_rollouts,
    probabilities,
    rewards,
    staleness,
    structure,
    stuck_versions,
    takes,
    totals,
    versions,
)
from tokenaudit.audit.rule import REGISTERED, AuditRule

_FAMILIES = "SVMGLTPERC"

RULES: tuple[AuditRule, ...] = tuple(sorted(REGISTERED, key=lambda rule: (_FAMILIES.index(rule.code[0]), rule.code)))
"""Every rule there is, in the order of listings: by family, then by code."""
