"""The `coalesce` command."""

from api.cli.app import main, run

__all__ = ["main", "run"]
