"""Servers are heard of, and their runs are followed at others: tables that are new are made before this."""

revision = "servers_2"
down_revision = None


def upgrade() -> None:
    pass
