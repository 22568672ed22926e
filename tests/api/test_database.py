"""`COALESCE_DATABASE_URL`: servers and commands over one PostgreSQL database, in place of a home's files."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from io import BytesIO
from pathlib import Path

import pytest
from api_fakes import FakeBuilder, Live, running
from fakes import ScriptedGenerator
from postgres import database_on, postgres_server, stopped
from waiting import PATIENCE_S, wait_until

from api.answering import RateLimit
from api.chosen_generator import GeneratorChoice, keep_choice
from api.errors import RateLimited
from api.generator import GeneratorSwitch
from api.health_checks import STORES
from api.jobs import JobStore, new_job
from api.repair import repair
from api.server_state import SERVERS, AskedElsewhere
from api.settings import CoalesceSettings, load_settings
from api.uploads import uploads_of
from indexes.catalog import CATALOG
from indexes.postgres import store_at
from indexes.readers import document_id_of
from rag.engine import AnswerEngine

BOOK = b"# Barriers\n\n## Use\n\nA barrier makes the threads of a block wait for each other.\n"


@pytest.fixture
def servers(tmp_path: Path, database_url: str) -> Iterator[tuple[Live, Live]]:
    """Two servers that began at once over an empty database, each with a home of its own."""
    for schema in (*STORES, SERVERS):
        store_at(database_url, schema).open()
    with ExitStack() as stack:
        found = [
            stack.enter_context(running(settings, FakeBuilder(database_url=database_url), wait=False))
            for settings in (in_database(tmp_path / name, database_url) for name in "ab")
        ]
        for each in found:
            wait_until(lambda each=each: each.services.preparation.ready, "both are ready")
        yield found[0], found[1]


def in_database(home: Path, database_url: str) -> CoalesceSettings:
    return load_settings({"home": home, "database_url": database_url})


def test_what_one_server_keeps_every_server_has_and_no_file_of_a_home(servers: tuple[Live, Live]) -> None:
    one, other = servers
    assert one.builder.samples_added + other.builder.samples_added == 1, "of several that start at once"
    taken = one.upload(BOOK, "barriers.md").json()
    assert one.ended(taken["job_id"])["state"] == "done"
    asked = other.post("/v1/ask", question="What does a barrier make threads do?")
    assert any(passage["document_id"] == taken["document_id"] for passage in asked["passages"])
    reloaded = one.get(f"/v1/conversations/{asked['conversation_id']}")
    assert [answer["id"] for answer in reloaded["answers"]] == [asked["id"]]
    assert other.status("DELETE", f"/v1/documents/{taken['document_id']}") == 204
    assert one.status("GET", f"/v1/documents/{taken['document_id']}") == 404
    assert one.post("/v1/search", query="barrier")["passages"][0]["document_id"] != taken["document_id"]
    compared = one.post("/v1/compare", question="What is a warp?", variants=[{"top_k": 2}, {"top_k": 3}])
    voted = [answer["id"] for answer in compared["answers"]]
    assert other.status("POST", "/v1/votes", {"answer_ids": voted, "preferred": voted[0]}) < 300
    exam = one.post("/v1/exams", count=2)
    assert other.get(f"/v1/exams/{exam['id']}")["questions"] == exam["questions"]
    homes = [path.name for each in servers for path in each.services.settings.home.rglob("*")]
    assert not [name for name in homes if name.endswith((".sqlite3", ".faiss", ".json"))]


def test_the_chosen_generator_is_kept_there(tmp_path: Path, database_url: str) -> None:
    choice = GeneratorChoice(generator="remote", model="m", base_url="http://127.0.0.1:9/v1")
    keep_choice(in_database(tmp_path / "a", database_url).choice_place, choice)
    assert in_database(tmp_path / "b", database_url).rag.generator.model == "m"
    keep_choice(in_database(tmp_path / "b", database_url).choice_place, None)
    assert in_database(tmp_path / "a", database_url).chosen is None


def test_what_is_chosen_at_one_server_answers_at_the_other(
    servers: tuple[Live, Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = servers

    def load(switch: GeneratorSwitch, choice: GeneratorChoice | None, _tell: object) -> AnswerEngine:
        live = next(each for each in servers if each.services.generators is switch)
        said = FakeBuilder(ScriptedGenerator(["A warp is remote [1]." if choice else "A warp is usual [1]."]))
        return said.engine(live.services.settings, live.shelf)

    monkeypatch.setattr(GeneratorSwitch, "_engine_of", load)
    monkeypatch.setattr("api.services.HEAR_S", 0.02)
    for choice, said in (({"generator": "extractive"}, "remote"), ({"generator": "auto"}, "usual")):
        job = one.client.put("/v1/generator", json=choice).json()
        assert one.ended(job["job_id"])["state"] == "done"
        wait_until(lambda said=said: said in other.post("/v1/ask", question="A warp?")["answer"], "the other follows")
        assert other.get("/v1/generator")["chosen"] == one.get("/v1/generator")["chosen"] == (said == "remote")


def test_a_client_is_limited_by_what_it_asks_of_every_server(database_url: str) -> None:
    now = [0.0]
    one, other = (RateLimit(60, clock=lambda: now[0]) for _ in range(2))
    links = AskedElsewhere(database_url), AskedElsewhere(database_url)

    def talk() -> None:
        for limit, link in zip((one, other, one), (*links, links[0]), strict=True):
            limit.share(link.exchange)

    talk()
    for _ in range(40):
        one.take("someone")
    talk()
    for _ in range(20):
        other.take("someone")
    with pytest.raises(RateLimited) as refused:
        other.take("someone")
    assert refused.value.retry_after_s == pytest.approx(1)
    other.take("another")
    talk()
    with pytest.raises(RateLimited):
        one.take("someone")
    now[0] += 2
    one.take("someone")
    with store_at(database_url, SERVERS).reading() as connection:
        assert "someone" not in str(connection.exec_driver_sql("SELECT * FROM asked").all())


@pytest.mark.parametrize(
    ("url", "mended_by"),
    [
        ("postgresql://me:hidden@127.0.0.1:9/x", "start it"),
        ("postgresql://me:hid@den@127.0.0.1/x", "%40"),
        ("postgresql://127.0.0.1:9/x?password=hidden", "start it"),
        ("mysql://me:hidden@host/x", "postgresql://"),
        ("postgresql://me:hidden@without-the-extra/x", "coalesce-rag[postgres]"),
    ],
)
def test_a_command_says_what_is_wrong_with_a_database_and_never_the_password(
    url: str, mended_by: str, coalesce, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "without" in url:
        monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.setenv("COALESCE_DATABASE_URL", url)
    for command in (["list"], ["serve", "--port", "0"], ["backup", str(home.parent / "b.zip")]):
        said = coalesce.refuses(*command)
        assert mended_by in said or "pg_dump" in said
        assert "hid" not in said.replace("hidden@without", "")
    assert "hid" not in repr(load_settings()) + repr(load_settings().index)


def test_commands_work_in_the_database_and_a_backup_names_what_is_beside_it(
    coalesce, home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COALESCE_DATABASE_URL", database_url)
    builder = FakeBuilder(database_url=database_url)
    builder.shelf.put("b", "A warp has 32 threads.", source="Warps")
    assert [book["id"] for book in coalesce.gives("list")["documents"]] == ["b"]
    assert coalesce.gives("remove", "b") == {"removed": "b"}
    assert not builder.shelf.documents()
    (home / "uploads").mkdir(parents=True)
    said = coalesce.refuses("backup", str(home.parent / "backup.zip"))
    assert "pg_dump" in said and "uploads" in said


def test_a_repair_leaves_the_uploads_that_other_servers_are_at(tmp_path: Path, database_url: str) -> None:
    given = {"database_url": database_url, "uploads_url": (tmp_path / "uploads").as_uri()}
    settings = load_settings({"home": tmp_path / "home"} | given)
    settings.home.mkdir()
    uploads = uploads_of(settings)
    whole, half = uploads.take_in(BytesIO(BOOK)), uploads.take_in(BytesIO(BOOK + b"More."))
    path = uploads.settle(whole, "barriers.md")
    store_at(database_url, CATALOG).open()
    with closing(JobStore(database_url)) as jobs:
        jobs.save(new_job("add", document_id_of(whole.sha256), "barriers.md"))
    assert repair(settings, lambda _: None) == []
    assert path.exists() and half.path.exists()


@pytest.mark.slow
def test_a_database_that_goes_away_is_503_until_it_is_back_and_nothing_acknowledged_is_lost(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    data = pytestconfig.cache.mkdir("postgres-stopped") / "data"
    with postgres_server(data, keeps_commits=True) as server, database_on(server) as url:
        builder = FakeBuilder(database_url=url)
        with running(in_database(tmp_path / "home", url), builder) as live:
            kept = live.post("/v1/ask", question="What is a warp?")
            exam = live.post("/v1/exams", count=2, types=["choice"])
            answers = {"answers": {exam["questions"][0]["id"]: 0}}
            reached, go_on = threading.Event(), threading.Event()

            def hold(step: int) -> None:
                if step:
                    reached.set()
                    go_on.wait(PATIENCE_S)

            builder.shelf.before_step = hold
            taken = live.upload(BOOK, "barriers.md").json()
            assert reached.wait(PATIENCE_S)
            with stopped(data):
                go_on.set()
                for method, path, body in (
                    ("POST", "/v1/ask", {"question": "What is a warp?"}),
                    ("PUT", f"/v1/exams/{exam['id']}/draft", answers),
                    ("POST", f"/v1/exams/{exam['id']}/answers", answers),
                    ("GET", "/readyz", None),
                ):
                    reply = live.client.request(method, path, json=body)
                    assert (reply.status_code, int(reply.headers["Retry-After"])) == (503, 5), path
                assert live.upload(BOOK + b"\nMore.\n", "more.md").status_code == 503
            assert live.ended(taken["job_id"])["state"] == "done"
            assert live.post("/v1/search", query="barrier")["passages"][0]["document_id"] == taken["document_id"]
            live.post(f"/v1/exams/{exam['id']}/answers", **answers)
            held = live.get(f"/v1/conversations/{kept['conversation_id']}")
            assert [answer["id"] for answer in held["answers"]] == [kept["id"]]
