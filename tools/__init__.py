"""Tools of those who work on Coalesce, run from a checkout as `python -m tools.NAME --help`; no part of the package."""
