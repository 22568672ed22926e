"""A catalog of version 0.1 gets its own count of rowids, in place of SQLite's AUTOINCREMENT."""

from alembic import op

revision = "catalog_1"
down_revision = None


def upgrade() -> None:
    op.execute("INSERT INTO meta (key, value) SELECT 'last_rowid', seq FROM sqlite_sequence WHERE name = 'nodes'")
