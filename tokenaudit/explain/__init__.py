"""One group or one step in, its story out, told from the events of a replay.

Knows no output format.
"""
