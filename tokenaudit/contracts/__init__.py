"""What every room may name: errors, the log's columns, metrics, and files that appear whole.

Definitions and small helpers on the standard library only; nothing here knows a log, a config or a run.
"""
