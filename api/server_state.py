"""What servers over one database tell each other, beside the stores that a home has too."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import sqlalchemy as sa

from indexes.database import JsonText, Schema
from indexes.postgres import PostgresDatabase, store_at
from rag.conversations import answer_from_json, answer_to_json
from rag.types import Answer

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
_asked = sa.Table(
    "asked",
    _TABLES,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("server", sa.Text, nullable=False),
    sa.Column("client", sa.Text, nullable=False),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Column("at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
)
_apart = sa.Table(
    "answers_apart",
    _TABLES,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("at", sa.DateTime(timezone=True), nullable=False, index=True, server_default=sa.func.clock_timestamp()),
)
servers = sa.Table(
    "servers",
    _TABLES,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("until", sa.Float, nullable=False),  # by the database's clock
)
"""The servers and workers that are heard of; see `api.shared_runs`."""
runs = sa.Table(
    "runs",
    _TABLES,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("server", sa.ForeignKey(servers.c.id, ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("owner", sa.Text),
    sa.Column("conversation_id", sa.Text, index=True),
    sa.Column("asked", sa.Text, nullable=False),  # the question and what its answer replaces, as JSON
    sa.Column("events", sa.Integer),  # how many there are; null until the run has ended
    sa.Column("asked_to_stop", sa.Integer, nullable=False, server_default="0"),
    sa.Column("followed_until", sa.Float, nullable=False, server_default="0"),
)
"""Answers and comparisons in work, and those that have just ended."""
run_parts = sa.Table(
    "run_parts",
    _TABLES,
    sa.Column("run_id", sa.ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    sa.Column("first", sa.Integer, primary_key=True),
    sa.Column("past", sa.Integer, nullable=False),
    sa.Column("events", sa.Text, nullable=False),
)
"""The events of a run from one number up to another, as JSON, once it is followed at another server."""
NOW = sa.func.extract("epoch", sa.func.clock_timestamp())
_DAY_OLD = _apart.c.at < sa.func.clock_timestamp() - sa.text("interval '1 day'")
_OLD = _asked.c.at < sa.func.clock_timestamp() - sa.text("interval '2 minutes'")
SERVERS = Schema("servers_2", _TABLES)


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


class AskedElsewhere:
    """How often clients asked the other servers of a database. Light to make."""

    def __init__(self, database_url: str) -> None:
        self._database = store_at(database_url, SERVERS)
        self._server = uuid.uuid4().hex
        self._read_to: int | None = None

    def exchange(self, here: Mapping[str, int]) -> dict[str, int]:
        """Tell how often each client asked here since the last time; hear how often elsewhere. Raises as a `Store`."""
        if here:
            rows = [{"server": self._server, "client": client, "count": count} for client, count in here.items()]
            with self._database.writing() as connection:  # one after the other: numbers are seen in their order
                connection.execute(sa.delete(_asked).where(_OLD))
                connection.execute(sa.insert(_asked), rows)
        heard: dict[str, int] = {}
        with self._database.reading() as connection:
            last = connection.scalar(sa.select(sa.func.coalesce(sa.func.max(_asked.c.number), 0)))
            if self._read_to is not None:
                new = (_asked.c.number > self._read_to, _asked.c.number <= last, _asked.c.server != self._server)
                wanted = sa.select(_asked.c.client, sa.func.sum(_asked.c.count)).where(*new)
                heard = {client: int(count) for client, count in connection.execute(wanted.group_by(_asked.c.client))}
        self._read_to = last
        return heard


class AnswersApart:
    """Answers that no conversation keeps, for a day: any server of the database takes votes on them. Light to make."""

    def __init__(self, database_url: str) -> None:
        self._database = PostgresDatabase(database_url, SERVERS)

    def keep(self, answer: Answer, owner: str | None) -> None:
        """Keep an answer. Raises as a `Store`."""
        self._database.open()
        row = {"id": answer.id, "owner": owner, "body": answer_to_json(answer)}
        with self._database.connected() as connection:  # one row at a time: nobody waits for the store's turn
            connection.execute(sa.delete(_apart).where(_DAY_OLD))
            connection.execute(sa.insert(_apart), row)

    def get(self, answer_id: str, owner: str | None) -> Answer | None:
        """An answer of an owner, or of anyone's where None asks; None where there is none. Raises as a `Store`."""
        its = (_apart.c.id == answer_id, *(() if owner is None else (_apart.c.owner == owner,)))
        with self._database.reading() as connection:
            body = connection.scalar(sa.select(_apart.c.body).where(*its))
        return None if body is None else answer_from_json(body)
