"""All audit rules, in the order of their codes within a family."""

from __future__ import annotations

from tokenaudit.audit.row_rules import MASK_RULES, SCHEMA_RULES, VERSION_RULES
from tokenaudit.audit.rule import Rule
from tokenaudit.audit.run_rules import GROUP_RULES, LIFECYCLE_RULES, TOTALS_RULES

RULES: tuple[Rule, ...] = (
    *SCHEMA_RULES,
    *VERSION_RULES,
    *MASK_RULES,
    *GROUP_RULES,
    *LIFECYCLE_RULES,
    *TOTALS_RULES,
)
"""Every rule there is."""

RULE_BY_NAME: dict[str, Rule] = {rule.name: rule for rule in RULES}
