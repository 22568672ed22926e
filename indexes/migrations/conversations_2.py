"""Conversations of version 0.1 say where they began; the first ones had no owners, and no table of votes."""

import sqlalchemy as sa
from alembic import op

revision = "conversations_2"
down_revision = None


def upgrade() -> None:
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("conversations")}
    for name in {"owner", "begun_in"} - columns:
        op.add_column("conversations", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.create_table(
        "votes",
        sa.Column("number", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("at", "question", "winner")),
        sa.Column("blind", sa.Integer, nullable=False),
        sa.Column("answers", sa.Text, nullable=False),
        if_not_exists=True,
    )
