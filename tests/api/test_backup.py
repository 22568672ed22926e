"""`coalesce backup` and `restore`: one moment of the home in one file; what is not such a file changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.backup import MANIFEST, restore_backup, write_backup
from api.settings import load_settings
from indexes.errors import CoalesceError, Conflict
from indexes.library import open_library
from indexes.settings import IndexSettings
from rag.conversations import ConversationStore


@pytest.fixture
def full(home: Path, hashed_home: Path) -> Path:
    """A home with a book, a conversation, an upload, settings, and what no backup has."""
    shutil.copytree(hashed_home, home)
    for name, text in {
        "uploads/digest/book.md": "# A book",
        "questions/mine.jsonl": "{}",
        "coalesce.toml": "port = 8001\n",
        "models/big/model.safetensors": "weights",
        "errors.log": "an error",
        "locks/a.lock": "",
        "uploads/.partial-1": "half",
        "vectors.faiss": "made again",
    }.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    store = ConversationStore(home / "conversations.sqlite3")
    store.create("kept")
    store.close()
    return home


def titles(home: Path) -> list[str]:
    store = ConversationStore(home / "conversations.sqlite3")
    found = [conversation.title for conversation in store.list()]
    store.close()
    return found


def files(home: Path) -> set[str]:
    return {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}


def test_a_backup_holds_all_that_a_user_made_and_restores_it_into_an_empty_home(full, tmp_path, coalesce):
    target = tmp_path / "backup.zip"
    made = coalesce.gives("backup", str(target))
    assert target.stat().st_mode & 0o77 == 0, "settings may hold keys"
    new = tmp_path / "new"
    found = coalesce.gives("--home", str(new), "restore", str(target))
    assert found["files"] == made["files"]
    own = {
        "coalesce.toml",
        "questions/mine.jsonl",
        "uploads/digest/book.md",
        "library.sqlite3",
        "conversations.sqlite3",
    }
    assert files(new) == own and (new / "coalesce.toml").stat().st_mode & 0o77 == 0
    (before, after) = (open_library(IndexSettings(each)).documents() for each in (full, new))
    assert (before, titles(new)) == (after, ["kept"])
    assert files(full) >= own | {"uploads/.partial-1"} and not list(full.glob(".backup-*"))
    coalesce.says("backup", str(tmp_path / "with.zip"), "--models")
    with zipfile.ZipFile(tmp_path / "with.zip") as archive:
        assert "models/big/model.safetensors" in archive.namelist()
    for wrong, named in ((target, "exists"), (full / "b.zip", "home"), (tmp_path / "none" / "b.zip", "folder")):
        assert named in coalesce.refuses("backup", str(wrong))


def test_a_home_that_is_not_empty_is_left_alone(full, tmp_path):
    write_backup(load_settings({"home": full}), tmp_path / "b.zip")
    before = files(full)
    with pytest.raises(Conflict, match="not empty"):
        restore_backup(full, tmp_path / "b.zip")
    assert files(full) == before


def test_a_book_that_is_removed_while_the_archive_is_written_is_in_it_with_its_file(full, tmp_path, monkeypatch):
    def removed(_: Path) -> None:
        shutil.rmtree(full / "uploads" / "digest", ignore_errors=True)

    monkeypatch.setattr("api.backup.damage", removed)  # looked for after the moment of the backup, before it is packed
    write_backup(load_settings({"home": full}), tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        assert archive.read("uploads/digest/book.md") == b"# A book"


def rewritten(change: Callable[[dict[str, bytes]], None]) -> Callable[[Path], None]:
    """The archive with other members; its manifest may name them or not."""

    def harm(path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        change(members)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)

    return harm


def manifest(**changed: Any) -> Callable[[Path], None]:
    def change(members: dict[str, bytes]) -> None:
        members[MANIFEST] = json.dumps(json.loads(members[MANIFEST]) | changed).encode()

    return rewritten(change)


def named(name: str, content: bytes = b"x", **entry: Any) -> Callable[[Path], None]:
    """A member that the manifest names, as it should or not."""
    from hashlib import sha256

    def change(members: dict[str, bytes]) -> None:
        said = json.loads(members[MANIFEST])
        said["files"][name] = {"bytes": len(content), "sha256": sha256(content).hexdigest()} | entry
        members[MANIFEST] = json.dumps(said).encode()
        members[name] = content

    return rewritten(change)


def link(path: Path) -> None:
    named("uploads/link", b"/etc/passwd")(path)
    with zipfile.ZipFile(path) as archive:
        members = {entry: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for entry, content in members.items():
            if entry.filename == "uploads/link":
                entry.external_attr = 0o120777 << 16
            archive.writestr(entry, content)


REFUSED = {
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "a byte changed": lambda path: path.write_bytes(path.read_bytes().replace(b"stored", b"change")),
    "not a zip file": lambda path: path.write_bytes(b"a letter"),
    "another program's": rewritten(lambda members: members.pop(MANIFEST) and None),
    "later": manifest(version=2),
    "a damaged manifest": manifest(files={"a": "b"}),
    "a file less": rewritten(lambda members: members.pop("coalesce.toml") and None),
    "a file more": rewritten(lambda members: members.update({"more": b"x"})),
    "out of the home": named("../outside"),
    "an absolute path": named("/tmp/outside"),
    "a file as a folder": named("coalesce.toml/below"),
    "larger than it says": named("bomb", b"0" * 10_000_000, bytes=10),
    "larger than the disk": named("bomb", b"0", bytes=1 << 60),
    "a damaged database": named("study.sqlite3", b"not a database " * 100),
}


@pytest.mark.parametrize("harm", REFUSED.values(), ids=REFUSED)
def test_what_is_not_a_whole_backup_of_this_version_is_refused_and_changes_nothing(harm, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "coalesce.toml").write_text("# plain text\n" * 3 + "port = 8001\n")
    (source / "book.pdf").write_bytes(b"stored as it is")
    archive = tmp_path / "b.zip"
    write_backup(load_settings({"home": source}), archive)
    harm(archive)
    new = tmp_path / "new"
    with pytest.raises(CoalesceError) as refused:
        restore_backup(new, archive)
    assert not new.exists()
    assert refused.value.hint and files(tmp_path) == {"b.zip", *(f"source/{name}" for name in files(source))}


def test_a_link_in_an_archive_is_a_file_with_its_text(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "coalesce.toml").write_text("")
    write_backup(load_settings({"home": source}), tmp_path / "b.zip")
    link(tmp_path / "b.zip")
    restore_backup(tmp_path / "new", tmp_path / "b.zip")
    assert not (tmp_path / "new" / "uploads" / "link").is_symlink()


def test_a_damaged_database_is_not_backed_up(full, tmp_path):
    whole = (full / "library.sqlite3").read_bytes()
    (full / "library.sqlite3").write_bytes(whole[:40960] + os.urandom(40960) + whole[81920:])
    with pytest.raises(CoalesceError, match="damaged"):
        write_backup(load_settings({"home": full}), tmp_path / "b.zip")
    assert not (tmp_path / "b.zip").exists() and not list(tmp_path.glob(".*"))
