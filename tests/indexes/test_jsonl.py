"""Laws of the JSON Lines files: every fault named by file and line, no half line left behind, a full disk said."""

from __future__ import annotations

import errno
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from indexes.disk import disk_error, make_folder, new_folder
from indexes.errors import Conflict, HomeNotWritable, InvalidInput, StorageFull
from indexes.jsonl import JsonlLog, read_jsonl, to_jsonl

ROWS = [{"key": 1, "text": "zwei\u2028Zeilen, 一行"}, {"key": 2, "text": ""}]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path, InvalidInput)]


def test_rows_read_back_as_written_also_with_other_line_separators_in_them(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(to_jsonl(ROWS), "utf-8")
    assert rows_of(tmp_path / "a.jsonl") == ROWS
    log = JsonlLog(tmp_path / "deep" / "b.jsonl")
    for row in ROWS:
        log.append(row)
    assert list(log.read()) == [("b.jsonl:1", ROWS[0]), ("b.jsonl:2", ROWS[1])]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1}\n\n{broken', r"a\.jsonl:3: not JSON"),
        (b"[1]", r"a\.jsonl:1: expected an object, found list"),
        (b"[" * 100_000, r"a\.jsonl:1: not JSON"),
        (b"1" * 5000, r"a\.jsonl:1: not JSON"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_fault_is_named_by_file_and_line_in_the_callers_error(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(Conflict, match=said):
        list(read_jsonl(tmp_path / "a.jsonl", Conflict))


def test_a_missing_file_is_an_error_a_missing_log_is_empty_and_a_broken_line_of_a_log_no_loss(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"gone\.jsonl does not exist"):
        rows_of(tmp_path / "gone.jsonl")
    assert list(JsonlLog(tmp_path / "gone.jsonl").read()) == []
    (tmp_path / "a.jsonl").write_text('{"key": 1}\nrubbish\n{"key": 2}\n')
    with pytest.raises(Conflict, match=r"a\.jsonl:2"):
        list(JsonlLog(tmp_path / "a.jsonl").read())


@pytest.mark.parametrize(("tail", "kept"), [(b'{"key": 3, "te', 2), (b'{"key": 3}', 3), (b"\xe4\xb8", 2), (b"", 2)])
def test_a_last_line_cut_short_is_repaired_and_appending_goes_on(tmp_path: Path, tail: bytes, kept: int) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(to_jsonl(ROWS).encode() + tail)
    log = JsonlLog(file)
    log.append({"key": "next"})
    rows = [row for _, row in log.read()]
    assert len(rows) == kept + 1
    assert rows[-1] == {"key": "next"}


def test_a_row_that_a_full_disk_cut_short_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    log = JsonlLog(tmp_path / "a.jsonl")
    log.append(ROWS[0])
    whole = log.path.read_bytes()

    class FullDisk(FileIO):
        def write(self, data: Any) -> int:
            super().write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda path, mode: FullDisk(path, mode))
    with pytest.raises(StorageFull, match=r"a\.jsonl"):
        log.append(ROWS[1])
    monkeypatch.undo()
    assert log.path.read_bytes() == whole


def test_a_full_disk_is_known_in_every_librarys_words() -> None:
    wrapped = ValueError("could not save")
    wrapped.__cause__ = OSError(errno.EDQUOT, "Disk quota exceeded")
    torch, safetensors = "[enforce fail at inline_container.cc] unexpected pos 1 vs 2", "I/O error: (os error 28)"
    full = [OSError(errno.ENOSPC, "x"), wrapped, RuntimeError(torch), RuntimeError(safetensors)]
    for error in full:
        assert isinstance(disk_error(error, "a"), StorageFull)
    for number in (errno.EACCES, errno.EROFS):
        assert isinstance(disk_error(OSError(number, "denied"), "a"), HomeNotWritable)
    assert disk_error(ValueError("full of errors"), "a") is None


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as part:
        (part / "a").write_text("x")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "a").read_text() == "x"
    with pytest.raises(Conflict, match="already exists"), new_folder(tmp_path / "out"):
        pass
    with pytest.raises(StorageFull, match="nothing was kept"), new_folder(tmp_path / "full"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    with pytest.raises(InvalidInput, match="cannot be made"):
        make_folder(tmp_path / "out" / "a" / "b")
