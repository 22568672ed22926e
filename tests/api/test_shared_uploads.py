"""Uploads in a storage that several servers share: in memory, and in a server that speaks as S3 does."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path, PurePosixPath

import pytest
from api_fakes import Live, running

from api.settings import CoalesceSettings, load_settings
from api.uploads import Incoming, uploads_of
from indexes.errors import CoalesceError, InvalidInput, StorageUnavailable
from indexes.sample import SAMPLE_PATH

NAME = "a book [1] #x 书.txt"
BOOK = b"Occupancy is the share of resident warps."
CHAPTERS = [("Kernels/1.md", b"# One\n\nA tile."), ("Kernels/part/2.md", b"# Two\n\nA warp.")]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a bucket of a server of this process."""
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install .[s3]")
    moto = pytest.importorskip("moto.server", reason="moto is not installed: pip install .[dev]")
    import boto3

    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "DEFAULT_REGION"):
            patch.setenv(f"AWS_{name}", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", address)
        boto3.client("s3").create_bucket(Bucket="books")
        yield "s3://books"
    server.stop()


@pytest.fixture(params=["memory", "folder", pytest.param("s3", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    places = {"memory": "memory://uploads", "folder": (tmp_path / "shared books").as_uri()}
    return f"{places.get(request.param) or request.getfixturevalue('s3')}/{uuid.uuid4().hex}"


def of(url: str, home: Path) -> CoalesceSettings:
    return load_settings({"home": home, "uploads_url": url})


def added(live: Live, *files: tuple[str, bytes]) -> str:
    taken = live.client.post("/v1/documents", files=[("file", part) for part in files]).json()
    job = live.ended(taken["job_id"])
    assert job["state"] == "done", job
    return str(taken["document_id"])


def test_uploads_are_kept_there_read_by_another_server_and_go_with_their_book(url: str, tmp_path: Path) -> None:
    settings = of(url, tmp_path / "one")
    elsewhere = uploads_of(of(url, tmp_path / "other"))
    with running(settings) as live:
        ids = [added(live, (NAME, BOOK)), added(live, *CHAPTERS)]
        books = [live.shelf.document(document_id) for document_id in ids]
        assert live.services._shared_reports is not None
        live.services._shared_reports.put(SAMPLE_PATH, "2026-01-01")  # beside the books
        assert elsewhere.contents() == {books[0].sha256: NAME, books[1].sha256: "Kernels"}
        shutil.rmtree(settings.home / "uploads", ignore_errors=True)
        for folder in (elsewhere, live.services.books.folder):
            file, chapters = (folder.find(book.sha256) for book in books)
            assert file is not None and chapters is not None
            assert (file.name, file.read_bytes()) == (NAME, BOOK)
            assert [(chapters / name.partition("/")[2]).read_bytes() for name, _ in CHAPTERS] == [
                b for _, b in CHAPTERS
            ]
        twin = replace(books[0], document_id="twin")  # of a site with the same pages
        elsewhere.forget(books[0].sha256, [twin])
        assert set(elsewhere.contents()) == {book.sha256 for book in books}
        for document_id in ids:
            assert live.status("DELETE", f"/v1/documents/{document_id}") == 204
        assert elsewhere.contents() == {}
        assert [*(settings.home / "uploads").glob("[!.]*")] == []
        elsewhere.sweep(())
        assert [*(tmp_path / "other" / "uploads").glob("*")] == []  # copies of what another server removed


def test_what_a_failed_upload_left_there_is_swept_a_day_later(url: str, tmp_path: Path) -> None:
    uploads = uploads_of(of(url, tmp_path))
    (tmp_path / "file").write_bytes(BOOK)
    uploads._folder.mkdir(parents=True)
    uploads.settle(Incoming(tmp_path / "file", "digest"), NAME)
    assert uploads.orphans(()) == {"digest": NAME}
    assert uploads.sweep(["digest"], older_than_s=60.0) == []
    assert uploads.sweep(["digest"]) == [NAME]
    assert uploads.contents() == {} and uploads.find("digest") is None
    assert uploads.sweep(["digest"]) == []  # another server was quicker


def test_a_folder_that_an_interrupted_job_left_is_taken_again(tmp_path: Path) -> None:
    uploads = uploads_of(load_settings({"home": tmp_path}))
    for _ in range(2):
        incoming = uploads.take_in_folder([(PurePosixPath("1.md"), BytesIO(BOOK))])
        path = uploads.settle(incoming, "Kernels")
    assert (path / "1.md").read_bytes() == BOOK
    assert [each.name for each in (tmp_path / "uploads").iterdir()] == [incoming.sha256]


@pytest.mark.parametrize("url", ["books", "file:books", "file://host/books", "s4://books/uploads", "nothing://"])
def test_an_address_that_no_uploads_can_have_is_refused_with_one_that_they_can(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        uploads_of(of(url, tmp_path))
    assert url in refused.value.message and "UPLOADS_URL" in refused.value.hint


@pytest.mark.parametrize("url", ["sftp://me:hunter2@host/books", "simplecache::sftp://me:hunter2@host/books"])
def test_a_password_in_the_address_is_refused_and_not_shown(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        of(url, tmp_path)
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"


def test_a_backup_says_that_uploads_kept_elsewhere_are_not_in_it(coalesce, home: Path, monkeypatch) -> None:
    monkeypatch.setenv("COALESCE_UPLOADS_URL", "memory://elsewhere")
    (home / "questions").mkdir(parents=True)
    assert "memory://elsewhere" in coalesce.says("backup", str(home.parent / "saved.zip"))


@pytest.mark.slow
def test_a_storage_that_cannot_be_used_stops_the_start_with_what_to_do(s3: str, tmp_path: Path, monkeypatch) -> None:
    import s3fs

    def refusal(url: str) -> CoalesceError:
        settings = of(url, tmp_path / uuid.uuid4().hex)
        with running(settings, wait=False) as live:
            live.services._thread.join(30)
            error = live.services.preparation.error
        assert isinstance(error, StorageUnavailable)
        return error

    assert "bucket" in refusal("s3://no-such-bucket/uploads").hint
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    assert "AWS_ACCESS_KEY_ID" in refusal("s3://books/uploads").hint
