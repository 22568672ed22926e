"""A job of version 0.1 gets the name of what it works on."""

import sqlalchemy as sa
from alembic import op

revision = "jobs_2"
down_revision = None


def upgrade() -> None:
    if "title" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("jobs")}:
        op.add_column("jobs", sa.Column("title", sa.Text, nullable=False, server_default=""))
