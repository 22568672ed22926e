"""`python -m api.cli`: the `coalesce` command of this Python."""

from api.cli.app import main

main()
