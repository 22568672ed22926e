"""Conversations say where they began, so that the page lists its own; of earlier ones that is not known."""

import sqlalchemy as sa
from alembic import op

revision = "conversations_2"
down_revision = "conversations_1"


def upgrade() -> None:
    op.add_column("conversations", sa.Column("begun_in", sa.Text, nullable=False, server_default=""))
