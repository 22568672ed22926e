"""The error table: every class of every floor is in it, and every error has the contract's form."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from api_fakes import SAMPLE_ID, Live

import evals.errors
import indexes.errors
import rag.errors
from api import errors
from api.errors import ERROR_TABLE, describe
from indexes.errors import CoalesceError

MODULES = (indexes.errors, rag.errors, evals.errors, errors)


def subclasses(cls: type) -> Iterator[type]:
    yield cls
    for child in cls.__subclasses__():
        yield from subclasses(child)


def test_every_error_class_lives_in_an_errors_module_and_is_in_the_table():
    floors = {module.__name__.partition(".")[0] for module in MODULES}
    ours = {cls for cls in subclasses(CoalesceError) if cls.__module__.partition(".")[0] in floors}
    assert ours == set(ERROR_TABLE)
    assert {cls.__module__ for cls in ours} <= {module.__name__ for module in MODULES}


@pytest.mark.parametrize("cls", sorted(ERROR_TABLE, key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__)
def test_an_error_becomes_its_status_type_message_and_hint(cls: type[CoalesceError]):
    reply = describe(cls("what was wrong", hint="what mends it"))
    status, kind = ERROR_TABLE[cls]
    assert (reply.status, reply.type) == (status, kind)
    assert reply.body == {"error": {"type": kind, "message": "what was wrong", "hint": "what mends it"}}
    assert ("Retry-After" in reply.headers) == (status in (429, 503))
    assert status in (400, 401, 403, 404, 409, 413, 415, 422, 429, 503) or cls is CoalesceError


def test_a_full_disk_is_an_error_of_its_own_and_an_unknown_error_shows_nothing_of_the_program():
    assert describe(OSError(errno.ENOSPC, "No space left on device")).type == "storage_full"
    reply = describe(RuntimeError("secret /home/somebody"))
    assert (reply.status, "secret" in str(reply.body)) == (500, False)


def test_a_damaged_row_is_a_word_of_its_own_wherever_it_is_read_and_the_connection_stays(live: Live):
    conversation = live.post("/v1/ask", question="What is a warp?")["conversation_id"]
    for path, statement in (
        (live.shelf._settings.catalog_path, "UPDATE nodes SET heading_path = '['"),
        (live.services.settings.home / "conversations.sqlite3", "UPDATE answers SET body = '{'"),
    ):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)
    for path in ("/v1/suggestions", f"/v1/documents/{SAMPLE_ID}/contents", f"/v1/conversations/{conversation}"):
        error = live.client.get(path)
        assert (error.status_code, error.json()["error"]["type"]) == (503, "index_corrupt"), path
        assert "coalesce doctor" in error.json()["error"]["hint"]
    for path, body in (("/v1/ask", {"question": "What is a warp?"}), ("/v1/search", {"query": "warp"})):
        assert live.client.post(path, json=body).json()["error"]["type"] == "index_corrupt"
    assert 'coalesce_http_refused_total{reason="index_corrupt"} 5.0' in live.client.get("/metrics").text
