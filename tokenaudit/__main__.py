"""`python -m tokenaudit`."""

from tokenaudit.cli import main

main()
