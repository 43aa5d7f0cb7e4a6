"""Closed-loop simulation: a workload goes in, and what the run would have done comes out.

The producer's own decisions are replayed: what to generate next, oversampling, tail batches, aborts at weight syncs,
and groups generated again. Time is integer microseconds and events have a total order, so equal inputs give equal
results.
"""
