"""Conversations of version 0.1 say where they began; the first ones had no owners either."""

import sqlalchemy as sa
from alembic import op

revision = "conversations_3"
down_revision = None


def upgrade() -> None:
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("conversations")}
    for name in {"owner", "begun_in"} - columns:
        op.add_column("conversations", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.create_index("conversations_by_time", "conversations", ["updated_at", "id"], if_not_exists=True)
    op.create_index("conversations_of", "conversations", ["owner", "updated_at", "id"], if_not_exists=True)
