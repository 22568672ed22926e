"""`coalesce questions export` and `coalesce dataset`: statuses, one JSON document, and what may not leave."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from evals import questions as question_bank
from rag.tuning.data import read_dataset


def test_the_bank_is_written_for_trainers_and_measuring_questions_only_when_allowed(tmp_path: Path, coalesce) -> None:
    command = ["dataset", "--from-bank", "--format", "alpaca", "--out", str(tmp_path / "data")]
    for split, allowed in (("tune", []), ("test", ["--allow-test"])):
        document = coalesce.gives(*command, "--split", split, *allowed)
        rows = json.loads(Path(document["data_file"]).read_text("utf-8"))
        assert (document["split"], document["rows"]) == (split, len(rows))
        assert f"coalesce_{split}" in json.loads(Path(document["info_file"]).read_text("utf-8"))
    assert "--allow-test" in coalesce.refuses(*command, "--split", "dev")


@pytest.mark.integration
def test_rows_show_what_the_search_finds_in_the_books(tmp_path: Path, coalesce) -> None:
    book, file, out = tmp_path / "book.md", tmp_path / "mine.jsonl", tmp_path / "data"
    parts = {"Warps": "A warp is a group of 32 threads.", "Banks": "Shared memory has 32 banks.", "Clocks": "Slow."}
    book.write_text("# GPUs\n\n" + "\n\n".join(f"## {name}\n\n{text}" for name, text in parts.items()), "utf-8")
    gold = [{"file": "book.md", "heading": "Warps", "part": 1, "evidence": "a group of 32 threads"}]
    asked = {"id": "a", "question": "What is a warp?", "answer": "A group of 32 threads.", "gold": gold}
    file.write_text(json.dumps(asked), "utf-8")
    command = ["dataset", str(book), "--questions", str(file), "--out", str(out)]
    report = coalesce.gives(*command, "--passages", "2", "--passage-tokens", "200")
    rows = [json.loads(line) for line in Path(report["data_file"]).read_text("utf-8").splitlines()]
    shown = [passage["text"] for passage in rows[0]["passages"]]
    place = next(i for i, text in enumerate(shown, 1) if "32 threads" in text)
    assert rows[0]["messages"][-1]["content"] == f"A group of 32 threads. [{place}]"
    coalesce.says(*command)  # closed book rows beside them
    assert [len(read_dataset(out / name)) for name in ("mine.jsonl", "mine_passages.jsonl")] == [1, len(rows)]
    command = ["dataset", "--questions", str(file), "--passages", "2", "--out", str(out)]
    assert "name the books" in coalesce.refuses(*command)


def test_the_bank_leaves_as_a_table_for_a_spreadsheet(tmp_path: Path, coalesce) -> None:
    out = tmp_path / "bank.csv"
    document = coalesce.gives("questions", "export", "--out", str(out))
    assert document["questions"] == len(question_bank.load_questions(out)) == len(question_bank.load_bank())


@pytest.mark.integration
def test_questions_are_made_listed_edited_dropped_imported_and_asked_one_by_one(
    tmp_path: Path, coalesce, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, table = tmp_path / "post.md", tmp_path / "mine.csv"
    book.write_text(
        "# Post\n\nA daemon is a patient porter that carries letters between clients. Every daemon carries 32 letters "
        "of equal weight. The Daily Letter Office (DLO) counts what the daemon carries at noon.\n",
        "utf-8",
    )
    table.write_text("question,answer\nWho reads letters?,=Nobody.\n", "utf-8")
    coalesce.gives("add", str(book))
    made = coalesce.gives("questions", "make", "Post")["questions"]
    assert {question["kind"] for question in made} >= {"definition", "abbreviation"}
    first, second = made[0]["id"], made[1]["id"]
    (edited,) = coalesce.gives("questions", "edit", first, "--question", "What is it?")["questions"]
    assert (edited["question"], edited["accepted"]) == ("What is it?", True)
    assert coalesce.gives("questions", "edit", second, "--drop") == {"dropped": second}
    assert "none" in coalesce.refuses("questions", "edit", "none")
    assert "essay" in coalesce.refuses("questions", "make", "Post", "--types", "essay")
    assert coalesce.gives("questions", "import", str(table), "--book", "Post")["questions"] == 1
    coalesce.gives("questions", "make", "Post")
    listed = {question["id"]: question for question in coalesce.gives("questions", "list", "Post")["questions"]}
    assert listed[first]["question"] == "What is it?" and second not in listed
    assert "=Nobody." in [question["answer"] for question in listed.values()]
    assert "What is it?" in coalesce.says("questions", "list", "Post")
    assert f"{len(listed) - 1:,} questions" in coalesce.says("questions", "list", "Post", "--limit", "1")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert [mark["question_id"] for mark in coalesce.gives("quiz", "--book", "Post", "--only", first)["marks"]] == [
        first
    ]
