"""Jobs of version 0.1: their table is the same."""

revision = "jobs_1"
down_revision = None


def upgrade() -> None:
    pass
