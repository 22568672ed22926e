"""Answers and comparisons in work, followed and stopped at a server of their database that does not write them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from api_fakes import FakeBuilder, Live, running
from fakes import ScriptedGenerator
from postgres import place_in
from waiting import PATIENCE_S, wait_until

from api import shared_runs
from api.answering import Answering
from api.health_checks import STORES
from api.server_state import NOW, SERVERS, runs, servers
from api.settings import load_settings
from api.shared_runs import SharedRuns
from api.streaming import FollowedTask, Named
from indexes.errors import DatabaseUnavailable, InvalidInput, NotFound
from indexes.postgres import PostgresDatabase, store_at

ASKED = {"question": "How many threads are in a warp?", "stream": True, "grace_s": 30}
KEYS = {"api_keys": "open-key", "learner_keys": "alice=alices-key,bob=bobs-key"}
THREADS = 40
"""Of Starlette, for calls that wait."""
WAYS = {"/v1/ask": ("x-answer-id", "/v1/answers/{}"), "/v1/compare": ("x-comparison-id", "/v1/compare/{}")}
"""How a run is begun, the header that names it, and where it is followed and stopped."""
BOTH = pytest.mark.parametrize("way", WAYS, ids=["answer", "comparison"])


class Pair:
    """Two servers over one database; what they write stands still between the first piece and the second."""

    def __init__(self, one: Live, other: Live) -> None:
        self.one, self.other = one, other
        self.go_on = threading.Event()
        for live in (one, other):
            live.generator.pieces = ("A warp has ", "32 threads [1].")
            live.generator.before_piece = lambda index: index and self.go_on.wait(PATIENCE_S) and None

    @contextmanager
    def begun(self, way: str, **more: Any) -> Iterator[tuple[str, httpx.Response]]:
        """A run at the one server that the other has been told of: its path, and the reply that it is read from."""
        header, path = WAYS[way]
        with self.one.client.stream("POST", way, json=ASKED | more) as reply:
            run_id = reply.headers[header]
            wait_until(lambda: run_id in told(self.one), "it is told of")
            yield path.format(run_id), reply

    @contextmanager
    def endless(self, way: str, **more: Any) -> Iterator[tuple[str, httpx.Response]]:
        """As `begun`, of a run that ends only when it is stopped."""
        writer = self.one.generator
        writer.before_piece = lambda index: index and threading.Event().wait(0.02) and None
        writer.pieces = ("word ",) * 100_000
        with self.begun(way, **more) as begun:
            yield begun
        inside = self.one.services.answering.limit
        wait_until(lambda: not inside.inside and writer.closed_streams == len(writer.requests), "it was stopped")


def told(live: Live) -> list[str]:
    with store_at(live.services.settings.index.database_url, SERVERS).reading() as connection:
        return list(connection.scalars(sa.select(runs.c.id)))


def as_(live: Live, key: str) -> Live:
    return replace(live, client=httpx.Client(base_url=live.address, headers={"authorization": f"Bearer {key}"}))


def names(reply: httpx.Response) -> list[str]:
    lines = reply.read().decode().splitlines()
    return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, common_database: str) -> Iterator[tuple[Live, Live]]:
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, seconds in {"EVERY_S": 0.05, "LEASE_S": 2.0, "BEAT_S": 0.1, "FOLLOWED_S": PATIENCE_S}.items():
            patch.setattr(shared_runs, name, seconds)
        url = stack.enter_context(place_in(common_database))
        for schema in (*STORES, SERVERS):
            store_at(url, schema).open()
        found = []
        for name in "ab":
            settings = load_settings({"home": tmp_path_factory.mktemp(name), "database_url": url} | KEYS)
            builder = FakeBuilder(ScriptedGenerator(arms=("rag",)), database_url=url)
            found.append(as_(stack.enter_context(running(settings, builder)), "open-key"))
            stack.enter_context(found[-1].client)
        yield found[0], found[1]


@pytest.fixture
def pair(both: tuple[Live, Live]) -> Iterator[Pair]:
    pair = Pair(*both)
    yield pair
    pair.go_on.set()


@BOTH
def test_a_run_is_followed_from_its_start_at_any_server_and_goes_on_for_who_reads_it_there(way: str, pair: Pair):
    with (
        pair.begun(way, grace_s=0) as (path, reply),
        pair.other.client.stream("GET", f"{path}/events") as elsewhere,
    ):
        lines = elsewhere.iter_lines()
        assert "event: delta" in lines  # up to where it stands still
        reply.close()  # who asked leaves
        pair.go_on.set()
        rest = [line for line in lines if line.startswith("event: ")]
    assert rest[0] == "event: delta" and rest[-1] in ("event: done", "event: compared")
    again = pair.other.client.get(f"{path}/events")
    assert again.text == pair.one.client.get(f"{path}/events").text


@BOTH
def test_a_run_is_stopped_at_any_server(way: str, pair: Pair):
    with pair.endless(way) as (path, reply):
        assert pair.other.status("DELETE", path) == 204
        assert not {"done", "compared"} & {*names(reply)}


def test_who_stops_what_nobody_writes_holds_up_nobody(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    unknown = [f"unknown-{number}" for number in range(THREADS)]
    stop, begun, shared = Answering.stop, [], pair.one.services._shared_runs

    def counted(*its: Any) -> bool:
        begun.append(its)
        return stop(*its)

    with monkeypatch.context() as patch, ThreadPoolExecutor(THREADS) as pool:
        patch.setattr(Answering, "stop", counted)
        patch.setattr(shared_runs, "LOOKS", 1_000_000)
        stopped = [pool.submit(pair.one.status, "DELETE", f"/v1/answers/{one}") for one in unknown]
        wait_until(lambda: len(begun) == THREADS, "all of them are looked for")
        try:
            assert pair.one.client.get("/v1/conversations", timeout=PATIENCE_S).is_success
        finally:  # each is found, by which the looking ends
            with store_at(pair.one.services.settings.index.database_url, SERVERS).writing() as connection:
                connection.execute(sa.insert(runs), [{"id": one, "server": shared._me, "asked": ""} for one in unknown])
        assert {one.result() for one in stopped} == {204}
    with store_at(pair.one.services.settings.index.database_url, SERVERS).writing() as connection:
        connection.execute(sa.delete(runs).where(runs.c.id.in_(unknown)))


@BOTH
def test_a_learner_follows_and_stops_her_own_runs_alone(way: str, both: tuple[Live, Live]):
    alice, alice_elsewhere, bob = as_(both[0], "alices-key"), as_(both[1], "alices-key"), as_(both[1], "bobs-key")
    pair = Pair(alice, alice_elsewhere)
    with alice.client, alice_elsewhere.client, bob.client, pair.begun(way) as (path, reply):
        assert bob.status("GET", f"{path}/events") == bob.status("DELETE", path) == 404
        with alice_elsewhere.client.stream("GET", f"{path}/events") as elsewhere:
            pair.go_on.set()
            assert names(elsewhere) == names(reply)


def test_a_conversation_tells_of_its_unfinished_answer_at_any_server_and_ends_it_with_itself(pair: Pair):
    conversation = pair.one.post("/v1/conversations")["id"]
    with pair.endless("/v1/ask", conversation_id=conversation) as (path, reply):
        found = pair.other.get(f"/v1/conversations/{conversation}")["unfinished"]
        assert found == {"id": path.rpartition("/")[2], "question": ASKED["question"], "replaces": None}
        assert pair.other.status("DELETE", "/v1/conversations") == 204
        assert "done" not in names(reply)


@BOTH
def test_who_follows_a_run_whose_server_dies_hears_of_it(way: str, pair: Pair, monkeypatch: pytest.MonkeyPatch):
    conversation = {"conversation_id": pair.one.post("/v1/conversations")["id"]} if "ask" in way else {}
    with pair.begun(way, **conversation) as (path, _), pair.other.client.stream("GET", f"{path}/events") as elsewhere:
        lines = elsewhere.iter_lines()
        assert "event: delta" in lines
        with monkeypatch.context() as killed:
            dead = pair.one.services._shared_runs
            killed.setattr(dead, "_tell", lambda: None)  # it is not heard of any more
            with store_at(pair.one.services.settings.index.database_url, SERVERS).writing() as connection:
                connection.execute(sa.update(servers).where(servers.c.id == dead._me).values(until=NOW))  # for long
            error = [line for line in lines if line.startswith(("event: ", "data: "))][-2:]
            assert error[0] == "event: error" and "stopped" in error[1] and "Ask again" in error[1]
            assert names(pair.other.client.get(f"{path}/events"))[-1] == "error"
            assert pair.other.services.answering.conversations() == set()


def test_who_follows_a_run_goes_on_when_the_database_is_back(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_runs, "LEASE_S", PATIENCE_S)
    asked_in_vain: list[str] = []

    def is_away(_: object) -> Iterator[None]:
        asked_in_vain.append(threading.current_thread().name.partition("_")[0])
        raise DatabaseUnavailable("it does not answer")

    with pair.begun("/v1/ask") as (path, reply), pair.other.client.stream("GET", f"{path}/events") as elsewhere:
        lines = elsewhere.iter_lines()
        assert "event: delta" in lines
        with monkeypatch.context() as away:
            away.setattr(PostgresDatabase, "connected", is_away)
            wait_until(lambda: {"coalesce-runs", "coalesce-follow"} <= {*asked_in_vain}, "both wanted it")
        pair.go_on.set()
        assert [line for line in lines if line.startswith("event: ")] == ["event: delta", "event: done"]
        assert names(reply)[-1] == "done"


def test_a_run_that_is_over_before_the_others_are_told_is_not_told_of(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    pair.go_on.set()
    shared = pair.one.services._shared_runs
    tell = shared._tell
    with monkeypatch.context() as late:
        late.setattr(shared, "_tell", lambda: None)
        reply = pair.one.client.post("/v1/ask", json=ASKED)
        tell()
    assert "event: done" in reply.text and reply.headers["x-answer-id"] not in told(pair.one)


def test_who_follows_a_run_whose_server_is_stopped_hears_how_it_ended(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_runs, "EVERY_S", 0.05)
    one, other = SharedRuns(database_url), SharedRuns(database_url)

    async def written() -> AsyncGenerator[Named]:
        yield "delta", {"text": "A warp"}
        await asyncio.Event().wait()

    async def followed() -> list[Named]:
        run = FollowedTask(written(), grace_s=60)
        one.add("run", None, run)
        one.start()
        async with aclosing(other.follow("run", None, NotFound("it is not told of"))) as events:
            first = await anext(events)
            run.stop()
            await asyncio.to_thread(one.close)
            await asyncio.to_thread(other._tell)  # which forgets servers that are gone
            return [first, *[event async for event in events]]

    first, (name, data) = asyncio.run(followed())
    other.close()
    assert (first, name, data["error"]["type"]) == (("delta", {"text": "A warp"}), "error", "cancelled")


async def endless() -> AsyncGenerator[Named]:
    yield "delta", {"text": "A warp"}
    await asyncio.Event().wait()


def test_an_ended_run_that_somebody_reads_elsewhere_is_kept_however_many_have_ended_since(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_runs, "EVERY_S", 0)
    monkeypatch.setattr(shared_runs, "FOLLOWED_S", PATIENCE_S)
    monkeypatch.setattr(shared_runs, "MOST_KEPT", 1)
    one, other = SharedRuns(database_url), SharedRuns(database_url)

    async def kept() -> list[str]:
        made = {name: FollowedTask(endless(), grace_s=60) for name in ("read", "unread", "newest")}
        for name, run in made.items():
            one.add(name, None, run)
        await asyncio.to_thread(one._tell)
        await asyncio.to_thread(other._read, "read", None, 0)
        await asyncio.to_thread(one._tell)  # which begins to read it
        for run in made.values():
            run.stop()
        await asyncio.sleep(0.05)
        assert all(run.ended for run in made.values())
        await asyncio.to_thread(one._tell)
        return [name for name in made if (await asyncio.to_thread(other._read, name, None, 0))[0] is not None]

    assert asyncio.run(kept()) == ["read", "newest"]
    other.close()
    one.close()


def test_a_run_is_not_let_go_of_because_the_database_was_away(database_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_runs, "EVERY_S", 0.05)
    monkeypatch.setattr(shared_runs, "FOLLOWED_S", PATIENCE_S)
    one, other = SharedRuns(database_url), SharedRuns(database_url)
    connected, away, told = PostgresDatabase.connected, threading.Event(), []

    def sometimes(database: PostgresDatabase) -> Any:
        if database is not one._database:
            return connected(database)
        told.append(is_away := away.is_set())
        if is_away:
            raise DatabaseUnavailable("it does not answer")
        return connected(database)

    async def is_over() -> bool:
        run = FollowedTask(endless(), grace_s=0)
        one.add("run", None, run)
        async with aclosing(other.follow("run", None, NotFound("it is not told of"))) as events:
            await anext(events)
            away.set()
            await asyncio.to_thread(wait_until, lambda: told[-1:] == [True], "it was away")
            with store_at(database_url, SERVERS).writing() as connection:  # for longer than it is followed
                connection.execute(sa.update(runs).values(followed_until=0))
            told.clear()
            away.clear()
            await asyncio.to_thread(wait_until, lambda: told.count(False) > 3, "it is back")
            await asyncio.sleep(0.05)
        return run.ended

    with monkeypatch.context() as patch:
        patch.setattr(PostgresDatabase, "connected", sometimes)
        one.start()
        assert not asyncio.run(is_over())
    other.close()
    one.close()


def test_an_id_that_no_database_takes_does_not_say_that_it_is_away(database_url: str):
    shared = SharedRuns(database_url)

    async def refused() -> None:
        with pytest.raises(InvalidInput):
            await anext(shared.follow("\0", None, NotFound("it is not told of")))

    before = shared._away_at
    asyncio.run(refused())
    assert shared._away_at == before
    shared.close()
