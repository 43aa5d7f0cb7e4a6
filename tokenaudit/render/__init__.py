"""Results in, text and contents of files out: pure functions, which touch neither files nor terminals.

One file per subject builds a report as `blocks`; `console` and `markdown` draw any of them. `junit`, `sarif` and
`github` write what machines read; `frames` gives flat tables.
"""
