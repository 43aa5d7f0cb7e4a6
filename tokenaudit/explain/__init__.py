"""Why the tokens of a log were lost, one group's history, one step's report, and what a name means.

Read from the events of a replay, and of simulations with one setting loosened; knows no output format.
"""
