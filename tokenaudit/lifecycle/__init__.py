"""The rules of staleness: what a replay buffer keeps, resets, discards and hands out.

Groups and train steps come in, events go out. Standard library only; knows no log, no config file and no metric.
"""
