"""Two results in, what changed between them out: settings, totals, steps, the first divergence, and groups.

Figures are compared exactly. Knows neither logs nor files.
"""
