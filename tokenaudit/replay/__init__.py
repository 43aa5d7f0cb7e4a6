"""The main job: a digest and a config come in, and a result goes out. Read `session.py` first.

Events of the lifecycle are folded into step rows and the token ledger. Knows no terminal and no output format.
"""
