"""Answers and comparisons in work at the servers of one database: any of them follows and stops each.

A run that is not over at once has a row there. Its events go there when somebody follows it at another server, who
says so again and again: a run goes on for its readers wherever they are. Who wants it stopped marks its row. Each
server, and each worker, is heard of by a row of its own; when that runs out, the runs have ended with their server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from api.errors import describe
from api.schemas.answers import Unfinished
from api.server_state import NOW, SERVERS, run_parts, runs, servers
from api.streaming import Followed, Named
from indexes.errors import Busy, CoalesceError, NotFound
from indexes.postgres import PostgresDatabase

logger = logging.getLogger("coalesce.runs")
EVERY_S = 0.5
"""How often a server tells and hears of runs; one that is over by then is not told of."""
BEAT_S = 5.0
"""How often a server is heard of."""
LEASE_S = 15.0
"""How long a server that is not heard of counts as running."""
FOLLOWED_S = 5.0
"""How long a run is followed by a server that is not heard of."""
KEPT_S, MOST_KEPT = 60.0, 200
"""How long a run that has ended can be followed, and how many of a server."""
GONE_S = 3600.0
"""How long what a server that is gone has told is kept."""
LOOKS = 4
"""How often an id is looked for: a run is told of within `EVERY_S` after it is not over at once."""
READERS = 2
"""Threads that read for those who follow or stop, and connections that they take."""

_ALIVE = servers.c.until > NOW


@dataclass(slots=True)
class _Run:
    """A run of this server: what the others are told of it, and how far it has been told."""

    id: str
    owner: str | None
    conversation_id: str | None
    asked: str
    followed: Followed[Any]
    named: Callable[[Any], Named]
    began_at: float = field(default_factory=time.monotonic)
    told: bool = False
    sent: int = 0
    reading: Future[None] | None = None
    ended_at: float | None = None

    def events(self, first: int) -> list[Named]:
        """Its events from a number on; what ended it comes last."""
        ended = self.followed.ended  # asked first: then all are there
        made = [self.named(event) for event in self.followed.made[first:]]
        if ended and self.followed.error is not None and first <= len(self.followed.made):
            made.append(("error", describe(self.followed.error).event))
        return made


class SharedRuns:
    """Lets the servers of a database follow and stop each other's runs; one in each server. Light to make.

    Args:
        url: of the database.
    """

    def __init__(self, url: str) -> None:
        self._database = PostgresDatabase(url, SERVERS)
        self._me = uuid.uuid4().hex
        self._runs: dict[str, _Run] = {}
        self._beat_at = 0.0
        self._away = False
        self._away_at = -LEASE_S  # the database, from here; who writes a run could not be heard of either
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="coalesce-runs", daemon=True)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="coalesce-follow")

    def start(self) -> None:
        """Begins to be heard of, and to tell."""
        self._beats.start()

    def close(self) -> None:
        """Tells what there is to tell, and is not heard of any more."""
        self._over.set()
        if self._beats.is_alive():
            self._beats.join()
            with suppress(Exception):  # it runs out by itself
                self._tell()
                with self._database.connected() as connection:
                    connection.execute(sa.update(servers).where(servers.c.id == self._me).values(until=NOW))
        self._readers.shutdown(wait=False, cancel_futures=True)

    def add(
        self,
        run_id: str,
        owner: str | None,
        followed: Followed[Any],
        named: Callable[[Any], Named] = lambda event: event,
        *,
        conversation_id: str | None = None,
        question: str = "",
        replaces: str | None = None,
    ) -> None:
        """Lets a run of this server be followed and stopped at the others.

        Args:
            named: gives an event as it is sent.
        """
        asked = json.dumps([question, replaces])
        self._runs[run_id] = _Run(run_id, owner, conversation_id, asked, followed, named)

    async def follow(self, run_id: str, owner: str | None, unknown: NotFound) -> AsyncGenerator[Named]:
        """The events of a run of another server from the start to the end, an error among them.

        Raises:
            NotFound: what is given, where nobody, or another owner, has the run.
            Busy: its server has stopped. Else as a `Store`.
        """
        loop, seen, looks, heard_at = asyncio.get_running_loop(), 0, 0, time.monotonic()
        while True:
            try:
                row, events = await loop.run_in_executor(self._readers, self._read, run_id, owner, seen)
            except CoalesceError:
                if looks == 0:  # it may be the id that no database takes
                    raise
                self._away_at = time.monotonic()
                if self._away_at - heard_at > LEASE_S:
                    raise
                row, events = None, []
            else:
                heard_at = time.monotonic()
                looks += 1
                for event in events:
                    seen += 1
                    yield event
                if row is None and (seen or looks >= LOOKS):
                    raise _stopped() if seen else unknown
                if row is not None and row.events is not None and seen >= row.events:
                    return
                if row is not None and not row.alive and time.monotonic() - self._away_at > LEASE_S:
                    raise _stopped()
            await asyncio.sleep(EVERY_S)

    async def stop(self, run_id: str, owner: str | None) -> bool | None:
        """Has a run of another server stopped. False: it has ended. None: nobody, or another owner, has it.

        Raises:
            CoalesceError: as a `Store`.
        """
        loop = asyncio.get_running_loop()
        for look in range(LOOKS):
            if look:
                await asyncio.sleep(EVERY_S)
            if (row := await loop.run_in_executor(self._readers, self._mark, run_id, owner)) is not None:
                return bool(row.events is None)
        return None

    def stop_all_of(self, conversation_id: str) -> None:
        """Has the runs of a conversation stopped."""
        self._database.open()
        with self._database.connected() as connection:
            its = runs.c.conversation_id == conversation_id
            connection.execute(sa.update(runs).where(its).values(asked_to_stop=1))

    def unfinished(self, conversation_id: str | None = None) -> list[tuple[str, Unfinished]]:
        """The runs in work at any server, in one conversation or in all, each with its conversation."""
        self._database.open()
        wanted = sa.select(runs.c.id, runs.c.conversation_id, runs.c.asked).join(servers)
        wanted = wanted.where(runs.c.events.is_(None), runs.c.conversation_id.is_not(None), _ALIVE)
        if conversation_id is not None:
            wanted = wanted.where(runs.c.conversation_id == conversation_id)
        with self._database.connected() as connection:
            return [
                (where, Unfinished(run_id, *json.loads(asked))) for run_id, where, asked in connection.execute(wanted)
            ]

    def _mark(self, run_id: str, owner: str | None) -> Any:
        self._database.open()
        marked = sa.update(runs).where(*_its(run_id, owner)).values(asked_to_stop=1).returning(runs.c.events)
        with self._database.connected() as connection:
            return connection.execute(marked).first()

    def _read(self, run_id: str, owner: str | None, seen: int) -> tuple[Any, list[Named]]:
        """The row of a run, None for none, and its events behind those that were seen."""
        self._database.open()
        left = (runs.c.followed_until - NOW).label("left")
        wanted = sa.select(runs.c.events, left, _ALIVE.label("alive")).join(servers).where(*_its(run_id, owner))
        its = run_parts.c.run_id == run_id
        parts = sa.select(run_parts.c.first, run_parts.c.events).where(its, run_parts.c.past > seen)
        events: list[Named] = []
        with self._database.connected() as connection:
            if (row := connection.execute(wanted).first()) is None:
                return None, events
            if row.left < FOLLOWED_S / 2:
                until = {"followed_until": NOW + FOLLOWED_S}
                connection.execute(sa.update(runs).where(runs.c.id == run_id).values(until))
            for first, part in connection.execute(parts.order_by(run_parts.c.first)):
                events += [(name, data) for name, data in json.loads(part)[seen + len(events) - first :]]
        return row, events

    def _beat(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                self._tell()
            except Exception as error:  # noqa: BLE001  whatever a driver raises: without this thread nobody hears of runs
                if not self._away:
                    logger.warning("runs are not told of: %s", error)
                self._away, self._away_at = True, time.monotonic()
            else:
                self._away = False

    def _tell(self) -> None:
        """Tells of this server and its runs, and does what others want of them."""
        now = time.monotonic()
        for run in list(self._runs.values()):
            if run.followed.ended and not run.told:
                del self._runs[run.id]
        mine = [run for run in list(self._runs.values()) if run.told or now - run.began_at >= EVERY_S]
        if not mine and now < self._beat_at:
            return
        self._database.open()
        with self._database.connected() as connection:
            if now >= self._beat_at:
                self._be_heard(connection)
                self._beat_at = now + BEAT_S
            for run in mine:
                if not run.told:
                    self._begin(connection, run)
            wants = self._wants(connection) if mine else {}
            was_away = now - self._away_at < FOLLOWED_S  # then nobody could say that they follow
            for run in mine:
                stop, followed = wants.get(run.id, (False, False))
                if stop and not run.followed.ended:
                    run.followed.loop.call_soon_threadsafe(run.followed.stop)
                _keep_on(run, followed or (was_away and run.reading is not None))
                if followed:
                    self._send(connection, run)
                if run.followed.ended and run.ended_at is None:
                    made = len(run.followed.made) + (run.followed.error is not None)
                    connection.execute(sa.update(runs).where(runs.c.id == run.id).values(events=made))
                    run.ended_at = now
            ended = [run for run in mine if run.ended_at is not None and run.reading is None]
            old = [run.id for run in ended if now > (run.ended_at or now) + KEPT_S]
            if gone := {*old, *(run.id for run in ended[:-MOST_KEPT])}:
                connection.execute(sa.delete(runs).where(runs.c.id.in_(gone)))
                for run_id in gone:
                    self._runs.pop(run_id, None)

    def _be_heard(self, connection: sa.Connection) -> None:
        values = {"name": f"{socket.gethostname()}:{os.getpid()}", "until": NOW + LEASE_S}
        heard = insert(servers).values(id=self._me, **values)
        connection.execute(heard.on_conflict_do_update(index_elements=[servers.c.id], set_=values))
        connection.execute(sa.delete(servers).where(servers.c.until < NOW - GONE_S))

    def _begin(self, connection: sa.Connection, run: _Run) -> None:
        row = {"id": run.id, "server": self._me, "owner": run.owner, "asked": run.asked}
        begun = insert(runs).values(row | {"conversation_id": run.conversation_id}).on_conflict_do_nothing()
        try:
            connection.execute(begun)
            run.told = True
        except sa.exc.DataError:  # an id with a zero character, which no conversation has
            del self._runs[run.id]

    def _wants(self, connection: sa.Connection) -> dict[str, tuple[bool, bool]]:
        """What others want of the runs here: that they stop, and what they write."""
        followed = runs.c.followed_until > NOW
        wanted = sa.select(runs.c.id, runs.c.asked_to_stop == 1, followed)
        rows = connection.execute(wanted.where(runs.c.server == self._me, followed | (runs.c.asked_to_stop == 1)))
        return {run_id: (stop, follow) for run_id, stop, follow in rows}

    def _send(self, connection: sa.Connection, run: _Run) -> None:
        if events := run.events(run.sent):
            part = {"past": run.sent + len(events), "events": json.dumps(events)}
            sent = insert(run_parts).values(run_id=run.id, first=run.sent, **part)
            connection.execute(sent.on_conflict_do_update(index_elements=["run_id", "first"], set_=part))
            run.sent += len(events)


def servers_of(url: str) -> list[str]:
    """The servers and workers that use a database now: machine and process of each. Raises as a `Store`."""
    with PostgresDatabase(url, SERVERS).reading() as connection:
        return list(connection.scalars(sa.select(servers.c.name).where(_ALIVE).order_by(servers.c.name)))


def _its(run_id: str, owner: str | None) -> Sequence[sa.ColumnElement[bool]]:
    return (runs.c.id == run_id, *(() if owner is None else (runs.c.owner == owner,)))


def _stopped() -> Busy:
    return Busy("the server that wrote this has stopped", hint="Ask again in a moment.", retry_after_s=1.0)


def _keep_on(run: _Run, followed: bool) -> None:
    """Reads a run here for as long as others do elsewhere: it stops when nobody does."""
    if followed and run.reading is None and not run.followed.ended:
        run.reading = asyncio.run_coroutine_threadsafe(_read_all(run.followed), run.followed.loop)
    elif not followed and run.reading is not None:
        run.reading.cancel()
        run.reading = None


async def _read_all(followed: Followed[Any]) -> None:
    with suppress(Exception):
        async with aclosing(followed.events()) as events:
            async for _ in events:
                pass
