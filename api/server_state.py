"""What servers over one database tell each other, beside the stores that a home has too."""

from __future__ import annotations

import sqlalchemy as sa

from indexes.database import JsonText, Schema
from indexes.postgres import store_at

_TABLES = sa.MetaData()
_state = sa.Table(
    "server_state",
    _TABLES,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
leases = sa.Table(
    "job_leases",
    _TABLES,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False, index=True),
    sa.Column("errand", JsonText),  # its name and arguments; null where only its first holder can do it
    sa.Column("holder", sa.Text),
    sa.Column("until", sa.Float, nullable=False),  # by the database's clock
    sa.Column("takers", sa.Integer, nullable=False),
    sa.Column("asked_to_stop", sa.Integer, nullable=False, server_default="0"),
    sa.Column("seconds_left", sa.Float),
)
"""Who does which unfinished job, and until when; see `api.shared_jobs`."""
SERVERS = Schema("servers_1", _TABLES)


def get_state(database_url: str, key: str) -> str | None:
    """What is kept under a key; None for nothing. Raises as `Store.reading`."""
    with store_at(database_url, SERVERS).reading() as connection:
        return connection.scalar(sa.select(_state.c.value).where(_state.c.key == key))


def set_state(database_url: str, key: str, value: str | None) -> None:
    """Keep a value under a key; None forgets it. Raises as `Store.writing`."""
    with store_at(database_url, SERVERS).writing() as connection:
        connection.execute(sa.delete(_state).where(_state.c.key == key))
        if value is not None:
            connection.execute(sa.insert(_state), {"key": key, "value": value})
