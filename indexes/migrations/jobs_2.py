"""A job has the name of what it works on."""

import sqlalchemy as sa
from alembic import op

revision = "jobs_2"
down_revision = "jobs_1"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("title", sa.Text, nullable=False, server_default=""))
