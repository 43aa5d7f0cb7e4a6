"""A result and its limits in, a verdict per rule out. Read `judge.py` first.

Whole numbers and fractions decide. Knows no log: what is judged is a result, made now or saved before.
"""
