"""Parquet in, digest out: a log is opened, checked, and reduced to the version runs of its responses.

Token columns are read once, in bounded batches. Knows no config: what a policy makes of a digest is decided later.
"""
