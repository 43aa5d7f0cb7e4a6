"""The help topics: the name of a topic in, its Markdown text out.

Topics are Markdown files that ship with the package, one subject each, listed and read by `topics`. This room must
not know how a text is shown (cli) or checked (tests), and loads nothing but the standard library.
"""
