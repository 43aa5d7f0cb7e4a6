"""Plain data in, valid config out: defaults, faults with the nearest key, warnings, and where each value came from.

TOML, a log's metadata and `key=value` texts come in. Knows the lifecycle's thresholds, but no log and no run.
"""
