"""Conversations of version 0.1 say where they began; the first ones had no owners either."""

import sqlalchemy as sa
from alembic import op

revision = "conversations_4"
down_revision = None


def upgrade() -> None:
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("conversations")}
    for name in {"owner", "begun_in"} - there:
        op.add_column("conversations", sa.Column(name, sa.Text, nullable=False, server_default=""))
    for name, columns in (("conversations_by_time", []), ("conversations_of", ["owner"])):
        op.drop_index(name, "conversations", if_exists=True)
        op.create_index(name, "conversations", [*columns, "updated_at", "id", "begun_in"])
