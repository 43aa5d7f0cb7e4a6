"""One group's history or one step's report, read from the events of a replay.

Knows no output format.
"""
