"""A live run in, a log out: events are queued in memory and a thread seals them in part files.

Read `recorder.py` first. Knows no replay: it only writes what happened.
"""
