"""`coalesce questions export` and `coalesce dataset`: statuses, one JSON document, and what may not leave."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from api.cli import run
from evals import questions as question_bank
from evals.text_match import normalize
from evals.training_rows import library_home
from indexes.library import open_library
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings
from rag.generators.prompts import REFUSAL
from rag.tuning.data import read_dataset


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALESCE_HOME", str(tmp_path / "home"))


def test_the_bank_is_written_for_trainers(tmp_path: Path, capsys) -> None:
    assert run(["dataset", "--from-bank", "--format", "alpaca", "--out", str(tmp_path / "data"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = json.loads(Path(document["data_file"]).read_text("utf-8"))
    assert (document["split"], document["questions"], document["rows"]) == ("tune", 238, len(rows))
    assert "coalesce_tune" in json.loads(Path(document["info_file"]).read_text("utf-8"))


@pytest.mark.parametrize("split", ["dev", "test"])
def test_measuring_questions_stay_back_unless_allowed(tmp_path: Path, split, capsys) -> None:
    command = ["dataset", "--from-bank", "--split", split, "--out", str(tmp_path / "data")]
    assert run(command) == 1
    assert "--allow-test" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    assert run([*command, "--allow-test"]) == 0
    assert "rows" in capsys.readouterr().out


@pytest.mark.integration
def test_the_banks_rows_show_the_right_passage_anywhere_and_refuse_where_it_is_missing(
    tmp_path: Path, hashed, hashed_home: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr("evals.training_rows.open_library", partial(open_library, embedder=hashed))
    shutil.copytree(hashed_home, library_home([SAMPLE_PATH], IndexSettings(tmp_path / "home")))
    command = ["dataset", "--from-bank", "--passages", "3", "--limit", "40", "--out", str(tmp_path / "data"), "--json"]
    assert run(command) == 0
    report = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in Path(report["data_file"]).read_text("utf-8").splitlines()]
    asked = {wording: q for q in question_bank.load_bank(split="tune") for wording in (q.question, *q.paraphrases)}
    places: Counter[int] = Counter()
    without = 0
    for row in rows:
        *_, question, answer = (message["content"] for message in row["messages"])
        evidence = [normalize(gold.evidence) for gold in asked[question].gold]
        right = {
            place
            for place, passage in enumerate(row["passages"], 1)
            if any(sentence in normalize(passage["text"]) for sentence in evidence)
        }
        without += not right
        assert right or answer == REFUSAL
        assert {int(number) for number in re.findall(r"\[(\d)\]", answer)} <= right
        if right and len(row["passages"]) == 3:
            places.update(right)
    assert without == report["refusals"] == round(len(rows) / 20)
    assert all(places[place] > places.total() / 4 for place in (1, 2, 3)), places


@pytest.mark.integration
def test_rows_show_what_the_search_finds_in_the_books(tmp_path: Path, capsys) -> None:
    book, file, out = tmp_path / "book.md", tmp_path / "mine.jsonl", tmp_path / "data"
    parts = {"Warps": "A warp is a group of 32 threads.", "Banks": "Shared memory has 32 banks.", "Clocks": "Slow."}
    book.write_text("# GPUs\n\n" + "\n\n".join(f"## {name}\n\n{text}" for name, text in parts.items()), "utf-8")
    gold = [{"file": "book.md", "heading": "Warps", "part": 1, "evidence": "a group of 32 threads"}]
    asked = {"id": "a", "question": "What is a warp?", "answer": "A group of 32 threads.", "gold": gold}
    file.write_text(json.dumps(asked), "utf-8")
    command = ["dataset", str(book), "--questions", str(file), "--out", str(out), "--json"]
    assert run([*command, "--passages", "2", "--passage-tokens", "200"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in Path(report["data_file"]).read_text("utf-8").splitlines()]
    shown = [passage["text"] for passage in rows[0]["passages"]]
    place = next(i for i, text in enumerate(shown, 1) if "32 threads" in text)
    assert rows[0]["messages"][-1]["content"] == f"A group of 32 threads. [{place}]"
    assert run(command) == 0  # closed book rows beside them
    assert [len(read_dataset(out / name)) for name in ("mine.jsonl", "mine_passages.jsonl")] == [1, len(rows)]
    assert run(["dataset", "--questions", str(file), "--passages", "2", "--out", str(out)]) == 1
    assert "name the books" in capsys.readouterr().err


def test_the_bank_leaves_as_a_table_for_a_spreadsheet(tmp_path: Path, capsys) -> None:
    out = tmp_path / "bank.csv"
    assert run(["questions", "export", "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["questions"] == len(question_bank.load_questions(out)) == len(question_bank.load_bank())
