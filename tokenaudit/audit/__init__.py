"""A recorded log in, a report of what is wrong with it out. Read `session.py` first.

A rule stands with its check in `checks/`. Knows no output format.
"""
