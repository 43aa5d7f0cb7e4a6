"""The checks of an audit, by subject: a module for each family of rules.

A case comes in, findings go out. Checks read no files and know no output format.
"""
