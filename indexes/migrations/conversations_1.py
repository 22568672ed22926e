"""Conversations of version 0.1: the first ones had no owners, and the table of votes came with the first vote."""

import sqlalchemy as sa
from alembic import op

revision = "conversations_1"
down_revision = None

_TABLES = """
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, title TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    owner TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS answers (
    id TEXT PRIMARY KEY, conversation_id TEXT NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
    ordinal INTEGER NOT NULL, created_at TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS answers_by_conversation ON answers(conversation_id, ordinal);
CREATE TABLE IF NOT EXISTS feedback (
    answer_id TEXT PRIMARY KEY REFERENCES answers(id) ON DELETE CASCADE,
    rating TEXT NOT NULL, comment TEXT NOT NULL, created_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS votes (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, question TEXT NOT NULL, winner TEXT NOT NULL,
    blind INTEGER NOT NULL, answers TEXT NOT NULL);
"""


def upgrade() -> None:
    for statement in _TABLES.split(";")[:-1]:
        op.execute(statement)
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("conversations")}
    if "owner" not in columns:
        op.add_column("conversations", sa.Column("owner", sa.Text, nullable=False, server_default=""))
